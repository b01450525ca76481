"""FlexAttention compiled: for all lengths, in tiles that fit a GPU.

Properties of FlexAttention and of the compiler (torch 2.13) that this file depends on:

- On CUDA a tile is 128 x 128 for 64 channels in half precision (torch 2.9 to 2.13, H100 and B200), and a number that is
  read for each pair of it does not fit. So scores are computed from indices where layouts are known, tiles are smaller
  where numbers are read for each pair, and again where a kernel does not fit all the same.
- Code for all lengths takes the remainder of each index by the length in each tile, since lengths need not be multiples
  of a block (without terms 0.58 ms for 0.42, H100). Where they are, that is said, and the code is as short as that for
  one length. So there are two compilations for all lengths.
- dynamo keeps 8 compilations of one function, then runs without compiling, with only a log message. Every kind of term,
  dtype and length is a compilation of the same function here, so the limit is raised, and exceeding it is an error
  (fullgraph).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask

from posenc import compat
from posenc.lowering.forms import ScoreFunction

BLOCK = 128  # tokens along each side of a block of the mask: the kernel's own size
COMPILATIONS = 256  # the maximum number of compilations

Options: TypeAlias = Any  # not flex.FlexKernelOptions, which lacks some of the kernel's
_BACKWARD = "bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"
SIZES: tuple[Callable[[], Options], ...] = (
    dict,
    lambda: {"BLOCK_N": 64, "fwd_num_warps": 8},
    lambda: {"BLOCK_N": 32, "bwd_num_stages": 1, **dict.fromkeys(_BACKWARD, 32)},
    lambda: {"BLOCK_M": 32, "BLOCK_N": 32, "bwd_num_stages": 1, **dict.fromkeys(_BACKWARD, 32)},
)
"""The kernel's sizes, from PyTorch's own to the smallest; functions, since numbers of a dict might become symbolic."""
_FITTING: dict[Hashable, int] = {}  # of what is known not to fit the first, the first that may
HALF = (torch.bfloat16, torch.float16)
NO_SIZES = "No valid triton configs"  # the error where a kernel does not fit


def attend(how: tuple[Any, ...], reads_pairs: bool) -> tuple[Tensor, Tensor | None]:
    """FlexAttention of ``how``, the rest of what `_attend` takes. ``reads_pairs``: a number is read for each pair.

    Raises RuntimeError if no size of the kernel fits the GPU.
    """
    query, key, value = how[:3]
    if query.device.type == "cpu":
        with compat.compilations(COMPILATIONS):
            return _compiled(False)(SIZES[0], False, *how)
    first = int(reads_pairs and query.dtype in HALF and query.size(-1) == 64)
    if torch.compiler.is_compiling():
        return _attend(SIZES[first], False, *how)
    kind = query.device, query.dtype, query.size(-1), value.size(-1), first, torch.is_grad_enabled()
    has_whole_blocks = query.size(2) % BLOCK == 0 and key.size(2) % BLOCK == 0
    for size in range(_FITTING.get(kind, first), len(SIZES)):
        try:
            with compat.compilations(COMPILATIONS), compat.eager_backward():
                return _compiled(True)(SIZES[size], has_whole_blocks, *how)
        except RuntimeError as error:
            if NO_SIZES not in str(error):
                raise
            last, _FITTING[kind] = error, min(size + 1, len(SIZES) - 1)
    channels = f"{query.dtype} with {query.size(-1)} channels"
    raise RuntimeError(
        f"no size of FlexAttention's kernel fits this GPU for {channels}: use another backend, such as 'chunked'"
    ) from last


@functools.cache
def _compiled(dynamic: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(_attend, dynamic=dynamic, fullgraph=True)


def _attend(
    size: Callable[[], Options],
    has_whole_blocks: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    function: ScoreFunction | None,
    blocks: BlockMask,
    scale: float,
    grouped: bool,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    options: Options = {**size(), "IS_DIVISIBLE": True} if has_whole_blocks else size()
    found: Any = flex.flex_attention(
        query, key, value, function, blocks, scale, grouped, kernel_options=options or None,
        return_aux=flex.AuxRequest(lse=True) if return_lse else None,
    )  # fmt: skip
    return (found[0], found[1].lse) if return_lse else (found, None)
