"""A plan is made once for all layers of a pass, and anew for everything that it depends on."""

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import posenc
from posenc import FIRE, KERPLE, T5, ALiBi, DeBERTa, FoX, Positions, RoPE, Scheme, Shaw, TransformerXL
from posenc.backends import blockwise
from posenc.backends.native import backend as native
from posenc.backends.native.operator import Prepared
from posenc.backends.plan import MAX_ENTRIES
from posenc.backends.request import Request
from posenc.encoding.encoding import Encoding
from posenc.encoding.terms import Bias, Distance

HEADS, TOKENS, HEAD_DIM = 2, 64, 16


def drawn(*shape: int, **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(shape or (1, HEADS, TOKENS, HEAD_DIM), **how) for _ in range(3))
    return query, key, value


@contextmanager
def noting() -> Iterator[list[Request]]:
    """The requests that a plan was made for."""
    requests: list[Request] = []
    checked = Request.checked

    def noted(self: Request) -> Any:
        requests.append(self)
        return checked(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "checked", noted)
        yield requests


def attend(layer: tuple[Tensor, Tensor, Tensor], encoding: Encoding, backend: str = "native") -> Tensor:
    out = posenc.attention(*layer, encoding, is_causal=True, backend=backend)
    assert isinstance(out, Tensor)
    return out


@pytest.fixture
def made() -> Iterator[list[Request]]:
    with noting() as requests:
        yield requests


# --- what it depends on -----------------------------------------------------------------------------------------------


@contextmanager
def set_to(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Any:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


OPTIONS: dict[str, dict[str, Any]] = {
    "visibility": {"is_causal": False},
    "window": {"window": 9},
    "a window on both sides": {"window": (9, 2)},
    "chunks": {"window": posenc.Chunk(16)},
    "scale": {"scale": 0.5},
    "dropout": {"dropout_p": 0.5},
    "log-sum-exp": {"return_lse": True},
    "skipping": {"skip_below": 0.0},
    "backend": {"backend": "reference"},
    "grouped queries": {"enable_gqa": True},
    "sinks": {"sinks": torch.zeros(HEADS)},
    "sinks of queries": {"sinks": torch.zeros(1, HEADS, TOKENS)},
    "a mask": {"attn_mask": torch.ones(TOKENS, TOKENS, dtype=torch.bool)},
    "norms of keys": {"key_norms": torch.full((1, HEADS, TOKENS), 99.0)},
}
TENSORS: dict[str, tuple[Tensor, Tensor, Tensor]] = {
    "dtype": drawn(dtype=torch.float64),
    "batch": drawn(3, HEADS, TOKENS, HEAD_DIM),
    "width": drawn(1, HEADS, TOKENS, 32),
    "strides": tuple(x.transpose(1, 2) for x in drawn(1, TOKENS, HEADS, HEAD_DIM)),  # type: ignore[dict-item]
    "a gradient": drawn(requires_grad=True),
}
STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: set_to(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "threads": lambda: set_to(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
}
CHANGES = [*OPTIONS, *TENSORS, *STATES]


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_is_made_anew_for_another(change: str) -> None:
    encoding, before = ALiBi(HEADS, form="bidirectional")(Positions.arange(TOKENS)), drawn()
    how = {"is_causal": True, **OPTIONS.get(change, {})}
    layer = TENSORS.get(change, before)
    with noting() as made:
        posenc.attention(*before, encoding, is_causal=True)
        with STATES.get(change, nullcontext)():
            torch.manual_seed(0)
            found = posenc.attention(*layer, encoding, **how)
            assert len(made) == 2
            torch.manual_seed(0)
            fresh = posenc.attention(*layer, ALiBi(HEADS, form="bidirectional")(Positions.arange(TOKENS)), **how)
            torch.testing.assert_close(found, fresh, rtol=0, atol=0)
        assert len(made) == 3


def test_an_option_of_another_type_is_checked_where_a_plan_is_kept() -> None:
    encoding, layer = ALiBi(HEADS)(Positions.arange(TOKENS)), drawn()
    posenc.attention(*layer, encoding, is_causal=True)
    with pytest.raises(ValueError, match="is_causal must be True or False, got 1"):
        posenc.attention(*layer, encoding, is_causal=1)  # type: ignore[arg-type]  # True == 1


def test_a_plan_is_made_anew_where_other_parameters_learn() -> None:
    scheme, layer = T5(HEADS), drawn(requires_grad=True)
    encoding = scheme(Positions.arange(TOKENS))
    for learns in (True, False):
        with noting() as made:
            scheme.requires_grad_(learns)
            out = posenc.attention(*layer, encoding, is_causal=True)
        assert isinstance(out, Tensor)
        assert len(made) == 1


# --- parameters, features and positions -------------------------------------------------------------------------------


def test_layers_share_a_plan_and_have_their_own_features(made: list[Request]) -> None:
    encoding, layer = FoX(HEADS)(Positions.arange(TOKENS)), drawn()
    for _ in range(2):
        of_layer = encoding.with_projected({"forgotten": torch.randn(1, HEADS, TOKENS)})
        found = posenc.attention(*layer, of_layer, is_causal=True)
        torch.testing.assert_close(found, posenc.attention(*layer, of_layer, is_causal=True, backend="reference"))
    assert len(made) == 2  # one for each backend
    with pytest.raises(ValueError, match="needs the feature 'forgotten' of every query"):
        posenc.attention(*layer, encoding.with_features({"other": torch.randn(1, HEADS, TOKENS)}), is_causal=True)
    wrong = {"forgotten": torch.randn(1, 1, TOKENS).expand(1, HEADS + 1, TOKENS)}
    with pytest.raises(ValueError, match="feature 'forgotten' of the query must be"):
        posenc.attention(*layer, encoding.with_features(wrong), is_causal=True)


@pytest.mark.parametrize(
    "other",
    [
        lambda encoding: encoding.pairs,
        lambda encoding: encoding.in_chunks(8),
        lambda encoding: encoding + RoPE(HEAD_DIM)(encoding.query_positions),
        lambda encoding: torch.utils._pytree.tree_map(torch.clone, encoding),
    ],
    ids=["pairs", "chunks", "sum", "pytree"],
)
def test_another_encoding_has_plans_of_its_own(other: Callable[[Encoding], Encoding]) -> None:
    encoding = ALiBi(HEADS)(Positions.arange(TOKENS))
    posenc.attention(*drawn(), encoding, is_causal=True)
    assert len(encoding.plans) == 1
    assert other(encoding).plans == {}


# --- where none is kept -----------------------------------------------------------------------------------------------


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Overriding(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("state", [Watching, Overriding, forward_ad.dual_level])
def test_no_plan_is_kept_or_used_where_operations_are_watched(
    state: Callable[[], AbstractContextManager[Any]], made: list[Request]
) -> None:
    encoding, layer = ALiBi(HEADS)(Positions.arange(TOKENS)), drawn()
    with state():
        posenc.attention(*layer, encoding, is_causal=True)
        assert encoding.plans == {}
    posenc.attention(*layer, encoding, is_causal=True)
    with state():
        posenc.attention(*layer, encoding, is_causal=True)
    assert len(made) == 3


def test_none_is_under_a_transformation(made: list[Request]) -> None:
    encoding, (query, key, value) = RoPE(HEAD_DIM)(Positions.arange(TOKENS)), drawn()

    def loss(query: Tensor) -> Tensor:
        out = posenc.attention(query, key, value, encoding, is_causal=True, backend="reference")
        assert isinstance(out, Tensor)
        return out.square().sum()

    loss(query)
    torch.func.grad(loss)(query)
    assert len(made) == 2


def test_a_plan_holds_no_tensor_of_a_layer() -> None:
    """Neither of queries, keys and values, nor of features."""
    for scheme in (T5(HEADS), FoX(HEADS)):
        encoding, layer = scheme(Positions.arange(TOKENS)), drawn(requires_grad=True)
        features = {"forgotten": torch.randn(1, HEADS, TOKENS)} if encoding.wanted else {}
        of_layer = encoding.with_projected(features) if features else encoding
        posenc.attention(*layer, of_layer, is_causal=True, backend="native").sum().backward()  # type: ignore[union-attr]
        held = [weakref.ref(x) for x in (*layer, *features.values(), *of_layer.query_features.values())]
        assert encoding.plans
        del layer, features, of_layer
        gc.collect()
        assert [each() for each in held] == [None] * len(held)


# --- tables that learn ------------------------------------------------------------------------------------------------


class Bound(Scheme):
    """A bias by a parameter and numbers that are computed of it, with what their gradient needs, when it is bound."""

    def __init__(self, is_hidden: bool) -> None:
        super().__init__()
        self.weight, self.is_hidden = nn.Parameter(torch.randn(HEADS)), is_hidden

    def score(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> tuple[Bias, ...]:
        slope, start = self.weight.exp(), self.weight
        beside = SimpleNamespace(start=start)  # where it is not looked for

        def line(r: Tensor, start: Tensor) -> Tensor:
            return torch.tensordot(slope, r.to(slope), 0) + torch.tensordot(start, r.abs().to(start), 0)

        at = (lambda r: line(r, beside.start)) if self.is_hidden else (lambda r: line(r, start))
        return (Bias(at, Distance("Bound", tail="linear")),)


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "t5": lambda: T5(HEADS),
    "shaw": lambda: Shaw(HEAD_DIM, 5),
    "transformer-xl": lambda: TransformerXL(HEADS, HEAD_DIM),
    "kerple": lambda: KERPLE(HEADS),
    "fire": lambda: FIRE(HEADS),
    "deberta": lambda: DeBERTa(HEADS, HEAD_DIM, HEADS * HEAD_DIM, 9),
    "t5 and shaw": lambda: T5(HEADS) + Shaw(HEAD_DIM, 5),
    "one from the other": lambda: Bound(is_hidden=False),
    "one in an object": lambda: Bound(is_hidden=True),
}
UNSHARED = "one from the other", "one in an object"
ONE_PASS = "deberta", *UNSHARED  # binding saves what the gradient needs, which the first pass frees


def at_once(layers: list[Callable[[], Tensor]], encodings: list[Encoding]) -> None:
    sum(layer() for layer in layers).backward()  # type: ignore[union-attr]


def each_alone(layers: list[Callable[[], Tensor]], encodings: list[Encoding]) -> None:
    for layer in layers:
        layer().backward()


def retained(layers: list[Callable[[], Tensor]], encodings: list[Encoding]) -> None:
    loss: Any = sum(layer() for layer in layers)
    loss.backward(retain_graph=True)
    loss.backward()


def checkpointed(layers: list[Callable[[], Tensor]], encodings: list[Encoding], forgets: bool = False) -> None:
    loss: Any = sum(checkpoint(layer, use_reentrant=False) for layer in layers)
    for encoding in encodings if forgets else []:
        encoding.plans.clear()
    loss.backward()


def packed(layers: list[Callable[[], Tensor]], encodings: list[Encoding]) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        at_once(layers, encodings)


def unpacked(layers: list[Callable[[], Tensor]], encodings: list[Encoding]) -> None:
    with torch.autograd.graph.disable_saved_tensors_hooks("there are none"):
        at_once(layers, encodings)


def in_threads(layers: list[Callable[[], Tensor]], encodings: list[Encoding]) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda layer: layer().backward(), layers * 3))


WAYS = {
    "at once": at_once,
    "each alone": each_alone,
    "retained": retained,
    "checkpointed": checkpointed,
    "checkpointed, and forgotten": partial(checkpointed, forgets=True),
    "packed": packed,
    "without hooks": unpacked,
    "in threads": in_threads,
}


SEVERAL_PASSES = "each alone", "retained", "in threads"


@pytest.mark.parametrize(
    ("name", "way"), [(n, way) for n in SCHEMES for way in WAYS if not (n in ONE_PASS and way in SEVERAL_PASSES)]
)
def test_layers_that_share_tables_have_the_gradients_of_layers_that_do_not(name: str, way: str) -> None:
    scheme, drawings = SCHEMES[name]().double(), [drawn(dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for parameter in scheme.parameters():
        nn.init.normal_(parameter, std=0.3)
        parameter.register_hook(lambda gradient: 2 * gradient)

    def gradients(encodings: list[Encoding], backend: str) -> list[Tensor | None]:
        def layer(layer: tuple[Tensor, Tensor, Tensor], encoding: Encoding) -> Callable[[], Tensor]:
            return lambda: attend(layer, encoding, backend).square().sum()

        WAYS[way]([layer(*each) for each in zip(drawings, encodings, strict=True)], encodings)
        leaves = [*scheme.parameters(), *(x for each in drawings for x in each)]
        found = [x.grad for x in leaves]
        for x in leaves:
            x.grad = None
        return found

    one, *others = (scheme(Positions.arange(TOKENS), dtype=torch.float64) for _ in range(4))
    found, expected = gradients([one] * 3, "native"), gradients(others, "reference")
    assert any(x is not None and x.any() for x in found[: len(list(scheme.parameters()))])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", SCHEMES)
def test_tables_are_computed_once(
    name: str, mode: Callable[[], AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, operands = [], blockwise.KernelOperands

    def noted(call: Any) -> Any:
        calls.append(call)
        return operands(call)

    with mode():
        encoding = SCHEMES[name]()(Positions.arange(TOKENS))
        attend(drawn(), encoding)
        monkeypatch.setattr(native, "KernelOperands", noted)
        for _ in range(2):
            attend(drawn(), encoding)
    assert bool(calls) == (name in UNSHARED and mode is torch.enable_grad)


def test_plans_are_bounded() -> None:
    encoding, layer = ALiBi(HEADS)(Positions.arange(TOKENS)), drawn()
    for n in range(2 * MAX_ENTRIES):
        posenc.attention(*layer, encoding, is_causal=True, scale=1.0 + n)
        assert 1 <= len(encoding.plans) <= MAX_ENTRIES


# --- structures that are filled once ----------------------------------------------------------------------------------


def test_calls_at_once_have_structures_of_their_own() -> None:
    """Forward and backward, in four threads that share an encoding."""
    encoding = ALiBi(HEADS)(Positions.arange(TOKENS))
    layers = [[x.requires_grad_() for x in drawn()] for _ in range(40)]

    def step(layer: list[Tensor]) -> tuple[Tensor, ...]:
        out = posenc.attention(*layer, encoding, is_causal=True, backend="native")
        assert isinstance(out, Tensor)
        return (out.detach(), *torch.autograd.grad(out.square().sum(), layer))

    alone = [step(layer) for layer in layers]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(step, layers * 3))
    for found, expected in zip(together, alone * 3, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    (plan,) = encoding.plans.values()
    assert plan.store is not None
    forward, backward = plan.store["native"].free
    assert 1 <= len(forward) <= 5
    assert 1 <= len(backward) <= 5


def test_saved_tensors_may_come_back_with_other_strides() -> None:
    encoding, layer = ALiBi(HEADS)(Positions.arange(TOKENS)), [x.requires_grad_() for x in drawn()]

    def gradients() -> tuple[Tensor, ...]:
        out = posenc.attention(*layer, encoding, is_causal=True, backend="native")
        assert isinstance(out, Tensor)
        return torch.autograd.grad(out.square().sum(), layer)

    def turned(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x

    expected = gradients()
    with torch.autograd.graph.saved_tensors_hooks(turned, lambda x: x):
        found = [gradients() for _ in range(2)]
    for each in found:
        torch.testing.assert_close(each, expected)


def test_calls_of_changing_lengths_leave_nothing_behind() -> None:
    scheme = ALiBi(HEADS)

    def held() -> int:
        gc.collect()
        return sum(type(x) is Prepared for x in gc.get_objects())

    before = held()
    for n in range(1, 200):
        x = torch.randn(1, HEADS, n, HEAD_DIM)
        posenc.attention(x, x, x, scheme, is_causal=True, backend="native")
        posenc.attention(x, x, x, None, is_causal=True, backend="native")
    assert held() - before <= MAX_ENTRIES + 1  # the latest of the scheme, and of texts without one
