"""What the properties are tried on: positions made and changed in any way, each with a plain model of itself."""

import copy
import itertools
import os
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Positions, Scheme
from posenc.schemes.catalog import CATALOG, Shape
from tests.backends.parity_cases import KINDS, TURNING, attend

PADDING = -1


MANY = int(os.environ.get("POSENC_EXAMPLES", "1"))  # `make survey` tries many times as many


def law(examples: int) -> settings:
    """The same examples on every run, however long one of them takes."""
    phases = (Phase.generate, Phase.shrink)
    return settings(derandomize=True, deadline=None, database=None, max_examples=MANY * examples, phases=phases)


# --- a model of positions: what each token is, in lists of Python numbers ---------------------------------------------


@dataclass(frozen=True)
class Token:
    """One token: its coordinates, one per axis, and what else is said of it."""

    coords: tuple[float, ...]
    order: int
    document: int
    segment: int | None


Rows = list[list[Token]]


def read(positions: Positions) -> Rows:
    """The tokens of positions, row by row, read off their tensors."""
    coords = positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]
    segment = torch.zeros_like(positions.order) if positions.segment is None else positions.segment
    return [
        [
            Token(tuple(c), o, d, None if positions.segment is None else s)
            for c, o, d, s in zip(
                *(x[row].tolist() for x in (coords, positions.order, positions.document, segment)), strict=False
            )
        ]
        for row in range(positions.rows)
    ]


def rounded(value: float, dtype: torch.dtype) -> float:
    """A sum of two numbers of that dtype, which Python adds exactly or rounds to double, as the dtype holds it."""
    single: float = struct.unpack("f", struct.pack("f", value))[0] if dtype == torch.float32 else value
    return single


def moved(token: Token, by: float, dtype: torch.dtype) -> Token:
    """The token with every coordinate moved."""
    return replace(token, coords=tuple(rounded(c + by, dtype) for c in token.coords))


NOTHING = Token((0,), 0, PADDING, None)


def sees(query: Token, key: Token, causal: bool) -> bool:
    """Whether the one may see the other: its own document, no padding, nothing later."""
    return query.document == key.document != PADDING and (not causal or key.order <= query.order)


# --- numbers ----------------------------------------------------------------------------------------------------------

# Small ones that meet one another, and those where int32, float32, and float64 end.
WHOLE = st.integers(-3, 9) | st.sampled_from([2**24, 2**31 - 1, 2**31, -(2**31), 2**53, -(2**53)]) | st.integers(0, 40)


def reals(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """Fractions, and huge numbers that the dtype still holds."""
    width = 32 if dtype == torch.float32 else 64
    end = 2.0**24 if dtype == torch.float32 else 2.0**53
    wild = st.floats(-end, end, width=width, allow_subnormal=False)
    return st.integers(-12, 36).map(lambda n: n / 4) | wild | st.sampled_from([0.0, end, -end])


def table(draw: st.DrawFn, values: st.SearchStrategy[Any], rows: int, tokens: int) -> list[list[Any]]:
    """One row of values, or ``rows`` of them."""
    height = draw(st.sampled_from([1, rows]))
    row = st.lists(values, min_size=tokens, max_size=tokens)
    return draw(st.lists(row, min_size=height, max_size=height))


def widest(tables: Iterable[list[Any]]) -> int:
    """How many rows there are, where one serves them all."""
    return next((len(rows) for rows in tables if len(rows) != 1), 1)


def repeated(rows: list[Any], height: int) -> list[Any]:
    """One row so many times; several as they are."""
    return rows * height if len(rows) == 1 else rows


def whole(values: Sequence[Any], *shape: int) -> Tensor:
    """An int64 tensor, however many numbers there are."""
    return torch.tensor(values, dtype=torch.int64).reshape(shape)


# --- positions, made and changed in any way, beside their model -------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """Positions, and what they are to be. ``has_axis``: whether coordinates have an axis of their own."""

    positions: Positions
    rows: Rows

    @property
    def dtype(self) -> torch.dtype:
        """Of the coordinates."""
        return self.positions.coords.dtype


def text(n: int, start: int) -> Made:
    """One row of text from ``start`` on."""
    row = [Token((start + i,), start + i, 0, None) for i in range(n)]
    return Made(Positions.arange(n, start=start), [row])


ORDERS = (st.integers(-2, 4), st.integers(-9, -2), WHOLE)


def raw(draw: st.DrawFn, rows: int, some_axes: Sequence[int | None] = (None, None, 1, 2, 3)) -> Made:
    """Coordinates, order, documents and segments that have nothing to do with one another; some left out."""
    tokens = draw(st.integers(0, 6))
    dtype = draw(st.sampled_from([torch.int64, torch.int64, torch.float32, torch.float64]))
    axes = draw(st.sampled_from(some_axes))
    number = WHOLE if dtype == torch.int64 else reals(dtype)
    coords = table(draw, st.tuples(*[number] * (axes or 1)), rows, tokens)
    order, document, segment = (
        draw(st.none() | st.just(values).map(lambda values: table(draw, values, rows, tokens)))
        for values in (draw(st.sampled_from(ORDERS)), st.integers(-2, 2), st.integers(0, 2))
    )
    shape = (len(coords), tokens) if axes is None else (len(coords), tokens, axes)
    others = {"order": order, "document": document, "segment": segment}
    positions = Positions(
        torch.tensor(coords, dtype=dtype).reshape(shape),
        **{name: None if values is None else whole(values, len(values), tokens) for name, values in others.items()},
    )
    height = widest(values for values in (coords, order, document, segment) if values is not None)

    def row_of(values: list[list[Any]] | None, row: int, otherwise: Sequence[Any]) -> Sequence[Any]:
        return otherwise if values is None else values[row % len(values)]

    return Made(
        positions,
        [
            [
                Token(*told)
                for told in zip(
                    row_of(coords, row, ()),
                    row_of(order, row, range(tokens)),
                    row_of(document, row, [0] * tokens),
                    row_of(segment, row, [None] * tokens),
                    strict=True,
                )
            ]
            for row in range(height)
        ],
    )


def packed(draw: st.DrawFn, rows: int) -> Made:
    """Documents laid end to end, some of them empty, in rows of unlike lengths."""
    lengths = draw(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=rows, max_size=rows))
    longest = max((sum(row) for row in lengths), default=0)
    model = []
    for row in lengths:
        told = [(p, number) for number, n in enumerate(row) for p in range(n)]
        tokens = [Token((p,), order, number, None) for order, (p, number) in enumerate(told)]
        model.append(tokens + [NOTHING] * (longest - len(tokens)))
    one = rows == 1 and draw(st.booleans())
    return Made(Positions.packed(lengths[0] if one else lengths), model if rows else [[]])


def padded(draw: st.DrawFn, rows: int) -> Made:
    """Padding anywhere."""
    tokens = draw(st.integers(0, 6))
    mask = table(draw, st.booleans(), rows, tokens)
    model = []
    for row in mask:
        count = [sum(row[:n]) for n in range(tokens)]
        model.append(
            [Token((c,), c, 0, None) if m else Token((0,), 0, PADDING, None) for m, c in zip(row, count, strict=False)]
        )
    return Made(Positions.padded(torch.tensor(mask, dtype=torch.bool).reshape(len(mask), tokens)), model)


def grid(height: int, width: int) -> Made:
    """Patches in raster order."""
    places = [(a, b) for a in range(height) for b in range(width)]
    return Made(Positions.grid(height, width), [[Token(c, n, 0, None) for n, c in enumerate(places)]])


@st.composite
def made(draw: st.DrawFn, rows: int, changes: int = 3) -> Made:
    """Positions made in any way, then changed in any way; of one row or of ``rows``."""
    kind = draw(st.sampled_from(["text", "text", "text", "raw", "packed", "padded", "grid"]))
    if kind == "text":
        it = text(draw(st.integers(0, 6)), draw(WHOLE))
    elif kind == "grid":
        it = grid(draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    else:
        it = {"raw": raw, "packed": packed, "padded": padded}[kind](draw, rows)
    for change in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=changes)):
        it = CHANGES[change](draw, it, rows)
    return it


@st.composite
def rows_of_text(draw: st.DrawFn, rows: int) -> Made:
    """Rows that text can follow: of one coordinate a token, and a token at least where they have segments."""
    it = draw(st.sampled_from([packed, padded, lambda draw, rows: raw(draw, rows, (None,))]))(draw, rows)
    it = by_whole(it, draw(st.integers(-9, 9))) if draw(st.booleans()) else it
    if it.positions.segment is not None and len(it.positions) == 0:
        return text(0, draw(WHOLE))  # what follows nothing is of no segment
    return it


# --- changes ----------------------------------------------------------------------------------------------------------


def sliced(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """Some tokens, from one to another."""
    ends = st.none() | st.integers(-8, 8)
    cut = slice(draw(ends), draw(ends), draw(st.sampled_from([None, None, 1, 2, 3])))
    return Made(it.positions[cut], [row[cut] for row in it.rows])


def indexed(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """A permutation of the tokens, or some of them, some twice."""
    n = len(it.positions)
    some = st.lists(st.integers(-n, n - 1), max_size=6) if n else st.just([])
    chosen = draw(st.permutations(range(n)) | some)
    return Made(it.positions[whole(chosen, len(chosen))], [[row[i] for i in chosen] for row in it.rows])


def shifted(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """Every coordinate moved; by a fraction, whole ones become float64."""
    by: float = draw(WHOLE | reals(torch.float64))
    dtype = torch.float64 if it.dtype == torch.int64 and isinstance(by, float) else it.dtype
    by = rounded(by, dtype)
    return Made(it.positions.shift(by), [[moved(token, by, dtype) for token in row] for row in it.rows])


def by_whole(it: Made, by: int) -> Made:
    """Every coordinate moved by a whole number."""
    return Made(it.positions.shift(by), [[moved(token, by, it.dtype) for token in row] for row in it.rows])


def expanded(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """One row repeated."""
    return Made(it.positions.expand(rows), repeated(it.rows, rows)) if len(it.rows) == 1 else it


def continued(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """What follows, alone or with what it follows."""
    if it.positions.coords.dim() == 3 or (it.positions.segment is not None and len(it.positions) == 0):
        return it  # a grid has no next patch, and what follows nothing is of no segment
    n = draw(st.integers(0, 3))
    after = Made(it.positions.following(n), [follow(row, n, it.dtype) for row in it.rows])
    return joined([it, after]) if draw(st.booleans()) else after


def follow(row: list[Token], n: int, dtype: torch.dtype) -> list[Token]:
    """What comes after a row: its last token is the first of the highest order."""
    real = [t for t in row if t.document != PADDING]
    if not real:
        segment = row[0].segment if row else None  # that of the first, where none is the last
        return [Token((k,), k, 0, segment) for k in range(n)]
    last = max(real, key=lambda t: t.order)
    return [replace(moved(last, k, dtype), order=last.order + k) for k in range(1, n + 1)]


def with_segments(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """Each token in a segment."""
    segment = table(draw, st.integers(0, 2), rows, len(it.positions))
    pairs = zip(*(repeated(x, widest([segment, it.rows])) for x in (it.rows, segment)), strict=True)
    changed = [[replace(t, segment=s) for t, s in zip(row, given, strict=True)] for row, given in pairs]
    return Made(it.positions.with_segment(whole(segment, len(segment), len(it.positions))), changed)


def joined(parts: Sequence[Made]) -> Made:
    """The tokens of all parts in turn."""
    height = widest(part.rows for part in parts)
    wide = [repeated(part.rows, height) for part in parts]
    tokens = [[t for row in rows for t in row] for rows in zip(*wide, strict=True)]
    return Made(Positions.cat([part.positions for part in parts], documents="same"), tokens)


def torn(draw: st.DrawFn, it: Made, rows: int) -> Made:
    """Cut in two, perhaps with more text beside, and laid together in any order."""
    cut = draw(st.integers(0, len(it.positions)))
    first, second = slice(None, cut), slice(cut, None)
    parts = [Made(it.positions[s], [row[s] for row in it.rows]) for s in (first, second)]
    if draw(st.booleans()):
        parts[1] = shifted(draw, parts[1], rows) if it.dtype != torch.int64 else by_whole(parts[1], draw(WHOLE))
    whole_text = it.dtype == torch.int64 and it.positions.coords.dim() == 2 and it.positions.segment is None
    if whole_text and draw(st.booleans()):
        parts.append(text(draw(st.integers(0, 3)), draw(st.integers(0, len(it.positions)) | WHOLE)))
    return joined(draw(st.permutations(parts)))


CHANGES = {
    "slice": sliced,
    "index": indexed,
    "shift": shifted,
    "expand": expanded,
    "follow": continued,
    "segments": with_segments,
    "cat": torn,
}


# --- calls of attention -----------------------------------------------------------------------------------------------

LIMIT, GRID = 128, (9, 16)  # the places of a table, and the reach of one of distances
FAR = (2**20, 2**31, 2**52, -(2**20), -(2**31), -(2**52))
HEADS = ((12, 4), (12, 12), (12, 1), (5, 1), (5, 5), (1, 1), (2, 1))  # of queries, of keys


@dataclass(frozen=True, eq=False, repr=False)
class Setting:
    """A call of attention: a scheme, positions, tensors in double precision, and what else is asked."""

    name: str
    scheme: Scheme
    query: Tensor
    key: Tensor
    value: Tensor
    query_positions: Positions
    key_positions: Positions
    how: dict[str, Any]

    def __repr__(self) -> str:
        """What a failure says of the call: positions as they are, tensors by their shapes."""
        told = [
            f"{self.name}, query {tuple(self.query.shape)}, key {tuple(self.key.shape)}, {self.value.size(-1)} wide"
        ]
        for name in ("query_positions", "key_positions"):
            p = getattr(self, name)
            told.append(f"{name} {p.coords.dtype} {p.coords.tolist()}, order {p.order.tolist()}")
            told.append(f"  document {p.document.tolist()}, {p.layout}")
        mask = self.how["attn_mask"]
        how = self.how | {"attn_mask": None if mask is None else (mask.dtype, tuple(mask.shape))}
        return "\n".join([*told, str(how)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For Hypothesis, which would print every tensor."""
        printer.text(repr(self))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def to(self, dtype: torch.dtype) -> "Setting":
        """The same call in another precision; parameters in single precision at least, as they are trained."""
        query, key, value = (x.to(dtype) for x in self.tensors)
        scheme = copy.deepcopy(self.scheme).to(torch.promote_types(dtype, torch.float32))
        return replace(self, scheme=scheme, query=query, key=key, value=value)

    def run(self, backend: str) -> tuple[Tensor, Tensor | None]:
        """Output and, where it is asked for, the log-sum-exp."""
        out = attend(self.scheme, self.query_positions, self.key_positions, *self.tensors, backend, **self.how)
        return out if isinstance(out, tuple) else (out, None)


def numbers(draw: st.DrawFn, values: st.SearchStrategy[Any], rows: int, tokens: int) -> list[list[Any]]:
    """As `table`, but for many tokens a few numbers come again and again."""
    if tokens <= 6:
        return table(draw, values, rows, tokens)
    few = draw(st.lists(values, min_size=2, max_size=6))
    chance = random.Random(draw(st.integers(0, 99)))
    return [[chance.choice(few) for _ in range(tokens)] for _ in range(draw(st.sampled_from([1, rows])))]


def text_at(draw: st.DrawFn, name: str, tokens: int, far: Sequence[int]) -> Positions:
    """An unbroken text of that many tokens, from anywhere on, ``far`` away or near. Of patches, a grid read row by row,
    which knows the bounds of its places, or the same that does not."""
    if KINDS[name].axes == 2 and draw(st.booleans()):
        positions = Positions.grid(-(-tokens // 16), 16)[:tokens]
    else:
        positions = Positions.arange(tokens, start=draw(st.sampled_from([0, 0, 1, 7, -4])))
    by = draw(st.sampled_from([0, 0, 5, -3, *far]))
    return placed(name, positions.shift(by) if by else positions)


def spots(draw: st.DrawFn, name: str, tokens: int, rows: int, wild: bool) -> Positions:
    """Positions of that many tokens, in one row or ``rows``: text, documents, padding, or neither head nor tail.
    ``wild``: coordinates may be huge and far apart."""
    kinds = ["text", "text", "packed", "packed", "padded", "padded", "raw", "raw", "real"]
    kind = draw(st.sampled_from([*kinds, "real", "real"] if KINDS[name].fractional else kinds)) if rows else "text"
    if kind == "text":
        return text_at(draw, name, tokens, FAR if wild else ())
    if kind == "packed":
        positions = Positions.packed(lengths_of(draw, rows, tokens))
    elif kind == "padded":
        mask = numbers(draw, st.booleans(), rows, tokens)
        positions = Positions.padded(torch.tensor(mask, dtype=torch.bool).reshape(len(mask), tokens))
    else:
        number: st.SearchStrategy[Any] = st.integers(0, 20) | st.integers(-3, 30)
        dtype = torch.int64
        if kind == "real":
            dtype = draw(st.sampled_from([torch.float32, torch.float64]))
            number = st.integers(-12, 80).map(lambda n: n / 4)
        if wild:
            number = number | (WHOLE if kind == "raw" else reals(dtype))
        coords = numbers(draw, number, rows, tokens)
        order = numbers(draw, st.integers(-3, 20), rows, tokens) if draw(st.booleans()) else None
        document = numbers(draw, st.integers(-2, 1), rows, tokens) if draw(st.booleans()) else None
        positions = Positions(
            torch.tensor(coords, dtype=dtype).reshape(len(coords), tokens),
            order=None if order is None else whole(order, len(order), tokens),
            document=None if document is None else whole(document, len(document), tokens),
        )
    if wild and draw(st.booleans()):
        if positions.coords.dtype == torch.float32:  # which ends before
            positions = positions.with_coords(positions.coords.double())
        positions = positions.shift(draw(st.sampled_from(FAR)))
    if draw(st.sampled_from([False, False, True])):
        positions = positions[torch.tensor(draw_order(draw, tokens), dtype=torch.int64)]
    return placed(name, positions)


def lengths_of(draw: st.DrawFn, rows: int, tokens: int) -> list[list[int]]:
    """Of documents, some of them empty: in the first row they come to all the tokens, in the others to no more."""
    cuts = [sorted(draw(st.lists(st.integers(0, tokens), max_size=3))) for _ in range(rows)]
    ends = [[0, *row, *([tokens] if n == 0 else [])] for n, row in enumerate(cuts)]
    return [[b - a for a, b in itertools.pairwise(row)] for row in ends]


def draw_order(draw: st.DrawFn, tokens: int) -> list[int]:
    """The indices of tokens in any order."""
    return random.Random(draw(st.integers(0, 99))).sample(range(tokens), tokens)


def mask_of(draw: st.DrawFn, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
    """A mask that broadcasts to the shape, of bool or float, that may leave some queries, or all, without a key."""
    kind = draw(st.sampled_from([None, None, "bool", "float", "single"]))
    if kind is None:
        return None
    mine = tuple(draw(st.sampled_from([1, n])) for n in shape)[draw(st.integers(0, 2)) :]
    seen = torch.rand(mine, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    if kind == "bool":
        return seen
    added = torch.randn(mine, generator=generator, dtype=torch.float64 if kind == "float" else torch.float32)
    return added.masked_fill(~seen, draw(st.sampled_from([-torch.inf, torch.finfo(torch.float32).min])))


def laid_out(draw: st.DrawFn, x: Tensor) -> Tensor:
    """The same numbers in another order of memory, or one row of them for the whole batch."""
    way = draw(st.sampled_from(["as it is", "as it is", "projected", "channels first", "every other", "one row"]))
    if way == "projected":  # as a linear layer leaves it
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if way == "channels first":
        return x.mT.contiguous().mT
    if way == "every other":
        return torch.stack((x, -x), -1).flatten(-2)[..., ::2]
    return x[:1].expand(x.shape) if way == "one row" and x.size(0) else x


ADDING = tuple(entry.name for entry in CATALOG if entry.doors == ("add",))  # attention never meets these
FEATURED = (
    "carope",
    "clocked",
    "featured",
    "fox",
    "inkling",
    "re_po",
    "selective_rope",
    "wall",
)  # they need what a layer makes of its tokens: see test_parity.py
ATTENDING = tuple(name for name in sorted(KINDS) if name not in (*ADDING, *FEATURED))
NAMES = (*ATTENDING, *ATTENDING, *ADDING)
RELATIVE = ("relative_1d", "relative_1d per head", "relative_2d", "relative_2d per head")
TABLES = ("learned", "absolute_in_attention", *RELATIVE)  # those that end
LOUD = (1.0, 1.0, 0.0, 9.0)


@st.composite
def settings_of(
    draw: st.DrawFn,
    names: Sequence[str] = NAMES,
    lengths: Sequence[int] = (0, 1, 2, 3, 5, 9, 9, 17, 33, 70),
    wild: bool = True,
    loud: Sequence[float] = LOUD,
) -> Setting:
    """Any scheme at any positions, with any mask. ``wild``: anywhere at all; ``loud``: how large the tensors may be."""
    name = draw(st.sampled_from(names))
    queries, keys = draw(st.sampled_from(lengths)), draw(st.sampled_from(lengths))
    rows = draw(st.sampled_from([1, 2, 3, max(1, min(keys, 9)), *([] if name in TABLES else [0])]))
    wild = wild and (name not in TABLES or draw(st.sampled_from([False, False, True])))
    asking = known = spots(draw, name, keys, rows, wild)
    way = draw(st.sampled_from(["same", "last", "own"]))
    if way == "last":
        asking = known[max(0, keys - queries) :]
    elif way == "own":
        asking = spots(draw, name, queries, rows, wild)
    return setting(draw, name, asking, known, rows, loud, masked=True)


@st.composite
def texts(
    draw: st.DrawFn,
    names: Sequence[str] = ATTENDING,
    lengths: Sequence[int] = (1, 2, 9, 17, 33, 70, 70, 140),
    wild: bool = True,
    loud: Sequence[float] = LOUD,
) -> Setting:
    """Any scheme where queries and keys are unbroken texts, and no mask: what there are fast ways to run."""
    name = draw(st.sampled_from(names))
    far = FAR if wild and name not in TABLES else ()
    keys = draw(st.sampled_from(lengths))
    asking = known = text_at(draw, name, keys, far)
    way = draw(st.sampled_from(["same", "same", "last", "own", "own"]))
    if way == "last":
        asking = known[keys - draw(st.sampled_from([1, min(3, keys), -(-keys // 2)])) :]
    elif way == "own":
        asking = text_at(draw, name, draw(st.sampled_from(lengths)), far)
        if draw(st.booleans()):
            asking = asking.shift(draw(st.sampled_from([keys, -keys, 3, *far])))
    return setting(draw, name, asking, known, draw(st.integers(1, 2)), loud)


@st.composite
def documents(draw: st.DrawFn) -> Positions:
    """Rows of documents, packed, or padded anywhere."""
    rows, tokens = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5, 9, 17, 40, 90]))
    if draw(st.booleans()):
        return Positions.padded(torch.tensor(numbers(draw, st.booleans(), rows, tokens)))
    return Positions.packed(lengths_of(draw, rows, tokens))


@st.composite
def over(draw: st.DrawFn, positions: Positions) -> Setting:
    """Any scheme at these positions, queries and keys alike."""
    name = draw(st.sampled_from(NAMES))
    at = placed(name, positions)
    return setting(draw, name, at, at, positions.rows, LOUD)


def setting(
    draw: st.DrawFn,
    name: str,
    asking: Positions,
    known: Positions,
    batch: int,
    loud: Sequence[float],
    masked: bool = False,
) -> Setting:
    """Tensors for these positions, and a way to ask; ``masked``: also what is asked more rarely."""
    heads, kv_heads = draw(st.sampled_from([h for h in HEADS if name != "alibi directed" or h[0] % 2 == 0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    scheme, head_dim = built(name, heads, kv_heads, generator)
    widths = [head_dim, 5, 1] if masked and "value" not in scheme.doors else [head_dim]
    size = draw(st.sampled_from(loud))
    query, key, value = (
        laid_out(draw, size * torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in (
            (batch, heads, len(asking), head_dim),
            (batch, kv_heads, len(known), head_dim),
            (batch, kv_heads, len(known), draw(st.sampled_from(widths))),
        )
    )
    how = {
        "is_causal": KINDS[name].looks_back or draw(st.booleans()),
        "scale": draw(
            st.sampled_from([None, None, 0.31, 0.0, -0.5] if masked else [None, None, None, 0.31, 0.0, -0.5])
        ),
        "attn_mask": mask_of(draw, (batch, heads, len(asking), len(known)), generator) if masked else None,
        "return_lse": draw(st.sampled_from([False, False, True])),
    }
    return Setting(name, scheme, query, key, value, asking, known, how)


def placed(name: str, positions: Positions) -> Positions:
    """The same tokens with the coordinates and segments that the scheme asks for; segments follow coordinates, so
    that a token brings it along."""
    if positions.coords.dim() == 3:
        return positions
    if KINDS[name].needs_segments:
        return positions.with_segment((positions.coords % 2).long())
    return KINDS[name].at(positions)


def built(name: str, heads: int, kv_heads: int, generator: torch.Generator) -> tuple[Scheme, int]:
    """The scheme with parameters of order 1, and the width of a head: odd, unless channels come in pairs."""
    head_dim = 6 if any(turning in name for turning in TURNING) or heads % 2 else 7
    shape = Shape(heads * head_dim, heads, head_dim, LIMIT, num_kv_heads=kv_heads)
    scheme = KINDS[name].build(shape).double()
    for parameter in scheme.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return scheme, head_dim
