"""The triton backend: attention with vectors by distance on a GPU, without storing products for every distance."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from posenc.backends import blockwise
from posenc.backends.blockwise import KernelOperands, line_of, orders_seen, own_keys, seen_blocks
from posenc.backends.cache import cached
from posenc.backends.call import FEW_QUERIES, Backend, Call, Direct, Unless, _unseen, cleared
from posenc.backends.triton.operator import (
    GRID,
    WIDEST,
    Prepared,
    highest_of,
    is_interpreted,
    missing,
    share,
    too_many,
    triton,
)
from posenc.backends.triton.tasks import ANY, SPAN
from posenc.encoding.terms import Bias, Function, RelativeDot, Term
from posenc.rotation.phases import constant

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


KINDS: dict[type[Term], tuple[Unless, ...]] = blockwise.KINDS | {
    RelativeDot: (
        *blockwise.KINDS[RelativeDot],
        Unless("a key is multiplied with a vector", lambda score_term, call: score_term.side == "key"),
    ),
    Function: (
        blockwise.ONE_AXIS,
        Unless(
            "a score term is a piecewise linear function of both coordinates, which the kernel supports only for few "
            "queries and without gradients",
            lambda score_term, call: score_term.broken is not None and not _is_step(call),
        ),
        Unless(
            blockwise.BY_DISTANCE.reason,
            lambda score_term, call: score_term.broken is None and score_term.reads_coordinates,
        ),
        Unless(
            "a score term is a function of the score that the kernel does not support",
            lambda score_term, call: (
                score_term.broken is None and (score_term.formula != "relu times" or score_term.distance is None)
            ),
        ),
    ),
}


def _is_step(call: Call) -> bool:
    """Whether it is a step of decoding, for which there is a kernel that has no derivative of its own."""
    return call.has_few_queries and not torch.is_grad_enabled()


def _inputs(call: Call) -> str | None:
    device = call.query.device.type
    if device != "cuda" and not (device == "cpu" and is_interpreted()):
        return "it runs only on CUDA devices"
    if call.query.dtype not in DTYPES:
        return "it supports only float32, bfloat16 and float16"
    if not torch.compiler.is_compiling() and max(call.query.shape[:2]) > GRID:  # a graph serves all batches
        return too_many(*call.query.shape[:2])
    features = [
        score_term.feature
        for score_term in call.score_terms
        if isinstance(score_term, RelativeDot) and score_term.feature is not None
    ]
    joined = sum(call.query_features[name].size(-1) for name in features if name in call.query_features)
    widest = max(call.query.size(-1) + joined, call.value.size(-1))
    if widest > WIDEST:
        return f"it supports at most {WIDEST} channels, got {widest}"
    return None


FAR = 4096  # distances by which slopes are measured at least, so that rounding a bias does not matter


class _Lines(KernelOperands):
    """`KernelOperands` with short tables for biases that are linear in distance beyond a cutoff, and their "slopes"
    (heads or 1, 2): by how much the bias changes from distance to distance beyond the table, to the left and to the
    right."""

    tails = ("constant", "linear")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        biases = [score_term for score_term in self.call.score_terms if isinstance(score_term, Bias)]
        if any(bias.distance.tail == "linear" for bias in biases) and all(
            b.distance.tail in self.tails for b in biases
        ):
            self.tensors["slopes"] = reduce(torch.add, [self._slopes(bias) for bias in biases])

    def _slopes(self, bias: Bias) -> Tensor:
        """Those of one bias, measured over at least as many distances as lie before its cutoff, or up to its reach."""
        distance = bias.distance
        start = distance.past
        end = start + max(FAR, 1 << start.bit_length())
        if distance.reach is not None:
            start, end = (min(at, distance.reach[0] - 1) for at in (start, end))
        ends = constant(_on_both_sides, start, end, device=self.call.query.device)
        at = line_of(bias.at, distance, self.call, ends)
        return (at[:, 2:] - at[:, :2]) / max(end - start, 1)


def _on_both_sides(start: int, end: int, device: torch.device) -> Tensor:
    side = torch.arange(-1, 2, 2, device=device)  # made there: a copy would wait for the device
    return torch.cat((side * start, side * end))


def _long_tables(call: Call) -> str | None:
    """Why a table of distances cannot be stored: if a term is neither constant nor, as a bias, linear far away; or if
    distances are beyond the kernels' integers."""
    if not blockwise.distances_of(call) or not blockwise.is_spread(call):
        return None
    tails = {distance.tail for distance in blockwise.distances_of(call)}
    is_beyond = "linear" in tails and max(map(abs, blockwise.reach_of(call))) >= ANY // 2
    return blockwise.LONG if is_beyond or not tails.issubset(_Lines.tails) else None


def _prepared(call: Call) -> tuple[Prepared, Tensor, list[Tensor]]:
    """What calls of this plan have in common; and of this one the key and the tensors of terms."""
    lines: list[_Lines] = []

    def make() -> Prepared:
        copies = blockwise.copies_read(call)
        with blockwise.deriving(len(copies) > 0):
            lines.append(_Lines(call))
            given, names, *rest = lines[0].arguments()
        shared, skipping = blockwise.repeatable(given, copies) if copies else None, _skipping(call)
        is_fixed = blockwise.is_of_positions(call) and (shared is not None or not lines[0].learned)
        given = given if shared is None else shared
        tensors, is_kept = lines[0].tensors, is_fixed and call.store is not None
        if is_kept and "bias" in tensors and skipping[0] and not call.has_few_queries:
            given, names = [*given, highest_of(tensors)], f"{names} highest"
        # Few queries skip keys by their norms, without reading them.
        if call.key_norms is not None and lines[0].key is call.key and call.has_few_queries and skipping[0]:
            names = f"{names} key_norms"
        return Prepared(given if is_fixed else None, names, *rest, call.scale, *skipping, is_shared=len(copies) > 0)

    prepared = cached(call.store, "triton", call.query.device, make)
    key, given = call.key, prepared.given
    if given is None:
        with blockwise.deriving(prepared.is_shared):
            of = lines[0] if lines else _Lines(call)
            given = [x.contiguous() for x in of.tensors.values()]
        key = of.key.to(call.key.dtype)
    if prepared.names[-1:] == ["key_norms"]:
        assert call.key_norms is not None
        norms = call.key_norms.float()
        given = [*given, norms if norms.stride(-1) == 1 else norms.contiguous()]
    return prepared, key, list(given)


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    call = call if _is_step(call) else cleared(call)  # the kernel of a step reads only what queries see
    prepared, key, given = _prepared(call)
    out, lse = triton(call.query, key, call.value, given, *prepared.rest, prepared=prepared)
    return out, lse if call.return_lse else None


def _direct(call: Call) -> Direct | None:
    """If all tokens are known to take part, and no term has tensors of a layer."""
    store, device = call.store, call.query.device
    if store is None or call.key_norms is not None or call.rotation is not None:
        return None
    if not _is_step(call) and _unseen(call) != (None, None):
        return None

    def prepared() -> Prepared | None:
        """Those of the current stream, if all calls have the tensors of terms in common."""
        found: Prepared | None = cached(store, "triton", device, lambda: None, lambda found: found is not None)
        return found if found is not None and found.is_complete else None

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        common = prepared()
        if common is None:
            return None
        out: tuple[Tensor, Tensor] = triton(query, key, value, common.given, *common.rest, prepared=common)
        return out

    return run if prepared() is not None else None


def _skipping(call: Call) -> tuple[float, int]:
    """The fraction of a row's weight that may be skipped, 0 if no term goes on falling with the distance; and the index
    difference of a query's own key, -1 if it is not known to attend to it."""
    falls = any(term.falls for term in call.score_terms)
    own = own_keys(call) if falls else None
    return call.skip_below if falls else 0.0, -1 if own is None else own


@torch.no_grad()
def counted_share(call: Call) -> float:
    """The fraction of blocks with unmasked pairs that is computed. Reads tensor values."""
    if call.query.size(2) < FEW_QUERIES:  # which skip by themselves
        return 1.0
    prepared, key, given = _prepared(call)
    counted = prepared.counted(call.query, key, call.value, given)
    if counted is None:
        return 1.0
    of_query, of_key = call.query_positions, call.key_positions
    seen = *orders_seen(of_query.order, call.visibility), of_key.order
    some, _ = seen_blocks(of_query.document, of_key.document, *seen, SPAN)
    return share(some, counted)


TRITON = Backend(
    "triton",
    _run,
    KINDS,
    first=(_inputs, blockwise.inputs),
    last=(blockwise.order, blockwise.lines_known, _long_tables, lambda call: missing()),
    direct_for=_direct,
)
