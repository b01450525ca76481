# A finding of posenc check, which this script repeats.
# equinox, rotary: check 14, configuration, options count
# Frequencies and lengths are those of the configuration; each option counts, and an unknown one is refused.
# What to do: Read each option where it is used, and raise a ValueError that names one which is unknown or has no
# meaning.
#
# To run it: python 14-options-count.py
# It needs torch, equinox, jax, numpy.
# To install them: pip install torch equinox jax numpy
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

REFUSALS = (TypeError, ValueError, NotImplementedError, AssertionError)  # how code says that it takes no such dtype


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


# -- posenc/conformance/heads.py ---------------------------------------------------------------------------------------

def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(query key' / √d + bias) value, dense, and the log of the sum of each row; zeros where nothing is seen."""
    scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + bias
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores.softmax(-1), 0.0)
    return weights.to(value.dtype) @ value, scores.logsumexp(-1)


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    """A subject between queries and keys (rows, heads, tokens, head_dim), which are given to it."""

    heads: int = 3
    head_dim: int = 16

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("positions")  # the rest is done here, around it

    def run(self, made: Any, batch: Batch) -> Tensor:
        return self.partial(made, batch, lse=False)[0].transpose(1, 2)

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.content(batch)
        positions = self.places(batch)
        rotated: list[Tensor] = []  # a cache keeps keys as they were rotated when they were new
        parts = []
        for rows, columns, new in batch.steps():
            asking = self.rotate(made, query[:, :, rows], positions[:, rows], 0)
            rotated.append(self.rotate(made, key[:, :, new], positions[:, new], 1))
            vectors = [asking, torch.cat(rotated, 2), value[:, :, columns]]
            parts.append(self._step(made, batch, vectors, rows, columns, lse))
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)

    def content(self, batch: Batch) -> list[Tensor]:
        """Queries, keys and values (rows, heads, tokens, head_dim)."""
        drawn = (self.vectors(batch, self.heads * self.head_dim, which) for which in (1, 2, 3))
        return [x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for x in drawn]

    def rotate(self, made: Any, x: Tensor, positions: Tensor, which: int = 0) -> Tensor:
        """x (rows, heads, tokens, head_dim) as a query (0) or a key (1), at positions (rows, tokens[, axes])."""
        return x

    def bias(self, made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor | float:
        """What is added to the scores: (rows, heads, queries, keys)."""
        return 0.0

    def _step(
        self, made: Any, batch: Batch, vectors: list[Tensor], rows: list[int], columns: list[int], lse: bool
    ) -> tuple[Tensor, Tensor]:
        """What these queries get from these keys, and, where ``lse`` asks for it, the log-sum-exp of their scores."""
        query, key, value = vectors
        positions, visible = self.places(batch), self.visible(batch)
        bias = self.bias(made, positions[:, rows], positions[:, columns])
        return attend(query, key, value, visible[:, rows][:, :, columns], bias)


@dataclass(frozen=True, kw_only=True)
class Rotary(_Heads):
    """A rotation of queries and keys: ``call(made, x, positions)`` or ``call(made, query, key, positions)``."""

    gives: ClassVar[tuple[str, ...]] = ("x", "query", "key", "positions", "offset")

    frequencies: Sequence[float] | None = None
    base: float | None = None
    layout: str | None = None
    direction: str | None = None
    rotary_dim: int | None = None
    scale: float | None = 1.0
    other_layout: Mapping[str, Any] = field(default_factory=dict)

    def rotate(self, made: Any, x: Tensor, positions: Tensor, which: int = 0) -> Tensor:
        names = list(inspect.signature(self.call).parameters)[1:]
        given: dict[str, Any] = {name: x for name in names if name in ("x", "query", "key")}
        if "positions" in names:
            given["positions"] = positions
        else:
            start = int(positions[0, 0]) if positions.dim() == 2 else 0
            run = torch.arange(start, start + x.size(2), device=x.device).expand(x.size(0), -1)
            require(positions.dim() == 2 and torch.equal(positions, run), "let call take `positions` (rows, tokens)")
            require(not start or "offset" in names, "let call take `positions` (rows, tokens), or an `offset`")
            if "offset" in names:
                given["offset"] = start
        out = self.call(made, **given)
        return out[which] if isinstance(out, tuple) else out


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


# -- posenc/conformance/checks/configuration.py ------------------------------------------------------------------------

def names_in(given: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """The keys that are new, or have another value than usual; of nested configurations the inner keys."""
    found = []
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            found += names_in(value, usual[name])
        elif name not in usual or usual[name] != value:
            found.append(name)
    return found


def refusal(subject: Subject, changed: dict[str, Any]) -> Outcome | None:
    """The outcome for the error that refuses these options; None: they are accepted."""
    try:
        subject.make(**changed)
    except Exception as error:
        names = names_in(changed, subject.options)
        named = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in names)
        return Outcome(named, f"an error that names {' or '.join(names)}", f"{type(error).__name__}: {error}")
    return None


def an_option_counts(
    subject: Subject, batch: Batch, changed: dict[str, Any], starts: list[int], tokens: int, tolerance: float
) -> Outcome:
    """The outputs with an option as it is and with another value, for a row at each of the starts; and where positions
    have several axes, for rows that are not on their diagonal, on which it is one and the same which axis is which."""
    shows = batch.tokens >= tokens and len(set(batch.ids[0])) > 1
    require(shows, "nothing to do: a row so short or so plain may not show it")  # and shrinking must not get there
    if (found := refusal(subject, changed)) is not None:
        return found
    rows = [batch if start == 0 else _placed(subject, batch, start) for start in starts]
    if subject.axes > 1 and subject.can("positions"):
        rows += [_placed(subject, batch, start, off_the_diagonal=True) for start in starts]
    if any(_tell_apart(subject, changed, here, tolerance) for here in rows):
        return Outcome(True, "another output", "another output")
    flat = subject.axes > 1 and not subject.can("positions")
    require(not flat, "give call positions: all its axes are the same here, where an option of one may not show")
    if not subject.jitter:
        jittered = replace(subject, jitter=0.1)
        hidden = "claim jitter=0.02: parameters begin as zeros, or so small that the option does not show"
        require(not any(_tell_apart(jittered, changed, here, tolerance) for here in rows), hidden)
    return Outcome(False, f"another output, or an error, with {changed}", "the same output as without")


def _placed(subject: Subject, batch: Batch, start: int, off_the_diagonal: bool = False) -> Batch:
    """The row at positions from there on; or after a third of it patches, each on its own row and column."""
    line = [subject.at(start + n) for n in range(batch.tokens)]
    if off_the_diagonal:
        text = batch.tokens // 3
        front = [start + text] * (subject.axes - 2)
        line[text:] = [[*front, start + text + n // 5 % 3, start + text + n % 5] for n in range(batch.tokens - text)]
    return replace(batch, positions=[line])


def _tell_apart(subject: Subject, changed: dict[str, Any], batch: Batch, tolerance: float) -> bool:
    """Whether the option, with its other value, gives another output for this batch, or refuses it."""
    before = subject.run(subject.make(), batch)
    try:
        after = subject.run(subject.make(**changed), batch)
    except (IndexError, *REFUSALS):  # as of a position past a smaller end
        return True
    return before.shape != after.shape or not near(before, after, tolerance).ok


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

stand_in('posenc.conformance', 'posenc.conformance.heads')
hold('field.subjects.of_equinox', text='''\
"""equinox: RotaryPositionalEmbedding of JAX, called through NumPy: x (tokens, size), mapped over rows and heads.

Its arithmetic is float32, so float32 is what it is asked for.
"""

import equinox
import jax
import numpy
import torch

from posenc.conformance import Rotary


def build(embedding_size, theta):
    return equinox.nn.RotaryPositionalEmbedding(embedding_size, theta)


@equinox.filter_jit
def apply(module, x):
    return jax.vmap(jax.vmap(module))(x)


class Bridge(torch.autograd.Function):
    """A call of the module in JAX, from torch and back, with its derivative."""

    @staticmethod
    def forward(context, x, module):
        out, context.pull = jax.vjp(lambda x: apply(module, x), jax.numpy.asarray(x.detach().numpy()))
        return torch.from_numpy(numpy.array(out))

    @staticmethod
    def backward(context, grad):
        return torch.from_numpy(numpy.array(context.pull(jax.numpy.asarray(grad.numpy()))[0])), None


def rotate(module, x):
    return Bridge.apply(x.float(), module).to(x.dtype)


rotary = Rotary(
    build=build,
    call=rotate,
    options={"embedding_size": 16, "theta": 10_000.0},
    relative=True,
    causal=True,
    base=10000.0,
    layout="half",
    dtype=torch.float32,
    varied={"theta": 500.0},
    refused=({"embedding_size": 15},),
)

SUBJECTS = (("RotaryPositionalEmbedding", rotary),)
''')

subject = Rotary(
    build=part_of('field.subjects.of_equinox', 'build'),
    call=part_of('field.subjects.of_equinox', 'rotate'),
    options={'embedding_size': 16, 'theta': 10000.0},
    causal=True,
    relative=True,
    varied={'theta': 500.0},
    refused=({'embedding_size': 15},),
    dtype=torch.float32,
    base=10000.0,
    layout='half',
)
batch = Batch(ids=[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 10, 11, 12, 13, 14, 15, 16, 2, 10, 17, 18, 19, 20, 3, 21, 10, 4, 22, 23, 11, 24, 6, 21, 3, 25, 26, 12, 27, 21, 28, 29, 17, 1, 14, 30, 24, 28, 11, 0, 20, 31, 17, 23, 14, 18, 32, 33, 34, 31, 16, 13, 25, 29, 29, 23, 7, 0, 10, 2, 21, 9, 14, 35, 21, 20, 13, 6, 15, 21, 5, 9, 25, 29, 15, 36, 23, 33, 31, 9, 37, 32, 37, 38, 11, 30, 12, 3, 18, 29, 19, 8, 16, 38, 29, 39, 13, 19, 1, 14, 26, 40, 26, 31, 6, 19, 5, 41, 5, 40, 25, 0, 30, 42, 39, 4, 29, 23, 11, 35, 0, 5, 24, 20, 32, 31, 43, 17, 40, 35, 14, 34, 44, 45, 20, 22, 27, 10, 16, 39, 34, 38, 33, 24, 13, 15, 19, 18, 43, 35, 24, 32, 15, 33, 35, 1, 29, 44, 35, 38, 15, 43, 32, 37, 14, 35, 3, 6, 17, 27, 19, 43, 13, 22, 11, 10, 12, 18, 34, 18, 42, 2, 4, 22, 37, 27, 7, 46, 38, 15, 10, 39, 1, 32, 12, 4, 17, 3, 33, 45, 39, 19, 6, 27, 19, 45, 45, 20, 26, 12, 35, 15, 25, 30, 37, 28, 3, 19, 41, 33, 7, 2, 42, 4, 36, 30, 12, 16, 21, 39, 28, 46, 47, 29, 20, 47, 38, 13, 40, 8, 31, 3, 4, 11, 9, 19, 4, 5, 24, 11, 8, 14, 2, 36, 47, 41, 42, 29, 28, 15, 32, 39, 20, 45, 31, 34, 24, 25, 36, 14, 19, 33, 41, 38, 1, 39, 33, 41, 30, 14, 38, 45, 25, 18, 12, 39, 45, 25, 26, 0, 21, 15, 28, 38, 0, 23, 2, 46, 27, 41, 32, 21, 24, 29, 17, 8, 28, 1, 19, 41, 23, 28, 6, 28, 14, 28, 19, 26, 11, 10, 32, 35, 15, 42, 32, 2, 40, 39, 37, 10, 3, 1, 24, 29, 43, 40, 25, 35, 12, 8, 42, 26, 42, 42, 4, 35, 16, 40, 43, 38, 38, 6, 19, 12, 21, 23, 44, 33, 38, 47, 39, 15, 42, 0, 14, 42, 46, 24, 22, 44, 13, 37, 6, 36, 5, 9, 28, 8, 16, 40, 20, 20, 44, 14, 29, 20, 11, 38, 38, 40, 45, 16, 5, 9, 44, 1, 21, 8, 9, 35, 3, 17, 31, 27, 2, 37, 26, 17, 18, 2, 1, 20, 2, 41, 10, 10, 21, 3, 3, 20, 20, 35, 3, 35, 39, 0, 22, 38, 2, 20, 47, 19, 16, 45, 24, 33, 36, 24, 29, 18, 29, 32, 47, 34, 27, 36, 28, 10, 1, 21, 26, 9, 25, 0, 5, 14, 19, 6, 22, 29, 44, 34, 12, 5, 45, 22, 32, 4, 35, 18, 39, 43, 26, 25, 19, 32, 35, 0, 1, 12, 6, 42, 38, 6, 11, 16, 10, 32, 46, 36, 44, 13, 16, 10, 15, 0, 16, 33, 1, 24, 19, 22, 26, 0, 19, 23, 0, 0, 24, 30, 32, 13, 11, 34, 28, 20, 14, 47, 23, 23, 38, 26, 16, 12, 15, 16, 36, 5, 9, 14, 14, 3, 18, 29, 26, 38, 18, 34, 8, 38, 2, 28, 25, 20, 45, 16, 42, 46, 44, 7, 36, 26, 7, 38, 33, 29, 19, 26, 15, 18, 47, 22, 6, 9, 13, 15, 41, 3, 36, 15, 5, 34, 43, 30, 28, 47, 37, 2, 7, 33, 12, 20, 18, 0, 12, 2, 41, 36, 36, 27]])
raise SystemExit(repeat(an_option_counts, subject, batch, changed={'theta': 500.0}, tolerance=5.089476871944498e-06, starts=[0], tokens=600))
