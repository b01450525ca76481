"""The kernels against attention in double precision: output, log-sum-exp and every gradient."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.tools.bench.gpu.clocks import NO_GRAPHS, captured
from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.step import Result, Step, called
from posenc.tools.bench.gpu.ways import scheme_of
from posenc.tools.bench.measure import LeftOutError

TRUTH = "chunked"  # in double precision; and in the kernels' own, for how exact that is
SINGLE = 2.0**-24
POISONED = range(8, 28)  # blocks of 2^n numbers that are NaN

Found = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A call: a scheme, heads, tokens, and where these stand."""

    scheme: str
    tokens: int
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    dtype: torch.dtype = torch.bfloat16
    at: str = "text"  # or "packed", "padded", "window", "both", "strided"
    backend: str = "triton"


class Call:
    """The tensors of a case, and what is computed of them."""

    def __init__(self, place: Place, case: Case) -> None:
        self.place, self.case = place, case
        self.weights: list[Tensor] = []  # of the results in a loss
        rows = 2 if case.at == "padded" else 1
        shapes = [(rows, n, case.tokens, case.head_dim) for n in (case.heads, case.kv_heads, case.kv_heads)]
        self.tensors = [place.drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
        if case.at == "strided":  # queries, keys and values of one projection
            joined = torch.cat([x.transpose(1, 2) for x in self.tensors], 2)
            parts = joined.split([x.size(1) for x in self.tensors], 2)
            self.tensors = [x.transpose(1, 2) for x in parts]
        name = f"{case.scheme}, bidirectional" if (case.scheme, case.at) == ("alibi", "both") else case.scheme
        self.scheme = scheme_of(place, name, case.heads, case.head_dim, case.kv_heads)
        if self.scheme.features:
            raise LeftOutError("it needs projections of a layer")
        self.how: dict[str, Any] = {"is_causal": case.at != "both"}
        if case.at == "window":
            self.how["window"] = case.tokens // 3
        n = case.tokens
        if case.at == "packed":
            lengths = [[n // 3, n - n // 3 - n // 4, n // 4]]
            self.how["query_positions"] = Positions.packed(lengths).with_layout().to(place.device)
        if case.at == "padded":
            mask = torch.ones(2, n, dtype=torch.bool)
            mask[0, : n // 5] = mask[1, n - n // 3 :] = False
            self.how["query_positions"] = Positions.padded(mask).with_layout().to(place.device)

    def leaves(self, dtype: torch.dtype) -> tuple[list[Tensor], Scheme]:
        """The tensors and the scheme in some precision; parameters in single precision at least."""
        scheme = copy.deepcopy(self.scheme).to(torch.promote_types(dtype, torch.float32))
        return [x.detach().to(dtype).requires_grad_() for x in self.tensors], scheme

    def run(self, backend: str, dtype: torch.dtype) -> Found:
        """Results by name."""
        tensors, scheme = self.leaves(dtype)
        return self.results(tensors, scheme, self.attend(backend, tensors, scheme))

    def attend(self, backend: str, tensors: list[Tensor], scheme: Scheme) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        query, key, value = tensors
        out = posenc.attention(query, key, value, scheme, **self.how, backend=backend, return_lse=True)
        assert isinstance(out, tuple)
        return out

    def results(self, tensors: list[Tensor], scheme: Scheme, outs: tuple[Tensor, Tensor]) -> Found:
        """The outputs, and the gradients of a fixed sum of them."""
        named = dict(zip(("query", "key", "value"), tensors, strict=True)) | dict(scheme.named_parameters())
        finite = [x.masked_fill(x == -torch.inf, 0.0) for x in outs]
        if not self.weights:  # once, since a graph cannot capture it
            self.weights = [self.place.drawn(*x.shape, seed=9 + n) for n, x in enumerate(finite)]
        loss = torch.stack([(x * w.to(x.dtype)).sum() for x, w in zip(finite, self.weights, strict=True)]).sum()
        gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        found = dict(zip(("output", "log-sum-exp"), (x.detach() for x in outs), strict=True))
        return found | {f"gradient of {name}": x for name, x in zip(named, gradients, strict=True)}


def compared(place: Place, case: Case) -> Result:
    """The norm of the error of each result, and what it may be: twice that of attention in the same precision, and four
    roundings, of weights, of their gradients, of tables and of the result. Rounding the score and the log-sum-exp of a
    weight, which is made anew in the backward pass, comes to it."""
    call = Call(place, case)
    truth = call.run(TRUTH, torch.float64)
    plain = _errors(call.run(TRUTH, case.dtype), truth)
    poison(place)
    found = _errors(call.run(case.backend, case.dtype), truth)
    lse = truth["log-sum-exp"]
    highest = float(lse.masked_fill(lse == -torch.inf, 0.0).abs().max())
    u = torch.finfo(case.dtype).eps / 2
    room = 4 * u + 4 * SINGLE * (1 + highest)
    rows = {}
    for name, expected in truth.items():
        size = float(expected.masked_fill(expected == -torch.inf, 0.0).norm())
        rows[name] = [found[name] / size, (2 * plain[name] + room * size) / size] if size else [found[name], 0.0]
    worst = max(rows, key=lambda name: rows[name][0] / rows[name][1] if rows[name][1] else rows[name][0])
    # NaN is not below anything.
    passed = all(error <= allowed for error, allowed in rows.values())
    return {"passed": passed, "worst": worst, "errors": {name: [f"{x:.2e}" for x in row] for name, row in rows.items()}}


def _errors(found: Found, truth: Found) -> dict[str, float]:
    """The norms of the differences; infinite where rows that see nothing are not the same."""
    errors = {}
    for name, expected in truth.items():
        nothing = expected == -torch.inf
        same = torch.equal(nothing, found[name] == -torch.inf)
        difference = (found[name].double() - expected).masked_fill(nothing, 0.0)
        errors[name] = float(difference.norm()) if same else float("inf")
    return errors


def poison(place: Place) -> None:
    """Leaves NaN in the memory that is given out next, so that whatever is not written shows."""
    if not place.is_dry:
        held = [torch.full((2**n,), torch.nan, device=place.device) for n in POISONED]
        place.finish()
        del held


def thrice(place: Place, case: Case) -> Result:
    """Whether three runs give the same bits, on poisoned memory."""
    call = Call(place, case)
    runs = []
    for _ in range(3):
        poison(place)
        runs.append(call.run(case.backend, case.dtype))
    differ = [name for name in runs[0] if not all(torch.equal(runs[0][name], run[name]) for run in runs[1:])]
    return {"passed": not differ, "differ": differ}


def in_a_graph(place: Place, case: Case) -> Result:
    """Whether a captured call gives the bits of one that is not, for numbers that came after it."""
    if place.is_dry:
        raise LeftOutError(NO_GRAPHS)
    call = Call(place, case)
    tensors, scheme = call.leaves(case.dtype)

    def work() -> tuple[Tensor, ...]:
        return tuple(call.results(tensors, scheme, call.attend(case.backend, tensors, scheme)).values())

    replay, held = captured(work)
    with torch.no_grad():
        for seed, x in enumerate(tensors):
            x.copy_(place.drawn(*x.shape, seed=20 + seed))
    replay()
    place.finish()
    found = [x.clone() for x in held]
    differ = [n for n, (one, other) in enumerate(zip(found, work(), strict=True)) if not torch.equal(one, other)]
    return {"passed": not differ, "differ": differ}


def in_a_compiled_graph(place: Place, case: Case) -> Result:
    """Whether a compiled call agrees with one that is not, up to four roundings."""
    call = Call(place, case)
    tensors, scheme = call.leaves(case.dtype)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return call.attend(case.backend, [query, key, value], scheme)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager" if place.is_dry else "inductor")
    found = call.results(tensors, scheme, compiled(*tensors))
    truth = {name: x.double() for name, x in call.run(case.backend, case.dtype).items()}
    allowed = 4 * torch.finfo(case.dtype).eps / 2
    errors = {name: error / (float(truth[name].norm()) or 1.0) for name, error in _errors(found, truth).items()}
    return {
        "passed": all(error <= allowed for error in errors.values()),
        "errors": {name: [f"{error:.2e}", f"{allowed:.2e}"] for name, error in errors.items()},
    }


LARGE = (33, 64, 16384, 64)  # more than 2^31 numbers


def large(place: Place, scheme: str, training: bool, backend: str = "triton") -> Result:
    """Whether the last row of a batch of more than 2^31 numbers is what it is alone, to the bit."""
    if place.is_dry:
        raise LeftOutError("more than 2^31 numbers need a GPU")
    made = scheme_of(place, scheme, LARGE[1], LARGE[3])
    tensors = [place.drawn(*LARGE, seed=seed) for seed in range(3)]

    def run(rows: slice) -> list[Tensor]:
        query, key, value = (x[rows].detach().requires_grad_(training) for x in tensors)
        out = posenc.attention(query, key, value, made, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        gradients = torch.autograd.grad(out, (query, key, value), tensors[0][rows]) if training else ()
        return [x[-1:].detach().clone() for x in (out, *gradients)]

    whole, alone = run(slice(None)), run(slice(-1, None))
    differ = [n for n, (one, other) in enumerate(zip(whole, alone, strict=True)) if not torch.equal(one, other)]
    return {"passed": not differ, "differ": differ}


# -- the steps --------------------------------------------------------------------------------------------------------

MAIN = ("alibi", "t5", "shaw", "transformer_xl")
Check = Callable[[Place], Result]


def _small(place: Place) -> dict[str, Check]:
    """Small and unlucky sizes, in single precision and in bfloat16."""
    tokens, head_dim = (37, 16) if place.is_dry else (150, 24)
    cases = {}
    for dtype, at in itertools.product((torch.float32, torch.bfloat16), ("text", "both", "padded", "window", "packed")):
        for scheme in ("nope", *MAIN):
            if at == "both" and scheme in ("nope", "t5"):
                continue  # T5 is of one direction here
            case = Case(scheme, tokens, 4, 2, head_dim, dtype, at)
            cases[f"{scheme} {str(dtype).removeprefix('torch.')} {at}"] = case
    kept = dict(itertools.islice(cases.items(), 0, None, 9)) if place.is_dry else cases
    return {name: _check(compared, case) for name, case in kept.items()}


def _real(place: Place) -> dict[str, Check]:
    """Text of real length: widths, grouped heads, packed, strided; three times over, in graphs."""
    n, widths = place.sizes.real, place.sizes.widths
    wide = widths[0]
    of = {f"{scheme}, {width}": Case(scheme, n, head_dim=width) for width in widths for scheme in MAIN}
    for scheme in ("alibi", "shaw"):
        of[f"{scheme}, 12 heads, 4 of keys"] = Case(scheme, n, 12, 4, wide)
        of |= {f"{scheme}, {at}": Case(scheme, n, head_dim=wide, at=at) for at in ("packed", "strided", "window")}
    of["shaw, float16"] = Case("shaw", n, head_dim=wide, dtype=torch.float16)
    of["shaw, float32"] = Case("shaw", n, head_dim=wide, dtype=torch.float32)
    if place.is_dry:
        of = dict(itertools.islice(of.items(), 0, None, 5))
    checks = {name: _check(compared, case) for name, case in of.items()}
    for scheme in MAIN[:1] if place.is_dry else MAIN:
        case = Case(scheme, n, head_dim=wide)
        checks[f"{scheme}, three times"] = _check(thrice, case)
        checks[f"{scheme}, in a graph"] = _check(in_a_graph, case)
        checks[f"{scheme}, compiled"] = _check(in_a_compiled_graph, case)
    return checks


def _check(of: Callable[[Place, Case], Result], case: Case) -> Check:
    return lambda place: of(place, case)


LARGES: dict[str, Check] = {
    "alibi, training": lambda place: large(place, "alibi", True),
    "shaw, forward": lambda place: large(place, "shaw", False),
}

# Of all schemes, widths and ways to stand, the longest compilations first.
FEW = (
    "t5 float32 text", "alibi float32 window", "transformer_xl, 128", "alibi, 256", "shaw, 128", "transformer_xl, 64",
    "t5, 128", "shaw, 64", "alibi, 128", "t5, 64", "alibi, 64", "shaw, 12 heads, 4 of keys", "shaw, three times",
    "transformer_xl, in a graph", "shaw, compiled", "alibi, compiled", "transformer_xl bfloat16 packed",
    "shaw bfloat16 both", "shaw bfloat16 padded", "t5 bfloat16 packed", "t5 bfloat16 window", "alibi bfloat16 both",
    "nope bfloat16 padded", "alibi, packed", "shaw, window", "t5, three times", "alibi, in a graph",
)  # fmt: skip


def _step(name: str, title: str, limit: float, each: float, of: Callable[[Place], dict[str, Check]]) -> Step:
    return Step(name, title, limit, each, lambda place: tuple(of(place)),
                called(lambda place, item: of(place)[item](place)), workers=0)  # fmt: skip


def _few(place: Place) -> dict[str, Check]:
    checks = _real(place) | _small(place)
    return dict(itertools.islice(checks.items(), 3, 8)) if place.is_dry else {name: checks[name] for name in FEW}


SMALL_SIZES = _step("small", "Small sizes against double precision", 50, 40, _small)
REAL_SIZES = _step("real", "Real sizes against double precision", 70, 60, _real)
FEW_SIZES = _step("few", "Some small and real sizes against double precision", 45, 40, _few)
LARGE_SIZES = Step("large", "More than 2^31 numbers", 60, 40, lambda place: tuple(LARGES),
                   called(lambda place, name: LARGES[name](place)))  # fmt: skip
