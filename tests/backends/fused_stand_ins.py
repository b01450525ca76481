"""Stand-ins on the CPU for PyTorch's fused kernels on a GPU: the same operators, with the same demands on their
arguments and the same corners, in dense arithmetic.

What they demand is what PyTorch's `flash_api.cpp`, `attention_backward.cu` and `kernel_backward.h` check, or read
without a check: strides, alignment, a log-sum-exp that is contiguous or padded, an output that lies token by token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ROW = 32  # the efficient kernel pads its log-sum-exp to a multiple of this


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of (batch, heads, tokens, width); 0 and inf of a row without keys."""
    scores = q @ k.mT * scale + bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
    return weights @ v, lse.masked_fill(lse == -torch.inf, torch.inf)


def gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of query, key and value, from the output and log-sum-exp that are given."""
    weights = (q @ k.mT * scale + bias - lse[..., None]).exp()
    ds = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True))
    return ds @ k * scale, ds.mT @ q * scale, weights.mT @ dout


def windowed(queries: int, keys: int, is_causal: bool, left: int, right: int) -> Tensor:
    """The mask of FlashAttention, with its own reading of windows that are wider than the keys."""
    left, right = (-1 if end >= keys else end for end in (left, right))
    right = 0 if is_causal else right
    if left < 0 <= right:
        left = keys
    if right < 0 <= left:
        right = keys
    row = torch.arange(queries)[:, None] + keys - queries
    column = torch.arange(keys)
    hidden = torch.zeros(queries, keys, dtype=torch.bool)
    if left >= 0 or right >= 0:
        hidden = (column < row - left) | (column > row + right)
    return torch.zeros(queries, keys, dtype=torch.float64).masked_fill(hidden, -torch.inf)


def check_aligned(*tensors: Tensor) -> None:
    """Each row begins at a multiple of 16 bytes, and is contiguous."""
    for x in tensors:
        assert x.dim() == 4
        assert x.stride(-1) == 1
        in_16_bytes = max(1, 16 // x.element_size())
        at = (*(s for s, n in zip(x.stride()[:-1], x.shape, strict=False) if n > 1), x.storage_offset())
        assert not any(n % in_16_bytes for n in at), (x.shape, x.stride(), x.storage_offset())


class StandIns:
    """The operators, which record what they are called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []  # kernel, queries, keys

    def flash(  # type: ignore[no-untyped-def]
        self, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
        scale=None, window_size_left=None, window_size_right=None, **rest,
    ):  # fmt: skip
        """_flash_attention_forward."""
        self.check_flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p)
        self.calls.append(("flash", max_q, max_k))
        q, k, v = self.grouped(query, key, value)
        bias = windowed(max_q, max_k, is_causal, window_size_left, window_size_right)
        out, lse = attend(q, k, v, bias, scale)
        state = torch.empty(2, dtype=torch.uint64)
        lse = lse.to(torch.promote_types(query.dtype, torch.float32))
        return out.transpose(1, 2).to(query.dtype), lse, state, state, query.new_empty(0)

    def flash_backward(  # type: ignore[no-untyped-def]
        self, dout, query, key, value, out, lse, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, seed,
        offset, *, scale=None, window_size_left=None, window_size_right=None,
    ):  # fmt: skip
        """_flash_attention_backward."""
        self.check_flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p)
        self.calls.append(("flash backward", max_q, max_k))
        assert out.dtype == dout.dtype == query.dtype
        assert lse.is_contiguous()
        assert lse.shape == (query.size(0), query.size(2), max_q)
        assert lse.dtype == torch.promote_types(query.dtype, torch.float32)
        q, k, v = self.grouped(query, key, value)
        bias = windowed(max_q, max_k, is_causal, window_size_left, window_size_right)
        do, o = (x.transpose(1, 2).double() for x in (dout, out))
        dq, dk, dv = gradients(do, q, k, v, o, lse, bias, scale)
        heads = (key.size(2), query.size(2) // key.size(2))
        dk, dv = (x.unflatten(1, heads).sum(2) for x in (dk, dv))
        return tuple(x.transpose(1, 2).to(query.dtype) for x in (dq, dk, dv))

    def check_flash(self, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p):  # type: ignore[no-untyped-def]
        """What both passes demand."""
        check_aligned(query, key, value)
        assert cum_seq_q is cum_seq_k is None
        assert (query.size(1), key.size(1), value.size(1)) == (max_q, max_k, max_k)
        assert query.size(-1) == key.size(-1) == value.size(-1) <= 256
        assert query.size(-1) % 8 == 0
        assert query.size(2) % key.size(2) == 0
        assert dropout_p == 0.0

    def grouped(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """(batch, heads, tokens, width) in double precision, the keys repeated for each query head."""
        q, k, v = (x.transpose(1, 2).double() for x in (query, key, value))
        return [q, *(x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))]

    def check_efficient(self, query, key, value, bias, dropout_p, is_causal):  # type: ignore[no-untyped-def]
        """What both passes demand; returns what is added to the scores."""
        check_aligned(query, key, value)
        assert query.size(1) == key.size(1) == value.size(1)  # no groups
        assert dropout_p == 0.0
        shape = (*query.shape[:3], key.size(2))
        if bias is not None:
            assert bias.dtype == query.dtype
            assert bias.shape == shape
            check_aligned(bias)
            assert bias.untyped_storage().nbytes() % 16 == 0  # rows are read in steps of 16 bytes
        added = torch.zeros(shape, dtype=torch.float64) if bias is None else bias.double()
        hidden = torch.ones(shape[2:], dtype=torch.bool).triu_(1)  # causal from the top left
        return added.masked_fill(hidden, -torch.inf) if is_causal else added

    def efficient(  # type: ignore[no-untyped-def]
        self, query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
    ):
        """_scaled_dot_product_efficient_attention."""
        assert compute_log_sumexp
        self.calls.append(("efficient", query.size(2), key.size(2)))
        added = self.check_efficient(query, key, value, attn_bias, dropout_p, is_causal)
        out, lse = attend(query.double(), key.double(), value.double(), added, scale)
        lse = lse.to(torch.promote_types(query.dtype, torch.float32))
        lse = torch.nn.functional.pad(lse, (0, -lse.size(2) % ROW), value=torch.inf)
        out = out.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
        state = torch.empty((), dtype=torch.int64)
        return out, lse, state, state

    def efficient_backward(  # type: ignore[no-untyped-def]
        self, dout, query, key, value, attn_bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False,
        *, scale=None,
    ):  # fmt: skip
        """_scaled_dot_product_efficient_attention_backward."""
        self.calls.append(("efficient backward", query.size(2), key.size(2)))
        assert grad_input_mask == [True, True, True, False]
        added = self.check_efficient(query, key, value, attn_bias, dropout_p, is_causal)
        queries = query.size(2)
        assert lse.shape == (*query.shape[:2], -(-queries // ROW) * ROW)
        assert lse.stride(2) == 1
        assert bool((lse[..., queries:] == torch.inf).all())  # no weights there
        by_token = out.transpose(1, 2)  # whose rows are read as if its heads lay side by side
        strides = (by_token.stride(0), out.size(1) * out.size(3), by_token.stride(2), 1)
        o = by_token.as_strided(by_token.shape, strides, out.storage_offset()).transpose(1, 2)
        tensors = [x.double() for x in (dout, query, key, value, o)]
        found = gradients(*tensors, lse[..., :queries].double(), added, scale)
        return *(x.to(query.dtype) for x in found), query.new_empty(0)


@contextmanager
def stand_ins() -> Iterator[StandIns]:
    """The operators on the CPU, which has none of its own."""
    made = StandIns()
    library: Any = torch.library.Library("aten", "IMPL")
    try:
        for name, function in (
            ("_flash_attention_forward", made.flash),
            ("_flash_attention_backward", made.flash_backward),
            ("_scaled_dot_product_efficient_attention", made.efficient),
            ("_scaled_dot_product_efficient_attention_backward", made.efficient_backward),
        ):
            library.impl(name, function, "CPU")
        yield made
    finally:
        library._destroy()
