"""How the kernels for CUDA are launched: what is settled before, copied once, or refused. None of this needs a GPU."""

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import posenc
from posenc import ALiBi, Positions, Shaw, compat
from posenc.backends import blockwise, cache, fitting
from posenc.backends.request import Request
from posenc.backends.triton import arguments, backend, operator, tasks
from posenc.encoding.terms import Bias, Distance
from posenc.positions.tiles import Tiling, Visibility
from tests.backends.operation_counts import operations
from tests.user_schemes import TermScheme

# --- precision of products --------------------------------------------------------------------------------------------


def test_products_are_as_precise_as_pytorchs() -> None:
    assert not compat.multiplies_in_tf32()
    try:
        for setting, expected in (("high", True), ("medium", True), ("highest", False)):
            torch.set_float32_matmul_precision(setting)
            assert compat.multiplies_in_tf32() == expected
    finally:
        torch.set_float32_matmul_precision("highest")


def launched(
    scheme: posenc.Scheme, patch: pytest.MonkeyPatch, dtype: torch.dtype = torch.float32, tokens: int = 70, **how: Any
) -> dict[str, dict[str, Any]]:
    """The arguments of every kernel of a forward and a backward pass, and their ``grid``."""
    calls: dict[str, dict[str, Any]] = {}

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda **given: calls.update({self.name: {**given, "grid": grid}})

    patch.setattr(backend, "missing", lambda: None)
    patch.setattr(backend, "is_interpreted", lambda: True)  # so that it takes tensors of the CPU
    patch.setattr(operator, "kernel_of", Recorder)
    patch.setattr(operator, "out_of_resources", lambda: MemoryError)
    q, k = (torch.randn(1, heads, tokens, 16, dtype=dtype, requires_grad=True) for heads in (4, 2))
    out = posenc.attention(q, k, k, scheme, is_causal=True, backend="triton", **how)
    assert isinstance(out, Tensor)
    out.sum().backward()
    return calls


# --- later calls of a plan --------------------------------------------------------------------------------------------

KERNELS = ast.parse((Path(operator.__file__).parent / "kernels.py").read_text())
PARAMETERS = {f.name: [a.arg for a in f.args.args] for f in KERNELS.body if isinstance(f, ast.FunctionDef)}


@dataclass
class Started:
    """A launch: of a kernel that was ``compiled`` before, or for which Triton looks at all arguments."""

    name: str
    compiled: bool
    grid: tuple[int, ...]
    arguments: dict[str, Any]


class NullLauncher:
    """In place of Triton: keeps the launches, and starts nothing."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started: list[Started] = []
        patch.setattr(backend, "missing", lambda: None)
        patch.setattr(backend, "is_interpreted", lambda: True)  # so that it takes tensors of the CPU
        patch.setattr(operator, "is_interpreted", lambda: False)
        patch.setattr(operator, "kernel_of", lambda name: NullKernel(self, name))
        patch.setattr(operator, "out_of_resources", lambda: MemoryError)

    def launches(self, run: Callable[[], object]) -> list[Started]:
        self.started.clear()
        run()
        return list(self.started)


class NullKernel:
    def __init__(self, launcher: NullLauncher, name: str) -> None:
        self.launcher, self.name, self.arg_names = launcher, name, PARAMETERS[name]

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., Any]:
        def start(**given: Any) -> CompiledKernel:
            arguments = {name: given[name] for name in self.arg_names}
            assert given.keys() - arguments.keys() <= {"num_warps", "num_stages", "maxnreg", "enable_fp_fusion"}
            self.launcher.started.append(Started(self.name, False, grid, arguments))
            return CompiledKernel(self)

        return start


class CompiledKernel:
    """What a launch returns, by the name that Triton gives it."""

    def __init__(self, kernel: NullKernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def start(*arguments: Any) -> None:
            named = dict(zip(self.kernel.arg_names, arguments, strict=True))
            self.kernel.launcher.started.append(Started(self.kernel.name, True, grid, named))

        return start


def tensors_of(tokens: int, queries: int, learns: bool, offset: int = 0) -> list[Tensor]:
    """Query, key and value; ``offset`` numbers after an address that is aligned."""
    numbers = [torch.zeros(4 * n * 16 + offset, dtype=torch.bfloat16)[offset:] for n in (queries, tokens, tokens)]
    return [x.view(1, 4, -1, 16).requires_grad_(learns) for x in numbers]


def calling(
    scheme: posenc.Scheme, tokens: int, queries: int, learns: bool
) -> Callable[[list[Tensor]], dict[str, Tensor]]:
    """A call, and its backward pass if parameters learn, with one encoding; it returns the tensors that came in."""
    positions = Positions.arange(tokens)
    encoding = scheme.requires_grad_(learns)(positions[-queries:], positions)
    gradient = torch.ones(1, 4, queries, 16, dtype=torch.bfloat16)

    def run(tensors: list[Tensor]) -> dict[str, Tensor]:
        with torch.set_grad_enabled(learns):
            out = posenc.attention(*tensors, encoding, is_causal=True, backend="triton")
            assert isinstance(out, Tensor)
            if learns:
                torch.autograd.grad(out, [*tensors, *scheme.parameters()], gradient)
        return dict(zip("qkv", tensors, strict=True))

    return run


LATER: dict[str, tuple[Callable[[], posenc.Scheme], int, int, bool]] = {
    "ALiBi": (lambda: ALiBi(4), 70, 70, False),
    "ALiBi, blocks that fade": (lambda: ALiBi(4), 1100, 1100, False),
    "ALiBi, a step": (lambda: ALiBi(4), 1100, 1100, True),
    "ALiBi, one query": (lambda: ALiBi(4), 1100, 1, False),
    "T5, a step": (lambda: posenc.T5(4), 70, 70, True),
    "Shaw": (lambda: Shaw(16, 5), 70, 70, False),
    "Shaw, a step": (lambda: Shaw(16, 5), 70, 70, True),
    "Shaw, one query": (lambda: Shaw(16, 5), 1100, 1, False),
    "FIRE, one query": (lambda: posenc.FIRE(4), 1100, 1, False),
}


@pytest.mark.parametrize("name", LATER)
def test_later_calls_start_what_was_compiled_with_the_same_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a first call would: the same numbers, tensors of the same kind, and those that came in. Where an address is
    not aligned, Triton looks at the arguments again."""
    gpu, (make, *of) = NullLauncher(monkeypatch), LATER[name]
    inputs = tensors_of(*of)

    def kind_of(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(kind_of, x))
        if not isinstance(x, Tensor):
            return x
        held = [n for n, y in enumerate(inputs) if y.data_ptr() == x.data_ptr()]
        return x.shape, x.stride(), x.dtype, held

    scheme = make()
    run = calling(scheme, *of)
    first = gpu.launches(lambda: run(tensors_of(*of)))
    later = gpu.launches(lambda: run(inputs))
    alone = gpu.launches(lambda: calling(scheme, *of)(inputs))
    assert not first[0].compiled
    assert not alone[0].compiled
    assert all(each.compiled for each in later)
    for one, other in zip(later, alone, strict=True):
        assert (one.name, one.grid) == (other.name, other.grid)
        assert {n: kind_of(x) for n, x in one.arguments.items()} == {n: kind_of(x) for n, x in other.arguments.items()}
    unaligned = gpu.launches(lambda: run(tensors_of(*of, offset=1)))
    assert not any(each.compiled for each in unaligned)


def test_a_changed_precision_of_products_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, q = NullLauncher(monkeypatch), torch.zeros(1, 4, 70, 16)
    encoding = ALiBi(4)(Positions.arange(70))

    def precision() -> str:
        (started,) = gpu.launches(lambda: posenc.attention(q, q, q, encoding, is_causal=True, backend="triton"))
        return arguments.PRECISIONS[started.arguments["W"].PRECISION]

    try:
        for setting, expected in (("highest", "ieee"), ("high", "tf32"), ("highest", "ieee")):
            torch.set_float32_matmul_precision(setting)
            assert precision() == expected
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("make", [lambda: posenc.T5(4), lambda: Shaw(16, 5)])
def test_checkpointed_layers_share_what_they_learn(
    make: Callable[[], posenc.Scheme], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them makes it, and saves no more for its backward pass than when it runs again."""
    NullLauncher(monkeypatch)
    scheme, inputs, made = make(), tensors_of(70, 70, True), []
    encoding = scheme(Positions.arange(70))
    monkeypatch.setattr(backend, "_Lines", lambda call, of=backend._Lines: made.append(call) or of(call))

    def layer(*tensors: Tensor) -> Any:
        return posenc.attention(*tensors, encoding, is_causal=True, backend="triton")

    outs = [checkpoint(layer, *inputs, use_reentrant=False) for _ in range(3)]
    torch.autograd.backward(outs, [torch.ones_like(outs[0])] * 3)
    assert len(made) == 1
    assert all(parameter.grad is not None for parameter in scheme.parameters())


# Functions of posenc that a later call runs, and operations of PyTorch: new tensors, and what no kernel computes. On
# the CPU the values of parameters are compared too.
HOST: dict[str, tuple[int, int]] = {
    "ALiBi": (45, 2),
    "ALiBi, blocks that fade": (60, 6),
    "ALiBi, a step": (145, 19),
    "ALiBi, one query": (45, 4),
    "T5, a step": (140, 29),
    "Shaw": (65, 5),
    "Shaw, a step": (175, 48),
    "Shaw, one query": (60, 6),
    "FIRE, one query": (80, 10),
}


@pytest.mark.parametrize("name", HOST)
def test_later_calls_take_little_of_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    NullLauncher(monkeypatch)
    make, *of = LATER[name]
    run, inputs = calling(make(), *of), tensors_of(*of)
    for _ in range(2):
        run(inputs)
    most_calls, most_operations = HOST[name]
    folder, calls = str(Path(posenc.__file__).parent), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(folder)

    sys.setprofile(count)
    threading.setprofile(count)  # the backward pass may have threads of its own
    run(inputs)
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    for name in ("is_eager", "can_bypass_dispatch"):  # as if nothing counted operations
        monkeypatch.setattr(f"posenc.compat.{name}", lambda *_: True)
    found = operations(lambda: run(inputs))
    assert calls <= most_calls
    assert len(found) <= most_operations, found


# --- what fits --------------------------------------------------------------------------------------------------------


def test_sizes_that_do_not_fit_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same kernels: another dtype, other inputs and other widths are tried anew, another length is not."""
    tried: list[int] = []

    class Small:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def run(M: int, **given: Any) -> None:
                tried.append(M)
                if M > 32:
                    raise MemoryError

            return run

    monkeypatch.setattr(backend, "missing", lambda: None)
    monkeypatch.setattr(backend, "is_interpreted", lambda: True)
    monkeypatch.setattr(fitting, "_first", {})
    monkeypatch.setattr(operator, "out_of_resources", lambda: MemoryError)
    monkeypatch.setattr(operator, "kernel_of", lambda name: Small())

    def tries(scheme: posenc.Scheme, tokens: int, width: int, dtype: torch.dtype) -> list[int]:
        tried.clear()
        q = torch.randn(1, 2, tokens, width, dtype=dtype)
        posenc.attention(q, q, q, scheme, is_causal=True, backend="triton")
        return tried

    plain = ALiBi(2)
    assert tries(plain, 70, 16, torch.float32) == [128, 128, 64, 32]  # in three stages, and in two
    assert tries(plain, 70, 16, torch.float32) == [32]
    assert tries(plain, 45, 16, torch.float32) == [32]
    assert tries(plain, 70, 40, torch.float32) == [128, 128, 64, 32]
    assert tries(plain, 70, 16, torch.bfloat16) == [64, 64, 32]
    assert tries(Shaw(16, 5, values=False), 70, 16, torch.float32) == [128, 128, 64, 32, 32]  # and another kernel


@pytest.mark.parametrize("shape", [(operator.GRID + 1, 1), (1, operator.GRID + 1)])
def test_more_rows_or_heads_than_a_grid_has_are_refused(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "missing", lambda: None)
    monkeypatch.setattr(backend, "is_interpreted", lambda: True)
    q = torch.zeros(1, 1, 1, 1).expand(*shape, 2, 4)
    said = f"at most 65535 rows of a batch and 65535 heads, got {shape[0]} and {shape[1]}"
    with pytest.raises(ValueError, match=said):
        posenc.attention(q, q, q, Shaw(4, 5), backend="triton")
    with pytest.raises(ValueError, match=said):  # as a compiled graph calls it
        operator.triton(q, q, q, [], "", "", [], [0, 0], 1.0, 0.0, -1)


# --- tasks on the device ----------------------------------------------------------------------------------------------


class Device:
    """In place of a GPU: counts copies, and says which stream is current in a thread, and which is captured."""

    there = torch.device("cuda", 0)

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.copies, self.captured, self.stream = 0, 0, 1
        self.local = threading.local()
        self.streams: list[int] = []  # that were told to the allocator
        self.relaxed: set[int] = set()  # threads
        patch.setattr(tasks, "_lists", {})
        patch.setattr(tasks, "_alive", WeakValueDictionary())
        patch.setattr(cache, "_READ_BY_GRAPHS", [])
        patch.setattr(tasks, "_relax", lambda: self.relaxed.add(threading.get_ident()))
        aside = SimpleNamespace(cuda_stream=2, synchronize=lambda: None)
        patch.setattr(tasks, "_stream", lambda device: aside)
        patch.setattr(torch.cuda, "stream", self.on)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.current().cuda_stream == self.captured)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current())
        patch.setattr(Tensor, "record_stream", lambda x, stream: self.streams.append(stream.cuda_stream))
        real = Tensor.to
        patch.setattr(Tensor, "to", lambda x, *given, **how: self.copy(x, real, *given, **how))

    def current(self) -> Any:
        return getattr(self.local, "stream", SimpleNamespace(cuda_stream=self.stream))

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.local.stream = self.current(), stream
        yield
        self.local.stream = before

    def copy(self, numbers: Tensor, real: Any, *given: Any, **how: Any) -> Tensor:
        if given != (self.there,):
            return real(numbers, *given, **how)
        assert threading.get_ident() in self.relaxed
        assert self.current().cuda_stream == 2
        self.copies += 1
        return numbers.clone()

    def tasks(self, tokens: int, block: int = 16) -> tasks.Tasks:
        layout = Positions.arange(tokens).layout
        return tasks.tasks_of(
            tuple(Tiling(layout, layout, Visibility(True)).flat()), (0, 0, 0, 0), 2, block, self.there
        )


def test_tasks_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a call in one tensor, that other plans, streams and the backward pass find again; the latest are kept."""
    gpu = Device(monkeypatch)
    first = gpu.tasks(70)
    assert (gpu.copies, gpu.streams) == (1, [1])
    assert gpu.tasks(70) is first
    for part in (*first.tasks, *first.tiles):
        assert part.untyped_storage().data_ptr() == first.numbers.data_ptr()
        assert part.storage_offset() % 4 == 0
    gpu.stream = 3
    assert gpu.tasks(70) is first
    assert (gpu.copies, gpu.streams) == (1, [1, 3])
    for tokens in range(1, 1000):
        gpu.tasks(100 + tokens)
    assert len(tasks._lists) <= cache.MAX_ENTRIES
    assert len(tasks._alive) <= cache.MAX_ENTRIES + 1
    assert gpu.tasks(70) is first  # which this test still has
    del first, part
    gpu.tasks(70)
    for tokens in range(cache.MAX_ENTRIES):
        gpu.tasks(100 + tokens)
    copies = gpu.copies
    gpu.tasks(70)
    assert gpu.copies == copies + 1
    assert not cache._READ_BY_GRAPHS


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("is_made_before", [False, True])
def test_what_a_graph_reads_is_kept_once(
    is_made_before: bool, inference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many came since, whichever stream captured it, and in the one place for it."""
    gpu = Device(monkeypatch)
    with torch.inference_mode(inference):
        if is_made_before:
            gpu.tasks(70)
        for stream in (1, 4, 5):
            gpu.stream = gpu.captured = stream
            gpu.tasks(70)
            assert gpu.copies == 1
            gpu.captured = 0
            for tokens in range(2 * cache.MAX_ENTRIES):
                gpu.tasks(100 + tokens)
            gpu.copies = 1
        (kept,) = cache._READ_BY_GRAPHS
        assert kept is gpu.tasks(70)
        assert gpu.copies == 1


# --- lines of distances -----------------------------------------------------------------------------------------------


def lined(past: int, reach: int | None = None, knee: float = 0.3) -> posenc.Scheme:
    """A bias that beyond ``past`` falls by 0.1 to the left and by 0.2 to the right, and before it by more."""

    def at(r: Tensor) -> Tensor:
        steep, far = r.abs().clamp(max=past).double(), (r.abs() - past).clamp(min=0).double()
        return -(knee * steep + torch.where(r < 0, 0.1, 0.2) * far)[None]

    distance = Distance("Lined", integral=True, tail="linear", past=past, reach=None if reach is None else (reach,))
    return TermScheme(lambda: (Bias(at, distance),))


def asked(scheme: posenc.Scheme, positions: Positions, **how: Any) -> Any:
    """The call of a text of these tokens."""
    q = torch.randn(1, 2, positions.order.size(1), 16)
    *_, call = Request.of(query=q, key=q, value=q, encoding=scheme, query_positions=positions, **how).checked()
    return call


@pytest.mark.parametrize(("past", "reach"), [(0, None), (3, None), (3, 50), (200_000, None), (40, 41)])
def test_slopes_are_as_exact_as_the_bias(past: int, reach: int | None) -> None:
    """Each of two numbers of at most 0.3 past + 0.2 FAR is rounded by 2^-24 of itself, over as many distances."""
    given = backend._Lines(asked(lined(past, reach), Positions.arange(30)))
    over = max(backend.FAR, past)
    expected = torch.tensor([[-0.1, -0.2]]) if past + 1 != reach else torch.zeros(1, 2)  # no pair is beyond
    assert (given.tensors["slopes"] - expected).abs().max() <= 2 * 2.0**-24 * (0.3 * past / over + 2 * 0.2)
    assert given.tensors["bias"].size(1) == min(2 * past + 1, 59)


def test_gaps_of_any_length_need_no_table_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a term is not a line, or distances are beyond what the kernels count to, they do."""
    monkeypatch.setattr(backend, "is_interpreted", lambda: True)
    monkeypatch.setattr(backend, "missing", lambda: None)

    def apart(gap: int) -> Positions:
        return Positions.cat([Positions.arange(20), Positions.arange(20, start=20).shift(gap)])

    both = ALiBi(2, "bidirectional")
    for scheme, gap, refusal in (
        (both, 10**6, None),
        (both + Shaw(16, 5), 10**6, None),
        (both + posenc.KERPLE(2), 10**6, blockwise.LONG),
        (both, 2**29, blockwise.LONG),
        (Shaw(16, 5), 2**40, None),
    ):
        assert backend.TRITON.refuses(asked(scheme, apart(gap))) == refusal


def test_a_program_of_two_blocks_is_computed_with_what_either_needs() -> None:
    ends = torch.tensor([[[[0, 128], [256, 384], [256, 640], [512, 640]]]], dtype=torch.int32)
    expected = torch.tensor([[[[0, 384], [0, 640], [256, 640], [256, 640]]]], dtype=torch.int32)
    assert torch.equal(operator.of_neighbours(ends), expected)
    some = torch.ones(1, 4, 5, dtype=torch.bool)
    assert operator.share(some, ends) == pytest.approx(6 / 20)
    assert operator.share(some, expected) == pytest.approx(14 / 20)


def test_every_head_has_its_bound_of_vectors_that_all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads a number for each head: one that is expanded would be one number, and then other memory."""
    calls = launched(posenc.ALiBi(4) + posenc.Shaw(16, 5), monkeypatch, tokens=1100)
    longest = calls["bounds_queries"]["longest"]
    assert longest.shape == (4,)
    assert longest.is_contiguous()
