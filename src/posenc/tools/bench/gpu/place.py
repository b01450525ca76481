"""Where steps run and at which sizes: on a GPU, or in a dry run on the CPU, where Triton interprets the kernels."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.tools.bench.measure import Inputs

PHASES = ("forward", "training")
DECODING, ROTATION = "decoding", "rotation"


@dataclass(frozen=True)
class Sizes:
    """What is measured: batches of ``tokens`` in all, in rows of each of ``lengths``; caches and rotations as long."""

    lengths: tuple[int, ...]
    tokens: int
    heads: int
    head_dim: int
    wide: int  # channels of a head that are timed too
    rotated: tuple[int, int]  # the batch and the heads of rotations, of the last of these lengths
    decoded: int  # the batch of a decoding step
    real: int  # tokens of comparisons with double precision
    widths: tuple[int, ...]  # channels of a head in them
    copied: int  # bytes
    multiplied: int  # rows and columns of matrices


REAL = Sizes(
    lengths=(4096, 16384), tokens=16384, heads=16, head_dim=64, wide=128, rotated=(4, 16), decoded=8,
    real=4113, widths=(64, 80, 128, 256), copied=2**30, multiplied=8192,
)  # fmt: skip
SMALL = Sizes(
    lengths=(48, 80), tokens=80, heads=2, head_dim=16, wide=24, rotated=(1, 2), decoded=2,
    real=37, widths=(16, 24), copied=2**16, multiplied=64,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A GPU at real sizes or, dry, the CPU at small ones."""

    is_dry: bool = False

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.is_dry else "cuda")

    @property
    def sizes(self) -> Sizes:
        return SMALL if self.is_dry else REAL

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def finish(self) -> None:
        """Waits for the device, and raises an error that it found late."""
        if not self.is_dry:
            torch.cuda.synchronize()

    def drawn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
        """Fixed Gaussian numbers."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=dtype, device=self.device)

    def inputs(self, length: int, phase: str) -> Inputs:
        """Queries, keys, values and the gradient of the output, in bfloat16. A phase may say how many channels a head
        has, as in "training/128"; wider heads are fewer. In decoding a sequence has one query, and heads are grouped by
        four."""
        phase, _, channels = phase.partition("/")
        width = int(channels or self.sizes.head_dim)
        heads = self.sizes.heads * self.sizes.head_dim // width
        batch, groups, queries = max(1, self.sizes.tokens // length), heads, length
        if phase == DECODING:
            batch, groups, queries = self.sizes.decoded, max(1, heads // 4), 1
        asked, kept = (batch, heads, queries, width), (batch, groups, length, width)
        query, key, value, gradient = (
            self.drawn(*shape, seed=seed) for seed, shape in enumerate((asked, kept, kept, asked))
        )
        training = phase == "training"
        query, key, value = (x.requires_grad_(training) for x in (query, key, value))
        return Inputs(query, key, value, gradient, training)
