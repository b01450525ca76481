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


class Step(torch.nn.Module):
    """The last tokens of a text attend to all of it."""

    def __init__(self, scheme: posenc.Scheme, **how: Any) -> None:
        super().__init__()
        self.scheme, self.how = scheme, how

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        text = posenc.Positions.arange(key.size(2))
        encoding = self.scheme(text[key.size(2) - query.size(2) :], text)
        return posenc.attention(query, key, value, encoding, **self.how)


@pytest.mark.parametrize("how", [{"is_causal": True}, {}, {"is_causal": True, "window": 4}], ids=str)
@pytest.mark.parametrize("make", [posenc.NoPE, lambda: posenc.RoPE(8)], ids=["nope", "rope"])
def test_an_exported_step_takes_any_number_of_queries_and_keys(make: Callable[[], posenc.Scheme], how: Any) -> None:
    """Also as many queries as keys, which need no mask."""
    queries, keys = torch.export.Dim("queries", min=1, max=40), torch.export.Dim("keys", min=1, max=50)
    step = Step(make(), **how)
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


@pytest.mark.skipif(bool(MISSING), reason=f"ONNX needs {', '.join(MISSING)}, which the dev extra installs")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_model_reaches_onnx_with_no_backend_named(name: str) -> None:
    import onnxruntime

    model, lengths = Decoder(30, 16, 2, 2, position=SCHEDULES[name]()).eval(), torch.export.Dim("n", min=1, max=60)
    ids = torch.randint(30, (1, TOKENS))
    program = torch.onnx.export(model, (ids,), dynamic_shapes={"tokens": {1: lengths}}, dynamo=True, verbose=False)
    assert program is not None
    written = io.BytesIO()
    program.save(written)
    session = onnxruntime.InferenceSession(written.getvalue(), providers=["CPUExecutionProvider"])
    for tokens in (1, *OTHERS):
        ids = torch.randint(30, (1, tokens))
        (out,) = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out), model(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(bool(MISSING), reason=f"ONNX needs {', '.join(MISSING)}, which the dev extra installs")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # the exporter's own
@pytest.mark.filterwarnings("ignore:# The axis name. tokens will not be used:UserWarning")  # one name for three axes
@pytest.mark.parametrize("name", [name for name in SCHEMES if not refuses("sdpa", name, "text")])
def test_onnx_gives_what_eager_gives_at_any_length(name: str) -> None:
    """Through the sdpa backend, whose kernel ONNX knows. Single precision of another library: sums of up to 33 terms of
    order 1 to 10, in another order."""
    import onnxruntime

    it = case(name, "text", TOKENS, dtype=torch.float32)
    model = Model(it, "sdpa").eval()
    with torch.no_grad():
        program = torch.onnx.export(model, tensors(it, TOKENS), dynamic_shapes=dynamic(), dynamo=True, verbose=False)
    assert program is not None
    written = io.BytesIO()
    program.save(written)
    session = onnxruntime.InferenceSession(written.getvalue(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    assert names == ["query", "key", "value"]
    for tokens in (*OTHERS, TOKENS):
        inputs = tensors(it, tokens)
        (out,) = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out), model(*inputs), rtol=1e-4, atol=1e-4)
