"""The rotation of channel pairs on CUDA: by one kernel where there is Triton, elsewhere in a few operations.

As in `test_triton`, the kernel is interpreted on the CPU in a process of its own. What the compiler makes of it is held
to ceilings.
"""

import itertools
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posenc import Positions, RoPE
from posenc.rotation import fused, phases
from posenc.rotation.phases import PairLayout, PairRotation
from tests.backends.counting import operations
from tests.backends.grounds import ATTENDING, case, encoded, with_gradients
from tests.backends.test_triton import INTERPRETED, ON, interpreted

LAYOUTS: tuple[PairLayout, ...] = ("half", "interleaved")
VIEWS = frozenset({"view", "slice", "_unsafe_view", "unsqueeze", "expand", "alias", "select", "detach"})
ALLOCATING = frozenset({"empty_like", "empty", "empty_strided"})


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


PLAIN = {
    "all channels": {},
    "channels from the fourth on": {"first": 4, "pairs": 28},
    "some channels": {"pairs": 16},
    "some heads": {"heads": range(4, 12), "num_heads": 16},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_elsewhere_than_on_the_cpu_it_is_not_cut_into_blocks(kind: str, layout: PairLayout, dtype: torch.dtype) -> None:
    """Of a text of 16,384, of which the CPU makes hundreds of blocks: forward and backward are a few operations."""
    x = torch.empty(4, 16, 16_384, 64, device="meta", dtype=dtype, requires_grad=True)
    turn = rotation(16_384, 64, layout, device="meta", **PLAIN[kind])
    made: list[Tensor] = []
    forward = operations(lambda: made.append(turn(x)))
    backward = operations(lambda: torch.autograd.grad(made[0], x, torch.empty_like(made[0])))
    for names in (forward, backward):
        writing = [name for name in names if name not in VIEWS | ALLOCATING]
        assert len(writing) <= 12, writing
        assert len(names) <= 24, names


# --- who takes the kernel ---------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """As on a GPU, with a kernel that keeps how it is called and writes nothing."""
    calls: list[dict[str, Any]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *tensors, **how: calls.append(how | {"grid": grid, "tensors": tensors})

    monkeypatch.setattr(fused, "works_on", lambda device: True)
    monkeypatch.setattr(fused, "_kernel", Kernel)
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


def learned_angles() -> tuple[PairRotation, Tensor]:
    turn = rotation(5, 8)
    return PairRotation(turn.cos.requires_grad_(), turn.sin, "half", 8), torch.randn(1, 1, 5, 8)


PASSED_BY: dict[str, Callable[[], tuple[PairRotation, Tensor]]] = {
    "float64": lambda: (rotation(5, 8), torch.randn(1, 1, 5, 8, dtype=torch.float64)),
    "angles with a gradient": learned_angles,
    "no tokens": lambda: (rotation(1, 8), torch.randn(1, 1, 0, 8)),
    "a tensor of another class": lambda: (rotation(5, 8), torch.randn(1, 1, 5, 8).as_subclass(Subclass)),
    "a sine of another shape": lambda: (
        PairRotation(torch.ones(1, 1, 5, 4), torch.zeros(1, 1, 1, 4), "half", 8),
        torch.randn(1, 1, 5, 8),
    ),
}


class Subclass(Tensor):
    """Whose operations may be anything."""


@pytest.mark.parametrize("why", PASSED_BY)
def test_these_are_not_for_the_kernel(why: str, launched: list[dict[str, Any]]) -> None:
    turn, x = PASSED_BY[why]()
    assert turn(x).shape == x.shape
    assert not launched


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
    monkeypatch.setattr(fused, "rotate_into", end)
    monkeypatch.setattr(fused, "_kernel", object)
    monkeypatch.setattr(fused, "_WORKS", {})
    return ends


def test_a_kernel_that_cannot_run_is_said_once(tried: list[Exception | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton needs a C compiler where it runs. Without Triton nothing is to be said: it is optional."""
    tried.append(RuntimeError("Failed to find C compiler"))
    with pytest.warns(UserWarning, match="rotations on cuda:0 take PyTorch's operations, .* Failed to find C compiler"):
        assert not fused.works_on(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fused.works_on(GPU)
        assert not fused.works_on(torch.device("cpu"))
        monkeypatch.setattr(fused, "_WORKS", {})
        monkeypatch.setattr(fused, "_kernel", lambda: None)
        assert not fused.works_on(GPU)
        monkeypatch.setattr(fused, "_kernel", object)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert not fused.works_on(GPU)


def test_nothing_is_tried_while_a_graph_is_captured(
    tried: list[Exception | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be part of the graph, or end its capture. What was known before is used."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.warns(UserWarning, match="a CUDA graph is captured, and nothing was rotated before; run once what"):
        assert not fused.works_on(GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    tried.append(None)
    assert fused.works_on(GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert fused.works_on(GPU)


# --- the kernel -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets it")
def test_where_there_is_no_gpu_it_is_interpreted() -> None:
    assert interpreted(__file__) >= len(CASES) + len(SCHEMES)  # and were not skipped


@pytest.fixture(params=ON)
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Where the kernel runs: a GPU, or in the process that interprets it the CPU."""
    monkeypatch.setattr(fused, "works_on", lambda device: device.type == request.param)
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
        assert type(out.grad_fn).__name__ == "_TurnAtOnceBackward"
        check(out, x, turn, 1)
        gradient = torch.randn_like(out)
        (found,) = torch.autograd.grad(out, leaf, gradient)
        check(found, gradient, turn, -1)
    before = projected.clone()
    fused.rotate_into(view, view, turn.cos, turn.sin, layout == "interleaved", first)
    check(view, before[:, :, 1].transpose(1, 2), turn, 1)
    assert torch.equal(projected[:, :, ::2], before[:, :, ::2])


def test_what_is_beside_x_in_memory_is_not_written(on: torch.device) -> None:
    """Nor are rows and channels beyond a block's end read: there is NaN."""
    for layout, (first, pairs) in itertools.product(LAYOUTS, ((0, 12), (1, 5))):
        around = torch.full((3, 41, 6, 30), torch.nan, device=on)
        x = torch.randn(1, 3, 37, 24, device=on)
        inside = around[1:2, 2:39, 1:4, 3:27].transpose(1, 2)
        inside.copy_(x)
        turn = rotation(37, 24, layout, pairs, first=first, device=str(on))
        fused.rotate_into(inside, inside, turn.cos, turn.sin, layout == "interleaved", first)
        check(inside, x, turn, 1)
        inside.fill_(torch.nan)
        assert around.isnan().all()


def test_a_second_derivative_and_one_of_a_checkpoint(on: torch.device) -> None:
    turn = rotation(5, 8, device=str(on))
    x = torch.randn(1, 2, 5, 8, device=on, requires_grad=True)
    gradient = torch.randn(1, 2, 5, 8, device=on, requires_grad=True)
    (once,) = torch.autograd.grad(turn(x), x, gradient, create_graph=True)
    (twice,) = torch.autograd.grad(once, gradient, x)
    check(twice, x, turn, 1)
    (again,) = torch.autograd.grad(checkpoint(turn, x, use_reentrant=False), x, gradient.detach())
    check(again, gradient, turn, -1)


# --- every scheme that rotates ----------------------------------------------------------------------------------------

SCHEMES = [name for name in ATTENDING if encoded(name).rotations]
WITHOUT_PAIRS = frozenset(
    {"lie_re", "pope", "cameras", "deberta", "deberta in buckets", "query_scale", "swin_v2", "tupe"}
)
"""Whose maps of queries and keys are matrices, widen them or scale them."""
LEARNED = frozenset({"carope", "fope", "le_rope", "mixed_rope", "selective_rope", "string"})
"""Whose angles have gradients."""


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_that_rotates_pairs_does_so_by_the_kernel(
    name: str, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped heads, and queries that are the last of the keys. Every rotation, forward and backward, is compared where
    it happens; those by learned angles go on in PyTorch's operations."""
    by_kernel: list[float] = []
    plain: list[bool] = []
    real, passes = phases._turned_at_once, phases._turned

    def checking(x: Tensor, turn: PairRotation, sign: float) -> Tensor:
        out = real(x, turn, sign)
        if not (torch.is_grad_enabled() and x.requires_grad):  # else it is called again, by autograd
            check(out, x, turn, sign)
            by_kernel.append(sign)
        return out

    def noting(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
        plain.append(cos.requires_grad or sin.requires_grad)
        return passes(x, cos, sin, layout)

    monkeypatch.setattr(phases, "_turned_at_once", checking)
    monkeypatch.setattr(phases, "_turned", noting)
    it = case(name, "cache", 37, "causal", heads=4, kv_heads=2).to(torch.float32).to(on)
    with_gradients(it, it.attend("reference", return_lse=True))
    left = len(plain)
    assert not left or any(plain)
    with monkeypatch.context() as patch:
        patch.setattr(fused, "works_on", lambda device: False)
        with_gradients(it, it.attend("reference", return_lse=True))
    assert len(by_kernel) == len(plain) - 2 * left
    assert bool(by_kernel) == (name not in WITHOUT_PAIRS | LEARNED)
    del by_kernel[:]
    with torch.no_grad():
        it.attend("reference")
    assert bool(by_kernel) == (name not in WITHOUT_PAIRS)


# --- what the compiler makes of it ------------------------------------------------------------------------------------

DTYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
# layout, dtype, head_dim, pairs, first channel, heads; registers of a thread, and bytes that are read and written for
# each channel: x once, and for each that is rotated half a cosine and half a sine, of 4 bytes.
CEILINGS: list[tuple[PairLayout, torch.dtype, int, int, int, int, int, float, float]] = [
    ("half", torch.bfloat16, 64, 32, 0, 16, 80, 2 + 4, 2),
    ("half", torch.bfloat16, 128, 64, 0, 12, 80, 2 + 4, 2),
    ("half", torch.float32, 64, 32, 0, 9, 96, 4 + 4, 4),
    ("interleaved", torch.bfloat16, 64, 32, 0, 16, 80, 2 + 4, 2),
    ("interleaved", torch.float16, 128, 64, 0, 12, 80, 2 + 4, 2),
    ("interleaved", torch.float32, 64, 32, 0, 16, 96, 4 + 4, 4),
    ("half", torch.bfloat16, 64, 16, 0, 16, 80, 2 + 2 + 1, 2 + 1),
    ("half", torch.bfloat16, 192, 32, 128, 16, 128, 2 / 3 + 4 / 3 + 2 * 4 / 3, 2 / 3 + 2 * 4 / 3),
]


def compiled(
    layout: PairLayout, dtype: torch.dtype, head_dim: int, pairs: int, first: int, heads: int, patch: pytest.MonkeyPatch
) -> tuple[Any, dict[str, Any]]:
    """The kernel for an H100 as it is launched for a projection, and its constants."""
    from triton.backends.compiler import GPUTarget  # not before: it is not everywhere
    from triton.compiler import ASTSource, compile

    kernel = fused._kernel()
    given: list[tuple[Any, dict[str, Any]]] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *arguments, **how: given.append((arguments, how))

    x = torch.empty(2, 4096, heads, head_dim, dtype=dtype, device="meta").transpose(1, 2)
    cos = torch.empty(1, 1, 4096, pairs, device="meta")
    with patch.context() as within:
        within.setattr(fused, "_kernel", Recorder)
        fused.rotate_into(x, x, cos, cos, layout == "interleaved", first)
    ((arguments, how),) = given
    constants = {name: x for name, x in how.items() if name not in fused.HOW}
    signature, divisible = {}, {}
    for at, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name] = "constexpr"
            continue
        value = arguments[at]
        signature[name] = DTYPES[value.dtype] if isinstance(value, Tensor) else "fp32" if name == "sign" else "i32"
        if isinstance(value, Tensor) or (not parameter.do_not_specialize and value % 16 == 0):
            divisible[(at,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, divisible)
    return compile(source, target=GPUTarget("cuda", 90, 32), options=fused.HOW), how


def moved(ptx: str, kind: str) -> float:
    """The bytes that a thread moves to or from global memory, by the instructions of straight code."""
    found = re.findall(rf"{kind}\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)
    return sum(int(count or 1) * int(bits) / 8 for count, bits in found)


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(INTERPRETED, reason="it is interpreted in this process")
@pytest.mark.parametrize("case", CEILINGS, ids=lambda case: "-".join(map(str, case[:6])))
def test_it_needs_few_registers_and_moves_each_number_once(
    case: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without spills, which would use the stack, in loads of 16 bytes. Where not all channels are rotated, a lane for
    each of a power of two copies what is to be copied; the others are masked, but counted here."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    *shape, registers, read, written = case
    made, how = compiled(*shape, monkeypatch)
    ptx = made.asm["ptx"]
    channels = how["HEADS"] * how["TOKENS"] * how["WIDTH"] / (32 * how["num_warps"])
    assert moved(ptx, "ld") / channels == pytest.approx(read)
    assert moved(ptx, "st") / channels == pytest.approx(written)
    cubin = tmp_path / "rotate.cubin"
    cubin.write_bytes(made.asm["cubin"])
    tool = Path(sys.modules["triton"].__file__ or "").parent / "backends/nvidia/bin/cuobjdump"
    told = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", told)}
    assert used["STACK"] == used["LOCAL"] == 0
    assert used["REG"] <= registers
    assert {m for m in re.findall(r"(?:ld|st)\.global\S*", ptx) if ".v4.b32" not in m} == set()
