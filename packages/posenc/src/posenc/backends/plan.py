"""One plan for one pass: what attention decides before it reads a number, made once and kept with the encoding; and
schemes bound to default positions, kept while nothing that they read has changed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posenc import compat
from posenc.backends import bands, cache
from posenc.backends.cache import MAX_ENTRIES, cached
from posenc.backends.call import Backend, Call, Direct
from posenc.backends.native.library import missing
from posenc.backends.request import DTYPES, POSITIONS_REQUIRED_BY, Request, default_positions, is_autocast, of_scheme
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.pieces import gives_weights
from posenc.encoding.staleness import (
    MadeWith,
    are_equal,
    check_values,
    closed_over,
    is_readable,
    live,
    made_with,
    tensors_of,
    with_values,
)
from posenc.positions.tiles import Chunk
from posenc.scheme import Scheme, bare_parts

LONGEST = 2**15  # tokens; what is kept grows with them, and kernels soon take longer than binding
COMPARED_NUMBERS = 2**14  # numbers of parameters; comparing more takes longer than deriving tables from them
KNOWN = ("posenc.scheme", "torch.nn.modules.")  # whose classes compute from attributes and parameters alone
CONSTANT = (int, float, str, range, torch.dtype, type(None), nn.Module)
UNREAD = frozenset(vars(nn.Module())) - {"training"} | {cache.BOUND}


def bound(request: Request) -> Encoding | None:
    """The encoding of a request for a scheme, or none, at default positions, if it may be kept; else None.

    It belongs to a scheme of this package that reads only constants and its own parameters, which its terms read in
    each call, and that is called without hooks. Attributes and parameters are compared in every call.
    """
    scheme, query, key = request.encoding, request.query, request.key
    if isinstance(scheme, Encoding) or not compat.is_eager():
        return None
    if request.query_positions is not None or request.key_positions is not None:
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
        return cached(cache.texts, ends, key.device, plain)
    if POSITIONS_REQUIRED_BY or not isinstance(scheme, Scheme) or not type(scheme).__module__.startswith(KNOWN):
        return None
    state = _state(scheme)
    if state is None:
        return None
    store = cache.bound_of(scheme)
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
        at = cached(cache.texts, ends, key.device, plain)
        positions = at.query_positions, at.key_positions
        with live():
            made = of_scheme(scheme, *positions, dtype)  # first, since its errors are of all parts
            if store.may_stay is None:
                learned = [part for part in bare_parts(scheme) if any(True for _ in part.parameters())]
                store.may_stay = all(_is_lazy(of_scheme(part, *positions, dtype)) for part in learned)
        return made

    asked = *ends, dtype, torch.get_default_dtype(), is_autocast(query)
    found = cached(store, asked, key.device, make, lambda _: store.may_stay is True)
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


OPTIONS = frozenset((bool, int, float, str, type(None), Chunk))
TENSORS = {*compat.PLAIN, type(None)}


@dataclass(eq=False)
class Plan:
    """The checked arguments (`Request.settled`), the backend, and what it derives of them (`Call.store`). It has none
    of a layer's tensors.

    ``direct`` runs a call of this plan without a `Call`, where nothing is done to the inputs before the backend, nor to
    its output after it.
    """

    settled: Mapping[str, Any]
    run: bands.Run
    store: dict[str, Any] | None  # None: its encoding outlives changes of parameters, and they are large
    values: MadeWith = ()  # of an encoding that outlives changes of parameters: what ``store`` was derived from
    direct: Direct | None = None

    def renew(self) -> None:
        """Forgets what was derived from other values of the parameters, or from some that can no longer be compared."""
        if self.store is None or not all(is_readable(each.parameter) for each in self.values):
            self.store, self.direct, self.values = None, None, ()
        elif not are_equal(self.values):
            self.store.clear()
            self.values = with_values(self.values)


class Key(NamedTuple):
    """Where a plan is kept: None, nowhere. And whether its encoding is kept with a scheme that was passed unbound."""

    signature: Hashable
    is_of_scheme: bool


def planned(request: Request, backend: str) -> tuple[Plan | None, Key]:
    """The plan of a request, if there was a call like it, and the plan's key. Binds a scheme whose encoding is kept.

    A plan belongs to an encoding, an immutable value, and to everything else that a check or a choice reads; whether
    parameters or doors have changed since is checked in every call.
    """
    of_scheme = bound(request)
    if of_scheme is not None:
        request.encoding, request.align = of_scheme, None
    encoding, signature, plan = request.encoding, signature_of(request, backend), None
    if signature is not None and isinstance(encoding, Encoding):
        plan = encoding.plans.get(signature)
        if plan is not None and plan.store is not None and plan.values:
            plan.renew()
    if plan is not None and isinstance(encoding, Encoding):
        encoding.check_fresh()
        check_values(encoding._made_with)
        encoding.check_token_doors(request.query, request.key)
    return plan, Key(signature, of_scheme is not None)


def made(request: Request, backend: str, key: Key) -> tuple[Encoding, Call, Plan]:
    """The encoding, the call and a new plan, which is kept. Raises the errors of `attention`."""
    given = request.query, request.key, request.value
    encoding, settled, call = request.checked()
    run = bands.runner(call, backend)
    call.check()
    read = tuple(each.parameter for each in encoding._made_with) if key.is_of_scheme else ()
    is_small = sum(p.numel() for p in read) <= COMPARED_NUMBERS and all(map(is_readable, read))
    plan = Plan(settled, run, {} if is_small else None, with_values(made_with(read)) if is_small else ())
    if key.signature is not None:
        if len(encoding.plans) >= MAX_ENTRIES:
            encoding.plans.clear()
        encoding.plans[key.signature] = plan
        call.with_store(plan.store)
        turns_values = any(rotation.value is not None or rotation.output is not None for rotation in encoding.rotations)
        is_other = turns_values or request.sinks is not None or gives_weights(call.pieces)
        if isinstance(run, Backend) and not is_other and all(map(is_, given, (call.query, call.key, call.value))):
            plan.direct = run.direct_for(call)
    return encoding, call, plan


def check(request: Request, backend: str) -> None:
    """Raises the errors of `attention`, and makes the plan of the call."""
    plan, key = planned(request, backend)
    if plan is None:
        made(request, backend, key)


def signature_of(request: Request, backend: str) -> Hashable:
    """All that a plan depends on besides its encoding. None if no plan may be kept: without an encoding to keep it with
    or if its terms may read what nobody counts, for tensors of other classes, and where operations are traced."""
    encoding, query, window = request.encoding, request.query, request.window
    if not isinstance(encoding, Encoding) or not compat.is_eager():
        return None
    learns = encoding._learns()
    if learns is None or request.query_positions is not None or request.key_positions is not None:
        return None
    tensors = [query, request.key, request.value, request.attn_mask, request.sinks, request.key_norms]
    of_query, of_key = encoding.query_features, encoding.key_features
    if of_query or of_key:
        tensors += [*of_query.values(), *of_key.values()]
    ends = window if type(window) is tuple else (window,)
    options = (
        *(request.is_causal, request.dropout_p, request.scale, request.enable_gqa, request.return_lse),
        *(request.skip_below, backend, request.align, *ends),
    )
    kinds = tuple(map(type, options))  # since True == 1 == 1.0
    if not OPTIONS.issuperset(kinds) or not TENSORS.issuperset(map(type, tensors)) or query is None:
        return None
    autocast = torch.get_autocast_dtype(query.device.type) if is_autocast(query) else None
    return (
        *[x if x is None else (x.shape, x.stride(), x.dtype, x.device, x.requires_grad) for x in tensors],
        (*of_query, None, *of_key) if of_query or of_key else None,
        options,
        kinds,
        learns,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
        missing(torch.promote_types(query.dtype, torch.float32)) if query.device.type == "cpu" else None,
    )
