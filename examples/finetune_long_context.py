"""Fine-tunes a Llama of transformers on texts longer than it was made for, whose tokens are divided among processes.

    torchrun --nproc-per-node 2 examples/finetune_long_context.py

The model is small and has random weights; replace `small_llama` by ``AutoModelForCausalLM.from_pretrained``. YaRN
stretches its rotary frequencies. Each row has two documents, whose positions restart. The losses are the same for any
number of processes, to rounding; ``--order`` and ``--method`` choose how tokens are divided.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import posenc
from posenc import Positions
from posenc.distributed import Sharding, sharded
from posenc.huggingface import patch

VOCABULARY, TRAINED, TOKENS = 64, 32, 128  # the length that the model was made for, and that of the texts


def small_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TRAINED,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", default="zigzag")
    parser.add_argument("--method", default="ring")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)

    torch.manual_seed(0)  # the same weights and texts everywhere
    llama = small_llama()
    patch(llama, posenc.YaRN(TOKENS / TRAINED, TRAINED))
    llama.set_attn_implementation("posenc")  # attends to the tokens of all processes
    model = DistributedDataParallel(llama.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step in range(options.steps):
        texts = torch.randint(VOCABULARY, (4, TOKENS + 1)).to(device)
        texts[:, 1::2] = texts[:, :-1:2]  # every other token repeats the one before it
        targets = texts[:, 1:].clone()
        targets[:, 79] = -100  # the last token of the first document has nothing to predict
        count = (targets != -100).sum()
        sharding = Sharding(Positions.packed([80, TOKENS - 80], device=device), order=options.order)
        with sharded(sharding, options.method):
            out = model(
                input_ids=sharding.shard(texts[:, :-1]),
                position_ids=sharding.positions.coords,  # of this process's tokens
                use_cache=False,
            )
        # Not labels= of transformers, which shifts labels within a shard.
        logits = out.logits.flatten(0, 1)
        total = F.cross_entropy(logits, sharding.shard(targets).flatten(), reduction="sum") / count
        optimizer.zero_grad()
        (total * sharding.world).backward()  # since DDP averages gradients over processes
        optimizer.step()
        loss = total.detach()
        dist.all_reduce(loss)
        if sharding.rank == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
