# A finding of posenc check, which this script repeats.
# local_attention, attention: check 19, bounds, values all the same
# What is past the end is refused by name, slopes are right for any number of heads, and neither other rows, nor later
# tokens, nor what a window hides count.
# What to do: Compare positions with the limit before the look-up, and raise an error with the number; take each size
# from its own axis.
#
# To run it: python 19-values-all-the-same.py
# It needs torch, local_attention.
# To install them: pip install torch local-attention
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
class Attention(_Heads):
    """Attention as a function: ``call(made, query, key, value, …)`` gives (rows, heads, queries, head_dim)."""

    by_place: ClassVar[int] = 4
    gives: ClassVar[tuple[str, ...]] = (
        "query_positions",
        "key_positions",
        "query_document",
        "key_document",
        "query_order",
        "key_order",
        "visible",
        "return_lse",
    )

    def can(self, what: str) -> bool:
        if what in ("padding", "document", "order"):
            return self.takes("visible") or self.takes("query_order" if what == "order" else "query_document")
        return self.takes({"positions": "query_positions", "lse": "return_lse"}.get(what, "query"))

    def _step(
        self, made: Any, batch: Batch, vectors: list[Tensor], rows: list[int], columns: list[int], lse: bool
    ) -> tuple[Tensor, Tensor]:
        facts = {"positions": self.places(batch)}
        if batch.document is not None or self.needs("query_document"):
            one = [[0] * batch.tokens] * len(batch.ids)
            facts["document"] = torch.tensor(batch.document or one, device=self.device)
        if batch.order is not None or self.needs("query_order") or (self.causal and self.takes("query_order")):
            line = [list(range(batch.tokens))] * len(batch.ids)
            facts["order"] = torch.tensor(batch.order or line, device=self.device)
        given: dict[str, Any] = {}
        if self.takes("visible"):
            given["visible"] = self.visible(batch)[:, None, rows][..., columns]
        for name, value_of in facts.items():
            if self.takes(f"query_{name}"):
                given |= {f"query_{name}": value_of[:, rows], f"key_{name}": value_of[:, columns]}
            elif name == "positions":
                self.require_plain_positions(batch)
                lower_right = rows == columns[len(columns) - len(rows) :] and columns == list(range(len(columns)))
                require(
                    lower_right,
                    "let call take `query_positions` and `key_positions`, for queries are the last of the keys",
                )
            else:
                require(self.takes("visible"), f"let call take `query_{name}` and `key_{name}` (rows, tokens)")
        if lse:
            return self.call(made, *vectors, **given, return_lse=True)
        out = self.call(made, *vectors, **given)
        return out, out.new_full(out.shape[:3], torch.nan)


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


# -- posenc/conformance/checks/weights.py ------------------------------------------------------------------------------

SINGLE = torch.finfo(torch.float32).eps  # softmax is often of float32 within


def values_all_the_same_stay(subject: Attention, batch: Batch, sharper: float) -> Outcome:
    """Attention to values that are all the same, which must come out, with queries so many times as long: a share that
    is missing of a sum is not seen where the sum is large."""
    given: list[Tensor] = []

    def call(made: Any, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Any:
        line = torch.linspace(1, 2, value.size(-1), device=value.device, dtype=value.dtype)
        given.append(line.expand_as(value))
        return subject.call(made, sharper * query, key, given[0], **more)

    came = instead(subject, call).run(subject.make(), batch).detach()
    expected = batch.owed(given[0].transpose(1, 2)[:, :1].expand_as(came))
    return near(expected, batch.owed(came), 64 * _rounding(subject))


def _rounding(subject: Subject) -> float:
    low = torch.finfo(subject.computes_in).eps if subject.computes_in is not None else 0.0
    return max(SINGLE, low)


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
hold('field.subjects.of_local_attention', text='''\
"""local-attention: LocalAttention and LocalMHA, as LocalTransformer calls them, and LocalTransformer itself.

With a cache they take one token at a time, as `generate` gives it to them, and no mask. LocalMHA pads what it is given
to whole windows, and exact_windowsize, its default, is said to let a query see as many keys as the window is long.
"""

import random

import torch
from local_attention import LocalAttention, LocalMHA
from local_attention.transformer import LocalTransformer

from posenc.conformance import Attention, Layer, Model, NotApplicableError


def build_mha(**options):
    return LocalMHA(dim=32, dim_head=16, heads=2, **options)


def build_transformer(**options):
    random.seed(0)  # by which hyper_connections draws the first stream of each layer
    return LocalTransformer(
        num_tokens=48, max_seq_len=2048, dim=32, depth=2, dim_head=16, heads=2, local_attn_window_size=8, **options
    )


def attend(module, query, key, value, query_document=None, key_document=None):
    """Its mask says which keys there are. Queries are the keys."""
    if query.size(2) != key.size(2):
        raise NotApplicableError("queries are the keys")
    if key_document is None or (key_document == 0).all():
        return module(query, key, value)
    if (key_document > 0).any():
        raise NotApplicableError("it knows no documents")
    return module(query, key, value, mask=key_document >= 0)


def encode(module, x, padding=None):
    return module(x, mask=None if padding is None or padding.all() else padding)


def decode(module, x, cache=None):
    if cache is None:
        return module(x, return_cache=True)
    outs = []
    for token in x.split(1, 1):
        out, cache = module(token, cache=cache, return_cache=True)
        outs.append(out)
    return torch.cat(outs, 1), cache


def decode_text(model, ids, cache=None):
    """As `generate` does: all tokens so far, of which a model with a cache takes the last."""
    if cache is None:
        logits, kept = model(ids, return_cache=True)
        return logits, (ids, kept)
    seen, kept = cache
    outs = []
    for token in ids.split(1, 1):
        seen = torch.cat((seen, token), 1)
        out, kept = model(seen, cache=kept, return_cache=True)
        outs.append(out)
    return torch.cat(outs, 1), (seen, kept)


attention = Attention(
    build=LocalAttention,
    call=attend,
    options={"dim": 16, "window_size": 8, "autopad": True, "exact_windowsize": True},
    relative=True,
    normalized=True,
)
attention_causal = Attention(
    build=LocalAttention,
    call=attend,
    options={"dim": 16, "window_size": 8, "causal": True, "autopad": True, "exact_windowsize": True},
    causal=True,
    relative=True,
    window=8,
    normalized=True,
)
encoder = Layer(build=build_mha, call=encode, options={"window_size": 8}, relative=True, jitter=0.2)
decoder = Layer(
    build=build_mha, call=decode, options={"window_size": 8, "causal": True}, causal=True, relative=True, jitter=0.2
)
decoder_padded = Layer(
    build=build_mha, call=encode, options={"window_size": 8, "causal": True}, causal=True, relative=True, jitter=0.2
)
decoder_xpos = Layer(
    build=build_mha,
    call=decode,
    options={"window_size": 8, "causal": True, "use_xpos": True},
    causal=True,
    relative=True,
    jitter=0.2,
)
decoder_normed = Layer(
    build=build_mha,
    call=decode,
    options={"window_size": 8, "causal": True, "qk_rmsnorm": True, "use_rotary_pos_emb": False},
    causal=True,
    jitter=0.2,
    order_free=True,
)
decoder_blocks = Layer(
    build=build_mha,
    call=decode,
    options={"window_size": 8, "causal": True, "exact_windowsize": False, "use_rotary_pos_emb": False},
    causal=True,
    jitter=0.2,
    order_free=True,
)
transformer = Model(build=build_transformer, call=decode_text, causal=True, max_positions=2048, jitter=0.2)
transformer_dynamic = Model(
    build=build_transformer,
    call=decode_text,
    options={"use_dynamic_pos_bias": True},
    causal=True,
    max_positions=2048,
    jitter=0.2,
    dtype=torch.float32,
)

SUBJECTS = (
    ("LocalAttention", attention),
    ("LocalAttention, causal", attention_causal),
    ("LocalMHA", encoder),
    ("LocalMHA, causal", decoder_padded),
    ("LocalMHA, causal, with a cache", decoder),
    ("LocalMHA, xPos", decoder_xpos),
    ("LocalMHA, qk_rmsnorm", decoder_normed),
    ("LocalMHA, two windows whole", decoder_blocks),
    ("LocalTransformer", transformer),
    ("LocalTransformer, dynamic", transformer_dynamic),
)
''')

subject = Attention(
    build=part_of('local_attention.local_attention', 'LocalAttention'),
    call=part_of('field.subjects.of_local_attention', 'attend'),
    options={'dim': 16, 'window_size': 8, 'autopad': True, 'exact_windowsize': True},
    relative=True,
    normalized=True,
)
batch = Batch(ids=[[0]])
raise SystemExit(repeat(values_all_the_same_stay, subject, batch, sharper=1.0))
