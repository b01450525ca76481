"""The native backend: the CPU kernel for terms by distance, one parallel loop over independent tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.backends import blockwise
from posenc.backends.blockwise import FUNCTIONS, KernelOperands, refused_plane
from posenc.backends.call import Backend, Call, Direct, Unless, cleared
from posenc.backends.native import operator
from posenc.backends.native.library import missing, multiplies_bfloat16
from posenc.backends.native.operator import Prepared, bounds_of
from posenc.encoding.terms import Bias, Function, RelativeDot, Term, Value


def _of_score(reason: str, holds: Callable[[Function, Call], bool]) -> Unless:
    """A condition on functions that are not piecewise linear ones of both coordinates."""
    return Unless(reason, lambda term, call: term.broken is None and holds(term, call))


BESIDE = "a score term that is neither a bias nor a product with the query depends on several coordinates"

KINDS: dict[type[Term], tuple[Unless, ...]] = blockwise.KINDS | {
    Bias: (),  # biases of -inf and planes too
    RelativeDot: (
        blockwise.NO_SEGMENTS,
        Unless(BESIDE, lambda term, call: term.is_planar and term.side == "key"),
        Unless("a vector depends on several coordinates at once", lambda term, call: term.distance.axis is None),
    ),
    Function: (
        Unless(BESIDE, lambda term, call: term.is_planar),
        _of_score(*blockwise.BY_DISTANCE),
        _of_score(
            "a score term is a function of the score that the kernel does not support",
            lambda term, call: term.formula not in FUNCTIONS or term.distance is None,
        ),
    ),
    Value: (Unless("vectors of the output depend on several coordinates", lambda term, call: term.is_planar),),
}


def _device(call: Call) -> str | None:
    return None if call.query.device.type == "cpu" else "it runs only on the CPU"


def _functions(call: Call) -> str | None:
    """Why functions of this call cannot be combined, with one another or with planar terms."""
    functions = [term for term in call.score_terms if isinstance(term, Function)]
    if sum(term.broken is not None for term in functions) > 1:
        return "there is more than one piecewise linear function of both coordinates"
    if any(term.broken is None for term in functions) and any(term.is_planar for term in call.score_terms):
        return "a function of the score is combined with terms of several coordinates"
    return None


def _long_tables(call: Call) -> str | None:
    """Why a table of distances cannot be stored. Functions, products with keys, and entries that end are not supported
    over such ranges either, though their tables may be short."""
    is_other = any(
        isinstance(p, Function) or (isinstance(p, RelativeDot) and p.side == "key") for p in call.score_terms
    )
    is_long = any(is_other or d.reach is not None or d.tail != "constant" for d in blockwise.distances_of(call))
    return blockwise.LONG if is_long and blockwise.is_spread(call) else None


def _given(call: Call) -> KernelOperands:
    given = KernelOperands(call)
    if call.key_norms is not None and given.key is call.key:  # a vector added to the key changes its norm
        given.tensors["key_norms"] = call.key_norms.to(call.dtype)
    return given


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    if any(term.is_planar for term in call.score_terms):  # else only what queries see is read
        call = cleared(call)
    prepared: Prepared | None = None if call.store is None else call.store.get("native")
    key, tensors = call.key, None if prepared is None else prepared.given
    if prepared is None or tensors is None:
        is_fixed = call.store is not None and call.key_norms is None and blockwise.is_of_positions(call)
        learned = blockwise.copies_read(call) if prepared is None and is_fixed else []
        is_shared = len(learned) > 0 if prepared is None else prepared.is_shared
        with blockwise.deriving(is_shared):
            given = _given(call)
            key, (tensors, *rest) = given.key, _arguments(call, given)
        if prepared is None:
            shared = blockwise.repeatable(tensors, learned) if learned else None
            tensors = tensors if shared is None else shared
            is_fixed = is_fixed and (shared is not None or not given.learned)
            rest = [*rest, call.scale, call.skip_below]  # dynamo of torch 2.9 takes it for a tuple, which has no +=
            prepared = Prepared(_dtype_of(call), is_shared, tensors if is_fixed else None, *rest)
            if call.store is not None:
                call.store["native"] = prepared
    out, lse = operator.native(*_operands(call, key), tensors, *prepared.rest, prepared=prepared)
    return out.to(call.query.dtype), lse if call.return_lse else None


def _direct(call: Call) -> Direct | None:
    prepared: Prepared | None = None if call.store is None else call.store.get("native")
    if prepared is None or prepared.given is None or any(term.is_planar for term in call.score_terms):
        return None
    return prepared.attend


def _arguments(call: Call, given: KernelOperands) -> tuple[Any, ...]:
    if call.rotation is None:
        return given.arguments()
    for side, x, rotation in (("query", call.query, call.rotation.query), ("key", call.key, call.rotation.key)):
        for name in ("cos", "sin"):
            angle = getattr(rotation, name).to(call.dtype)
            given.tensors[f"{side}_{name}"] = angle.expand(-1, -1, x.size(2), -1)
    return given.arguments([call.rotation.query.first, operator.LAYOUTS.index(call.rotation.query.layout)])


def keeps_bfloat16(call: Call) -> bool:
    """Whether the kernel multiplies in bfloat16: if the processor supports it, and no key is multiplied with vectors.
    Otherwise half precision is converted to float32."""
    meets = any(isinstance(p, RelativeDot) and p.side == "key" and not p.is_planar for p in call.score_terms)
    return call.query.dtype == torch.bfloat16 and not meets and multiplies_bfloat16()


def _dtype_of(call: Call) -> torch.dtype:
    """The dtype of the kernel's operands."""
    return torch.bfloat16 if keeps_bfloat16(call) else call.dtype


def _operands(call: Call, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _dtype_of(call)
    return call.query.to(dtype), key.to(dtype), call.value.to(dtype)


@torch.no_grad()
def skips_keys(call: Call) -> bool:
    """Whether the kernel skips keys below ``skip_below`` in this call without reading them."""
    given = _given(call)
    query, key, _ = _operands(call, given.key)
    return len(bounds_of(query, key, given.tensors, given.function, call.scale, call.skip_below)) > 0


NATIVE = Backend(
    "native",
    _run,
    KINDS,
    first=(_device, blockwise.inputs),
    last=(
        refused_plane,
        _functions,
        blockwise.order,
        blockwise.lines_known,
        _long_tables,
        lambda call: missing(call.dtype),
    ),
    rotates=True,
    direct_for=_direct,
)
