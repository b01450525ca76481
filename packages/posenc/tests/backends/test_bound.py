"""A scheme that is passed to attention is bound once for calls of the same lengths, and anew when anything changes."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.flop_counter import FlopCounterMode

import posenc
from posenc import FIRE, KERPLE, T5, ALiBi, Positions, RoPE, Scheme, Shaw, TransformerXL
from posenc.backends import cache, plan
from posenc.encoding.encoding import Encoding
from posenc.encoding.terms import Bias, Distance
from posenc.rotation.scalings import YaRN
from tests.cases import CASES, HEAD_DIM, HEADS, TOKENS, split

DIM = HEADS * HEAD_DIM
COMMON: dict[str, Callable[[], Scheme | None]] = {
    "nothing": lambda: None,
    "alibi": lambda: ALiBi(HEADS),
    "rope": lambda: RoPE(HEAD_DIM, scaling=YaRN(2.0, 4)),
    "t5": lambda: T5(HEADS),
    "kerple": lambda: KERPLE(HEADS),
    "fire": lambda: FIRE(HEADS),
    "shaw": lambda: Shaw(HEAD_DIM, max_distance=4),
    "transformer-xl": lambda: TransformerXL(HEADS, HEAD_DIM),
    "rope + t5": lambda: RoPE(HEAD_DIM) + T5(HEADS),
}


def drawn(**how: Any) -> tuple[Tensor, Tensor, Tensor]:
    return split(torch.randn(2, TOKENS, DIM, **how))


def attend(layer: tuple[Tensor, Tensor, Tensor], scheme: Scheme | None, **how: Any) -> Tensor:
    out = posenc.attention(*layer, scheme, **{"is_causal": True} | how)
    assert isinstance(out, Tensor)
    return out


def fresh(layer: tuple[Tensor, Tensor, Tensor], scheme: Scheme, **how: Any) -> Tensor:
    """The same with an encoding made now."""
    positions = Positions.arange(TOKENS)
    dtype = torch.promote_types(layer[0].dtype, torch.float32)
    return attend(layer, scheme(positions, dtype=dtype), **how)  # type: ignore[arg-type]


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Encoding]:
    """Encodings as they are made."""
    encodings: list[Encoding] = []
    check = Encoding.__post_init__

    def noted(self: Encoding) -> None:
        encodings.append(self)
        check(self)

    monkeypatch.setattr(Encoding, "__post_init__", noted)
    monkeypatch.setattr(cache, "texts", {})
    return encodings


@pytest.mark.parametrize("scheme", COMMON.values(), ids=COMMON)
def test_it_is_bound_once(scheme: Callable[[], Scheme | None], made: list[Encoding]) -> None:
    layer, common = drawn(), scheme()
    attend(layer, common)
    made.clear()
    attend(layer, common)
    attend(tuple(x.clone().requires_grad_() for x in layer), common)  # type: ignore[arg-type]
    assert not made


# --- parameters -------------------------------------------------------------------------------------------------------

LEARNED = [
    name for name, case in CASES.items() if case.axes == 1 and next(case.scheme().parameters(), None) is not None
]


class Buffered(Scheme):
    """A bias of the distance by a parameter and a number in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("slope", torch.tensor(-1.0))

    def score(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> tuple[Bias, ...]:
        return (Bias(lambda r: ((self.slope + self.weight) * r.abs())[None], Distance("Buffered", tail="linear")),)


def through_numpy(scheme: Scheme) -> None:
    for p in scheme.parameters():
        p.detach().numpy()[...] += 0.25


CHANGES: dict[str, Callable[[Scheme], Any]] = {
    "in place": lambda s: [p.add_(0.25) for p in (*s.parameters(), *s.buffers())],
    "data in place": lambda s: [p.data.add_(0.25) for p in (*s.parameters(), *s.buffers())],
    "other data": lambda s: [setattr(p, "data", p.data + 0.25) for p in (*s.parameters(), *s.buffers())],
    "one number": lambda s: next(s.parameters()).data.view(-1)[-1:].add_(0.25),
    "vector_to_parameters": lambda s: vector_to_parameters(parameters_to_vector(s.parameters()) + 0.25, s.parameters()),
    "NumPy": through_numpy,
    "begins to learn": lambda s: s.requires_grad_(True),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_encoding_keeps_its_values_and_is_refused_when_they_are_old(
    change: Callable[[Scheme], Any], mode: Callable[[], Any]
) -> None:
    tried = 0
    large = partial(TransformerXL, HEADS, HEAD_DIM, 512)  # whose parameters are compared as memory
    for make in (*(CASES[name].scheme for name in LEARNED[::4]), Buffered, large):
        with mode():
            scheme = make()
            scheme.requires_grad_(mode is torch.enable_grad and change is not CHANGES["begins to learn"])
            try:
                encoding = scheme(Positions.arange(TOKENS), dtype=torch.float64)
                layer = drawn(dtype=torch.float64)
                before = attend(layer, encoding)  # type: ignore[arg-type]
            except ValueError:  # as in the test before
                continue
            attend(layer, encoding)  # type: ignore[arg-type]
            versions = [None if p.is_inference() else p._version for p in (*scheme.parameters(), *scheme.buffers())]
            with torch.no_grad():
                change(scheme)
            if torch.equal(before, attend(layer, scheme)) and change is not CHANGES["begins to learn"]:
                continue
            tried += 1
            with pytest.raises(ValueError, match=r"made before the scheme's parameters .*: call the scheme"):
                attend(layer, encoding)  # type: ignore[arg-type]
            now = [None if p.is_inference() else p._version for p in (*scheme.parameters(), *scheme.buffers())]
            if versions == now and change is not CHANGES["begins to learn"]:
                with FlopCounterMode(display=False):  # as on a GPU, whose numbers are not compared
                    same(attend(layer, encoding), before)  # type: ignore[arg-type]
    assert tried > 3


class Held(Scheme):
    """A bias of the distance by numbers that a module of any kind computes."""

    def __init__(self, numbers: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.weight, self.numbers = nn.Parameter(torch.rand(HEADS, 1)), numbers

    def score(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> tuple[Bias, ...]:
        return (Bias(lambda r: self.slopes().view(-1, *[1] * r.dim()) * r, Distance("Held", tail="linear")),)

    def slopes(self) -> Tensor:
        return self.weight if self.numbers is None else self.numbers(self.weight)


HELD: dict[str, Callable[[], Scheme]] = {
    "spectral norm": lambda: Held(spectral_norm(nn.Linear(1, 1))),
    "batch norm": lambda: Held(nn.BatchNorm1d(1)),
}


@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_an_encoding_computes_what_any_module_computes(make: Callable[[], Scheme]) -> None:
    scheme, layer, positions = make(), drawn(), Positions.arange(TOKENS)
    by_hand = Encoding(positions, positions, score_terms=scheme.score(positions, positions))
    expected, encoding = attend(layer, by_hand), scheme(positions)  # type: ignore[arg-type]
    buffers = [(x, x._version) for x in scheme.buffers()]
    for _ in range(2):
        torch.testing.assert_close(attend(layer, encoding), expected)  # type: ignore[arg-type]
    attend(layer, encoding).square().sum().backward()  # type: ignore[arg-type, no-untyped-call]
    assert all(p.grad is not None for p in scheme.parameters())
    # What a module writes while it trains reaches the module.
    assert any(x._version > before for x, before in buffers) or not buffers


# Of a T5, whose weight is another in some way, or of RoPE and ALiBi, of which an attribute or a part is.
OTHERS: list[Callable[[Any], Any]] = [
    lambda t5: setattr(t5, "weight", nn.Parameter(torch.randn_like(t5.weight))),
    lambda t5: t5.load_state_dict({"weight": torch.randn_like(t5.weight)}),
    lambda t5: t5.load_state_dict({"weight": torch.randn_like(t5.weight)}, assign=True),
    lambda t5: setattr(t5.weight, "data", torch.randn_like(t5.weight)),
    lambda t5: nn.utils.parametrize.register_parametrization(t5, "weight", nn.Tanh()),
    lambda t5: t5.half(),
]
OTHER_ATTRIBUTES: list[Callable[[Any], Any]] = [
    lambda both: setattr(both.schemes[0], "base", 313.0),
    lambda both: setattr(both.schemes[0], "scaling", YaRN(2.0, 4)),
    lambda both: setattr(both.schemes[0], "scaling", lambda theta: (theta / 2, 1.0)),
    lambda both: setattr(both.schemes[1], "form", "directed"),
    lambda both: setattr(both.schemes, "1", KERPLE(HEADS)),
    lambda both: setattr(both.schemes[1], "score", T5(HEADS).score),
]


@pytest.mark.parametrize("change", [*OTHERS, *OTHER_ATTRIBUTES])
def test_what_is_changed_is_read(change: Callable[[Any], Any]) -> None:
    scheme = T5(HEADS) if change in OTHERS else RoPE(HEAD_DIM) + ALiBi(HEADS)
    layer = drawn(requires_grad=True)
    with torch.no_grad():
        old = attend(layer, scheme)
    before = attend(layer, scheme)
    change(scheme)
    with torch.no_grad():
        assert not torch.equal(attend(layer, scheme), old)
    found = attend(layer, scheme)
    same(found, fresh(layer, scheme))
    assert not torch.equal(found, before)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in scheme.parameters())


def test_parameters_elsewhere_raise() -> None:
    scheme, layer = T5(HEADS), drawn()
    attend(layer, scheme)
    scheme.to("meta")
    with pytest.raises(ValueError, match="T5 must be on cpu"):
        attend(layer, scheme)


# --- attributes, parts and hooks --------------------------------------------------------------------------------------


def test_hooks_are_called() -> None:
    scheme, layer, called = ALiBi(HEADS), drawn(), []
    attend(layer, scheme)
    scheme.register_forward_hook(lambda *_: called.append("its own"))
    attend(layer, scheme)
    with torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: called.append("of all")):
        attend(layer, scheme)
    assert called == ["its own", "of all", "its own"]


class Drawn(ALiBi):
    """A scheme of a user, which draws a number whenever it is bound."""

    def score(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> tuple[Bias, ...]:
        slopes = torch.rand(HEADS)
        return (Bias(lambda r: -torch.tensordot(slopes, r.abs().float(), 0), Distance("Drawn", tail="linear")),)


def test_a_scheme_of_a_user_is_bound_in_each_call() -> None:
    scheme, layer = Drawn(HEADS), drawn()
    assert not torch.equal(attend(layer, scheme), attend(layer, scheme))


def in_a_cycle() -> nn.Module:
    inner = nn.Linear(1, HEADS)
    inner.parent = nn.Module()
    inner.parent.child = inner
    return nn.Sequential(inner)


class Network(Scheme):
    """A bias of the distance by any module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def score(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> tuple[Bias, ...]:
        def bias(r: Tensor) -> Tensor:
            return self.network(r.reshape(-1, 1).float()).T.reshape(HEADS, *r.shape)  # type: ignore[no-any-return]

        return (Bias(bias, Distance("Network")),)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated")
@pytest.mark.parametrize(
    "make", [lambda: torch.jit.trace(nn.Linear(1, HEADS), torch.ones(2, 1)), in_a_cycle], ids=["traced", "in a cycle"]
)
def test_a_module_that_cannot_be_copied_is_read_in_each_call(make: Callable[[], nn.Module]) -> None:
    scheme, layer = Network(make()), drawn()
    positions = Positions.arange(TOKENS)
    by_hand = Encoding(positions, positions, score_terms=scheme.score(positions, positions))
    same(attend(layer, scheme), attend(layer, by_hand))  # type: ignore[arg-type]


# --- copies, shapes and errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda t5: pickle.loads(pickle.dumps(t5)), lambda t5: t5.another()]
)
def test_copies_read_their_own(copied: Callable[[T5], T5]) -> None:
    scheme, layer = T5(HEADS), drawn()
    attend(layer, scheme)
    other = copied(scheme)
    other.weight = nn.Parameter(torch.randn_like(other.weight))
    for each in (scheme, other, scheme):
        same(attend(layer, each), fresh(layer, each))


def test_lengths_dtypes_and_ends_have_their_own() -> None:
    scheme, (query, key, value) = RoPE(HEAD_DIM) + ALiBi(HEADS), drawn()
    positions = Positions.arange(TOKENS)
    for _ in range(2):
        few = query[:, :, -2:]
        same(attend((few, key, value), scheme), attend((few, key, value), scheme(positions[-2:], positions)))  # type: ignore[arg-type]
        of_first = attend((few, key, value), scheme, align="upper_left")
        same(of_first, attend((few, key, value), scheme(positions[:2], positions)))  # type: ignore[arg-type]
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            layer = query.to(dtype), key.to(dtype), value.to(dtype)
            same(attend(layer, scheme), fresh(layer, scheme))


def test_one_encoding_is_kept_and_none_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, (query, key, value) = RoPE(HEAD_DIM), drawn()
    for tokens in range(2, TOKENS):
        attend(tuple(x[:, :, :tokens] for x in (query, key, value)), scheme)  # type: ignore[arg-type]
    assert len(cache.schemes[scheme].encodings) == 1
    scheme = RoPE(HEAD_DIM)
    monkeypatch.setattr(plan, "LONGEST", TOKENS - 1)
    attend((query, key, value), scheme)
    assert scheme not in cache.schemes


@pytest.mark.parametrize("scheme", COMMON.values(), ids=COMMON)
def test_what_is_kept_goes_with_the_scheme(scheme: Callable[[], Scheme | None]) -> None:
    common = scheme()
    if common is None:
        pytest.skip("there is no scheme to go")
    attend(drawn(), common)
    there = weakref.ref(common)
    del common
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("scheme", [KERPLE(HEADS), T5(HEADS)], ids=["kerple", "t5"])
def test_parameters_that_another_process_may_write_to_are_read_in_each_call(scheme: Scheme) -> None:
    layer = drawn()
    with torch.no_grad():
        for _ in range(2):
            attend(layer, scheme)
        scheme.share_memory()
        for parameter in scheme.parameters():
            parameter.add_(0.5)
        same(attend(layer, scheme), fresh(layer, scheme))
