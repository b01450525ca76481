"""Exported: a program for any length of every scheme, without complex numbers; and as ONNX, run by onnxruntime."""

import io
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc.models import Decoder
from tests.backends.parity_cases import Case, Model, case, refuses
from tests.rounding import of_sums
from tests.rows import with_more

pytestmark = [pytest.mark.slow, pytest.mark.more]
TOKENS, OTHERS = 17, (5, 33)
SCHEMES = ("learned", "rope+alibi", "shaw", "relative_2d", "disentangled")  # of every door
MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]


def dynamic() -> dict[str, dict[int, torch.export.Dim]]:
    """One length, of query, key and value alike, that is not known."""
    tokens = torch.export.Dim("tokens", min=2, max=40)  # learned tables reach further
    return {name: {2: tokens} for name in ("query", "key", "value")}


def tensors(it: Case, tokens: int) -> tuple[Tensor, ...]:
    """Query, key and value for that many tokens."""
    return tuple(torch.randn(*x.shape[:2], tokens, x.size(3), dtype=x.dtype) for x in (it.query, it.key, it.value))


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, "auto") for name in SCHEMES] + [("rope+alibi", backend) for backend in ("sdpa", "native")],
)
def test_an_exported_program_gives_what_eager_gives_at_any_length(name: str, backend: str) -> None:
    """Also one with gradients, when it was saved and loaded."""
    it = case(name, "text", TOKENS)
    model, written = Model(it, backend), io.BytesIO()
    program = torch.export.export(model, tensors(it, TOKENS), dynamic_shapes=dynamic())
    torch.export.save(program, written)
    written.seek(0)
    exported = torch.export.load(written).module()
    with torch.no_grad():
        for tokens in (*OTHERS, TOKENS):
            inputs = tensors(it, tokens)
            expected = model(*inputs)
            # no score exceeds 128, as in test_parity.py
            bound = of_sums(torch.float64, tokens + inputs[0].size(3), expected, score=128)
            torch.testing.assert_close(exported(*inputs), expected, rtol=0, atol=bound)
    values = [node.meta.get("val") for node in program.graph.nodes]
    dtypes = {value.dtype for value in values if isinstance(value, Tensor)}
    assert torch.float64 in dtypes
    assert not any(dtype.is_complex for dtype in dtypes)


CAUSAL: dict[str, Any] = {"is_causal": True}
WINDOW: dict[str, Any] = {"is_causal": True, "window": 4}


class Step(torch.nn.Module):
    """The last tokens of a text attend to all of it."""

    def __init__(self, scheme: posenc.Scheme, is_bound: bool, **how: Any) -> None:
        super().__init__()
        self.scheme, self.is_bound, self.how = scheme, is_bound, how

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.is_bound:
            return posenc.attention(query, key, value, self.scheme, **self.how)
        text = posenc.Positions.arange(key.size(2))
        encoding = self.scheme(text[key.size(2) - query.size(2) :], text)
        return posenc.attention(query, key, value, encoding, **self.how)


@pytest.mark.parametrize(
    ("make", "is_bound", "how"),
    [
        *((lambda: posenc.RoPE(8), is_bound, how) for is_bound in (True, False) for how in ({}, CAUSAL, WINDOW)),
        (posenc.NoPE, True, CAUSAL),
        (posenc.NoPE, False, WINDOW),
        (lambda: posenc.TransformerXL(2, 8), False, {}),
        (posenc.StickBreaking, False, CAUSAL),
    ],
)
def test_an_exported_step_takes_any_number_of_queries_and_keys(
    make: Callable[[], posenc.Scheme], is_bound: bool, how: Any
) -> None:
    """Also as many queries as keys, which need no mask."""
    queries, keys = torch.export.Dim("queries", min=1, max=40), torch.export.Dim("keys", min=1, max=50)
    step = Step(make(), is_bound, **how)
    lengths = {"query": {2: queries}, "key": {2: keys}, "value": {2: keys}}

    def inputs(m: int, n: int) -> tuple[Tensor, ...]:
        return torch.randn(1, 2, m, 8), torch.randn(1, 2, n, 8), torch.randn(1, 2, n, 8)

    exported = torch.export.export(step, inputs(3, 9), dynamic_shapes=lengths).module()
    for m, n in ((1, 1), (1, 30), (5, 5), (7, 40)):
        given = inputs(m, n)
        torch.testing.assert_close(exported(*given), step(*given), rtol=1e-5, atol=1e-5)


SCHEDULES: dict[str, Callable[[], posenc.Scheme | posenc.Schedule]] = {
    "window": lambda: posenc.Schedule([(posenc.RoPE(8), 6)] * 2),
    "schedule": lambda: posenc.Schedule([(posenc.RoPE(8), posenc.Chunk(5)), (posenc.ALiBi(2), None)]),
    "function": lambda: posenc.RoPE(8) + posenc.Softcap(20.0),
    "rows": lambda: posenc.CoPE(8, 6),
    "bands": lambda: posenc.ReRoPE(8, 3),
}


needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"ONNX needs {', '.join(MISSING)}, which the dev extra installs")


def session_of(program: torch.onnx.ONNXProgram | None) -> Any:
    """A session of onnxruntime with what the program writes."""
    import onnxruntime

    assert program is not None
    written = io.BytesIO()
    program.save(written)
    return onnxruntime.InferenceSession(written.getvalue(), providers=["CPUExecutionProvider"])


@needs_onnx
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", with_more(("schedule", "bands"), ("window", "function", "rows"), pytest.mark.survey))
def test_a_model_reaches_onnx_with_no_backend_named(name: str) -> None:
    model, lengths = Decoder(30, 16, 2, 2, position=SCHEDULES[name]()).eval(), torch.export.Dim("n", min=1, max=60)
    ids = torch.randint(30, (1, TOKENS))
    program = torch.onnx.export(model, (ids,), dynamic_shapes={"tokens": {1: lengths}}, dynamo=True, verbose=False)
    session = session_of(program)
    for tokens in (1, *OTHERS):
        ids = torch.randint(30, (1, tokens))
        (out,) = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out), model(ids), rtol=1e-4, atol=1e-4)


@needs_onnx
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # the exporter's own
@pytest.mark.filterwarnings("ignore:# The axis name. tokens will not be used:UserWarning")  # one name for three axes
@pytest.mark.parametrize("name", [name for name in SCHEMES if not refuses("sdpa", name, "text")])
def test_onnx_gives_what_eager_gives_at_any_length(name: str) -> None:
    """Through the sdpa backend, whose kernel ONNX knows. Single precision of another library: sums of up to 33 terms of
    order 1 to 10, in another order."""
    it = case(name, "text", TOKENS, dtype=torch.float32)
    model = Model(it, "sdpa").eval()
    with torch.no_grad():
        program = torch.onnx.export(model, tensors(it, TOKENS), dynamic_shapes=dynamic(), dynamo=True, verbose=False)
    session = session_of(program)
    names = [given.name for given in session.get_inputs()]
    assert names == ["query", "key", "value"]
    for tokens in (*OTHERS, TOKENS):
        inputs = tensors(it, tokens)
        (out,) = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out), model(*inputs), rtol=1e-4, atol=1e-4)


# What a graph has of ONNX's own operators: a rotation of queries and one of keys, and attention.
OWN: dict[str, tuple[Callable[[], posenc.Scheme], dict[str, Any], int, int]] = {
    "half": (lambda: posenc.RoPE(8), {"is_causal": True}, 2, 1),
    "interleaved": (lambda: posenc.RoPE(8, layout="interleaved"), {}, 2, 1),
    "some channels": (lambda: posenc.RoPE(8, rotary_dim=4), {"is_causal": True}, 2, 1),
    "a later slice": (lambda: posenc.RoPE(8, rotary_dim=4, first_channel=2), {"is_causal": True}, 2, 1),
    "scaled": (lambda: posenc.RoPE(8, scaling=posenc.YaRN(4.0, 16)), {"is_causal": True}, 2, 1),
    "window": (lambda: posenc.RoPE(8), {"is_causal": True, "window": 6}, 2, 1),
    "two": (lambda: posenc.RoPE(8) + posenc.ALiBi(4), {"is_causal": True}, 2, 1),
    "none": (posenc.NoPE, {"is_causal": True}, 0, 1),
    "t5": (lambda: posenc.T5(4, bidirectional=True), {}, 0, 1),
    "angles of heads": (lambda: posenc.FoPE(2, 8, 64), {"is_causal": True}, 0, 1),
    "not additive": (lambda: posenc.RoPE(8) + posenc.Softcap(20.0), {"is_causal": True}, 2, 0),
}
LIKE_OTHERS = ("half", "some channels", "scaled", "window", "none", "t5")  # "two" has a rotation in halves and a bias


class Grouped(torch.nn.Module):
    """Attention of four query heads to two key heads, of texts that begin at positions of their own."""

    def __init__(self, scheme: posenc.Scheme, how: dict[str, Any]) -> None:
        super().__init__()
        self.scheme, self.how = scheme, how

    def forward(self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor) -> Tensor:
        text = posenc.Positions.arange(query.size(2))
        positions = posenc.Positions(starts[:, None] + text.coords, order=text.order)
        return posenc.attention(query, key, value, self.scheme(positions), **self.how)


@needs_onnx
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:# The axis name. .* will not be used:UserWarning")
@pytest.mark.parametrize(
    ("name", "opset"),
    with_more(
        [*((name, 23) for name in OWN if name not in LIKE_OTHERS), ("two", 24)],
        [*((name, 23) for name in LIKE_OTHERS), ("half", 24)],
        pytest.mark.survey,
    ),
)
def test_onnx_has_rotations_and_attention_as_its_own_operators(name: str, opset: int) -> None:
    make, how, rotations, attentions = OWN[name]
    layer = Grouped(make(), how).eval()

    def inputs(rows: int, tokens: int) -> tuple[Tensor, ...]:
        query, key, value = (torch.randn(rows, heads, tokens, 8) for heads in (4, 2, 2))
        return query, key, value, torch.randint(1000, (rows,))

    rows, tokens = torch.export.Dim("rows", min=2, max=8), torch.export.Dim("tokens", min=2, max=60)  # 1 is not for 2.9
    lengths = {name: {0: rows, 2: tokens} for name in ("query", "key", "value")} | {"starts": {0: rows}}
    with posenc.onnx_operators():
        program = torch.onnx.export(
            layer, inputs(2, TOKENS), dynamic_shapes=lengths, dynamo=True, verbose=False, opset_version=opset
        )
    session = session_of(program)
    assert program is not None
    nodes = [node.op_type for node in program.model.graph]
    assert (nodes.count("RotaryEmbedding"), nodes.count("Attention")) == (rotations, attentions)
    for shape in ((2, 5), (3, 33)):
        given = inputs(*shape)
        (out,) = session.run(None, {it.name: x.numpy() for it, x in zip(session.get_inputs(), given, strict=True)})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out), layer(*given), rtol=1e-4, atol=1e-4)


@needs_onnx
def test_contexts_of_several_threads_may_overlap() -> None:
    """The first to be entered is the first to be left."""
    make, how, *_ = OWN["half"]
    layer, given = Grouped(make(), how).eval(), (torch.randn(1, 4, 3, 8),) * 3 + (torch.tensor([5]),)

    def rotates_by_operator() -> bool:
        return "RotaryEmbedding" in str(torch.export.export(layer, given).graph)

    first, second = posenc.onnx_operators(), posenc.onnx_operators()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert rotates_by_operator()
    second.__exit__(None, None, None)
    assert not rotates_by_operator()
