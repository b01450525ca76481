"""Merging: attention over parts of the keys, put together. tests/property holds it to attention over all of them."""

import pytest
import torch

from posenc import merge


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    parts = [(torch.randn(1, 2, 3, 4).to(dtype), torch.randn(1, 2, 3)) for _ in range(5)]
    out, lse = merge(parts)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    exact, _ = merge([(x.double(), y.double()) for x, y in parts])
    assert (out.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
