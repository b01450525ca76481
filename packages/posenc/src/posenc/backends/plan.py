"""One plan for one pass: what attention decides before it reads a number, made once and kept with the encoding."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posenc import compat
from posenc.backends import bands
from posenc.backends.bound import bound
from posenc.backends.call import Call
from posenc.backends.native.library import missing
from posenc.backends.request import Request, is_autocast
from posenc.encoding.encoding import Encoding
from posenc.encoding.staleness import check_values
from posenc.positions.tiles import Chunk

OPTIONS = frozenset((bool, int, float, str, type(None), Chunk))
TENSORS = {*compat.PLAIN, type(None)}
MOST = 16  # plans of one encoding: layers with other windows, heads or dtypes have plans of their own


@dataclass(frozen=True, eq=False)
class Plan:
    """The checked arguments (`Request.settled`), the backend, and what it derives of them (`Call.kept`). It has none of
    a layer's tensors."""

    settled: Mapping[str, Any]
    run: bands.Run
    kept: dict[str, Any] | None  # None: its encoding outlives changes of parameters


def planned(request: Request, backend: str) -> tuple[Encoding, Call, bands.Run]:
    """The encoding, the call and what runs it. Raises the errors of `attention`.

    A plan belongs to an encoding, an immutable value, and to everything else that a check or a choice reads; whether
    parameters or doors have changed since is checked in every call.
    """
    of_scheme = bound(request)
    if of_scheme is not None:
        request.encoding, request.align = of_scheme, None
    encoding, signature = request.encoding, signature_of(request, backend)
    if signature is not None and isinstance(encoding, Encoding):
        plan = encoding.plans.get(signature)
        if plan is not None:
            encoding.check_fresh()
            check_values(encoding._made_with)
            encoding.check_token_doors(request.query, request.key)
            return encoding, request.call(encoding, plan.settled, plan.kept), plan.run
    made, settled, call = request.checked()
    run = bands.runner(call, backend)
    call.check()
    if signature is not None:
        plan = Plan(settled, run, None if of_scheme is not None and made._made_with else {})
        if len(made.plans) >= MOST:
            made.plans.clear()
        made.plans[signature] = plan
        call.keeping(plan.kept)
    return made, call, run


def signature_of(request: Request, backend: str) -> Hashable:
    """All that a plan depends on besides its encoding. None if no plan may be kept: without an encoding to keep it with
    or if its terms may read what nobody counts, for tensors of other classes, and where operations are traced."""
    encoding, query, window = request.encoding, request.query, request.window
    if not isinstance(encoding, Encoding) or not compat.is_undisturbed():
        return None
    learns = encoding._learns()
    if learns is None or request.query_positions is not None or request.key_positions is not None:
        return None
    tensors = [query, request.key, request.value, request.attn_mask, request.sinks, request.key_norms]
    tensors += [*encoding.query_features.values(), *encoding.key_features.values()]
    ends = window if type(window) is tuple else (window,)
    options = (request.is_causal, request.dropout_p, request.scale, request.enable_gqa, request.return_lse, *ends)
    options += (request.skip_below, backend, request.align)
    kinds = tuple(map(type, options))  # since True == 1 == 1.0
    if not OPTIONS.issuperset(kinds) or not TENSORS.issuperset(map(type, tensors)) or query is None:
        return None
    autocast = torch.get_autocast_dtype(query.device.type) if is_autocast(query) else None
    return (
        tuple(x if x is None else (x.shape, x.stride(), x.dtype, x.device, x.requires_grad) for x in tensors),
        (*encoding.query_features, None, *encoding.key_features),
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
