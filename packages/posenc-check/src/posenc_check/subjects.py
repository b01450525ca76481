"""Describes what is checked: how PyTorch code builds it, how it is called, and what it claims.

Everything in this file is plain PyTorch and imports nothing of posenc: the script of a finding holds a copy.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

PADDING = -1  # the document of padding
VOCABULARY = 48  # the number of token ids

REFUSALS = (TypeError, ValueError, NotImplementedError, AssertionError)  # how code refuses a dtype or an argument


class NotApplicableError(Exception):
    """The subject cannot take part in a trial: the message says why."""


def require(fine: object, reason: str) -> None:
    """Raises NotApplicableError with the reason, unless ``fine``."""
    if not fine:
        raise NotApplicableError(reason)


def applies(here: object, reason: str) -> None:
    """Raises NotApplicableError with a reason that no claim and no parameter would change, unless ``here``."""
    require(here, f"nothing to do: {reason}")


def must_show(subject: "Subject", seen: object, why: str) -> None:
    """Raises NotApplicableError unless something is ``seen``, which larger parameters may show, where there are any."""
    made = None if seen else subject.make()
    learned = isinstance(made, nn.Module) and any(x.requires_grad for x in made.parameters())
    require(seen, f"{'give it a `jitter`' if learned else 'let call use what it is given'}, for {why}")


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, as plain lists: what a subject is run on. All rows have as many tokens.

    ``positions``: None leaves them to the subject, 0, 1, 2, … . ``document``: tokens see their own alone; -1 is
    padding. ``order``: what causality depends on, if not the index. ``chunks``: the lengths in which a cache is
    fed; none: all at once. ``queries`` and ``keys``: which tokens are queries and which are keys; None: all.
    ``grid``: rows and columns of patches, in raster order.
    """

    ids: list[list[int]]
    positions: Any = None
    document: list[list[int]] | None = None
    order: list[list[int]] | None = None
    chunks: tuple[int, ...] = ()
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    grid: Any = None

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
        """Only these tokens, in this order, of these rows or of all; without chunks, queries, keys and grid."""
        rows = rows or tuple(range(len(self.ids)))

        def of(field: list[list[Any]] | None) -> list[list[Any]] | None:
            return None if field is None else [[field[r][n] for n in tokens] for r in rows]

        return Batch(of(self.ids) or [], of(self.positions), of(self.document), of(self.order))

    def shifted(self, by: int, apart: int = 1, axis: int | None = None) -> "Batch":
        """All positions, those of padding too, multiplied by ``apart`` and moved ``by`` some amount; or one axis."""

        def there(p: Any, n: int | None = None) -> Any:
            if isinstance(p, list):
                return [there(x, n) for n, x in enumerate(p)]
            return apart * p + by if axis in (None, n) else p

        given = self.positions or [list(range(self.tokens))] * len(self.ids)
        return replace(self, positions=[[there(p) for p in row] for row in given])

    def masked_outputs(self, x: Tensor) -> Tensor:
        """x (rows, tokens, …) with zeros at padding, where outputs may be anything."""
        if self.document is None:
            return x
        real = torch.tensor(self.real, device=x.device)
        return x.masked_fill(~real.view(*real.shape, *[1] * (x.dim() - 2)), 0.0)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked. One of the kinds below: `Rotary`, `Bias`, `Attention`, `Layer`, `Model`.

    ``build(**options)`` makes it, a module or anything else, and ``call(made, …)`` calls it; both are functions (or
    classes) at the top level of a file, so that a script can be made of them. **What call's parameters are named says
    what the subject can do**; each kind lists those it knows.

    Claims, which checks hold it to:

    - ``causal``: a token sees none after it. ``relative``: moving all positions by the same amount changes nothing;
      False: it does; None: nothing is claimed.
    - ``like``: the scheme that it is said to be: one of posenc's, such as ``posenc.T5(12)``; the name of one in the
      catalog, with options if need be (``"t5"``, ``"t5(num_buckets=16)"``); or a function that gives one. Its
      parameters are those of the same shapes, or what ``match(made, scheme)`` copies into it.
    - ``max_positions``: positions 0 … max_positions - 1 are those it has, on every axis. ``max_grid``: how many it has
      on each axis, where they differ.
    - ``distinct_to``: positions (distances, for a bias) up to which no two neighbours look the same.
    - ``threshold``: the length past which it does something else, as a dynamic scaling does.
    - ``window``: a token sees itself and the window - 1 tokens before it, and where it is not causal as many after it.
      In a model of several layers, in each of ``depth``. ``sinks``: so many first tokens are seen by all.
    - ``directed``: of two equal tokens, one weighs for the other otherwise than that one for it; False: the same.
    - ``normalized``: the weights of a row sum to one, so values that are all the same come out as they are.
    - ``order_free``: positions may change nothing, as in NoPE; else positions that change nothing are a finding.
    - ``linear_memory``: the memory of a call grows with the length, not with its square.
    - ``computes_in``: the dtype that it computes in within, where that is a lower one: kernels of bfloat16.
    - ``compiles``, ``exports``: it compiles as one graph, and exports with a dynamic length.
    - ``axes``: coordinates of a position; 2 for the rows and columns of an image.
    - ``varied``: for each of the options, another value, which must change the outputs or be refused.
    - ``refused``: options that ``build`` must refuse, such as ``{"unknown": 1}`` or ``{"head_dim": 15}``, each by name.
    - ``backends``: options that must change no output, such as ``({"backend": "flash"}, {"backend": "math"})``.
    - ``state``: buffers in its state_dict that neither follow from the options nor are drawn, such as running means.
    - ``flat``: options that build the same for one axis, which it must agree with on the diagonal: (p, p, p) for p.
    - ``registers``: the first tokens of a row with a ``grid`` have no place on it (class tokens, registers).
    - ``jitter``: parameters are moved by N(0, jitter²) after building, where they begin too small to matter.
    - ``seed``: what torch is seeded with before each ``build``; or, where others draw too, a function of a number that
      seeds them, such as ``keras.utils.set_random_seed``.
    """

    positional_count: ClassVar[int] = 1  # the number of parameters of call that are positional, whatever their names
    known_parameters: ClassVar[tuple[str, ...]] = ()  # the names of the others; if empty, they are not checked

    build: Callable[..., Any]
    call: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = False
    relative: bool | None = None
    like: Any = None
    match: Callable[..., Any] | None = None
    max_positions: int | None = None
    max_grid: Sequence[int] | None = None
    window: int | None = None
    depth: int = 1
    sinks: int = 0
    directed: bool | None = None
    normalized: bool = False
    order_free: bool = False
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
    flat: Mapping[str, Any] | None = None
    registers: int = 0
    jitter: float = 0.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    seed: int | Callable[[int], object] = 0
    drawing: int = 0  # which of the draws: another one has other parameters

    def seed_all(self) -> None:
        """Seeds torch, and calls ``seed`` if it is a function."""
        number = self.drawing if callable(self.seed) else self.seed + self.drawing
        (torch.default_generator if self.device == "cpu" else torch).manual_seed(number)  # torch's takes 1 ms
        if callable(self.seed):
            self.seed(number)

    def with_next_seed(self) -> "Subject":
        """The same subject with parameters drawn from another seed."""
        return replace(self, drawing=self.drawing + 1)

    def make(self, **changed: Any) -> Any:
        """Builds it, in the subject's dtype and in evaluation mode; the same at every call."""
        with torch.random.fork_rng(devices=()):
            self.seed_all()
            made = self.build(**{**self.options, **changed})
            if isinstance(made, nn.Module):
                with torch.no_grad():
                    for parameter in made.parameters():
                        if parameter.requires_grad:  # frozen ones, such as a table of sines, must stay
                            parameter.add_(self.jitter * torch.randn(parameter.shape))
                made = made.to(self.device, self.dtype)
                made.eval()  # not chained, since an overridden `train` may return None
        return made

    def eps(self, *dtypes: torch.dtype) -> float:
        """The machine epsilon of the coarsest of these dtypes and ``computes_in``."""
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
        """Whether it takes "positions", "padding", "document" or "order", and has a "cache", "queries" or an "lse"."""
        return self.takes(what)

    @property
    def on_grids(self) -> bool:
        """Whether every row without positions has patches, and its grid is given. With a cache, rows may be text."""
        return self.takes("grid") and not self.takes("cache") and not self.needs("positions")

    @property
    def extent(self) -> int | None:
        """The number of positions, from 0 on, that it claims to have on every axis; None: any number."""
        return self.max_positions or (min(self.max_grid) if self.max_grid else None)

    def sides(self) -> tuple[int | None, int | None]:
        """How many rows and how many columns it claims to have; None: any number."""
        rows, columns = self.max_grid or (self.max_positions, self.max_positions)
        return rows, columns

    def fits(self, grid: Sequence[int]) -> bool:
        """Whether it has so many rows and columns."""
        return all(n <= (most or n) for n, most in zip(grid, self.sides(), strict=True))

    def grid_of(self, tokens: int) -> tuple[int, int] | None:
        """The grid of a row without one: as square as possible, with several rows; a single one if causal."""
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
        """The outputs of all queries: (rows, tokens, …)."""
        raise NotImplementedError

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        """The output, (rows, heads, queries, head_dim), and, if ``lse``, the log-sum-exp, (rows, heads, queries)."""
        raise NotApplicableError("let call take `return_lse`, for parts of the keys cannot be merged")

    def vectors(self, batch: Batch, size: int, which: int = 0) -> Tensor:
        """A vector for each token id, at any position the same: (rows, tokens, size)."""
        table = torch.randn(VOCABULARY, size, generator=torch.Generator().manual_seed(which), dtype=torch.float64)
        return table[torch.tensor(batch.ids, dtype=torch.int64)].to(self.device, self.dtype)

    def places(self, batch: Batch) -> Tensor:
        """The positions of the tokens, (rows, tokens[, axes])."""
        if batch.positions is not None:
            return torch.tensor(batch.positions, dtype=torch.int64, device=self.device)
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


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Dense softmax(query key' / √d + bias) value, and the log-sum-exp of each row; zeros where nothing is visible."""
    scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + bias
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores.softmax(-1), 0.0)
    return weights.to(value.dtype) @ value, scores.logsumexp(-1)


def query_and_key_tokens(batch: Batch) -> tuple[list[int], list[int]]:
    """The tokens that are queries, and those that are keys."""
    everyone = list(range(batch.tokens))
    return list(batch.queries or everyone), list(batch.keys or everyone)


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    """A subject between queries and keys (rows, heads, tokens, head_dim), which are given to it."""

    heads: int = 3
    head_dim: int = 16

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("positions")  # the attention around it does the rest

    def run(self, made: Any, batch: Batch) -> Tensor:
        return self.partial(made, batch, lse=False)[0].transpose(1, 2)

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.content(batch)
        positions = self.places(batch)
        rotated: list[Tensor] = []  # a cache keeps keys as rotated when they were new
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
        """The attention output of these queries for these keys, and, if ``lse``, the log-sum-exp of the scores."""
        query, key, value = vectors
        positions, visible = self.places(batch), self.visible(batch)
        bias = self.bias(made, positions[:, rows], positions[:, columns])
        return attend(query, key, value, visible[:, rows][:, :, columns], bias)


@dataclass(frozen=True, kw_only=True)
class Rotary(_Heads):
    """A rotation of queries and keys: ``call(made, x, positions)`` or ``call(made, query, key, positions)``.

    x, query and key are (rows, heads, tokens, head_dim), positions (rows, tokens) of int64, with ``axes`` above 1
    (rows, tokens, axes). It gives x rotated, or query and key. In place of ``positions`` it may take ``offset``, the
    position of the first token, or nothing: tokens are then at 0, 1, 2, … .

    Further claims: ``frequencies``, radians per position of each pair of channels, or ``base``, for
    base^(-2c/rotary_dim); ``layout``, "half" (channels c and c + rotary_dim/2 are a pair) or "interleaved" (2c and 2c +
    1); ``direction``, "forward" where the first channel x of a pair (x, y) becomes x cos(pθ) - y sin(pθ), "backward"
    where it becomes x cos(pθ) + y sin(pθ); ``rotary_dim``, the channels that are rotated (None: all); ``scale``, what
    the length of a rotated vector is multiplied by (attention factors; None: it depends on the position);
    ``other_layout``: options that build the same in the other layout.
    """

    known_parameters: ClassVar[tuple[str, ...]] = ("x", "query", "key", "positions", "offset")

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


@dataclass(frozen=True, kw_only=True)
class Bias(_Heads):
    """What is added to the scores: ``call(made, query_positions, key_positions)``, (rows, queries[, axes]) and (rows,
    keys[, axes]) of int64, gives (heads, queries, keys) or (rows, heads, queries, keys).

    It may take ``query_length, key_length`` instead: keys are then at 0 … key_length - 1 and queries are the last of
    them. Further claims, where it is minus a slope times the distance: ``slopes``, that of every head; or
    ``heads_option``, the option that says how many heads there are, for those that ALiBi publishes for any number.
    """

    known_parameters: ClassVar[tuple[str, ...]] = ("query_positions", "key_positions", "query_length", "key_length")

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


@dataclass(frozen=True, kw_only=True)
class Attention(_Heads):
    """Attention as a function: ``call(made, query, key, value, …)`` gives (rows, heads, queries, head_dim).

    It may take ``query_positions`` and ``key_positions`` (rows, tokens[, axes]); ``query_document`` and
    ``key_document`` (rows, tokens), where -1 is padding; ``query_order`` and ``key_order`` (rows, tokens), for
    causality; or ``visible`` (rows, 1, queries, keys) in place of documents, order and causality. With ``return_lse``
    it is asked for (output, log-sum-exp of the scores). Without positions, keys are at 0 … and queries are the last of
    them.
    """

    positional_count: ClassVar[int] = 4
    known_parameters: ClassVar[tuple[str, ...]] = (
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
            facts["document"] = torch.tensor(batch.document or one, dtype=torch.int64, device=self.device)
        if batch.order is not None or self.needs("query_order") or (self.causal and self.takes("query_order")):
            line = [list(range(batch.tokens))] * len(batch.ids)
            facts["order"] = torch.tensor(batch.order or line, dtype=torch.int64, device=self.device)
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


def kind_of(value: Any) -> str:
    """The type of a value, for an error message."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


@dataclass(frozen=True, kw_only=True)
class Layer(Subject):
    """A module from vectors to vectors: ``call(made, x, …)``, x (rows, tokens, dim), gives (rows, tokens, …).

    It may take ``positions`` (rows, tokens[, axes]), of the tokens of x; ``padding`` (rows, tokens so far), True where
    there is a token; ``document`` (rows, tokens so far), -1 for padding; ``order`` (rows, tokens), for causality;
    ``cache``, None at first: it then gives (output, cache); ``memory`` (rows, keys, dim), the tokens that are keys,
    and ``memory_positions``; ``grid``, (height, width), which every row has that is given no positions, unless it may
    take a cache. A parameter with a default is left out where there is nothing to say.
    """

    positional_count: ClassVar[int] = 2
    known_parameters: ClassVar[tuple[str, ...]] = (
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
        possible = not self.registers or batch.tokens > self.registers
        applies(possible, f"a row of {batch.tokens} tokens has no patch behind its {self.registers} registers")
        applies(batch.keys is None, "a layer gives no log-sum-exp, so parts of the keys cannot be merged")
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
            applies(grid, f"{batch.tokens} tokens are no grid that it has")
        said: dict[str, Any] = {"grid": grid, **extra}
        if batch.positions is not None:
            said |= {"positions": places[:, rows], "memory_positions": places if queries else None}
        if batch.document is not None:
            document = torch.tensor(batch.document, dtype=torch.int64, device=self.device)[:, :end]
            said |= {"padding": document != PADDING, "document": document}
        if batch.order is not None:
            said["order"] = torch.tensor(batch.order, dtype=torch.int64, device=self.device)[:, rows]
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
        plain = {  # for required parameters, where the batch says nothing
            "positions": places[:, rows],
            "padding": torch.ones(len(batch.ids), end, device=self.device).bool(),
            "document": torch.zeros(len(batch.ids), end, device=self.device).long(),
            "memory_positions": places,
            "memory": x,
        }
        taken = [name for name in self.known_parameters if name in said or self.needs(name)]
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
        return torch.tensor(batch.ids, dtype=torch.int64, device=self.device)


def call_module(module: Any, x: Tensor) -> Tensor:
    """A module that is given vectors and nothing else."""
    return module(x)
