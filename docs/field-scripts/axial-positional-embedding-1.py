# A finding of posenc check, which this script repeats.
# axial_positional_embedding, image: check 20, grids, shape of the grid
# Rows and columns count each as itself, in grids of any shape; text among images is at its position.
# What to do: Take row and column as n // width and n % width, with the width of this very grid, and each axis by
# itself.
#
# To run it: python 20-shape-of-the-grid.py
# It needs torch, axial_positional_embedding.
# To install them: pip install torch axial_positional_embedding
# Exit codes: 1 while the finding is there, 0 when it is gone, 2 where it does not apply.

# -- posenc/conformance/subjects.py ------------------------------------------------------------------------------------

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar
import torch
from torch import Tensor, nn

PADDING = -1  # the document that no token belongs to
VOCABULARY = 48  # tokens are drawn from so many


class NotApplicableError(Exception):
    """The subject cannot take part in a trial: the message says why."""


def require(fine: object, reason: str) -> None:
    """NotApplicableError with the reason, unless."""
    if not fine:
        raise NotApplicableError(reason)


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, as plain lists: what a subject is run on. All rows have as many tokens."""

    ids: list[list[int]]
    positions: list[list[Any]] | None = None
    document: list[list[int]] | None = None
    order: list[list[int]] | None = None
    chunks: tuple[int, ...] = ()
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    grid: tuple[int, int] | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids[0])

    @property
    def real(self) -> list[list[bool]]:
        """Where there is a token and no padding."""
        return [[d != PADDING for d in row] for row in self.document or [[0] * self.tokens] * len(self.ids)]

    def steps(self) -> list[tuple[list[int], list[int], list[int]]]:
        """Which tokens are queries, which are keys, and which of the keys are new, at each step."""
        everyone = list(range(self.tokens))
        if not self.chunks:
            keys = everyone if self.keys is None else list(self.keys)
            return [(everyone if self.queries is None else list(self.queries), keys, keys)]
        ends = pairwise(accumulate(self.chunks, initial=0))
        return [(everyone[start:end], everyone[:end], everyone[start:end]) for start, end in ends]

    def pick(self, tokens: Sequence[int], *rows: int) -> "Batch":
        """These tokens alone, in this order, of these rows or of all; without chunks, queries, keys and grid."""
        rows = rows or tuple(range(len(self.ids)))

        def of(field: list[list[Any]] | None) -> list[list[Any]] | None:
            return None if field is None else [[field[r][n] for n in tokens] for r in rows]

        return Batch(of(self.ids) or [], of(self.positions), of(self.document), of(self.order))

    def moved(self, by: int, apart: int = 1, axis: int | None = None) -> "Batch":
        """All positions moved by as much, those of padding too, and so many times as far apart; or along an axis."""

        def there(p: Any, n: int | None = None) -> Any:
            if isinstance(p, list):
                return [there(x, n) for n, x in enumerate(p)]
            return apart * p + by if axis in (None, n) else p

        given = self.positions or [list(range(self.tokens))] * len(self.ids)
        return replace(self, positions=[[there(p) for p in row] for row in given])

    def owed(self, x: Tensor) -> Tensor:
        """x (rows, tokens, …) with zeros where there is padding, of which nothing is owed."""
        if self.document is None:
            return x
        real = torch.tensor(self.real, device=x.device)
        return x.masked_fill(~real.view(*real.shape, *[1] * (x.dim() - 2)), 0.0)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked. One of the kinds below: `Rotary`, `Bias`, `Attention`, `Layer`, `Model`."""

    by_place: ClassVar[int] = 1  # parameters of call that are given by place, whatever their names
    gives: ClassVar[tuple[str, ...]] = ()  # the names of the others; none: they are not looked at

    build: Callable[..., Any]
    call: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = False
    relative: bool | None = None
    like: Any = None
    match: Callable[..., Any] | None = None
    max_positions: int | None = None
    max_grid: Sequence[int] | None = None
    window: int | Sequence[int] | None = None
    window_shift: Sequence[int] = (0, 0)
    depth: int = 1
    sinks: int = 0
    directed: bool | None = None
    normalized: bool = False
    order_free: bool = False
    trained_grid: Sequence[int] | None = None
    distinct_to: int | None = None
    threshold: int | None = None
    linear_memory: bool = False
    computes_in: torch.dtype | None = None
    compiles: bool = False
    exports: bool = False
    axes: int = 1
    varied: Mapping[str, Any] = field(default_factory=dict)
    refused: Sequence[Mapping[str, Any]] = ()
    backends: Sequence[Mapping[str, Any]] = ()
    state: Sequence[str] = ()
    symmetric: bool = False
    flat: Mapping[str, Any] | None = None
    registers: int = 0
    jitter: float = 0.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    seed: int | Callable[[int], object] = 0
    drawing: int = 0  # which of the draws: another one has other parameters

    def sow(self) -> None:
        """Seeds torch, and what else ``seed`` does."""
        number = self.drawing if callable(self.seed) else self.seed + self.drawing
        (torch.default_generator if self.device == "cpu" else torch).manual_seed(number)  # torch's takes 1 ms
        if callable(self.seed):
            self.seed(number)

    def drawn_anew(self) -> "Subject":
        """The same, whose parameters are drawn by another seed."""
        return replace(self, drawing=self.drawing + 1)

    def make(self, **changed: Any) -> Any:
        """The thing itself, in the subject's dtype and in evaluation mode, the same at every call."""
        with torch.random.fork_rng(devices=()):
            self.sow()
            made = self.build(**{**self.options, **changed})
            if isinstance(made, nn.Module):
                with torch.no_grad():
                    for parameter in made.parameters():
                        if parameter.requires_grad:  # what is frozen, such as a table of sines, is as it must be
                            parameter.add_(self.jitter * torch.randn(parameter.shape))
                made = made.to(self.device, self.dtype).eval()
        return made

    def eps(self, *dtypes: torch.dtype) -> float:
        """The unit of the coarsest of these dtypes and of what it computes in."""
        return max(torch.finfo(dtype).eps for dtype in (*dtypes, self.computes_in) if dtype is not None)

    def at(self, p: int) -> Any:
        """A position: p, or where it has several axes, p on each."""
        return p if self.axes == 1 else [p] * self.axes

    def takes(self, name: str) -> bool:
        """Whether ``call`` has a parameter of that name."""
        return name in inspect.signature(self.call).parameters

    def needs(self, name: str) -> bool:
        """Whether ``call`` has a parameter of that name and no default for it."""
        return self.takes(name) and inspect.signature(self.call).parameters[name].default is inspect.Parameter.empty

    def can(self, what: str) -> bool:
        """Whether it takes "positions" of each token, "padding", "document" or "order"; whether it has a "cache",
        "queries" that are not the keys, and an "lse"."""
        return self.takes(what)

    @property
    def on_grids(self) -> bool:
        """Whether every row without positions is one of patches, and is given its grid. With a cache it may be text."""
        return self.takes("grid") and not self.takes("cache") and not self.needs("positions")

    def sides(self) -> tuple[int | None, int | None]:
        """How many rows and how many columns it claims to have; None: any number."""
        rows, columns = self.max_grid or (self.max_positions, self.max_positions)
        return rows, columns

    def fits(self, grid: Sequence[int]) -> bool:
        """Whether it has so many rows and columns, and they are whole windows."""
        window = self.window if isinstance(self.window, Sequence) else (1, 1)
        return all(n <= (most or n) and n % part == 0 for n, most, part in zip(grid, self.sides(), window, strict=True))

    def grid_of(self, tokens: int) -> tuple[int, int] | None:
        """The grid of a row of which nothing is said: as near to a square as there is, but not of one row or column
        unless it has no more; one row where it is causal, so that the first tokens of it are such a row too."""
        patches = tokens - self.registers
        if self.causal:
            shapes = [(1, patches)]
        else:
            least = [min(2, most or 2) for most in self.sides()]
            lying = [(n, patches // n) for n in range(math.isqrt(max(patches, 0)), 0, -1) if patches % n == 0]
            both = [shape for short, long in lying for shape in ((short, long), (long, short))]
            shapes = [shape for shape in both if shape[0] >= least[0] and shape[1] >= least[1]]
        return next((shape for shape in shapes if patches > 0 and self.fits(shape)), None)

    def run(self, made: Any, batch: Batch) -> Tensor:
        """What comes out for every query: (rows, tokens, …)."""
        raise NotImplementedError

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        """The output (rows, heads, queries, head_dim), and, where ``lse`` asks for it, the log-sum-exp (rows, heads,
        queries)."""
        raise NotApplicableError("let call take `return_lse`, for parts of the keys cannot be merged")

    def vectors(self, batch: Batch, size: int, which: int = 0) -> Tensor:
        """A vector for each token, the same wherever the token stands: (rows, tokens, size)."""
        table = torch.randn(VOCABULARY, size, generator=torch.Generator().manual_seed(which), dtype=torch.float64)
        return table[torch.tensor(batch.ids)].to(self.device, self.dtype)

    def places(self, batch: Batch) -> Tensor:
        """The positions of the tokens, (rows, tokens[, axes])."""
        if batch.positions is not None:
            return torch.tensor(batch.positions, device=self.device)
        if batch.grid is not None and self.axes == 2:
            height, width = batch.grid
            raster = [[0, 0]] * self.registers
            raster += [[row, column] for row in range(height) for column in range(width)]
            return torch.tensor([raster] * len(batch.ids), device=self.device)
        line = torch.arange(batch.tokens, device=self.device).expand(len(batch.ids), -1)
        return line if self.axes == 1 else line[..., None].expand(-1, -1, self.axes)

    def require_plain_positions(self, batch: Batch, what: str = "positions") -> None:
        """NotApplicableError where the batch has positions and ``call`` takes none."""
        if batch.positions is not None:
            line = torch.arange(batch.tokens, device=self.device).expand(len(batch.ids), -1)
            require(torch.equal(self.places(batch), line), f"let call take `{what}` (rows, tokens)")

    def visible(self, batch: Batch) -> Tensor:
        """Which token sees which, (rows, tokens, tokens)."""
        shape = (len(batch.ids), batch.tokens)
        document = torch.tensor(batch.document or [[0] * batch.tokens] * shape[0]).view(shape)
        order = torch.tensor(batch.order or [list(range(batch.tokens))] * shape[0]).view(shape)
        seen = (document[:, :, None] == document[:, None, :]) & (document != PADDING)[:, None, :]
        if self.causal:
            seen = seen & (order[:, None, :] <= order[:, :, None])
        return seen.to(self.device)


# -- posenc/conformance/layers.py --------------------------------------------------------------------------------------

def kind_of(value: Any) -> str:
    """What came in place of what was wanted."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


@dataclass(frozen=True, kw_only=True)
class Layer(Subject):
    """A module from vectors to vectors: ``call(made, x, …)``, x (rows, tokens, dim), gives (rows, tokens, …)."""

    by_place: ClassVar[int] = 2
    gives: ClassVar[tuple[str, ...]] = (
        "positions",
        "padding",
        "document",
        "order",
        "cache",
        "memory",
        "memory_positions",
        "grid",
    )

    dim: int = 32

    def can(self, what: str) -> bool:
        if what == "padding":
            return self.takes("padding") or self.takes("document")
        return self.takes({"queries": "memory"}.get(what, what))

    def content(self, batch: Batch) -> Tensor:
        return self.vectors(batch, self.dim)

    def run(self, made: Any, batch: Batch) -> Tensor:
        x = self.content(batch)
        require(
            not self.registers or batch.tokens > self.registers,
            f"nothing to do: a row of {batch.tokens} tokens has no patch behind its {self.registers} registers",
        )
        require(
            batch.keys is None, "nothing to do: a layer gives no log-sum-exp, so parts of the keys cannot be merged"
        )
        if batch.queries is not None:
            require(self.takes("memory"), "let call take `memory` (rows, keys, dim), for queries are the keys")
            rows = list(batch.queries)
            out = self._call(made, x[:, rows], batch, rows, memory=x)[0]
            alone = self._call(made, x[:, rows[:1]], batch, rows[:1], memory=x)[0]
            same = torch.allclose(out[:, :1], alone, rtol=1e-3, atol=1e-3 * float(out.detach().abs().max()))
            require(same, "let tokens of x be queries alone: the output of one depends on the others")
            return out
        outputs, cache = [], None
        for rows, _, _ in batch.steps():
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.chunks):  # a cache is for inference
                out, cache = self._call(made, x[:, rows], batch, rows, cache=cache)
            outputs.append(out)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    def _call(self, made: Any, x: Tensor, batch: Batch, rows: list[int], **extra: Any) -> tuple[Tensor, Any]:
        parameters = inspect.signature(self.call).parameters
        places, queries = self.places(batch), "memory" in extra
        end = batch.tokens if queries or not rows else rows[-1] + 1
        grid = batch.grid
        if grid is None and batch.positions is None and self.on_grids:
            grid = self.grid_of(batch.tokens)
            require(grid, f"{batch.tokens} tokens are no grid that it has")
        said: dict[str, Any] = {"grid": grid, **extra}
        if batch.positions is not None:
            said |= {"positions": places[:, rows], "memory_positions": places if queries else None}
        if batch.document is not None:
            document = torch.tensor(batch.document, device=self.device)[:, :end]
            said |= {"padding": document != PADDING, "document": document}
        if batch.order is not None:
            said["order"] = torch.tensor(batch.order, device=self.device)[:, rows]
        said = {name: value for name, value in said.items() if value is not None}
        for name in ("positions", "memory_positions"):
            if name in said and name not in parameters:
                self.require_plain_positions(batch, name)
        matters = {
            "padding": "padding" in said and not said["padding"].all() and "document" not in parameters,
            "document": len({d for row in batch.document or () for d in row} - {PADDING}) > 1,
            "order": "order" in said,
            "grid": "grid" in said,
            "cache": bool(batch.chunks),
        }
        for name, it_does in matters.items():
            require(not it_does or name in parameters, f"let call take `{name}`")
        plain = {  # for what has no default where there is nothing to say
            "positions": places[:, rows],
            "padding": torch.ones(len(batch.ids), end, device=self.device).bool(),
            "document": torch.zeros(len(batch.ids), end, device=self.device).long(),
            "memory_positions": places,
            "memory": x,
        }
        taken = [name for name in self.gives if name in said or self.needs(name)]
        given = {name: said.get(name, plain.get(name)) for name in taken if name in parameters}
        out = self.call(made, x, **given)
        if "cache" not in parameters:
            return out, None
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"call takes a cache, so it must end with `return output, cache`; it gave {kind_of(out)}")
        return out


# -- posenc/conformance/outcome.py -------------------------------------------------------------------------------------

import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from typing import NamedTuple


class Outcome(NamedTuple):
    """Whether it held; what was expected, and what came."""

    ok: bool
    expected: str
    came: str

    @property
    def finite(self) -> bool:
        """Whether it is about numbers, and not about what is none or has none."""
        return re.search(r"\b(nan|inf|infs|nans)\b|finite", f"{self.expected} {self.came}", re.IGNORECASE) is None


Outcomes = Iterator[tuple[str, Outcome]]  # with what each is of


def near(expected: Tensor, came: Tensor, tolerance: float) -> Outcome:
    """Whether two tensors agree everywhere within ``tolerance``; what is not a number agrees with nothing."""
    expected, came = expected.detach(), came.detach()
    if expected.shape != came.shape:
        return Outcome(False, f"shape {tuple(expected.shape)}", f"shape {tuple(came.shape)}")
    if expected.numel() == 0:
        return Outcome(True, "nothing", "nothing")
    equal = came == expected  # infinite where both are, too
    off = torch.where(equal, 0.0, (came.double() - expected.double()).abs()).nan_to_num(torch.inf)
    worst, at = float(off.max()), [int(n) for n in torch.unravel_index(off.argmax(), off.shape)]
    return Outcome(
        worst <= tolerance,
        f"{float(expected[tuple(at)]):.6g} at {at}",
        f"{float(came[tuple(at)]):.6g}, off by {worst:.2g} (at most {tolerance:.2g})",
    )


def first_failure(outcomes: Iterable[tuple[str, Outcome]]) -> Outcome:
    """The first that did not hold, with its name, or that all did."""
    for name, outcome in outcomes:
        if not outcome.ok:
            return Outcome(False, f"{name}: {outcome.expected}", f"{name}: {outcome.came}")
    return Outcome(True, "all", "all")


def outcome_of(trial: Callable[..., Outcome | Outcomes], subject: Subject, batch: Batch, **values: Any) -> Outcome:
    """What a trial says of a batch, or the first failure of all that it says; an exception is a finding too, except
    that it is not applicable."""
    try:
        found = trial(subject, batch, **values)
        return found if isinstance(found, Outcome) else first_failure(list(found))
    except NotApplicableError:
        raise
    except Exception as error:
        return Outcome(False, "an answer", described(error))


def described(error: BaseException) -> str:
    """What an error says, and the last line on the way to it that is the subject's own: neither installed nor here."""
    line = ""
    for frame, number in walk_tb(error.__traceback__):
        package, file = frame.f_globals.get("__name__", "").split(".")[0], frame.f_code.co_filename
        here = frame.f_globals is globals() or package == "posenc" or package in sys.stdlib_module_names
        if not (here or "-packages" in file):
            line = f" ({Path(file).name}, line {number}: {linecache.getline(file, number).strip()})"
    return f"{type(error).__name__}: {error}{line}"


# -- posenc/conformance/rasters.py -------------------------------------------------------------------------------------

def alike(subject: Subject, first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are those of the same calculation."""
    size = float(first.abs().max())
    return float((first - second).abs().max()) <= 16 * torch.finfo(subject.dtype).eps * size


def the_shape_is_seen(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """The same patches as a grid of h rows and w columns, as one of w rows and h columns, and with two of its rows, or
    columns, exchanged."""
    assert batch.grid is not None
    height, width = batch.grid
    require(height != width and len(set(batch.ids[0])) > 1, "the grid is square, or its patches do not differ")
    made = subject.make()
    came = subject.run(made, batch)
    lying = subject.run(made, replace(batch, grid=(width, height)))
    for out in (came, lying):
        if out.shape[:2] != (len(batch.ids), batch.tokens) or not out.isfinite().all():
            return Outcome(False, f"a finite output for {batch.tokens} tokens", f"{tuple(out.shape)}, or not finite")
    unseen = []
    for axis, name in enumerate(("rows", "columns")):
        if batch.grid[axis] > 2 and not subject.causal:  # two exchanged are a picture turned over
            places = torch.arange(height * width).view(height, width)
            pairs = [(n, n + 1) for n in range(batch.grid[axis] - 1)]
            if all(near(*_exchanged(subject, made, batch, came, places, axis, pair), tolerance).ok for pair in pairs):
                unseen.append(name)
    require(unseen != ["rows", "columns"], "outputs do not go by positions")
    if unseen:
        return Outcome(False, f"other outputs with two {unseen[0]} exchanged", "the same, exchanged")
    other = f"something else for {height}x{width} than for {width}x{height}"
    return Outcome(not alike(subject, came, lying), other, "the same")


def _exchanged(
    subject: Subject, made: Any, batch: Batch, came: Tensor, places: Tensor, axis: int, pair: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """What came, and what comes, with two rows or columns of patches exchanged."""
    front, line = subject.registers, list(range(places.size(axis)))
    line[pair[0]], line[pair[1]] = pair[1], pair[0]
    turned = [*range(front), *(places.index_select(axis, torch.tensor(line)).flatten() + front).tolist()]
    return came[:, turned], subject.run(made, replace(batch.pick(turned), grid=batch.grid))


def fine(subject: Subject, scores: Tensor) -> float:
    """How far two equal scores may be apart: 32 roundings of float32, which biases and phases are often computed in."""
    dtypes = (torch.float32, subject.dtype, subject.computes_in or torch.float32)
    largest = float(scores.masked_fill(~scores.isfinite(), 0.0).abs().max())
    return 32 * max(torch.finfo(dtype).eps for dtype in dtypes) * largest


# -- posenc/conformance/repeat.py --------------------------------------------------------------------------------------

import importlib
from types import ModuleType
from unittest.mock import MagicMock


class StandIn(ModuleType):
    """Imported in place of posenc.conformance: it has the names of this script, and all else of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return globals().get(name) or MagicMock(name=name)


def stand_in(*names: str) -> None:
    """Lets modules of these names be imported."""
    sys.modules.update({name: StandIn(name) for name in names})


def hold(name: str, text: str, folder: str = "") -> None:
    """Makes the module of that name from the text of its file; ``folder``: where it lies, if it is a package."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = file = f"{name.replace('.', '/')}{'/__init__' * bool(folder)}.py"
    module.__package__ = name if folder else name.rpartition(".")[0]
    if folder:
        module.__path__ = [folder]
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(text, file, "exec"), vars(module))


def part_of(module: str, name: str) -> Any:
    """A function or class of a module."""
    return getattr(importlib.import_module(module), name)


def repeat(trial: Callable[..., Outcome | Outcomes], subject: Subject, batch: Batch, **values: Any) -> int:
    """Prints what was expected and what came. 1: they differ; 0: they do not; 2: the trial does not apply here."""
    try:
        outcome = outcome_of(trial, subject, batch, **values)
    except NotApplicableError as error:
        print("not applicable:", error)
        return 2
    print("expected:", outcome.expected)
    print("came:    ", outcome.came)
    return 0 if outcome.ok else 1


# -- the subject -------------------------------------------------------------------------------------------------------

stand_in('posenc.conformance', 'posenc.conformance.layers')
hold('field.subjects.of_axial_positional_embedding', text='''\
"""axial-positional-embedding: what it gives is added to tokens, as its README does, or to images of its axial shape."""

import torch
from axial_positional_embedding import (
    AxialPositionalEmbedding,
    AxialPositionalEmbeddingImage,
    ContinuousAxialPositionalEmbedding,
)

from posenc.conformance import Layer


def add(module, x):
    return x + module(x)


def add_to_image(module, x, grid=None):
    """Images are (rows, dim, height, width). Without a grid, as much of the first row."""
    if grid is None:
        grid = (1, x.size(1))
    image = x.unflatten(1, grid).permute(0, 3, 1, 2)
    return (image + module(image)).permute(0, 2, 3, 1).flatten(1, 2)


def add_continuous(module, x, grid=None):
    return x + module(grid or (1, x.size(1)), flatten=True)


summed = Layer(
    build=AxialPositionalEmbedding,
    call=add,
    options={"dim": 32, "axial_shape": (8, 16)},
    relative=False,
    max_positions=128,
)
joined = Layer(
    build=AxialPositionalEmbedding,
    call=add,
    options={"dim": 32, "axial_shape": (8, 16), "axial_dims": (20, 12)},
    relative=False,
    max_positions=128,
)
image = Layer(
    build=AxialPositionalEmbeddingImage,
    call=add_to_image,
    options={"dim": 32, "axial_shape": (8, 8)},
    axes=2,
    max_positions=8,
    max_grid=(8, 8),
)
continuous = Layer(
    build=ContinuousAxialPositionalEmbedding,
    call=add_continuous,
    options={"dim": 32, "num_axial_dims": 2},
    axes=2,
    dtype=torch.float32,
)

SUBJECTS = (
    ("AxialPositionalEmbedding", summed),
    ("AxialPositionalEmbedding, joined", joined),
    ("AxialPositionalEmbeddingImage", image),
    ("ContinuousAxialPositionalEmbedding", continuous),
)
''')

subject = Layer(
    build=part_of('axial_positional_embedding.axial_positional_embedding', 'AxialPositionalEmbeddingImage'),
    call=part_of('field.subjects.of_axial_positional_embedding', 'add_to_image'),
    options={'dim': 32, 'axial_shape': (8, 8)},
    max_positions=8,
    max_grid=(8, 8),
    axes=2,
)
batch = Batch(ids=[[0, 1]], grid=(1, 2))
raise SystemExit(repeat(the_shape_is_seen, subject, batch, tolerance=1.912580962937227e-05))
