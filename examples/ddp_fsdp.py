"""Trains a small decoder with a learned table and learned biases. Each process has some of the texts.

    torchrun --nproc-per-node 2 examples/ddp_fsdp.py
    torchrun --nproc-per-node 2 examples/ddp_fsdp.py --fsdp

By default every process has all parameters (DistributedDataParallel); with ``--fsdp`` each has a part of every one
(FSDP2). Losses and the gradients of the table and of the biases are the same for any number of processes, to rounding.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import posenc
from posenc import Positions
from posenc.models import Decoder, position_parameters

VOCABULARY, DIM, LAYERS, HEADS, TOKENS, TEXTS = 32, 32, 2, 4, 48, 4


def whole(x: Tensor) -> Tensor:
    """A tensor that may be divided among processes."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def train(steps: int, fsdp: bool, device: torch.device | str = "cpu") -> list[tuple[float, ...]]:
    """The loss of each step, and the norms of the gradients of the table and of the biases."""
    torch.manual_seed(0)  # the same weights and texts everywhere
    scheme = posenc.Learned(TOKENS, DIM) + posenc.T5(HEADS, 8, 32)
    model: torch.nn.Module = Decoder(VOCABULARY, DIM, LAYERS, HEADS, position=scheme).to(device)
    if fsdp:
        for block in model.trunk.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)  # and with it the scheme, which the layers share
    else:
        model = DistributedDataParallel(model)
    positional = list(position_parameters(model))  # of what is trained, so after wrapping
    others = [parameter for parameter in model.parameters() if all(parameter is not p for p in positional)]
    optimizer = torch.optim.AdamW([{"params": positional, "weight_decay": 0.0}, {"params": others}], lr=0.003)

    rank, world = dist.get_rank(), dist.get_world_size()
    found = []
    for _ in range(steps):
        texts = torch.randint(VOCABULARY, (TEXTS, TOKENS + 1))
        texts[:, 1::2] = texts[:, :-1:2]  # every other token repeats the one before it
        lengths = torch.randint(TOKENS // 2, TOKENS + 1, (TEXTS,))
        mine = slice(rank * TEXTS // world, (rank + 1) * TEXTS // world)
        mask = (torch.arange(TOKENS) < lengths[:, None])[mine].to(device)  # padding on the right
        logits = model(texts[mine, :-1].to(device), positions=Positions.padded(mask))
        losses = F.cross_entropy(logits.transpose(1, 2), texts[mine, 1:].to(device), reduction="none")
        # The mean over the tokens of all processes, which have different numbers of them. Both wrappers average
        # gradients over processes, so each process multiplies its part by their number.
        part = (losses * mask).sum() / lengths.sum().to(device)
        optimizer.zero_grad()
        (part * world).backward()
        norms = [whole(parameter.grad).norm().item() for parameter in positional if parameter.grad is not None]
        optimizer.step()
        loss = part.detach()
        dist.all_reduce(loss)
        found.append((loss.item(), *norms))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    for step, (loss, *norms) in enumerate(train(options.steps, options.fsdp, device)):
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.5f}, gradients of the table and the biases", *(f"{n:.5f}" for n in norms))
    dist.barrier()  # a process that ends early would break the others' connections
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
