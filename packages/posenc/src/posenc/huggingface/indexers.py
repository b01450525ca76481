"""Reads the indexers of sparse attention of a model that is asked: what it multiplies is recorded, and compared with
`Indexer` from what its linear layers gave to its scores and its choice."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.indexer import Indexer, best
from posenc.schemes.rope import RoPE

FEW = 3
"""Keys that indexers choose while they are asked, fewer than there are tokens."""


class Record(TorchFunctionMode):
    """What an indexer computed in one call: what its linear layers and norms gave, the weights last, and its products,
    of queries and keys, and of weights and scores."""

    def __init__(self, layer: int, top_k: int) -> None:
        super().__init__()
        self.layer, self.top_k = layer, top_k
        self.made: list[Tensor] = []
        self.products: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (nn.functional.linear, nn.functional.layer_norm):
            self.made.append(out)
        elif func is torch.matmul:
            self.products.append((args[0], out))
        return out


def record(model: nn.Module) -> None:
    """Every indexer of the model attaches a `Record` to the indices that it returns, of few keys."""
    for module in model.modules():
        counts: list[Any] = [getattr(module, name, None) for name in ("index_topk", "layer_idx")]
        if type(module).__name__.endswith("Indexer") and all(isinstance(count, int) for count in counts):
            module.forward = functools.partial(_recorded, module, module.forward, counts[0])
            module.index_topk = FEW  # type: ignore[assignment]


def _recorded(module: Any, forward: Any, top_k: int, *args: Any, **kwargs: Any) -> Any:
    with Record(module.layer_idx, top_k) as seen:
        indices = forward(*args, **kwargs)
    if isinstance(indices, Tensor):
        indices.record = seen  # type: ignore[attr-defined]
    return indices


def layer_of(call: Any) -> int:
    """The layer whose indexer gave the indices of a call."""
    seen = getattr(call.options["indices"], "record", None)
    if seen is None or len(seen.products) != 2:
        raise ValueError("attention gets indices, which no indexer that is known gave")
    return int(seen.layer)


def indexer_of(scheme: Scheme, call: Any, places: Tensor) -> Indexer:
    """The indexer that gives the scores and the choice of a layer, by the rotation of its attention in another layout
    or on other channels. ValueError, saying what was seen, if there is none."""
    seen, rope = call.options["indices"].record, next((part for part in scheme.parts if isinstance(part, RoPE)), None)
    if rope is None:
        raise ValueError("there is an indexer, and attention does not turn")
    heads, width = seen.products[0][0].shape[-2:]
    same: Any = {"scaling": rope.scaling, "allocation": rope.allocation, "axes": rope.axes}
    for layout, first in itertools.product(("half", "interleaved"), dict.fromkeys((0, width - rope.rotary_dim))):
        options = same | {"layout": layout, "rotary_dim": rope.rotary_dim, "first_channel": first}
        try:
            indexer = Indexer(heads, RoPE(width, rope.base, **options), seen.top_k)
            verify(indexer, call, places)
        except ValueError:
            continue
        return indexer
    raise ValueError(
        f"an indexer of {heads} heads of {width} channels does not turn {rope.rotary_dim} of them as attention does, "
        "in half or interleaved pairs of the first or the last"
    )


def verify(indexer: Indexer, call: Any, places: Tensor) -> None:
    """ValueError unless the indexer makes of what linear layers gave the scores and the choice that were recorded.

    The model computes phases in float32, which is off by p 2^-22 + 2^-20 of a vector at most, on both sides."""
    indices = call.options["indices"]
    *others, weights = (x.double() for x in indices.record.made)
    width, heads = indices.record.products[0][0].size(-1), indexer.num_heads
    query = next(x for x in others if x.size(-1) == heads * width).unflatten(-1, (heads, width)).transpose(1, 2)
    key = next(x for x in reversed(others) if x.size(-1) == width)
    theirs = indices.record.products[1][1][:, :, 0].double()
    at = torch.cat((places[:1].expand(query.size(2) - len(places)), places))  # tokens before, at the first place
    positions = Positions(at[None], order=torch.arange(len(at))[None])
    ours = indexer.scores(query, key[:, None], weights.mT, query_positions=positions)
    size = (query.norm(dim=-1) * weights.mT.abs()).sum(1)[..., None] * key.norm(dim=-1)[:, None]
    bound = size * (heads * width) ** -0.5 * (at[:, None].maximum(at) * 2**-21 + 2**-19)
    hidden = call.mask[:, 0] < 0
    chosen = torch.zeros_like(theirs, dtype=torch.bool).scatter_(-1, indices.long(), True) & ~hidden
    right = best(ours.masked_fill(hidden, -torch.inf), FEW)
    lost = (theirs * (right.double() - chosen.double())).sum(-1).abs()
    if indices.size(-1) != FEW or bool(((ours - theirs).abs() > bound).any() | (lost > 2 * FEW * bound.amax(-1)).any()):
        raise ValueError(f"scores are not those of {indexer}")
