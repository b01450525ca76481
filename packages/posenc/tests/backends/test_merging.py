"""Merging: attention over parts of the keys, put together, is attention over all of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import ALiBi, Positions, RoPE, Shaw, attention, merge

HEADS, TOKENS, HEAD_DIM = 2, 8, 4
SCHEME = RoPE(HEAD_DIM) + ALiBi(HEADS, "bidirectional") + Shaw(HEAD_DIM, 3)
SHARDS = {
    "the whole": [[*range(8)]],
    "contiguous": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "zigzag": [[0, 1, 6, 7], [2, 3, 4, 5]],
    "uneven": [[5], [], [7, 0, 1, 2, 3, 4, 6]],
}
POSITIONS = {
    "text": Positions.arange(TOKENS, start=3),
    "packed": Positions.packed([[3, 5], [2, 4]]),
    "padded": Positions.padded(torch.tensor([[False, False, True, True, True, True, True, True], [True] * 8])),
}


def qkv() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def part(
    tensors: list[Tensor], positions: Positions, keys: list[int] | None = None, **how: Any
) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys, with the log-sum-exp."""
    query, key, value = tensors
    index = torch.tensor([*range(TOKENS)] if keys is None else keys, dtype=torch.int64)
    encoding = SCHEME(positions, positions[index], dtype=torch.float64)
    out, lse = attention(query, key[:, :, index], value[:, :, index], encoding, return_lse=True, **how)
    return out, lse


def projected(out: Tensor, lse: Tensor) -> Tensor:
    """A number that depends on every output and on every log-sum-exp that is finite."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return (out * weights).sum() + (lse.masked_fill(lse == -torch.inf, 0.0) * weights[..., 0]).sum()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("place", POSITIONS)
@pytest.mark.parametrize("shards", SHARDS)
def test_shards_merged_are_the_whole_with_all_gradients(shards: str, place: str, causal: bool) -> None:
    tensors, positions = qkv(), POSITIONS[place]
    whole = part(tensors, positions, is_causal=causal)
    merged = merge([part(tensors, positions, keys, is_causal=causal) for keys in SHARDS[shards]])
    torch.testing.assert_close(merged, whole)
    leaves = [*tensors, *SCHEME.parameters()]
    for found, expected in zip(*(torch.autograd.grad(projected(*x), leaves) for x in (merged, whole)), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    parts = [(torch.randn(1, 2, 3, 4).to(dtype), torch.randn(1, 2, 3)) for _ in range(5)]
    out, lse = merge(parts)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    exact, _ = merge([(x.double(), y.double()) for x, y in parts])
    assert (out.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
