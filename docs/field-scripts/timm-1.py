# A finding of posenc check, which this script repeats.
# timm, swin: check 20, grids, grids that are not of whole windows
# Rows and columns count each as itself, in grids of any shape; text among images is at its position.
# What to do: Take row and column as n // width and n % width, with the width of this very grid, and each axis by
# itself.
#
# To run it: python 20-grids-that-are-not-of-whole-windows.py
# It needs torch.
# To install them: pip install torch
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
class Bias(_Heads):
    """What is added to the scores: ``call(made, query_positions, key_positions)``, (rows, queries[, axes]) and (rows,
    keys[, axes]) of int64, gives (heads, queries, keys) or (rows, heads, queries, keys)."""

    gives: ClassVar[tuple[str, ...]] = ("query_positions", "key_positions", "query_length", "key_length")

    slopes: Sequence[float] | None = None
    heads_option: str = ""

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("query_positions")

    def bias(self, made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        if self.takes("query_positions"):
            bias = self.call(made, query_positions=query_positions, key_positions=key_positions)
        else:
            queries, keys = query_positions.size(1), key_positions.size(1)
            line = torch.arange(keys, device=key_positions.device)
            plain = key_positions.dim() == 2 and torch.equal(key_positions, line.expand_as(key_positions))
            last = plain and torch.equal(query_positions, line[keys - queries :].expand_as(query_positions))
            require(last, "let call take `query_positions` and `key_positions` (rows, tokens), for it takes lengths")
            bias = self.call(made, query_length=queries, key_length=keys)
        return bias if bias.dim() == 4 else bias[None]


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


@dataclass(frozen=True, kw_only=True)
class Model(Layer):
    """A model from token ids to vectors or logits: a `Layer` whose x are ids (rows, tokens) of int64, below 48."""

    def content(self, batch: Batch) -> Tensor:
        return torch.tensor(batch.ids, device=self.device)


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


# -- posenc/conformance/calls.py ---------------------------------------------------------------------------------------

from functools import wraps


def instead(subject: Subject, call: Callable[..., Any]) -> Subject:
    """The subject with another function in place of its call. What it can is still read off the old one's names."""
    return replace(subject, call=wraps(subject.call)(call))


def with_leaves(subject: Subject, leaves: dict[str, Tensor]) -> Subject:
    """The subject, whose call is given these leaves, by name, in place of its vectors; one that is missing is made of
    the vectors and kept in ``leaves``. For one run."""
    calls = iter(range(1, 1_000_000))

    def call(*given: Any, **named: Any) -> Any:
        number = next(calls)
        bound = inspect.signature(subject.call).bind(*given, **named)
        for name, value in list(bound.arguments.items())[1:]:
            if isinstance(value, Tensor) and value.is_floating_point():
                leaf = name if number == 1 else f"{name} of call {number}"
                bound.arguments[name] = leaves.setdefault(leaf, value.detach().clone().requires_grad_())
        return subject.call(*bound.args, **bound.kwargs)

    return instead(subject, call)


# -- posenc/conformance/captured.py ------------------------------------------------------------------------------------

def of_one_token(batch: Batch) -> Batch:
    """The same batch with one and the same token everywhere: what is left in its scores is that of positions."""
    return replace(batch, ids=[[1] * batch.tokens] * len(batch.ids))


# -- posenc/conformance/influence.py -----------------------------------------------------------------------------------

AT_ONCE = 64  # rows
NOTHING = 1e-12  # of the largest derivative: what a mask of -100 leaves of a weight is far less


def influence(subject: Subject, made: Any, batch: Batch) -> Tensor:
    """The derivative of every output by every vector of a row of one and the same token, (outputs, vectors, dim).

    Values are then all the same, so that weights that move against one another move nothing: it is the sum over the
    heads of the weight, times what the head makes of a vector. The row is run once for each of its tokens.
    """
    require(isinstance(subject, Layer) and not isinstance(subject, Model), "call takes no vectors")
    return torch.cat([_of_some(subject, made, batch, some) for some in torch.arange(batch.tokens).split(AT_ONCE)])


def _of_some(subject: Subject, made: Any, batch: Batch, outputs: Tensor) -> Tensor:
    every, leaves = of_one_token(Batch(batch.ids[:1] * len(outputs), grid=batch.grid)), dict[str, Tensor]()
    with torch.enable_grad():
        out = with_leaves(subject, leaves).run(made, every)
        require(out.requires_grad and leaves, "outputs take no gradient")
        own = out[range(len(outputs)), outputs].flatten(1)
        # Not their plain sum, which a normalisation keeps as it is whatever went in.
        weights = torch.linspace(1, 7, own.size(1), dtype=own.dtype, device=own.device).cos()
        return torch.autograd.grad((own * weights).sum(), next(iter(leaves.values())))[0].double()


def _windows(subject: Subject) -> tuple[tuple[int, int], tuple[int, int]]:
    """The size of the windows that a grid is cut into, and where the first of them begins."""
    require(not isinstance(subject.window, int | None), "no windows of a grid are claimed (window)")
    require(subject.depth == 1, "it has several layers, and what is outside one window is inside another")
    height, width = subject.window  # type: ignore[misc]
    down, right = subject.window_shift
    return (height, width), (down, right)


def windows_are_those_claimed(subject: Subject, batch: Batch, whole: bool) -> Outcomes:
    """What each patch gets of each: something of those in its window, and nothing of others. Where it is relative,
    whole windows are all the same. ``whole``: the grid is of whole windows; another one may be refused."""
    assert batch.grid is not None
    (height, width), (down, right) = _windows(subject)
    made, front, columns = subject.make(), subject.registers, batch.grid[1]
    try:
        found = influence(subject, made, batch)[front:, front:]
    except (RuntimeError, *REFUSALS) as error:
        if whole:
            raise
        raise NotApplicableError(f"it refuses a grid that is not of whole windows: {error}") from None
    sizes = found.abs().amax(-1)
    least, windows = NOTHING * float(sizes.max()), dict[tuple[int, int], list[int]]()
    for n in range(len(found)):
        row, column = divmod(n, columns)
        windows.setdefault(((row - down) // height, (column - right) // width), []).append(n)
    of = {n: window for window, members in windows.items() for n in members}
    for q, k in ((q, k) for q in of for k in of if not (subject.causal and k > q)):
        moves, name = float(sizes[q, k]), f"patch {[*divmod(k, columns)]} at {[*divmod(q, columns)]}"
        if of[q] == of[k]:
            yield name, Outcome(moves > least, "counts, in the same window", f"{moves:.2g}")
        else:
            yield name, Outcome(moves <= least, "counts nothing, from another window", f"{moves:.2g}")
    if subject.relative and not subject.causal:
        full = [members for members in windows.values() if len(members) == height * width]
        tolerance = 2**-18 * float(sizes.max())
        for members in full[1:]:
            name = f"the window of {[*divmod(members[0], columns)]}, as that of {[*divmod(full[0][0], columns)]}"
            expected, came = (found[m][:, m] for m in (full[0], members))
            yield name, near(expected, came, tolerance)


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

stand_in('posenc.conformance', 'posenc.conformance.heads', 'posenc.conformance.layers', 'posenc.conformance.subjects')
hold('field.subjects.of_timm', text='''\
"""timm: rotations of patches, resized tables, biases of windows, and shifted windows, as its models call them.

timm imports torchvision, which these do not use: names stand in its place where it is not installed.
"""

import importlib
import importlib.util
import sys
from unittest.mock import MagicMock

import torch

from posenc.conformance import Bias, Layer, NotApplicableError
from posenc.conformance.heads import attend


def part(module, name):
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        for stand_in in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
            sys.modules["torchvision" + stand_in] = MagicMock()
    return getattr(importlib.import_module(f"timm.{module}"), name)


def build(module, name, **options):
    return part(module, name)(**options)


def attend_patches(x, rotations, padding, half):
    """Attention of three heads: queries and keys are the rotated halves of x, values the second as it is."""
    query, value = (t.unflatten(2, (3, 16)).transpose(1, 2) for t in x.chunk(2, 2))
    query, key = (part("layers", "apply_rot_embed_cat")(t, rotations, half=half) for t in (query, value))
    seen = torch.ones(*x.shape[:2], dtype=torch.bool, device=x.device) if padding is None else padding
    out = attend(query, key, value, seen[:, None, :].expand(-1, x.size(1), -1))[0]
    return out.transpose(1, 2).flatten(2)


def rotated(module, x, grid=None, padding=None):
    """Patches in raster order, pairs next to one another; without a grid, one row."""
    return attend_patches(x, module.get_embed(grid or (1, x.size(1))).to(x), padding, half=False)


def rotated_half(module, x, grid=None, padding=None):
    """The channels of a pair half a head apart."""
    return attend_patches(x, module.get_embed(grid or (1, x.size(1))).to(x), padding, half=True)


def rotated_mixed(module, x, grid=None, padding=None):
    """By the frequencies of the first layer, of each head its own."""
    return attend_patches(x, module.get_embed(grid or (1, x.size(1)))[0].to(x), padding, half=False)


class Table(torch.nn.Module):
    """A learned table of 4 x 6 places, resampled to the grid at hand, as in a ViT with dynamic_img_size."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(1, 24, 32))


def add_table(module, x, grid=None):
    resample = part("layers", "resample_abs_pos_embed")
    return x + resample(module.table, grid or (1, x.size(1)), (4, 6), num_prefix_tokens=0)


def add_fourier(module, x, grid=None):
    """XCiT's: its sines, put through a linear layer."""
    height, width = grid or (1, x.size(1))
    return x + module(1, height, width).flatten(2).transpose(1, 2)


def bias_of_window(module, query_positions, key_positions):
    """The bias of patches at any places of its window of 5 x 6."""
    places = torch.cat((query_positions, key_positions), 1)
    if places.min() < 0 or (places.amax((0, 1)) >= torch.tensor([5, 6])).any():
        raise NotApplicableError("the window has no such place")
    asked, keys = (p[..., 0] * 6 + p[..., 1] for p in (query_positions, key_positions))
    bias = module.get_bias().flatten(0, -3)  # (heads, places, places), some with an axis for the batch in front
    return torch.stack([bias[:, a][:, :, k] for a, k in zip(asked, keys, strict=True)])


def attend_windows(module, x, grid=None):
    return module(x.unflatten(1, grid or (1, x.size(1)))).flatten(1, 2)


ROPE = "layers.pos_embed_sincos"
cat = Layer(
    build=build,
    call=rotated,
    options={"module": ROPE, "name": "RotaryEmbeddingCat", "dim": 16, "in_pixels": False},
    dim=96,
    axes=2,
    relative=True,
    varied={"temperature": 100.0, "grid_indexing": "xy"},
)
pixels = Layer(
    build=build,
    call=rotated,
    options={"module": ROPE, "name": "RotaryEmbeddingCat", "dim": 16, "max_res": 32},
    dim=96,
    axes=2,
    relative=True,
    varied={"max_res": 64, "linear_bands": True},
)
mixed = Layer(
    build=build,
    call=rotated_mixed,
    options={"module": ROPE, "name": "RotaryEmbeddingMixed", "dim": 48, "depth": 2, "num_heads": 3},
    dim=96,
    axes=2,
    relative=True,
)
dinov3 = Layer(
    build=build,
    call=rotated_half,
    options={"module": ROPE, "name": "RotaryEmbeddingDinoV3", "dim": 16},
    dim=96,
    axes=2,
    relative=True,
    varied={"temperature": 10.0},
)
mrope = Layer(
    build=build,
    call=rotated_half,
    options={"module": ROPE, "name": "RotaryEmbeddingMRope", "dim": 16, "mrope_section": (2, 3, 3)},
    dim=96,
    axes=2,
    relative=True,
)
table = Layer(build=Table, call=add_table, axes=2, trained_grid=(4, 6))
fourier = Layer(
    build=build,
    call=add_fourier,
    options={"module": "models.xcit", "name": "PositionalEncodingFourier", "hidden_dim": 8, "dim": 32},
    axes=2,
)
window = Bias(
    build=build,
    call=bias_of_window,
    options={"module": "layers.pos_embed_rel", "name": "RelPosBias", "window_size": (5, 6), "num_heads": 3},
    axes=2,
    relative=True,
    max_positions=5,
    jitter=1.0,
)
window_mlp = Bias(
    build=build,
    call=bias_of_window,
    options={
        "module": "layers.pos_embed_rel",
        "name": "RelPosMlp",
        "window_size": (5, 6),
        "num_heads": 3,
        "mode": "swin",
    },
    axes=2,
    relative=True,
    max_positions=5,
)
window_tf = Bias(
    build=build,
    call=bias_of_window,
    options={"module": "layers.pos_embed_rel", "name": "RelPosBiasTf", "window_size": (5, 6), "num_heads": 3},
    axes=2,
    relative=True,
    max_positions=5,
    jitter=1.0,
)
swin = Layer(
    build=build,
    call=attend_windows,
    options={
        "module": "models.swin_transformer",
        "name": "SwinTransformerBlock",
        "dim": 32,
        "input_resolution": (5, 9),
        "num_heads": 2,
        "window_size": 4,
        "shift_size": 2,
        "always_partition": True,
        "dynamic_mask": True,
    },
    axes=2,
    window=(4, 4),
    window_shift=(2, 2),
    jitter=0.1,
)

SUBJECTS = (
    ("RotaryEmbeddingCat", cat),
    ("RotaryEmbeddingCat, in pixels", pixels),
    ("RotaryEmbeddingMixed", mixed),
    ("RotaryEmbeddingDinoV3", dinov3),
    ("RotaryEmbeddingMRope", mrope),
    ("resample_abs_pos_embed", table),
    ("PositionalEncodingFourier", fourier),
    ("RelPosBias", window),
    ("RelPosMlp", window_mlp),
    ("RelPosBiasTf", window_tf),
    ("Swin, shifted windows", swin),
)
''')

subject = Layer(
    build=part_of('field.subjects.of_timm', 'build'),
    call=part_of('field.subjects.of_timm', 'attend_windows'),
    options={'module': 'models.swin_transformer', 'name': 'SwinTransformerBlock', 'dim': 32, 'input_resolution': (5, 9), 'num_heads': 2, 'window_size': 4, 'shift_size': 2, 'always_partition': True, 'dynamic_mask': True},
    window=(4, 4),
    window_shift=(2, 2),
    axes=2,
    jitter=0.1,
)
batch = Batch(ids=[[47, 26, 41, 5, 0, 38, 12, 44, 21, 10, 15, 40, 28, 24, 45, 43, 36, 26, 2, 25, 44, 36, 42, 45, 2, 10, 28, 4, 16, 44, 10, 28, 33, 35, 38, 0, 2, 31, 20, 19, 29, 3, 26, 12]], grid=(4, 11))
raise SystemExit(repeat(windows_are_those_claimed, subject, batch, whole=False))
