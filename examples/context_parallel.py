"""Trains a small decoder on texts whose tokens are divided among processes.

    torchrun --nproc-per-node 2 examples/context_parallel.py

Every process draws the same texts, keeps its own tokens of them, and attends to those of the others. The losses are the
same for any number of processes, to rounding; ``--order`` and ``--method`` choose how tokens are divided.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import posenc
from posenc import Positions
from posenc.distributed import Sharding, sharded
from posenc.models import Decoder

VOCABULARY, DIM, LAYERS, HEADS, TOKENS = 32, 32, 2, 4, 96


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
    scheme = posenc.RoPE(DIM // HEADS) + posenc.T5(HEADS, 8, 32)
    model = DistributedDataParallel(Decoder(VOCABULARY, DIM, LAYERS, HEADS, position=scheme).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step in range(options.steps):
        texts = torch.randint(VOCABULARY, (4, TOKENS + 1)).to(device)
        texts[:, 1::2] = texts[:, :-1:2]  # every other token repeats the one before it
        # Two documents packed into one row, whose positions restart; they do not attend to one another.
        sharding = Sharding(Positions.packed([60, TOKENS - 60], device=device), order=options.order)
        tokens, targets = sharding.shard(texts[:, :-1]), sharding.shard(texts[:, 1:])
        with sharded(sharding, options.method):
            logits = model(tokens, positions=sharding.positions)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (4 * TOKENS)
        optimizer.zero_grad()
        (total * sharding.world).backward()  # since DDP averages gradients over processes
        optimizer.step()
        loss = total.detach()
        dist.all_reduce(loss)
        if sharding.rank == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
    dist.barrier()  # a process that ends early would break the others' connections
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
