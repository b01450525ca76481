"""`merge`: attention over all keys from attention over parts of them, such as shards of a long text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import shown


def merge(
    parts: Sequence[tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]],
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]:
    """Merges attention over disjoint parts of the keys into attention over all keys.

    Formula: lse = log sum_n e^(lse_n), out = sum_n e^(lse_n - lse) out_n, for parts (out_n, lse_n) returned by
    ``attention(..., return_lse=True)``. Differentiable. A query without any visible key in any part gives zeros and a
    log-sum-exp of -inf. Raises ValueError for parts of different shapes.
    """
    pairs = isinstance(parts, Sequence) and all(isinstance(part, Sequence) and len(part) == 2 for part in parts)
    if not pairs or not parts:
        raise ValueError(f"parts must be pairs (out, lse), got {shown(parts)}")
    for out, lse in parts:
        if out.shape != parts[0][0].shape or lse.shape != out.shape[:-1]:
            shape = tuple(parts[0][0].shape)
            raise ValueError(
                f"parts must have shapes {shape} and {shape[:-1]}, got {tuple(out.shape)} and {tuple(lse.shape)}"
            )
    every = torch.stack([lse for _, lse in parts])
    blind = (every == -torch.inf).all(0)
    whole = every.masked_fill(blind, 0.0).logsumexp(0).masked_fill(blind, -torch.inf)
    shares = every.masked_fill(blind, 0.0).softmax(0).masked_fill(blind, 0.0)
    outs = torch.stack([out for out, _ in parts])
    return (shares[..., None] * outs.to(shares.dtype)).sum(0).to(outs.dtype), whole


def sink_of(sinks: Tensor, lse: Float[Tensor, "batch heads queries"]) -> Float[Tensor, "batch heads queries"]:
    """The sink of every row, one more key without a value, from those of `attention`, in the log-sum-exp's dtype."""
    sinks = sinks.to(lse.dtype)
    return (sinks if sinks.dim() == 3 else sinks[:, None]).expand_as(lse)
