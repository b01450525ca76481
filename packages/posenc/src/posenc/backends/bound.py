"""Schemes bound to default positions: kept for the next call with the same scheme, while nothing that they read has
changed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from posenc import compat
from posenc.backends.kept import kept
from posenc.backends.request import DTYPES, NO_DEFAULTS, Request, default_positions, is_autocast, of_scheme
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.pytree import closed_over, tensors_of
from posenc.encoding.staleness import live, made_with
from posenc.scheme import Scheme, bare_parts

LONGEST = 2**15  # tokens; what is kept grows with them, and kernels soon take longer than binding
KNOWN = ("posenc.scheme", "torch.nn.modules.")  # whose classes compute from attributes and parameters alone
CONSTANT = (int, float, str, range, torch.dtype, type(None), nn.Module)
UNREAD = frozenset(vars(nn.Module())) - {"training"} | {"_bound"}
_PLAIN: dict[Any, Encoding] = {}  # of positions alone


class Bound(dict[Any, Encoding]):
    """The latest encoding of a scheme, and all that it was made of. Copies of the scheme begin without one."""

    state: tuple[object, ...] = ()
    may_stay: bool | None = None  # None: not known yet

    def __reduce__(self) -> Any:
        return Bound, ()


def bound(request: Request) -> Encoding | None:
    """The encoding of a request for a scheme, or none, at default positions, if it may be kept; else None.

    It belongs to a scheme of this package that reads only constants and its own parameters, which its terms read in
    each call, and that is called without hooks. Attributes and parameters are compared in every call.
    """
    if not compat.is_undisturbed():
        return None
    scheme, query, key = request.encoding, request.query, request.key
    if isinstance(scheme, Encoding) or request.query_positions is not None or request.key_positions is not None:
        return None
    if not {type(query), type(key)}.issubset(compat.PLAIN) or {query.dtype, key.dtype} - DTYPES:
        return None
    if query.dim() != 4 or key.dim() != 4 or query.device != key.device:
        return None
    if not query.size(2) <= key.size(2) <= LONGEST:
        return None
    if request.align not in (None, "lower_right", "upper_left"):
        return None

    ends = query.size(2), key.size(2), request.align

    def plain() -> Encoding:
        positions = default_positions(query, key, None, None, request.align)
        return Encoding(*positions, context=Context())

    if scheme is None:
        return kept(_PLAIN, ends, key.device, plain)
    if NO_DEFAULTS or not isinstance(scheme, Scheme) or not type(scheme).__module__.startswith(KNOWN):
        return None
    state = _state(scheme)
    if state is None:
        return None
    store = vars(scheme).setdefault("_bound", Bound())
    if len(state) != len(store.state) or not all(map(is_, state, store.state)):
        store.clear()
        store.state, store.may_stay = state, None
        if not all(map(_is_constant, state)):
            store.state = ()  # such tensors may hold a graph
            return None
    if store.may_stay is False:
        return None
    dtype = torch.promote_types(query.dtype, torch.float32)

    def make() -> Encoding:
        store.clear()  # only the latest is kept
        at = kept(_PLAIN, ends, key.device, plain)
        positions = at.query_positions, at.key_positions
        with live():
            made = of_scheme(scheme, *positions, dtype)  # first, since its errors are of all parts
            if store.may_stay is None:
                learned = [part for part in bare_parts(scheme) if any(True for _ in part.parameters())]
                store.may_stay = all(_is_lazy(of_scheme(part, *positions, dtype)) for part in learned)
        return made

    asked = *ends, dtype, torch.get_default_dtype(), is_autocast(query)
    found = kept(store, asked, key.device, make, lambda _: store.may_stay is True)
    if found._made_with:  # read by terms in each call, so they may have changed
        object.__setattr__(found, "_made_with", made_with(each.parameter for each in found._made_with))
    return found


def _state(scheme: Scheme) -> tuple[object, ...] | None:
    """All that binding reads: modules with their attributes and parameters. None if it may read or call others."""
    found: list[object] = []
    for module in scheme.modules():
        if not type(module).__module__.startswith(KNOWN) or module._buffers or compat.is_hooked(module):
            return None
        found += (module, *(x for name, x in vars(module).items() if name not in UNREAD))
        found += module._parameters.values()
    return tuple(found)


def _is_constant(x: object) -> bool:
    """Whether x is a module, a parameter that is counted, or cannot change."""
    if isinstance(x, CONSTANT):
        return True
    if isinstance(x, Tensor):
        return type(x) is nn.Parameter and not x.is_inference()
    if isinstance(x, tuple):
        return all(map(_is_constant, x))
    if not is_dataclass(x) or not type(x).__module__.startswith("posenc."):
        return False
    return all(_is_constant(getattr(x, f.name)) for f in fields(x))


def _is_lazy(encoding: Encoding) -> bool:
    """Whether its terms read parameters in each call, so that it has no tensors but these."""
    of_pieces = tuple(piece.tensors for piece in encoding.pieces)
    terms = (*encoding.rotations, *encoding.pieces, *encoding.values)
    tensors = (*tensors_of((encoding.tables, encoding.rotations, of_pieces)), *closed_over(terms))
    return all(type(x) is nn.Parameter for x in tensors)
