"""What the kernels for CUDA leave out: keys that fade with the distance where they cannot count, and none where they
can.

What was left out is seen by what the values hold there: NaN, which any weight, 0 too, would bring into the output.
These tests run on a GPU, and in a process that interprets the kernels.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import KERPLE, Positions, Scheme, Shaw
from posenc.backends import choose
from posenc.backends.triton import backend, operator
from posenc.backends.triton.tasks import SPAN
from posenc.encoding.terms import Bias, CumulativeBias, Distance
from tests.backends.test_triton import ON
from tests.user_schemes import TermScheme

# The backward kernels mask weights, not scores, so those of masked pairs may be infinite before.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
HEADS, TOKENS, SHARE = 2, 300, 2.0**-16


@pytest.fixture(params=ON)
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run, and leave out keys of shorter texts too."""
    monkeypatch.setattr(operator, "FEWEST_KEYS", 2 * SPAN)
    return torch.device(request.param)


def line(steps: tuple[float, float] = (-1.4, -1.4)) -> Scheme:
    """A bias that falls along a line to both sides, in the first head steeply and in the second hardly."""

    def at(r: Tensor) -> Tensor:
        steep = torch.tensor([1.0, 0.01], device=r.device, dtype=torch.float64)
        return torch.tensordot(steep, torch.where(r < 0, -steps[0] * r, steps[1] * r).double(), 0)

    return TermScheme(lambda: (Bias(at, Distance("Line", tail="linear")),))


def power(r: Tensor) -> Tensor:
    """-a |r|^1.1, of which nothing is known but its numbers."""
    return torch.tensordot(torch.tensor([-1.0, -0.01], device=r.device).double(), r.abs().double() ** 1.1, 0)


SCHEMES: dict[str, Any] = {
    "a line": line,
    "a line that rises to the left": lambda: line((0.9, -1.4)),
    "a power": lambda: TermScheme(lambda: (Bias(power, Distance("Power")),)),
    "a learned power": lambda: KERPLE(HEADS, "power"),
    "a line and Shaw's vectors": lambda: line() + Shaw(16, 5),
    "a clock": lambda: TermScheme(lambda: (CumulativeBias("forgotten"),)),
}
PLACES = {
    "text": lambda: Positions.arange(TOKENS),
    "packed": lambda: Positions.packed([140, TOKENS - 140]),
    "a gap": lambda: Positions.cat([Positions.arange(170), Positions.arange(TOKENS - 170, start=170).shift(30)]),
    "padded": lambda: Positions.padded(torch.arange(TOKENS)[None] >= 40),
}


def drawn(dtype: torch.dtype, on: torch.device, kv_heads: int = 1, batch: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(batch, h, TOKENS, 16, generator=generator).to(on, dtype) for h in (HEADS, kv_heads, kv_heads)]


def encoding(name: str, positions: Positions, queries: int, dtype: torch.dtype) -> Any:
    scheme = SCHEMES[name]().to(dtype).to(positions.order.device)
    with torch.no_grad():
        for x in scheme.parameters():
            x.copy_(torch.linspace(0.3, 1.3, x.numel()).view(x.shape))
    bound = scheme(positions[-queries:], positions)
    if name == "a clock":
        generator = torch.Generator().manual_seed(7)
        paces = torch.tensor([1.4, 0.01])[:, None]
        readings = -(torch.rand(1, HEADS, TOKENS, generator=generator) * 2 * paces).double().cumsum(-1)
        readings = readings.to(positions.order.device)
        bound = bound.with_features({"forgotten": readings[:, :, -queries:]}, {"forgotten": readings})
    return scheme, bound


def run(
    name: str, tensors: list[Tensor], backend: str, positions: Positions, is_causal: bool, **how: Any
) -> dict[str, Tensor]:
    """The output, the log-sum-exp and the gradients."""
    dtype, queries = tensors[0].dtype, tensors[0].size(2)
    scheme, bound = encoding(name, positions, queries, dtype)
    leaves = [x.clone().requires_grad_() for x in tensors]
    out, lse = posenc.attention(*leaves, bound, is_causal=is_causal, backend=backend, return_lse=True, **how)
    there = lse != -torch.inf
    loss = (out * torch.linspace(-1, 1, 16, device=out.device, dtype=dtype)).sum() + lse[there].sin().sum()
    named = {"query": leaves[0], "key": leaves[1], "value": leaves[2], **dict(scheme.named_parameters())}
    found = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    return {n: x.detach().double().cpu() for n, x in {"output": out, "log-sum-exp": lse, **found}.items()}


CASES = [  # scheme, place, queries, causal
    ("a line", "packed", TOKENS, True),
    ("a line that rises to the left", "text", TOKENS, False),
    pytest.param("a line", "a gap", TOKENS, True, marks=pytest.mark.more),
    ("a power", "a gap", TOKENS, True),
    ("a learned power", "text", TOKENS, True),
    ("a line and Shaw's vectors", "padded", TOKENS, True),
    ("a clock", "text", TOKENS, True),
]


@pytest.mark.parametrize(("name", "place", "queries", "is_causal"), CASES)
def test_what_is_left_out_weighs_no_more_than_is_said(
    name: str, place: str, queries: int, is_causal: bool, on: torch.device
) -> None:
    """A weight of SHARE changes an output by twice the largest value, a gradient by the largest of what it sums; and
    rounding to single precision beside it, as in `test_triton`."""
    positions = PLACES[place]().with_layout().to(on)
    tensors = drawn(torch.float32, on, batch=positions.rows)
    tensors[0] = tensors[0][:, :, -queries:]
    found = run(name, tensors, "triton", positions, is_causal, skip_below=SHARE)
    truth = run(name, [x.double() for x in tensors], "reference", positions, is_causal)
    for what, expected in truth.items():
        nothing = expected == -torch.inf
        assert torch.equal(nothing, found[what] == -torch.inf)
        largest = max(1.0, float(expected.masked_fill(nothing, 0.0).abs().max()))
        off = float((found[what] - expected).masked_fill(nothing, 0.0).abs().max())
        assert off <= largest * (8 * SHARE + 2.0**-24 * TOKENS), what


def visited(
    name: str, on: torch.device, is_causal: bool, run: Any = posenc.attention, place: str = "text", **how: Any
) -> Tensor:
    """Which blocks of keys each block of queries was computed with, (heads, blocks, blocks): each block of keys has NaN
    in a channel of its values of its own."""
    positions = PLACES[place]().with_layout().to(on)
    q, k, v = drawn(torch.float32, on)
    _, bound = encoding(name, positions, TOKENS, torch.float32)
    block = torch.arange(TOKENS, device=on) // SPAN
    v = v.masked_fill(block[:, None] == torch.arange(16, device=on), torch.nan)
    out = run(q, k, v, bound, is_causal=is_causal, backend="triton", skip_below=SHARE, **how)
    rows = torch.nn.functional.pad(out.isnan()[0], (0, 0, 0, -TOKENS % SPAN))
    return rows.unflatten(1, (-1, SPAN)).any(2)[..., : -(-TOKENS // SPAN)].cpu()


@pytest.mark.parametrize(("name", "is_causal"), [("a line", True), ("a power", False), ("a clock", True)])
def test_what_is_computed_is_what_is_explained(
    name: str, is_causal: bool, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = visited(name, on, is_causal)
    blocks = seen.size(1)
    possible = torch.ones(blocks, blocks, dtype=torch.bool)
    possible = possible.tril() if is_causal else possible
    assert not (seen & ~possible).any()
    assert seen[0].sum() < possible.sum()  # of the steep head
    assert seen[:, range(blocks), range(blocks)].all()
    q, k, v = drawn(torch.float32, on)
    _, bound = encoding(name, Positions.arange(TOKENS, device=on), TOKENS, torch.float32)
    monkeypatch.setattr(choose, "choose", lambda call: (backend.TRITON, "it is asked"))
    told = posenc.explain(q, k, v, bound, is_causal=is_causal, skip_below=SHARE)
    assert told.computed == pytest.approx(float(seen.sum() / (HEADS * possible.sum())))
    assert posenc.explain(q, k, v, bound, is_causal=is_causal, skip_below=0.0).computed == 1


def test_a_key_of_a_large_norm_is_not_left_out(on: torch.device) -> None:
    """However far, it counts for queries that point its way; what is between is computed too."""
    positions = Positions.arange(TOKENS, device=on)
    q, k, v = drawn(torch.float32, on)
    k[0, 0, 3] = 200 * q[0, 0, -1]
    found = run("a line", [q, k, v], "triton", positions, True, skip_below=SHARE)
    truth = run("a line", [x.double() for x in (q, k, v)], "reference", positions, True)
    assert truth["log-sum-exp"][0, 0, -1] > 50  # it has won
    # Scores up to 2,000 that are known to 2^-24 of them, in weights that sum up to one.
    torch.testing.assert_close(found["output"], truth["output"], rtol=0, atol=8 * SHARE + 1e-3)


def test_what_cannot_count_is_not_computed_in_the_backward_pass(on: torch.device) -> None:
    """Late queries read no early keys, and early keys no late queries."""
    q, k, v = drawn(torch.float32, on, kv_heads=HEADS)
    v[:, :, :SPAN] = torch.nan
    _, bound = encoding("a line", Positions.arange(TOKENS, device=on), TOKENS, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = posenc.attention(*leaves, bound, is_causal=True, backend="triton", skip_below=SHARE)
    late = torch.zeros_like(out)
    late[:, :, -40:] = 1.0
    d_query, *_ = torch.autograd.grad(out, leaves, late, retain_graph=True)
    assert d_query[0, 0, -40:].isfinite().all()
    assert d_query[0, 1, -40:].isnan().all()
    late[:, :, -40:] = torch.nan
    _, d_key, d_value = torch.autograd.grad(out, leaves, late)
    for x in (d_key, d_value):
        assert x[0, 1, :SPAN].isnan().all()
    assert d_value[0, 0, :SPAN].isfinite().all()
