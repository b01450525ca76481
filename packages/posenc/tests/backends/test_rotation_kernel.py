"""The rotation of channel pairs on CUDA: by one kernel where there is Triton, elsewhere in a few operations.

As in `test_triton`, the kernel is interpreted on the CPU in a process of its own. What the compiler makes of it is held
to ceilings.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Positions, RoPE
from posenc.encoding.encoding import Encoding
from posenc.encoding.rotation import Rotation
from posenc.rotation import norms, phases
from posenc.rotation.phases import PairLayout, PairRotation
from tests.backends.operation_counts import operations
from tests.backends.parity_cases import ATTENDING, case, encoded, with_gradients
from tests.backends.test_triton import INTERPRETED, ON

LAYOUTS: tuple[PairLayout, ...] = ("half", "interleaved")


# --- without the kernel -----------------------------------------------------------------------------------------------


def rotation(
    tokens: int, head_dim: int, layout: PairLayout = "half", pairs: int | None = None, **how: Any
) -> PairRotation:
    """A rotation by some angles, on any device."""
    device, rows, heads = (
        how.pop(name, default) for name, default in (("device", "cpu"), ("rows", 1), ("of_heads", 1))
    )
    angle = torch.empty(rows, heads, tokens, pairs or head_dim // 2, device=device)
    angle = angle if device == "meta" else angle.normal_(std=2.0)
    return PairRotation(angle.cos(), angle.sin(), layout, head_dim, **how)


# --- who takes the kernel ---------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """As on a GPU, with a kernel that keeps how it is called and writes nothing."""
    calls: list[dict[str, Any]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *tensors, **how: calls.append(how | {"grid": grid, "tensors": tensors})

    monkeypatch.setattr(phases, "kernel_runs_on", lambda device: True)
    monkeypatch.setattr(phases, "_kernel", Kernel)
    return calls


SHAPES = {
    "half": (RoPE(64), (4, 2)),
    "interleaved": (RoPE(64, layout="interleaved"), (4, 4)),
    "some channels": (RoPE(64, rotary_dim=32), (12, 4)),
    "an odd number of heads": (RoPE(64), (9, 1)),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_queries_and_keys_are_a_launch_each_and_so_are_their_gradients(
    kind: str, launched: list[dict[str, Any]]
) -> None:
    """Views of one projection, of which no copy is made; what comes out lies in memory as they do."""
    scheme, (heads, kv_heads) = SHAPES[kind]
    projected = torch.randn(2, 50, heads + 2 * kv_heads, 64, dtype=torch.bfloat16, requires_grad=True)
    q, k, _ = (x.transpose(1, 2) for x in projected.split((heads, kv_heads, kv_heads), 2))
    encoding = scheme(Positions.arange(50))
    turned = encoding.rotate(q, k)
    assert len(launched) == 2
    for x, out in zip((q, k), turned, strict=True):
        assert out.stride(1) == 64
        assert out.stride(2) == 64 * x.size(1)
        assert out.dtype == x.dtype
    torch.autograd.grad(turned, (q, k), [torch.randn_like(x) for x in turned])
    assert len(launched) == 4


def test_what_watches_or_replaces_operations_sees_them(launched: list[dict[str, Any]]) -> None:
    turn, x = rotation(5, 8), torch.randn(2, 1, 5, 8)
    assert "addcmul_" in operations(lambda: turn(x))
    with torch.autograd.forward_ad.dual_level():
        turn(x)
    torch.func.vmap(turn)(x[None])
    torch.compile(turn, backend="eager")(x)
    assert not launched
    with torch.device("cpu"):  # PyTorch has a default device as a mode, which replaces nothing here
        turn(x)
    assert len(launched) == 1


GPU = torch.device("cuda:0")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """A device on which nothing was rotated yet, and how the next tries end: None is a rotation."""
    ones, ends = torch.ones, list[Exception | None]()

    def end(*given: Any, **how: Any) -> None:
        error = ends.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(*shape))
    monkeypatch.setattr(phases, "rotate_into", end)
    monkeypatch.setattr(phases, "_kernel", object)
    monkeypatch.setattr(phases, "_KERNEL_RUNS", {})
    return ends


def test_a_kernel_that_cannot_run_is_said_once(tried: list[Exception | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton needs a C compiler where it runs. Without Triton nothing is to be said: it is optional."""
    tried.append(RuntimeError("Failed to find C compiler"))
    with pytest.warns(UserWarning, match="rotations on cuda:0 take PyTorch's operations, .* Failed to find C compiler"):
        assert not phases.kernel_runs_on(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not phases.kernel_runs_on(GPU)
        assert not phases.kernel_runs_on(torch.device("cpu"))
        monkeypatch.setattr(phases, "_KERNEL_RUNS", {})
        monkeypatch.setattr(phases, "_kernel", lambda: None)
        assert not phases.kernel_runs_on(GPU)
        monkeypatch.setattr(phases, "_kernel", object)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert not phases.kernel_runs_on(GPU)


# --- the kernel -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=ON)
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Where the kernel runs: a GPU, or in the process that interprets it the CPU."""
    monkeypatch.setattr(phases, "kernel_runs_on", lambda device: device.type == request.param)
    return torch.device(request.param)


def truth_of(x: Tensor, turn: PairRotation, sign: float) -> tuple[Tensor, Tensor]:
    """What complex numbers in double precision give, and how far float32 may be from it, |a cos| + |b sin| times 2 u:
    two products and a sum are rounded."""
    x, cos, sin = (t.detach().double().cpu() for t in (x, turn.cos, turn.sin))
    pairs = cos.size(-1)
    start, stop = turn.heads_of(x)
    part = x[:, start:stop, :, turn.first : turn.first + 2 * pairs]
    where = (
        torch.arange(2 * pairs).view(2, pairs) if turn.layout == "half" else torch.arange(2 * pairs).view(pairs, 2).T
    )
    turned = torch.complex(*part[..., where].unbind(-2)) * torch.complex(cos, sign * sin)
    size = part[..., where].abs()
    off = torch.stack((size[..., 0, :] * cos.abs() + size[..., 1, :] * sin.abs(),
                       size[..., 0, :] * sin.abs() + size[..., 1, :] * cos.abs()), -2)  # fmt: skip
    whole, bound = x.clone(), torch.zeros_like(x)
    channels = (turn.first + where).flatten()
    whole[:, start:stop, :, channels] = torch.stack((turned.real, turned.imag), -2).flatten(-2)
    bound[:, start:stop, :, channels] = (2 * off).flatten(-2) * 2.0**-24 * (1 + 2.0**-20)
    return whole, bound


def check(out: Tensor, x: Tensor, turn: PairRotation, sign: float) -> None:
    """And then a rounding to the dtype. The interpreter cuts bfloat16 off, which is twice as far."""
    truth, bound = truth_of(x, turn, sign)
    if x.dtype != torch.float32:
        last = torch.finfo(x.dtype).eps * (1.0 if INTERPRETED and x.dtype == torch.bfloat16 else 0.5)
        rounded = truth != x.double().cpu()
        bound = bound + rounded * ((truth.abs() + bound) * last + torch.finfo(x.dtype).smallest_normal * last)
    assert ((out.detach().double().cpu() - truth).abs() <= bound).all()


# layout, heads, tokens, head_dim, pairs, first channel, rows and heads of the angles
CASES: list[tuple[PairLayout, int, int, int, int, int, int, int]] = [
    ("half", 12, 37, 16, 8, 0, 1, 1),
    ("half", 3, 70, 64, 32, 0, 2, 1),
    ("half", 4, 1, 64, 32, 0, 2, 4),
    ("half", 1, 129, 40, 9, 3, 1, 1),
    ("half", 3, 33, 37, 12, 0, 2, 3),
    ("interleaved", 12, 37, 16, 8, 0, 1, 1),
    ("interleaved", 3, 70, 64, 32, 0, 2, 1),
    ("interleaved", 4, 1, 64, 32, 0, 2, 4),
    ("interleaved", 1, 129, 40, 9, 3, 1, 1),
    ("interleaved", 3, 33, 37, 12, 1, 2, 3),
    ("half", 2, 7, 2, 1, 0, 1, 1),
    ("interleaved", 2, 7, 3, 1, 1, 1, 1),
    ("half", 20, 2, 256, 128, 0, 1, 1),
]


HALVES = [CASES[n] for n in (1, 3, 7, 9)]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.float32) for case in CASES]
    + [(case, dtype) for case in HALVES for dtype in (torch.bfloat16, torch.float16)],
    ids=lambda of: "-".join(map(str, of)) if isinstance(of, tuple) else str(of),
)
def test_it_is_the_rotation_of_complex_numbers(case: Any, dtype: torch.dtype, on: torch.device) -> None:
    """Of a view of a projection, of tensors as others have them, and in place; its gradient is turned back."""
    layout, heads, tokens, head_dim, pairs, first, rows, of_heads = case
    turn = rotation(tokens, head_dim, layout, pairs, first=first, rows=rows, of_heads=of_heads, device=str(on))
    projected = torch.randn(2, tokens, 3, heads, head_dim, device=on).to(dtype)
    view = projected[:, :, 1].transpose(1, 2)
    for x in (view, view.contiguous(), view.mT.contiguous().mT)[: 3 if dtype == torch.float32 else 1]:
        leaf = x.detach().requires_grad_()
        out = turn(leaf)
        assert type(out.grad_fn).__name__ == "_KernelRotationFunctionBackward"
        check(out, x, turn, 1)
        gradient = torch.randn_like(out)
        (found,) = torch.autograd.grad(out, leaf, gradient)
        check(found, gradient, turn, -1)
    before = projected.clone()
    phases.rotate_into(view, view, turn.cos, turn.sin, layout == "interleaved", first)
    check(view, before[:, :, 1].transpose(1, 2), turn, 1)
    assert torch.equal(projected[:, :, ::2], before[:, :, ::2])


EPS = 1e-5


def check_norm(turns: tuple[PairRotation, PairRotation], heads: tuple[int, int], dtype: torch.dtype) -> None:
    """`Encoding.norm_rotate`, forward and backward, against double precision.

    A sum of n numbers is off by n u of their sizes, a root by half of what is under it, and of products and roots there
    are no more than 20 on the way to any result."""
    device, width, tokens = turns[0].cos.device, turns[0].head_dim, turns[0].cos.size(2)
    positions = Positions.arange(tokens).to(device)
    encoding = Encoding(positions, positions, rotations=(Rotation(*turns),))
    tensors = [torch.randn(2, tokens, n, width, device=device).to(dtype).transpose(1, 2) for n in heads]
    leaves = [x.requires_grad_() for x in (*tensors, *torch.randn(2, width, device=device))]
    outs = encoding.norm_rotate(*leaves, eps=EPS)
    gradients = [torch.randn_like(out) for out in outs]
    found = torch.autograd.grad(outs, leaves, gradients)
    for n, turn in enumerate(turns):
        x, weight, gradient = (t.detach().double().cpu() for t in (leaves[n], leaves[n + 2], gradients[n]))
        r = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
        unit = x * r
        out, out_size = with_size(unit * weight, turn, 1)
        back, back_size = with_size(gradient, turn, -1)
        of_unit, size = back * weight, back_size * weight.abs()
        of_x = r * (of_unit - unit * (of_unit * unit).mean(-1, keepdim=True))
        of_x_size = r * (size + unit.abs() * (size * unit.abs()).mean(-1, keepdim=True))
        of_weight, of_weight_size = (back * unit).sum((0, 1, 2)), (back_size * unit.abs()).sum((0, 1, 2))
        rows = x.numel() // width
        for got, true, bound in (
            (outs[n], out, out_size * (width / 2 + 20)),
            (found[n], of_x, of_x_size * (2 * width + 20)),
            (found[n + 2], of_weight, of_weight_size * (rows + width / 2 + 20)),
        ):
            bound = bound * 2.0**-24
            if got.dtype != torch.float32:
                last = torch.finfo(dtype).eps * (1.0 if INTERPRETED and dtype == torch.bfloat16 else 0.5)
                bound = bound + (true.abs() + bound + torch.finfo(dtype).smallest_normal) * last
            assert ((got.detach().double().cpu() - true).abs() <= bound).all()


def with_size(x: Tensor, turn: PairRotation, sign: float) -> tuple[Tensor, Tensor]:
    """x rotated in double precision, and the sizes of what each channel is a sum of."""
    turned, bound = truth_of(x, turn, sign)
    return turned, torch.where(bound > 0, bound * 2.0**23, turned.abs())


NORMED = [
    (case, dtype)
    for case in (*CASES, ("half", 2, 37, 48, 8, 0, 1, 1))
    for dtype in (torch.float32, torch.bfloat16)[: 2 if case in HALVES else 1]
]


def turns_of(case: Any, device: str) -> tuple[tuple[PairRotation, PairRotation], tuple[int, int]]:
    """The rotations of queries and of keys of a case, and their heads: keys have half as many where that is whole."""
    layout, heads, tokens, head_dim, pairs, first, rows, of_heads = case
    kv_heads = heads // 2 if heads % 2 == 0 and of_heads == 1 else heads
    turns = [
        rotation(tokens, head_dim, layout, pairs, first=first, rows=rows, of_heads=of_heads, device=device)
        for _ in range(2)
    ]
    return (turns[0], turns[1]), (heads, kv_heads)


@pytest.mark.parametrize(("case", "dtype"), NORMED)
def test_norms_before_a_rotation_are_those_of_double_precision(case: Any, dtype: torch.dtype) -> None:
    check_norm(*turns_of(case, "cpu"), dtype)


@pytest.mark.parametrize(("case", "dtype"), NORMED)
def test_the_kernel_norms_and_rotates(
    case: Any, dtype: torch.dtype, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries and keys in one launch each way."""
    launches: list[int] = []
    real = norms._launch
    monkeypatch.setattr(norms, "_launch", lambda *given: launches.append(len(given)) or real(*given))
    check_norm(*turns_of(case, str(on)), dtype)
    assert launches == [3, 4]


def test_keys_are_written_where_they_are_kept(on: torch.device) -> None:
    """And nothing beside them; second derivatives are those of PyTorch's operations."""
    encoding = RoPE(16)(Positions.arange(5).to(on))
    query, key = torch.randn(1, 4, 5, 16, device=on), torch.randn(1, 2, 5, 16, device=on)
    kept = torch.full((1, 2, 9, 16), torch.nan, device=on)
    with torch.no_grad():
        _, written = encoding.norm_rotate(query, key, key_out=kept[:, :, 3:8])
        assert torch.equal(kept[:, :, 3:8], encoding.norm_rotate(query, key)[1])
    assert written.data_ptr() == kept[:, :, 3:8].data_ptr()
    assert kept[:, :, :3].isnan().all()
    assert kept[:, :, 8:].isnan().all()
    weight = torch.randn(16, device=on, dtype=torch.float64)

    def attended(query: Tensor, weight: Tensor) -> Tensor:
        a, b = encoding.norm_rotate(query.float(), key, weight, None)
        return a.double() + b.double().sum()

    leaf = query.double().requires_grad_()
    (first,) = torch.autograd.grad(attended(leaf, weight).square().sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "kernel_supports", lambda *_: False)
        (first,) = torch.autograd.grad(attended(leaf, weight).square().sum(), leaf, create_graph=True)
        (plain,) = torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(second, plain, rtol=1e-4, atol=1e-3)


def test_what_is_beside_x_in_memory_is_not_written(on: torch.device) -> None:
    """Nor are rows and channels beyond a block's end read: there is NaN."""
    for layout, (first, pairs) in itertools.product(LAYOUTS, ((0, 12), (1, 5))):
        around = torch.full((3, 41, 6, 30), torch.nan, device=on)
        x = torch.randn(1, 3, 37, 24, device=on)
        inside = around[1:2, 2:39, 1:4, 3:27].transpose(1, 2)
        inside.copy_(x)
        turn = rotation(37, 24, layout, pairs, first=first, device=str(on))
        phases.rotate_into(inside, inside, turn.cos, turn.sin, layout == "interleaved", first)
        check(inside, x, turn, 1)
        inside.fill_(torch.nan)
        assert around.isnan().all()


# --- every scheme that rotates ----------------------------------------------------------------------------------------

SCHEMES = [name for name in ATTENDING if encoded(name).rotations]
WITHOUT_PAIRS = frozenset(
    {"lie_re", "pope", "cameras", "deberta", "deberta in buckets", "key_offset", "query_scale", "swin_v2", "tupe"}
)
"""Whose maps of queries and keys are matrices, widen them or scale them."""
LEARNED = frozenset({"carope", "fope", "le_rope", "mixed_rope", "re_po", "selective_rope", "string"})
"""Whose angles have gradients."""


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_that_rotates_pairs_does_so_by_the_kernel(
    name: str, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped heads, and queries that are the last of the keys. Every rotation, forward and backward, is compared where
    it happens; those by learned angles go on in PyTorch's operations."""
    by_kernel: list[float] = []
    plain: list[bool] = []
    real, passes = phases._rotate_by_kernel, phases._rotate

    def checking(x: Tensor, turn: PairRotation, sign: float) -> Tensor:
        out = real(x, turn, sign)
        if not (torch.is_grad_enabled() and x.requires_grad):  # else it is called again, by autograd
            check(out, x, turn, sign)
            by_kernel.append(sign)
        return out

    def noting(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
        plain.append(cos.requires_grad or sin.requires_grad)
        return passes(x, cos, sin, layout)

    monkeypatch.setattr(phases, "_rotate_by_kernel", checking)
    monkeypatch.setattr(phases, "_rotate", noting)
    it = case(name, "cache", 37, "causal", heads=4, kv_heads=2).to(torch.float32).to(on)
    with_gradients(it, it.attend("reference", return_lse=True))
    left = len(plain)
    assert not left or any(plain)
    with monkeypatch.context() as patch:
        patch.setattr(phases, "kernel_runs_on", lambda device: False)
        with_gradients(it, it.attend("reference", return_lse=True))
    assert len(by_kernel) == len(plain) - 2 * left
    assert bool(by_kernel) == (name not in WITHOUT_PAIRS | LEARNED)
    del by_kernel[:]
    with torch.no_grad():
        it.attend("reference")
    assert bool(by_kernel) == (name not in WITHOUT_PAIRS)
