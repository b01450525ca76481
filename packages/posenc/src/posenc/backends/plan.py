"""The way of a call: finds its plan, what attention decides before it reads a number, or makes it, and runs it. A plan
is kept with the encoding, and the encoding of a scheme at default positions while nothing that it read has changed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from posenc import compat
from posenc.backends import bands, cache
from posenc.backends.bands import sink_of
from posenc.backends.cache import MAX_ENTRIES, OfScheme, cached
from posenc.backends.call import Backend, Call, Direct
from posenc.backends.request import DTYPES, POSITIONS_REQUIRED_BY, Request, default_positions, of_scheme
from posenc.encoding.encoding import Encoding
from posenc.encoding.staleness import MadeWith, are_equal, is_readable, live, made_with, with_values
from posenc.encoding.terms import gives_weights
from posenc.positions.tiles import Chunk
from posenc.scheme import Scheme, bare_parts

LONGEST = 2**15  # tokens; what is kept grows with them, and kernels soon take longer than binding
COMPARED_NUMBERS = 2**20  # numbers of parameters; comparing more takes 0.1 ms
KNOWN = ("posenc.scheme", "torch.nn.modules.")  # whose classes compute from attributes and parameters alone
CONSTANT = (int, float, str, range, torch.dtype, type(None), nn.Module)
UNREAD = frozenset(vars(nn.Module())) - {"training"}

OPTIONS = frozenset((bool, int, float, str, type(None), Chunk))
TENSORS = {*compat.PLAIN, type(None)}


@dataclass(eq=False)
class Plan:
    """The checked arguments (`Request.settled`), the backend, and what it derives of them (`Call.store`). It has none
    of a layer's tensors.

    ``direct`` runs a call of this plan without a `Call`. It is found after the first call, where ``may_be_direct``:
    nothing is done to the inputs before the backend, nor to its output after it.
    """

    settled: Mapping[str, Any]
    run: bands.Run
    store: dict[str, Any] | None  # None: its encoding outlives changes of parameters, and they are large
    values: MadeWith = ()  # of an encoding that outlives changes of parameters: what ``store`` was derived from
    may_be_direct: bool = False
    direct: Direct | None = None

    def renew(self) -> None:
        """Forgets what was derived from other values of the parameters, or from some that can no longer be compared."""
        if self.store is None or not all(is_readable(each.parameter) for each in self.values):
            self.store, self.may_be_direct, self.direct, self.values = None, False, None, ()
        elif not are_equal(self.values):
            self.store.clear()
            self.direct = None
            self.values = with_values(self.values)


def attend(request: Request) -> tuple[Tensor, Tensor | None]:
    """Output and, where the plan has it, the log-sum-exp of every row."""
    encoding, is_of_scheme = encoding_of(request)
    signature = None if encoding is None else signature_of(request, encoding)
    plan = None if encoding is None or signature is None else encoding.plans.get(signature)
    if plan is not None and encoding is not None:
        if plan.values:
            plan.renew()
        encoding._check_usable(request.query, request.key)
        if plan.direct is not None:
            found = plan.direct(request.query, request.key, request.value)
            if found is not None:
                return found
        request = request._replace(encoding=encoding).with_equal_batch()
        call = request.call(plan.settled, plan.store)
    else:
        plan, request, call = make_plan(request, encoding, signature, is_of_scheme)
    # Autocast would cast the bias together with the query: a bfloat16 ALiBi has 769 values over 4096 keys.
    with compat.without_autocast(request.query):
        found = _finished(request, call, *plan.run(call))
    if plan.may_be_direct:
        assert isinstance(plan.run, Backend)
        plan.direct = plan.run.direct_for(call)
        plan.may_be_direct = plan.direct is not None
    return found


def _finished(request: Request, call: Call, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The output of a backend after what backends know nothing of: weights that do not sum to one, sinks and rotated
    outputs."""
    if gives_weights(call.score_terms):
        assert lse is not None
        out = (out.to(lse.dtype) * lse.exp()[..., None]).to(out.dtype)  # undo the normalization
    if request.sinks is not None:
        assert lse is not None
        sink = sink_of(request.sinks, lse)
        out = (out.to(lse.dtype) * (lse - sink).sigmoid()[..., None]).to(out.dtype)
        lse = torch.logaddexp(lse, sink)
    encoding = request.encoding
    assert isinstance(encoding, Encoding)
    return encoding.rotate_output(out) if encoding.rotations else out, lse


def make_plan(
    request: Request, encoding: Encoding | None, signature: Hashable, is_of_scheme: bool
) -> tuple[Plan, Request, Call]:
    """A new plan, the request with its encoding, and the call. Raises the errors of `attention`. The plan is kept with
    the encoding where there is a signature; ``is_of_scheme``: its encoding outlives changes of parameters."""
    inputs = request.query, request.key, request.value
    if is_of_scheme:
        request = request._replace(encoding=encoding, options=request.options._replace(align=None))
    request, settled, call = request.checked()
    assert isinstance(request.encoding, Encoding)
    encoding = request.encoding
    with compat.without_saved_tensors_hooks():  # checkpointing does not choose again when it runs a layer again
        run = bands.runner(call, request.options.backend)
    call.check()
    read = tuple(each.parameter for each in encoding._made_with) if is_of_scheme else ()
    is_small = sum(p.numel() for p in read) <= COMPARED_NUMBERS and all(map(is_readable, read))
    plan = Plan(settled, run, {} if is_small else None, with_values(made_with(read)) if is_small else ())
    if signature is None:
        return plan, request, call
    if len(encoding.plans) >= MAX_ENTRIES:
        encoding.plans.clear()
    encoding.plans[signature] = plan
    call.with_store(plan.store)
    turns_values = any(rotation.value is not None or rotation.output is not None for rotation in encoding.rotations)
    is_other = turns_values or request.sinks is not None or gives_weights(call.score_terms)
    is_as_given = all(map(is_, inputs, (call.query, call.key, call.value)))
    plan.may_be_direct = isinstance(run, Backend) and not is_other and is_as_given
    return plan, request, call


def check(request: Request) -> None:
    """Raises the errors of `attention`, and makes the plan of the call."""
    encoding, is_of_scheme = encoding_of(request)
    signature = None if encoding is None else signature_of(request, encoding)
    if encoding is None or signature not in encoding.plans:
        make_plan(request, encoding, signature, is_of_scheme)
    else:
        encoding._check_usable(request.query, request.key)


def signature_of(request: Request, encoding: Encoding) -> Hashable:
    """All that a plan depends on besides its encoding. None if no plan may be kept: if the encoding's terms may read
    what nobody counts, for tensors of other classes, and where operations are traced."""
    learns = encoding._learns()
    if learns is None or not compat.is_eager():
        return None
    query, key, value, _, query_positions, key_positions, *others, options = request
    if query_positions is not None or key_positions is not None:
        return None
    tensors = [query, key, value, *others]
    of_query, of_key = encoding.query_features, encoding.key_features
    if of_query or of_key:
        tensors += [*of_query.values(), *of_key.values()]
    window = options.window
    kinds = tuple(map(type, options if type(window) is not tuple else (*options, *window)))  # since True == 1 == 1.0
    if not TENSORS.issuperset(map(type, tensors)) or query is None or not OPTIONS.issuperset(kinds):
        return None
    autocast = torch.get_autocast_dtype(query.device.type) if compat.is_autocast(query) else None
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
    )


# -- the encoding of a scheme ------------------------------------------------------------------------------------------


def encoding_of(request: Request) -> tuple[Encoding | None, bool]:
    """The encoding of a request, and whether it is one that is kept for a scheme, or for none, at default positions.
    None if it must be made for this call alone.

    It belongs to a scheme of this package that reads only constants and its own parameters, which its terms read in
    each call, and that is called without hooks. Attributes and parameters are compared in every call.
    """
    scheme = request.encoding
    if isinstance(scheme, Encoding):
        return scheme, False
    found = _stored_encoding(request, scheme) if compat.is_eager() else None
    return found, found is not None


def _stored_encoding(request: Request, scheme: object) -> Encoding | None:
    """That of `encoding_of` for a scheme or None, found or made."""
    query, key, align = request.query, request.key, request.options.align
    if request.query_positions is not None or request.key_positions is not None:
        return None
    if not {type(query), type(key)}.issubset(compat.PLAIN) or {query.dtype, key.dtype} - DTYPES:
        return None
    if query.dim() != 4 or key.dim() != 4 or query.device != key.device:
        return None
    if not query.size(2) <= key.size(2) <= LONGEST:
        return None
    if align not in (None, "lower_right", "upper_left"):
        return None

    ends = query.size(2), key.size(2), align

    def plain() -> Encoding:
        return Encoding(*default_positions(query, key, None, None, align))

    if scheme is None:
        return cached(cache.texts, ends, key.device, plain)
    if POSITIONS_REQUIRED_BY or not isinstance(scheme, Scheme) or not type(scheme).__module__.startswith(KNOWN):
        return None
    state = _state(scheme)
    if state is None:
        return None
    latest = cache.schemes.get(scheme)
    if latest is None or len(state) != len(latest.state) or not all(map(is_, state, latest.state)):
        if not all(map(_is_constant, state)):
            cache.schemes.pop(scheme, None)  # such tensors may hold a graph
            return None
        latest = cache.schemes[scheme] = OfScheme(state)
    if latest.may_stay is False:
        return None
    dtype = torch.promote_types(query.dtype, torch.float32)

    def make() -> Encoding:
        latest.encodings.clear()  # only the latest is kept
        at = cached(cache.texts, ends, key.device, plain)
        positions = at.query_positions, at.key_positions
        with live(is_apart=True):
            made = of_scheme(scheme, *positions, dtype)  # first, since its errors are of all parts
            if latest.may_stay is None:
                learned = [part for part in bare_parts(scheme) if any(True for _ in part.parameters())]
                latest.may_stay = all(_is_lazy(of_scheme(part, *positions, dtype)) for part in learned)
        return made

    asked = *ends, dtype, torch.get_default_dtype(), compat.is_autocast(query)
    found = cached(latest.encodings, asked, key.device, make, lambda _: latest.may_stay is True)
    if found._made_with:  # read by terms in each call, so they may have changed
        object.__setattr__(found, "_made_with", made_with(each.parameter for each in found._made_with))
    return found


def _state(scheme: Scheme) -> tuple[object, ...] | None:
    """All that binding reads: the modules in a scheme, and the attributes and parameters of all. None if it may read or
    call others."""
    found: list[object] = []
    for module in scheme.modules():
        if not type(module).__module__.startswith(KNOWN) or module._buffers or compat.is_hooked(module):
            return None
        found += () if module is scheme else (module,)
        found += (x for name, x in vars(module).items() if name not in UNREAD)
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
    return all(type(x) is nn.Parameter for x in (*encoding.tables, *encoding.tensors()))
