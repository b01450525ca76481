"""A wrong argument is a ValueError that names it, what was expected and what came: one table for every public name.

What Python itself refuses, an argument that is missing or not known, stays a TypeError.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import (
    FIRE,
    T5,
    AbsoluteInAttention,
    ALiBi,
    Chunk,
    Context,
    DistanceAware,
    DualChunk,
    Encoding,
    ExponentialDecay,
    FourierFeatures,
    FoX,
    Indexer,
    Learned,
    NoPE,
    PositionError,
    Positions,
    Relative1D,
    Relative2D,
    RoPE,
    Schedule,
    Scheme,
    Segment,
    Shaw,
    Sinusoidal,
    TransformerXL,
    XPos,
    attention,
    explain,
    logits,
    merge,
)
from posenc.lowering.distances import Block
from posenc.models import Decoder, Encoder, ForwardPass, ImageClassifier, KVCache
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Shape
from tests.errors.wrong_calls import (
    INF,
    NAN,
    NO_FLAGS,
    NO_NUMBERS,
    NO_SIZES,
    NO_WORDS,
    Row,
    each,
    flags,
    numbers,
    sizes,
)
from tests.mutants.scalings import GIVEN
from tests.test_mutants import MODULES

BATCH = 2
HEADS = 6
QUERIES = 5
KEYS = 7
HEAD_DIM = 4

# -- what the calls are made of ----------------------------------------------------------------------------------------

GENERATOR = torch.Generator().manual_seed(3)


def drawn(*size: int) -> Tensor:
    return torch.randn(*size, generator=GENERATOR)


Q, K, V = (drawn(BATCH, h, n, d) for h, n, d in ((6, 5, 4), (3, 7, 4), (3, 7, 8)))
X = drawn(2, 5, 8)
LINE, GRID = Positions.arange(5), Positions.grid(2, 3)
HALVES = Positions(torch.tensor([[0.5, 1.5]]))
BOUND = RoPE(HEAD_DIM)(LINE)
VOCAB, DIM = 11, 24
TOKENS, IMAGES = torch.arange(10).view(2, 5), drawn(2, 3, 4, 6)
SEEN = torch.ones(QUERIES, KEYS, dtype=torch.bool)


def made(kind: Callable[..., Any], *sizes: Any, **how: Any) -> Any:
    """A module, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return kind(*sizes, **how).eval()


DECODER = made(Decoder, VOCAB, DIM, 2, HEADS, position=RoPE(HEAD_DIM))
ENCODER = made(Encoder, VOCAB, DIM, 2, HEADS)
CLASSIFIER = made(ImageClassifier, 5, 2, DIM, 1, HEADS, channels=3)
SEGMENTED = made(TransformerXL, 6, 4, segments=True)
INDEXER = Indexer(6, RoPE(4), 2)
AWARE, GRIDDED, RELATIVE = made(DistanceAware, 6), made(Relative2D, (2, 3), 4), made(TransformerXL, 6, 4)
FILLED = KVCache()
FILLED.append(0, K, V)
READ = KVCache()
with ForwardPass(NoPE(), Positions.arange(7), READ) as _step:
    _step.attention(torch.zeros(2, 6, 7, 4), K, V)
OTHER = KVCache()
with ForwardPass(RoPE(4), Positions.arange(7), OTHER) as _step:
    _step.attention(torch.zeros(2, 6, 7, 4), K[..., :4], V[..., :4])

SCHEDULE = Schedule([(RoPE(HEAD_DIM), None), (NoPE(), 3)])
PASS = ForwardPass(SCHEDULE, LINE)

HINT = "; use Positions.from_ids(position_ids, mask), or Positions.padded(mask) for a mask of tokens"
NO_POSITIONS: tuple[tuple[Any, str], ...] = (
    ("line", "'line'"),
    (torch.arange(5), f"torch.int64 (5,){HINT.replace('use', 'use Positions.arange(5),')}"),
    (torch.zeros(2, 6, 4), f"torch.float32 (2, 6, 4){HINT.replace('use', 'use Positions.arange(6),')}"),
    (torch.zeros(2, 3, 7, 4), f"torch.float32 (2, 3, 7, 4){HINT.replace('use', 'use Positions.arange(7),')}"),
    (torch.ones(2, 5), f"torch.float32 (2, 5){HINT}"),
    (50, "50; use Positions.arange(50)"),
    (-1, "-1"),
    (True, "True"),
    ([0, 1], "[0, 1]"),
    (np.arange(5), "ndarray int64 (5,)"),
)


# -- schemes -----------------------------------------------------------------------------------------------------------


NORMS_FEATURE = {"query_norm": 1.0, "key_norm": 1.0, "scale": 0.5}

# Arguments that are wrong without another, or may be any number of their type.
NOT_ALONE = {"shift", "jitter", "rescale", "QueryScale.length", "QueryScale.strength"}
NO_BOUND = {"seed", "leak", "factor", "strength"}
FROM_0 = {"seed", "local", "first_channel", "axis", "Cameras.rotary_dim"}


def arguments_of(entry: Entry) -> dict[str, Any]:
    """What the catalog's entry builds its scheme from."""
    takes, given = inspect.signature(entry.scheme), {}

    def init(_: Any, *args: Any, **how: Any) -> None:
        given.update(takes.bind(*args, **how).arguments)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(entry.scheme, "__init__", init)
        with pytest.raises(InterruptedError):
            entry.build(Shape(96, 12, 8, max_positions=64, grid=(8, 8)))
    return given


def of_types(entry: Entry) -> list[Row]:
    """Values of other types than the arguments that are numbers, flags or words of a list; and numbers too small."""
    good, rows = arguments_of(entry), []
    for name, parameter in inspect.signature(entry.scheme, eval_str=True).parameters.items():
        titles, kinds = {name, f"{entry.title}.{name}"}, get_args(parameter.annotation) or (parameter.annotation,)
        may_be_none = type(None) in kinds
        if titles & NOT_ALONE or get_origin(parameter.annotation) in (Sequence, tuple):
            continue
        if int in kinds:
            wrong = NO_SIZES[: 8 if titles & FROM_0 else None]
            rows += each(entry.scheme, good, name, wrong, "a whole number …")
        elif bool in kinds:
            rows += flags(entry.scheme, good, name)
        elif float in kinds:
            wrong = [(value, came) for value, came in NO_NUMBERS if not (may_be_none and value is None)]
            rows += each(entry.scheme, good, name, wrong, "a finite number…")
            if not titles & NO_BOUND:
                bound = 1 if name in ("base", "longest") else 0
                too_small = ((bound, str(bound)), (-3.5, "-3.5"))
                rows += each(entry.scheme, good, name, too_small, f"a finite number above {bound}…")
        words = [repr(word) for kind in kinds for word in get_args(kind) or (kind,) if isinstance(word, str)]
        if words:
            must = f"{', '.join(words[:-1])} or {words[-1]}"
            rows += each(entry.scheme, good, name, NO_WORDS, f"{must}…")
    return rows


# Those of a scheme may stand with its mutants, too, as `REFUSED`.
SCHEMES: dict[str, list[Row]] = {
    "ALiBi": [Row(lambda: ALiBi(5, "directed"), "num_heads must be even …, got 5")],
    "DistanceAware.factor": [
        Row(lambda: AWARE.factor([1.0]), "distance must be a floating tensor, got [1.0]"),
        Row(lambda: AWARE.factor(LINE.coords), "distance must be a floating tensor, got torch.int64 (1, 5)"),
    ],
    "Indexer": [
        *sizes(Indexer, {"rotation": NoPE(), "top_k": 2}, "num_heads"),
        *sizes(Indexer, {"num_heads": 2, "rotation": NoPE()}, "top_k"),
        *sizes(Indexer, {"num_heads": 2, "rotation": NoPE(), "top_k": 2}, "block"),
        Row(lambda: Indexer(2, NoPE(), 6, block=4), "top_k must be a multiple of block = 4, got 6"),
        Row(lambda: Indexer(2, NoPE(), 6, scale=0), "scale must be a finite number above 0, got 0"),
        Row(lambda: Indexer(2, ALiBi(2), 6), "rotation must be a scheme that only rotates, such as RoPE, got ALiBi(2…"),
        Row(lambda: Indexer(2, "rope", 6), "rotation must be a Scheme, got 'rope'"),
    ],
    "Indexer.forward": [
        Row(lambda: INDEXER(Q, K[:, :1], drawn(2, 5, 6)), "weights must be (2, 6, 5) like query, or None, got …"),
        Row(lambda: INDEXER(Q, K), "key must be a floating tensor (batch, 1, tokens, head_dim), got …"),
        Row(lambda: INDEXER(K, K[:, :1]), "query must be a floating tensor (batch, 6, tokens, head_dim), got …"),
        Row(lambda: INDEXER(Q, K[:, :1].double()), "key must be (2, 1, 7, 4), torch.float32 on cpu like query, got …"),
        Row(lambda: INDEXER(Q, K[:, :1], is_causal=1), "is_causal must be True or False, got 1"),
        Row(lambda: INDEXER(Q, K[:, :1], norm=nn.Identity()), "norm must be a function of the mean keys of blocks, …"),
        *each(partial(INDEXER, Q, K[:, :1]), {}, "query_positions", NO_POSITIONS, "a Positions or None"),
        *each(partial(INDEXER, Q, K[:, :1]), {}, "key_positions", NO_POSITIONS, "a Positions or None"),
    ],
    "Indexer.scores": [
        Row(
            lambda: INDEXER.scores(Q, K[:, :1], query_positions=LINE),
            "key_positions must be given for 5 queries and 7 keys, got None",
        ),
        Row(
            lambda: INDEXER.scores(Q, Q[:, :1, :3]), "query_positions must be given for 5 queries and 3 keys, got None"
        ),
        Row(
            lambda: INDEXER.scores(Q, Q[:, :1], query_positions=LINE.expand(3)),
            "query_positions must be 1 or 2 x 5 like query, got …",
        ),
    ],
    "Relative2D": [
        *each(Relative2D, {"head_dim": 4}, "grid", [(3, "3"), ((2,), "(2,)"), (None, "None")], "(height, width)"),
        Row(lambda: Relative2D((0, 5), 4), "grid[0] must be a whole number of at least 1, got 0"),
        Row(lambda: Relative2D((2, 5.0), 4), "grid[1] must be a whole number of at least 1, got 5.0"),
    ],
    "Relative2D.resized": [
        Row(lambda: GRIDDED.resized(5), "grid must be (height, width), got 5"),
        Row(lambda: GRIDDED.resized((5, "x")), "grid[1] must be a whole number of at least 1, got 'x'"),
    ],
    "RoPE": [
        Row(lambda: RoPE(1), "head_dim must be a whole number of at least 2, got 1"),
        Row(lambda: RoPE(7), "head_dim must be even, got 7"),
        Row(lambda: RoPE(8, axes=3), "rotary_dim must be even on each of 3 axes …, got 8"),
        Row(lambda: RoPE(8, rotary_dim=7), "rotary_dim must be even and within 2..head_dim = 8, got 7"),
        Row(lambda: RoPE(8, rotary_dim=10), "rotary_dim must be …, got 10"),
        *each(
            RoPE,
            {"head_dim": 8},
            "scaling",
            [(2.0, "2.0"), (posenc.YaRN, "the class YaRN")],
            "a scaling such as YaRN(4.0, 4096), a function of theta, a dictionary of transformers or None",
        ),
        *(Row(partial(RoPE, 8, 100.0, scaling=given), message) for given, message in GIVEN),
    ],
    "Shaw": [Row(lambda: Shaw(4, 3, keys=False, values=False), "keys or values must be True, got False for both")],
    "Sinusoidal": [
        Row(lambda: Sinusoidal(7), "dim must be positive and even …, got 7"),
        Row(lambda: Sinusoidal(6, axes=2), "dim must be positive and even on each of 2 axes …, got 6"),
    ],
    "Sinusoidal.linear_map": [
        Row(lambda: Sinusoidal(8).linear_map(3), "offset must be a sequence of 1 numbers, one per axis, got 3"),
        Row(lambda: Sinusoidal(8).linear_map([1, 2]), "offset must be a sequence of 1 numbers, …, got [1, 2]"),
        Row(lambda: Sinusoidal(8).linear_map(["3"]), "offset must be a finite number, got '3'"),
        Row(lambda: Sinusoidal(8).linear_map([NAN]), "offset must be a finite number, got nan"),
    ],
    "T5": [
        Row(lambda: T5(6, 7, bidirectional=True), "num_buckets must be even and at least 4 if bidirectional, got 7"),
        Row(lambda: T5(6, max_distance=16), "max_distance must be above 16, …, got 16"),
    ],
    "TransformerXL": [Row(lambda: TransformerXL(1, 7), "dim must be positive and even …, got 7")],
    "TransformerXL.terms": [
        Row(lambda: RELATIVE.terms(Q), "block must be a Block, got torch.float32 (2, 6, 5, 4)"),
        Row(
            lambda: RELATIVE.terms(Block(Q[:, :2], Q[:, :2], LINE, LINE, 0.5)),
            "TransformerXL was made for 6 heads, got queries of 2; make it for 2 heads; where they are a shard …",
        ),
    ],
}

ADDING = {
    "ExponentialDecay": ExponentialDecay(8),
    "FourierFeatures": FourierFeatures(8),
    "Learned": made(Learned, 9, 8),
    "Segment": made(Segment, 2, 8),
    "Sinusoidal": Sinusoidal(8),
}
DTYPES = "torch.float32 or torch.float64"
NO_DTYPES = ((torch.float16, "torch.float16"), (torch.int64, "torch.int64"), ("float32", "'float32'"), (None, "None"))

DOORS: dict[str, list[Row]] = {
    "Scheme.table": [
        *[
            row
            for scheme in ADDING.values()
            for row in (
                *each(scheme.table, {}, "positions", NO_POSITIONS, "a Positions"),
                *each(scheme.table, {"positions": LINE}, "dtype", NO_DTYPES, DTYPES),
            )
        ],
        *[
            Row(partial(ADDING[name].table, GRID), f"{name} takes one coordinate per token, got positions of 2 axes")
            for name in ("ExponentialDecay", "Learned")
        ],
        *[
            Row(
                partial(kind(8).table, GRID),
                f"{name} takes one coordinate …, got positions of 2 axes: build it with axes=2",
            )
            for name, kind in (("Sinusoidal", Sinusoidal), ("FourierFeatures", FourierFeatures))
        ],
        Row(lambda: ADDING["Segment"].table(LINE), "Segment needs positions with a segment per token…"),
        Row(
            lambda: ADDING["Learned"].table(HALVES), "Learned looks positions up … int64 coordinates, got torch.float32"
        ),
    ],
    "Scheme.rotation": [
        *each(RoPE(8).rotation, {}, "positions", NO_POSITIONS, "a Positions"),
        *(
            row
            for scheme in (RoPE(8), posenc.XPos(8), posenc.ReRoPE(8), posenc.SelfExtend(8), posenc.STRING(8, axes=1))
            for row in each(scheme.rotation, {"positions": LINE}, "dtype", NO_DTYPES, DTYPES)
        ),
        Row(
            lambda: RoPE(8).rotation(GRID),
            "RoPE takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        ),
        Row(
            lambda: RoPE(8, axes=2).rotation(LINE),
            "RoPE takes 2 coordinates per token, got positions of 1 axes: make them with Positions.grid(height, "
            "width), or build it with axes=1",
        ),
    ],
    "Scheme.tokens": [
        Row(lambda: RoPE(8).tokens("line"), "…positions must be …Positions, got …'line'"),
        Row(
            lambda: RoPE(8).tokens(LINE, dtype=torch.bfloat16), "dtype must be …float32 or …float64, got torch.bfloat16"
        ),
    ],
    "Scheme.horizon": [
        *sizes(ALiBi(6).horizon, NORMS_FEATURE | {"length": 9}, "length"),
        *(
            row
            for name in ("query_norm", "key_norm")
            for row in numbers(ALiBi(6).horizon, NORMS_FEATURE | {"length": 9}, name, 0)
        ),
        *numbers(ALiBi(6).horizon, NORMS_FEATURE | {"length": 9}, "scale", 0),
        *each(
            ALiBi(6).horizon,
            NORMS_FEATURE | {"length": 9},
            "skip_below",
            [(1.0, "1.0"), (-0.5, "-0.5")],
            "within [0, 1)",
        ),
    ],
    "Scheme.pairs": [
        *each(ALiBi(6).pairs, {}, "query_positions", NO_POSITIONS, "a Positions"),
        *each(partial(ALiBi(6).pairs, LINE), {}, "key_positions", NO_POSITIONS, "a Positions or None"),
    ],
    "Scheme.forward": [
        Row(lambda: RoPE(8)(torch.arange(5)), "…positions must be …Positions, got …torch.int64 (5,)…"),
        Row(lambda: RoPE(8)(LINE, [1]), "…positions must be …Positions…, got …[1]"),
        Row(lambda: ALiBi(6)(LINE, dtype=torch.float16), "dtype must be …float32 or …float64, got torch.float16"),
    ],
    "PositionError": [
        *[
            Row(partial(Positions, torch.tensor([[0.0, wrong]])), "coords must be finite, got …", PositionError)
            for wrong in (NAN, INF, -INF)
        ],
        Row(
            lambda: ADDING["Learned"].table(Positions.arange(10)),
            "Learned encodes positions 0 to 8, got 9",
            PositionError,
        ),
        Row(
            lambda: ADDING["Segment"].table(LINE.with_segment(torch.tensor([[0, 1, 2, 0, 0]]))),
            "Segment encodes segments 0 to 1, got 2",
            PositionError,
        ),
        Row(
            lambda: ExponentialDecay(8).table(Positions(torch.tensor([[0.0, -0.5]]))),
            "ExponentialDecay encodes positions from 0 on, got -0.5",
            PositionError,
        ),
    ],
}


# -- attention ---------------------------------------------------------------------------------------------------------

NO_TENSOR = "must be a floating tensor (batch, heads, tokens, head_dim), got "
BIND = "; where they are a shard of all heads, bind the scheme with context=Context(heads=range(first, last))"
SHARD = f"; make it for 6 heads{BIND}"
TURNED = SHARD.replace("6 heads", "6 heads; or transpose query, key and value to (batch, heads, tokens, head_dim)")
TO_SHAPE = "attn_mask must broadcast to (batch, heads, queries, keys) = (2, 6, 5, 7), got "
SHARED: list[tuple[dict[str, Any], str]] = [
    *[({name: [[1.0]]}, f"{name} {NO_TENSOR}[[1.0]]") for name in ("query", "key", "value")],
    *[({name: np.ones((2, 3))}, f"{name} {NO_TENSOR}ndarray float64 (2, 3)") for name in ("query", "key", "value")],
    *[({name: None}, f"{name} {NO_TENSOR}None") for name in ("query", "key", "value")],
    ({"query": Q.long()}, f"query {NO_TENSOR}torch.int64 (2, 6, 5, 4)"),
    ({"query": Q > 0}, f"query {NO_TENSOR}torch.bool (2, 6, 5, 4)"),
    ({"query": torch.complex(Q, Q)}, f"query {NO_TENSOR}torch.complex64 (2, 6, 5, 4)"),
    (
        {"query": Q[0]},
        f"query {NO_TENSOR}torch.float32 (6, 5, 4); … pass query.unsqueeze(1), … pass query.unsqueeze(0), … "
        "(tokens, heads, head_dim), … pass query.transpose(0, 1).unsqueeze(0) with Positions.packed(cu_seqlens=...)",
    ),
    ({"key": K[None]}, f"key {NO_TENSOR}torch.float32 (1, 2, 3, 7, 4)"),
    ({"value": V.int()}, f"value {NO_TENSOR}torch.int32 (2, 3, 7, 8)"),
    ({"key": K.to("meta")}, "key must be on cpu like query, got meta"),
    ({"value": V.to("meta")}, "value must be on cpu like query, got meta"),
    ({"query": Q.to("meta")}, "key must be on meta like query, got cpu"),
    ({"key": K.double()}, "key must be torch.float32 like query, got torch.float64"),
    ({"value": V.half()}, "value must be torch.float32 like query, got torch.float16"),
    ({"key": K.repeat(2, 1, 1, 1)}, "key must have batch 2 like query, or 1, got 4"),
    ({"value": V.repeat(2, 1, 1, 1)}, "value must have batch 2 like query, or 1, got 4"),
    ({"query": Q[..., :0]}, "query must have a head_dim above 0, got (2, 6, 5, 0)"),
    ({"key": K[..., :3]}, "key must have head_dim 4 like query, got 3"),
    ({"value": V[:, :1]}, "value must have heads and tokens (3, 7) like key, got (1, 7)"),
    ({"value": V[:, :, :6]}, "value must have heads and tokens (3, 7) like key, got (3, 6)"),
    ({"query": Q[:, :4]}, "query heads must be a multiple of key heads, got 4 and 3"),
    (
        {"encoding": "alibi"},
        "encoding must be an Encoding, a Scheme or None, got 'alibi': make a scheme, such as posenc.ALiBi(num_heads)",
    ),
    (
        {"encoding": ALiBi},
        "encoding must be an Encoding, a Scheme or None, got the class ALiBi: make a scheme of it, ALiBi(...)",
    ),
    (
        {"encoding": posenc.DynamicNTK(2.0, original_length=8)},
        "encoding must be …, got DynamicNTK(…): a scaling belongs to a scheme, RoPE(head_dim, scaling=...)",
    ),
    ({"encoding": 3}, "encoding must be an Encoding, a Scheme or None, got 3"),
    ({"encoding": SCHEDULE}, "a Schedule is bound layer by layer: use scheme, window = …"),
    (
        {"query": Q.to(torch.float8_e4m3fn)},
        "query must be float16, bfloat16, float32 or float64, got torch.float8_e4m3fn",
    ),
    (
        {"encoding": LINE},
        "encoding must be an Encoding, a Scheme or None, got Positions(…): call a scheme with them, scheme(positions)",
    ),
    ({"encoding": nn.Linear(2, 2)}, "encoding must be an Encoding, a Scheme or None, got Linear(…)"),
    ({"encoding": Sinusoidal(24)}, "Sinusoidal adds to the input, …"),
    ({"encoding": RoPE(4) + Sinusoidal(24)}, "Sinusoidal adds to the input, …: make encoding = scheme(positions), …"),
    ({"encoding": Learned(9, 24) + Sinusoidal(24)}, "Learned and Sinusoidal add to the input, …"),
    *[
        ({name: value}, f"{name} must be a Positions or None, got {came}")
        for name in ("query_positions", "key_positions")
        for value, came in NO_POSITIONS
    ],
    ({"window": (-1, -1)}, "window must have None for no limit, got (-1, -1): pass window=None"),
    ({"window": (3, -1)}, "window must have None for no limit, got (3, -1): pass window=(3, None)"),
    ({"window": -1}, "window must be None for no limit, got -1: pass window=None"),
    ({"query_positions": Positions.arange(4)}, "query_positions must have 5 tokens like query, got 4"),
    ({"key_positions": Positions.arange(6)}, "key_positions must have 7 tokens like key, got 6"),
    ({"encoding": BOUND, "query_positions": LINE}, "encoding is bound to positions already: …"),
    ({"encoding": BOUND}, "key has 7 tokens, but the encoding was made for 5"),
    (
        {"query_positions": LINE.expand(3), "key_positions": Positions.arange(7)},
        "query has batch 2, but the encoding's positions have 3 rows",
    ),
    ({"key_positions": Positions.arange(7).expand(3)}, "… has batch 2, but the encoding's positions have 3 rows"),
    (
        {"query_positions": LINE.to("meta"), "key_positions": Positions.arange(7)},
        "query is on cpu, but the encoding's positions are on meta",
    ),
    ({"query_positions": LINE}, "key_positions must be given with query_positions where there are 5 queries and 7 …"),
    *[
        ({"query": K.repeat(1, 1, 2, 1), **reads}, "queries are by default the last of the keys, … 14 queries and 7 …")
        for reads in ({"encoding": RoPE(4)}, {"encoding": NoPE(), "is_causal": True}, {"window": 3})
    ],
    (
        {"query": K.repeat(1, 1, 2, 1), "key_positions": Positions.arange(7)},
        "query_positions must be given with key_positions where there are 14 queries and 7 keys, got None",
    ),
    *[({"is_causal": value}, f"is_causal must be True or False, got {came}") for value, came in NO_FLAGS],
    *[({"return_lse": value}, f"return_lse must be True or False, got {came}") for value, came in NO_FLAGS],
    *[
        ({"scale": value}, f"scale must be a finite number or None, got {came}")
        for value, came in (*NO_NUMBERS, (-INF, "-inf"))
        if came not in ("None", "int")
    ],
    *[
        ({"skip_below": value}, f"skip_below must be within [0, 1), or None for 2**-32, got {came}")
        for value, came in (*NO_NUMBERS, (1.0, "1.0"), (-0.1, "-0.1"))
        if came != "None"
    ],
    *[
        (
            {"sinks": value},
            f"sinks must be a floating tensor (6,), a logit for each head, or (2, 6, 5), one …, got {came}",
        )
        for value, came in (
            (0.5, "0.5"),
            (torch.zeros(6, dtype=torch.int64), "torch.int64 (6,)"),
            (torch.zeros(1), "torch.float32 (1,)"),
            (torch.zeros(1, 6, 5), "torch.float32 (1, 6, 5)"),
            (torch.zeros(BATCH, 6, 5, 1), "torch.float32 (2, 6, 5, 1)"),
        )
    ],
    ({"sinks": torch.zeros(6, device="meta")}, "sinks must be on cpu like query, got meta"),
    ({"key_norms": torch.ones(BATCH, 3, 5)}, "key_norms must be a floating tensor (2, 3, 7) on cpu, …"),
    ({"key_norms": 3.0}, "key_norms must be a floating tensor (2, 3, 7) on cpu, …, got 3.0"),
    *[
        ({"dropout_p": value}, f"dropout_p must be within [0, 1), got {came}")
        for value, came in (*NO_NUMBERS, (1.0, "1.0"), (-0.1, "-0.1"))
    ],
    ({"attn_mask": [[True]]}, "attn_mask must be a tensor of bool … or float …, got [[True]]"),
    ({"attn_mask": SEEN.numpy()}, "attn_mask must be a tensor of bool … or float …, got ndarray bool (5, 7)"),
    ({"attn_mask": SEEN.long()}, "attn_mask must be a tensor of bool … or float …, got torch.int64 (5, 7)…"),
    (
        {"attn_mask": torch.ones(BATCH, KEYS, dtype=torch.int64)},
        "attn_mask must be …, got torch.int64 (2, 7); for a tokenizer's mask pass scheme(Positions.padded(mask)); for "
        "0/1 use mask == 1",
    ),
    (
        {"attn_mask": torch.ones(BATCH, KEYS, dtype=torch.bool)},
        f"{TO_SHAPE}(2, 7); for a tokenizer's mask pass scheme(Positions.padded(mask))",
    ),
    ({"attn_mask": SEEN.to("meta")}, "attn_mask must be on cpu like query, got meta"),
    ({"attn_mask": SEEN[0]}, "attn_mask must have an axis of queries …, got (7,): … pass attn_mask[None]"),
    ({"attn_mask": SEEN[:, :4]}, f"{TO_SHAPE}(5, 4)"),
    ({"attn_mask": SEEN.expand(2, 3, 5, 7)}, f"{TO_SHAPE}(2, 3, 5, 7)"),
    ({"attn_mask": SEEN.expand(1, 1, 1, 5, 7)}, f"{TO_SHAPE}(1, 1, 1, 5, 7)"),
    # What a scheme takes part in.
    ({"encoding": ALiBi(5, "bidirectional")}, f"ALiBi was made for 5 heads, got queries of 6{TURNED}"),
    ({"encoding": T5(3, bidirectional=True)}, f"T5 was made for 3 heads, got queries of 6{SHARD}"),
    ({"encoding": DistanceAware(3)}, f"DistanceAware was made for 3 heads, got queries of 6{SHARD}"),
    ({"encoding": TransformerXL(6, 6)}, "TransformerXL was made for head_dim 6, got queries of head_dim 4"),
    (
        {"encoding": SEGMENTED},
        "TransformerXL needs positions with a segment per token: positions.with_segment(segment)",
    ),
    ({"encoding": RoPE(6)}, "the rotation was made for head_dim 6, got q or k of head_dim 4"),
    ({"encoding": Shaw(4, 2, num_heads=3, values=False)}, f"Shaw was made for 3 heads, got queries of 6{SHARD}"),
    ({"encoding": Shaw(6, 2, values=False)}, "Shaw was made for head_dim 6, got queries of head_dim 4"),
    ({"encoding": Relative1D(9, 6)}, "Relative1D was made for head_dim 6, got queries of head_dim 4"),
    ({"encoding": AbsoluteInAttention(9, 6)}, "AbsoluteInAttention was made for head_dim 6, got queries of head_dim 4"),
    (
        {"encoding": Relative2D((3, 3), 4)},
        "Relative2D takes 2 coordinates per token, got positions of 1: make them with Positions.grid(height, width)",
    ),
    ({"encoding": NoPE() + ALiBi(4, "directed")}, f"ALiBi was made for 4 heads, got queries of 6{SHARD}"),
    (
        {"encoding": ALiBi(8, "directed")(LINE, Positions.arange(7), context=Context(heads=range(1, 4)))},
        f"ALiBi was made for 8 heads, of which context.heads selects 3, got queries of 6{BIND}",
    ),
    *[
        (
            {"encoding": scheme, "is_causal": True},
            f"the scheme needs the feature '{name}' of every query: use encoding.with_projected…",
        )
        for scheme, name in ((FoX(6), "forgotten"), (posenc.Inkling(6, 3, 4), "profile"))
    ],
    (
        {"query_positions": Positions.grid(1, 5), "key_positions": Positions.grid(1, 7), "window": Chunk(2)},
        "in_chunks takes one coordinate per token, got positions of 2 axes",
    ),
    (
        {"encoding": posenc.StickBreaking(), "sinks": torch.zeros(6)},
        "sinks must be None for a scheme whose weights do not sum to 1, got torch.float32 (6,)",
    ),
]
PAST_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"encoding": Relative1D(5, 4)}, "Relative1D encodes distances up to 4, got 6"),
    ({"encoding": AbsoluteInAttention(5, 4)}, "AbsoluteInAttention encodes positions 0 to 4, got 6"),
]
VALUE_DOOR: list[tuple[dict[str, Any], str]] = [
    ({"encoding": Shaw(4, 2, keys=False)}, "value must have a value_dim of 4 for the value door, got 8"),
    ({"encoding": Shaw(8, 2, num_heads=3, keys=False)}, f"Shaw was made for 3 heads, got queries of 6{SHARD}"),
]
BEHIND = "encodes only keys up to the query, …: pass is_causal=True …, or use"
BOTH_WAYS: list[tuple[dict[str, Any], str]] = [
    ({"encoding": ALiBi(6)}, f"ALiBi {BEHIND} form='bidirectional' or form='directed'"),
    ({"encoding": T5(6)}, f"T5 {BEHIND} bidirectional=True"),
    ({"encoding": XPos(4)}, f"XPos {BEHIND} RoPE"),
    ({"encoding": FIRE(6)}, f"FIRE {BEHIND} KERPLE, or T5 with bidirectional=True"),
    ({"encoding": DualChunk(4, 6, 2)}, f"DualChunk {BEHIND} RoPE"),
    ({"encoding": NoPE() + ALiBi(6)}, f"ALiBi {BEHIND} form='bidirectional' or form='directed'"),
]
UNOPENED: list[tuple[dict[str, Any], str]] = [
    ({"encoding": Learned(9, 24)(LINE, Positions.arange(7))}, "the encoding adds to the input, and was not added: …")
]


def rows_of(function: Callable[..., Any]) -> list[Row]:
    """Of the shared rows, those about what the function takes."""
    takes = set(inspect.signature(function).parameters)
    good = {"query": Q, "key": K} | ({"value": V} if "value" in takes else {})

    def rows(wrong: list[tuple[dict[str, Any], str]], error: type[ValueError]) -> list[Row]:
        return [Row(partial(function, **{**good, **w}), words, error) for w, words in wrong if w.keys() <= takes]

    door = [*VALUE_DOOR, *BOTH_WAYS, *UNOPENED] if "value" in takes else []
    return [*rows(SHARED, ValueError), *rows(door, ValueError), *rows(PAST_TABLES, PositionError)]


KNOWN = "'auto', 'sdpa', 'native', 'triton', 'flex', 'flex_flash', 'chunked' or 'reference'"
ATTENTION: dict[str, list[Row]] = {
    "attention": [
        *rows_of(attention),
        *each(partial(attention, Q, K, V), {}, "backend", (*NO_WORDS, (None, "None")), KNOWN),
    ],
    "logits": rows_of(logits),
    "explain": rows_of(explain),
    "merge": [
        Row(lambda: merge([]), "parts must be pairs (out, lse), got []"),
        Row(lambda: merge(3), "parts must be pairs (out, lse), got 3"),
        Row(lambda: merge([(Q, Q[..., 0]), (K, K[..., 0])]), "parts must have shapes (2, 6, 5, 4) and …, got …"),
    ],
}


# -- positions and encodings -------------------------------------------------------------------------------------------

MASK = "mask must be a tensor (rows, tokens) of True or 1 = token"
TURNS_VALUES = RoPE(HEAD_DIM, values=True)(LINE)


def of_inference(scheme: Scheme, positions: Positions) -> Encoding:
    """An encoding whose tensors PyTorch keeps for no gradient."""
    with torch.inference_mode():
        return scheme(positions)


def stale() -> Encoding:
    scheme = made(Shaw, 4, 2)
    encoding: Encoding = scheme(LINE)
    with torch.no_grad():
        scheme.key_table.zero_()
    return encoding


def rotated() -> Encoding:
    encoding = RoPE(HEAD_DIM)(LINE)
    encoding.rotate(Q, Q)
    return encoding


WITHIN = "must keep coordinates within -2**63..2**63 - 1, which int64 represents, got "
FLOAT32 = "coords must be float64 beyond 2**24, where float32 cannot tell one coordinate from the next, got float32 "
COORDS = "coords must be a tensor (rows, tokens) or (rows, tokens, axes), got …"
WHAT_IS_BOUND: dict[str, list[Row]] = {
    "Positions": [
        Row(lambda: Positions(torch.tensor([[1.7e9, 1.7e9 + 1]])), FLOAT32 + "1.7e+09: pass float64, or subtract …"),
        Row(lambda: HALVES.scale(2**30), FLOAT32 + "…"),
        Row(lambda: Positions([[0, 1]]), f"{COORDS}[[0, 1]]"),
        Row(lambda: Positions(torch.arange(3)), f"{COORDS}torch.int64 (3,)"),
        Row(
            lambda: Positions(torch.ones(1, 3).half()), "coords must be int64, float32 or float64 …, got torch.float16"
        ),
        *[
            row
            for name in ("order", "document", "segment")
            for row in (
                *each(
                    partial(Positions, LINE.coords),
                    {},
                    name,
                    [([0, 1], "…[0, 1]"), (torch.zeros(1, 4).long(), "torch.int64 (1, 4)")],
                    "a tensor (rows, 5) like coords",
                ),
                Row(partial(Positions, LINE.coords, **{name: X[:1, :, 0]}), f"{name} must be int64, got torch.float32"),
                Row(
                    partial(Positions, LINE.coords, **{name: LINE.order.to("meta")}),
                    f"{name} must be on cpu like coords, got meta",
                ),
                Row(
                    partial(Positions, LINE.coords.expand(2, 5), **{name: LINE.order.expand(3, 5)}),
                    f"{name} must have 1 or 2 rows like coords, got 3",
                ),
            )
        ],
    ],
    "Positions.to": [
        Row(lambda: LINE.to("nowhere"), "device must be one that torch knows, got 'nowhere'"),
        Row(lambda: LINE.to(3.5), "device must be one that torch knows, got 3.5"),
    ],
    "Encoding": [
        *each(partial(Encoding, key_positions=LINE), {}, "query_positions", NO_POSITIONS, "a Positions"),
        *each(partial(Encoding, LINE), {}, "key_positions", NO_POSITIONS, "a Positions"),
        *[
            row
            for name in ("tables", "rotations", "score_terms", "values")
            for row in each(partial(Encoding, LINE, LINE), {}, name, ((3, "3"), ([], "[]"), (None, "None")), "a tuple")
        ],
    ],
    "Positions.arange": [
        Row(lambda: Positions.arange(3, device="nowhere"), "device must be one that torch knows, got 'nowhere'"),
        *each(Positions.arange, {}, "n", NO_SIZES[:8], "a whole number…"),
        *each(Positions.arange, {"n": 3}, "start", NO_SIZES[:8], "a whole number…"),
        Row(lambda: Positions.arange(-1), "n must …, got -1"),
        Row(lambda: Positions.arange(5, start=2**63 - 3), f"start {WITHIN}{2**63 + 2}"),
        Row(lambda: Positions.arange(5, start=-(2**63) - 1), f"start {WITHIN}{-(2**63) - 1}"),
        Row(lambda: Positions.multimodal([5], start=2**63 - 3), f"start {WITHIN}{2**63 + 2}"),
        Row(
            lambda: Positions.multimodal([(2, 1, 1, 0.5)]),
            "tokens_per_second must be a finite number above 0, got None",
        ),
        Row(
            lambda: Positions.multimodal([(1, 2, 2), (2, 1, 1)], tokens_per_second=2),
            "parts must have the seconds of a video with tokens_per_second, got (2, 1, 1)",
        ),
        Row(lambda: Positions.multimodal([3], tokens_per_second=-2), "tokens_per_second must be …above 0, got -2"),
        Row(lambda: Positions.multimodal([(2, 1, 1, 0)], tokens_per_second=2), "seconds must be …above 0, got 0"),
        Row(lambda: LINE.shift(2**63 - 3), f"offset {WITHIN}{2**63 + 1}"),
        Row(lambda: LINE.scale(2**62), f"factor {WITHIN}{2**64}"),
        Row(lambda: Positions.arange(1, start=2**63 - 3).following(3), f"n {WITHIN}{2**63}"),
        Row(lambda: Positions.arange(0).last, "positions must have a token to have a last one, got none"),
    ],
    "Positions.grid": [
        *each(Positions.grid, {"width": 2}, "height", NO_SIZES[:8], "a whole number…"),
        *each(Positions.grid, {"height": 2}, "width", NO_SIZES[:8], "a whole number…"),
        Row(lambda: Positions.grid(-1, 2), "height… must …, got -1…"),
    ],
    "Positions.packed": [
        *each(
            Positions.packed, {}, "lengths", ((3, "…3"), (True, "…True"), ([True], "…[True]")), "whole numbers, or …"
        ),
        Row(lambda: Positions.packed(None), "lengths or cu_seqlens must be given, got none"),
        Row(
            lambda: Positions.packed(torch.tensor([0, 3, 8])),
            "lengths must be a list where a tensor could be cumulative sums, got …: pass cu_seqlens=... for sums …",
        ),
        Row(lambda: Positions.packed(cu_seqlens=torch.tensor([0, 7, 5])), "cu_seqlens …, got [0, 7, 5] (5 after 7): …"),
        Row(
            lambda: Positions.packed(cu_seqlens=[1, 3]), "cu_seqlens must be whole numbers that begin at 0 and …[1, 3]…"
        ),
        Row(
            lambda: Positions.packed(cu_seqlens=(torch.tensor([0, 3]), torch.tensor([0, 3]), 3)),  # varlen's, at once
            "cu_seqlens must be whole numbers that begin at 0 and …",
        ),
        Row(
            lambda: Positions.packed(cu_seqlens=[0, 3, 5], max_seqlen=2),
            "max_seqlen must be a whole number of at least 3, got 2",
        ),
        Row(lambda: Positions.packed([1], device=[1]), "device must be one that torch knows, got [1]"),
        Row(lambda: Positions.packed([-1]), "lengths must …, got …-1…"),
        Row(lambda: Positions.packed([1.5]), "lengths must be …whole number…, got …1.5…"),
        Row(lambda: Positions.packed("12"), "lengths must be …whole number…, got …'12'"),
    ],
    "Positions.padded": [
        Row(
            lambda: Positions.padded(torch.ones(2, 3)),
            f"{MASK}, got torch.float32 (2, 3); convert a float mask with mask == 1, or an additive one with mask == 0",
        ),
        Row(lambda: Positions.padded(SEEN[0]), f"{MASK}, got torch.bool (7,)"),
        Row(lambda: Positions.padded([[True]]), f"{MASK}, got …[[True]]"),
        Row(lambda: Positions.padded(SEEN.numpy()), f"{MASK}, got ndarray …"),
        Row(
            lambda: Positions.padded(LINE.coords),
            "mask must be bool, … 0 and 1, or number …, got 4; for position ids …",
        ),
        Row(
            lambda: Positions.padded(torch.tensor([[1, 2, 2, 1]])),
            "mask must be …, or number the documents …, got 1; …",
        ),
        Row(lambda: Positions.padded(-LINE.coords), "mask must be bool or contain only 0 and 1, got -1"),
    ],
    "Positions.from_ids": [
        Row(lambda: Positions.from_ids([[0]]), "ids must be an int64 tensor (rows, tokens[, axes]), got …[[0]]"),
        Row(lambda: Positions.from_ids(X), "ids must be an int64 tensor …, got torch.float32 (2, 5, 8)"),
        *flags(Positions.from_ids, {"ids": LINE.coords}, "packed"),
        Row(lambda: Positions.from_ids(LINE.coords, SEEN[:, :5]), "mask must be (1, 5) like ids, got (5, 5)"),
        Row(lambda: Positions.from_ids(LINE.coords, X), f"{MASK}, got torch.float32 (2, 5, 8)"),
        Row(lambda: Positions.from_ids(GRID.coords, packed=True), "ids must be (rows, tokens[, 3]) with packed=True…"),
        *(
            Row(
                lambda n=n, m=m, mask=mask: Positions.from_ids(torch.zeros(3, n, m, dtype=torch.int64), mask),
                f"ids of shape (3, {n}, {m}) may be (rows, tokens, axes) or (axes, rows, tokens): pass Positions…",
            )
            for n, m, mask in ((5, 2, None), (1, 3, None), (3, 3, None), (3, 3, torch.ones(3, 3, dtype=torch.int64)))
        ),
        *(
            Row(
                lambda n=n, mask=mask: Positions.from_ids(torch.zeros(4, 2, n, dtype=torch.int64), mask),
                f"ids of shape (4, 2, {n}) seem to be those of text and then M-RoPE's of three axes: pass ids[1:]",
            )
            for n, mask in ((6, None), (3, torch.ones(2, 3).bool()))
        ),
        Row(
            lambda: Positions.from_ids(LINE.coords % 3),
            "ids must increase along each row, got some that decrease or repeat…mask=, 1 = token, if that is padding…",
        ),
    ],
    "Positions.cat": [
        Row(lambda: Positions.cat(3), "parts must be a Sequence, got 3"),
        Row(lambda: Positions.cat([LINE, "x"]), "parts must be a Positions, got 'x'"),
        Row(lambda: Positions.cat([LINE, LINE.to("meta")]), "parts must be on one device, got cpu and meta"),
        Row(lambda: Positions.cat([]), "cat needs at least one Positions, got none"),
        Row(lambda: Positions.cat([LINE, GRID]), "cat needs parts …, got Positions(…) and Positions(…)"),
        Row(lambda: Positions.cat([LINE.expand(2), LINE.expand(3)]), "positions have 2 rows, … a batch of 3"),
        Row(
            lambda: Positions.cat([LINE.with_segment(LINE.coords), LINE]),
            "segment must be given in every part or in none",
        ),
        Row(
            lambda: Positions.cat([LINE, Positions.arange(4, start=2)]),
            "parts have tokens of document 0 at the same order: pass documents=…",
        ),
        Row(lambda: Positions.cat([LINE], documents="other"), "documents must be …, got 'other'"),
    ],
    "Positions.__getitem__": [
        Row(lambda: LINE["a":], "start must be a whole number, got 'a'"),
        Row(lambda: LINE[:1.5], "stop must be a whole number, got 1.5"),
        Row(lambda: LINE[::-1], "step must be above 0, got -1"),
        Row(lambda: LINE[torch.tensor([0, 5])], "index must be within -5..4, got 5"),
        Row(lambda: LINE[1], "positions are indexed by a slice or a 1-D int64 tensor of tokens, got …1"),
        Row(lambda: LINE[torch.tensor([1.0])], "positions are indexed by …, got torch.float32 (1,)"),
    ],
    "Positions.shard": [
        Row(lambda: LINE.shard(2), "of must be a DeviceMesh of one axis, or (rank, world), got 2"),
        Row(lambda: LINE.shard((2, 2)), "rank must be a whole number within 0..1, got 2"),
        Row(lambda: LINE.shard((0, 2), order="spiral"), "order must be one of 'contiguous', …, got 'spiral'"),
        Row(lambda: LINE.shard((0, 2), order=3), "order must be one of 'contiguous', …, got 3"),
    ],
    "Positions.expand": [
        *each(LINE.expand, {}, "rows", NO_SIZES[:8], "a whole number…"),
        Row(lambda: LINE.expand(-1), "rows must …, got -1"),
        Row(lambda: LINE.expand(2).expand(3), "positions have 2 rows, … a batch of 3"),
    ],
    "Positions.shift": each(
        LINE.shift,
        {},
        "offset",
        [("x", "'x'"), (None, "None"), (True, "True"), (LINE.coords, "torch.int64 (1, 5)")],
        "a …number",
    ),
    "Positions.in_chunks": [
        *sizes(LINE.in_chunks, {}, "size"),
        Row(lambda: GRID.in_chunks(2), "in_chunks takes one coordinate per token, got positions of 2 axes"),
    ],
    "Encoding.in_chunks": sizes(BOUND.in_chunks, {}, "size"),
    "Positions.with_coords": [
        Row(lambda: LINE.with_coords([1]), "coords must be a tensor (rows, 5[, axes]), got [1]"),
        Row(lambda: LINE.with_coords(LINE.coords[:, :4]), "coords must be a tensor (rows, 5[, axes]), got …(1, 4)"),
        Row(lambda: LINE.with_coords(torch.ones(1, 5).half()), "coords must be int64, float32 or float64 …"),
    ],
    "Positions.with_segment": [
        Row(lambda: LINE.with_segment([0]), "segment must be a tensor (rows, 5) like coords, got …[0]"),
        Row(lambda: LINE.with_segment(X[:1, :, 0]), "segment must be int64, got torch.float32"),
    ],
    "Positions.following": [
        *each(LINE.following, {}, "n", NO_SIZES[:8], "a whole number…"),
        Row(lambda: LINE.following(-1), "n must …, got -1"),
        Row(lambda: GRID.following(), "following takes one coordinate per token, got positions of 2 axes"),
    ],
    "Positions.scalar": [Row(lambda: GRID.scalar("S"), "S takes one coordinate per token, got positions of 2 axes")],
    "Positions.scale": each(LINE.scale, {}, "factor", NO_NUMBERS, "a finite number"),
    "Positions.with_layout": [
        *each(LINE.with_layout, {}, "layout", ((3, "3"), ("x", "'x'"), (LINE, "Positions(…)")), "a Layout or None"),
        Row(lambda: LINE.with_layout(Positions.arange(4).layout), "layout must have 5 tokens …, got 4"),
        Row(lambda: LINE.with_layout(Positions.arange(5, start=1).layout), "layout must match the positions, …"),
    ],
    "Encoding.add": [
        *each(BOUND.add, {}, "x", (("x", "'x'"), (None, "None"), (np.ones(2), "ndarray float64 (2,)")), "a Tensor"),
        Row(lambda: BOUND.add(X.to("meta")), "x must be on cpu like the positions, got meta"),
        Row(lambda: BOUND.add(X[0]), "x must be (batch, 5, dim) …, got …(5, 8)"),
        Row(lambda: BOUND.add(X[:, :4]), "x must be (batch, 5, dim) …, got …(2, 4, 8)"),
        Row(lambda: BOUND.add(X.long()), "x must be floating …, got torch.int64"),
        Row(
            lambda: (Sinusoidal(6)(LINE) + Sinusoidal(8)(LINE)).add(X),
            "vectors that are added to one input must have one dim, got [6, 8]",
        ),
        Row(
            lambda: ExponentialDecay(8) + Sinusoidal(6),
            "schemes that add vectors to one input must have one dim, got 8 of ExponentialDecay and 6 of Sinusoidal",
        ),
        Row(
            lambda: Sinusoidal(8) + Sinusoidal(6),
            "schemes that add vectors to one input must have one dim, got 8 of Sinusoidal and 6 of Sinusoidal",
        ),
        Row(lambda: Sinusoidal(6)(LINE).add(X), "x must be (batch, 5, 6) …, got …(2, 5, 8)"),
    ],
    "Encoding.rotate": [
        Row(lambda: BOUND.rotate("x", Q), "query must be a floating tensor, got 'x'"),
        Row(lambda: BOUND.rotate(Q.long(), Q), "query must be a floating tensor, got torch.int64 (2, 6, 5, 4)"),
        Row(lambda: BOUND.rotate(Q[..., :2], Q), "the rotation was made for head_dim 4, got q or k of head_dim 2"),
        Row(lambda: BOUND.rotate(Q[:, :, :3], Q), "query has 3 tokens, but the encoding was made for 5"),
        Row(lambda: BOUND.rotate(Q), "key must be given with query, got None: … call rotate_query or rotate_key"),
        Row(lambda: BOUND.rotate(Q, Q[0]), "key must be …, got …(6, 5, 4); … pass key.unsqueeze(1), …"),
        Row(lambda: BOUND.rotate(Q.to("meta"), Q), "query is on meta, but the encoding's positions are on cpu"),
        Row(
            lambda: posenc.MLA(14, 8)(LINE).rotate(drawn(2, 6, 5, 10), Q),
            "MLA rotates q and k of head_dim 14, or only their last 8 channels, got …",
        ),
    ],
    "Encoding.norm_rotate": [
        Row(lambda: BOUND.norm_rotate("x", Q), "query must be a floating tensor, got 'x'"),
        Row(lambda: BOUND.norm_rotate(Q, Q[..., :2]), "the rotation was made for head_dim 4, got q or k of head_dim 2"),
        Row(lambda: BOUND.norm_rotate(Q, Q, Q[0]), "query_weight must be a tensor of shape (4,), got torch.float32 …"),
        Row(lambda: BOUND.norm_rotate(Q, Q, None, 1.0), "key_weight must be a tensor of shape (4,), got 1.0"),
        Row(lambda: BOUND.norm_rotate(Q, Q, eps=-1.0), "eps must be …, got -1.0"),
        Row(lambda: BOUND.norm_rotate(Q, Q, key_out=Q.clone()), "key_out needs torch.no_grad(), …"),
        Row(
            lambda: torch.no_grad()(BOUND.norm_rotate)(Q, Q, key_out=Q[:1]),
            "key_out must be torch.float32 (2, 6, 5, 4) on cpu, got torch.float32 (1, 6, 5, 4) on cpu",
        ),
    ],
    **{
        f"Encoding.rotate_{name}": [Row(partial(turn, Q[..., :2]), "the rotation was made for head_dim 4, got …")]
        for name, turn in (("query", BOUND.rotate_query), ("key", BOUND.rotate_key))
    },
    "Encoding.rotate_bands": [
        Row(lambda: BOUND.rotate_bands(Q[..., :2], Q), "the rotation was made for head_dim 4, got q or k of head_dim 2")
    ],
    **{
        f"Encoding.rotate_{name}": [Row(partial(turn, Q[..., :2]), "the rotation was made for head_dim 4, got …")]
        for name, turn in (("value", TURNS_VALUES.rotate_value), ("output", TURNS_VALUES.rotate_output))
    },
    "Encoding.with_features": [
        Row(lambda: BOUND.with_features({"clock": [1.0]}), "feature 'clock' of the query must be …, got [1.0]"),
        Row(lambda: BOUND.with_features({}, {"clock": K[..., 0]}), "feature 'clock' of the key must be …, got …"),
    ],
    "Encoding.with_projected": [
        Row(lambda: FoX(6)(LINE).with_projected({}), "the scheme needs the feature 'forgotten': project …, got []"),
        Row(lambda: FoX(6)(LINE).with_projected(3), "projected must be a Mapping, got 3"),
        Row(
            lambda: FoX(6)(LINE).with_projected({"forgotten": Q[..., 0], "gate": Q}),
            "projected must be for the scheme's features, forgotten, got one for 'gate'",
        ),
        Row(
            lambda: FoX(6)(LINE).with_projected({"forgotten": Q[..., 0].long()}),
            "the projection for feature 'forgotten' must be floating, got torch.int64 (2, 6, 5)",
        ),
        Row(
            lambda: FoX(6)(LINE).with_projected({"forgotten": Q}),
            "the projection for feature 'forgotten' must be (batch, 6, 5), got torch.float32 (2, 6, 5, 4)",
        ),
        Row(
            lambda: FoX(6)(LINE, Positions.arange(7)).with_projected({"forgotten": Q[..., 0]}),
            "key must be given where keys and queries are different tokens, got None",
        ),
    ],
    "Context": [
        *each(Context, {}, "heads", ((3, "3"), ([0], "[0]")), "a range or None"),
        Row(lambda: Context(range(0, 6, 2)), "heads must be a non-empty range of step 1, got …"),
        Row(lambda: Context(range(0)), "heads must be a non-empty range of step 1, got …"),
        *each(Context, {}, "lengths", ((5, "5"), (torch.tensor(5), "torch.int64 ()")), "a tensor (rows,) or None"),
        Row(
            lambda: RoPE(4)(LINE.expand(2), context=Context(lengths=torch.ones(3))),
            "lengths must have 1 or 2 rows like the positions, got 3",
        ),
    ],
    "Chunk": sizes(Chunk, {}, "size"),
    "Schedule": [
        Row(lambda: Schedule([]), "layers must be (scheme, window) for each layer, got []"),
        Row(lambda: Schedule(3), "layers must be (scheme, window) for each layer, got 3"),
        Row(
            lambda: Schedule([NoPE()]),
            "layers must be (scheme, window) for each layer, got NoPE…; for no window, (scheme, None)",
        ),
        Row(lambda: Schedule([NoPE]), "layers must be (scheme, window) for each layer, got the class NoPE"),
        Row(
            lambda: Schedule([(NoPE(), "x")]),
            "window must be a number of keys, (left, right), a Chunk or None, got 'x'",
        ),
    ],
    "Schedule.forward": [Row(lambda: SCHEDULE(LINE), "a Schedule is bound layer by layer: use scheme, window = …")],
    **{
        f"Schedule.{name}": [
            Row(partial(find, layer), f"layer must be a whole number within 0..1, got {came}")
            for layer, came in ((2, "2"), (-1, "-1"), ("0", "'0'"))
        ]
        for name, find in (("__getitem__", SCHEDULE.__getitem__), ("number", SCHEDULE.number))
    },
    "Encoding.cos_sin": [
        Row(lambda: ALiBi(6)(LINE).cos_sin(), "cos_sin needs one rotation of channel pairs for all heads, got …")
    ],
    "Encoding.check_fresh": [Row(lambda: stale().check_fresh(), "the encoding was made before the scheme's …")],
    "Encoding.check_trained": [
        *[
            Row(call, "the encoding was made in float32, …: make it with scheme(positions, dtype=torch.float64)")
            for call in (
                lambda: BOUND.rotate(Q.double(), Q.double()),
                lambda: BOUND.rotate_key(K[:, :, :5].double()),
                lambda: attention(*(3 * [Q.double()]), BOUND),
                lambda: Sinusoidal(8)(LINE).add(X.double()),
            )
        ],
        *[
            Row(
                lambda given=given: of_inference(*given).check_trained(torch.zeros(1, requires_grad=True)),
                "the encoding was made under torch.inference_mode() and cannot be used for training: …",
            )
            for given in ((RoPE(4), LINE), (made(posenc.SwinV2, (1, 5), 6), Positions.grid(1, 5)))
        ],
    ],
    "Encoding.check_added": [
        Row(lambda: Sinusoidal(6)(LINE).check_added(), "the encoding adds to the input, and was not added: …")
    ],
    "Encoding.check_token_doors": [
        Row(lambda: Sinusoidal(6)(LINE).check_token_doors(Q, K), "the encoding adds to the input, and was not …"),
        Row(lambda: rotated().check_token_doors(Q, K), "the encoding has rotated query and key already, …"),
    ],
    "Encoding.check": [Row(lambda: BOUND.check(Q, K), "key has 7 tokens, but the encoding was made for 5")],
    "Encoding.__add__": [
        Row(
            lambda both=both: BOUND + RoPE(4)(*both),
            "encodings must be of the same positions to be added, got different…",
        )
        for both in ((Positions.arange(5), LINE), (LINE, Positions.arange(5)))
    ],
}


# -- models ------------------------------------------------------------------------------------------------------------

MODEL = {"vocab_size": VOCAB, "dim": DIM, "num_layers": 2, "num_heads": HEADS}
IMAGE_MODEL = {"num_classes": 5, "patch": 2, "dim": DIM, "num_layers": 1, "num_heads": HEADS}
WRONG_POSITION: tuple[tuple[Any, str], ...] = (
    ("alibi", "a Scheme, a Schedule or None, got 'alibi'"),
    (RoPE, "a Scheme, a Schedule or None, got the class RoPE"),
    (BOUND, "a Scheme, a Schedule or None, got …Encoding…"),
    (ALiBi(5), "made for num_heads 6 like the model, got ALiBi for 5"),
    (RoPE(8), "made for head_dim 4 like the model, got RoPE for 8"),
    (Shaw(4, 2, num_heads=3), "made for num_heads 6 like the model, got Shaw for 3"),
    (Sinusoidal(22), "made for dim 24 like the model, got Sinusoidal for 22"),
    (ADDING["Learned"], "made for dim 24 like the model, got Learned for 8"),
    (RoPE(4) + Relative1D(9, 6), "made for head_dim 4 like the model, got Relative1D for 6"),
)


def model_rows(kind: Callable[..., Any], good: Mapping[str, Any], *its_sizes: str) -> list[Row]:
    return [
        *sizes(kind, good, *its_sizes, "dim", "num_layers", "num_heads", "num_kv_heads"),
        *flags(kind, good, "per_layer"),
        *each(kind, good, "inject", NO_WORDS, "'input' or 'every_layer'"),
        *[Row(partial(kind, **good, position=p), f"position must be {words}") for p, words in WRONG_POSITION],
        Row(partial(kind, **{**good, "num_heads": 7}), "dim must be a multiple of num_heads = 7, got 24"),
        Row(partial(kind, **good, num_kv_heads=4), "num_heads must be a multiple of num_kv_heads = 4, got 6"),
        *[
            Row(
                partial(kind, **good, position=position, per_layer=True),
                "per_layer gives …, but inject='input' adds only the first one: use inject='every_layer'",
            )
            for position in (Sinusoidal(DIM), Learned(9, DIM), Sinusoidal(DIM) + RoPE(HEAD_DIM))
        ],
    ]


NO_TOKENS: tuple[tuple[Any, str], ...] = (
    ([[1, 2]], "an int64 tensor (batch, tokens), got [[1, 2]]"),
    (np.zeros((2, 3), int), "an int64 tensor (batch, tokens), got ndarray int64 (2, 3)"),
    (TOKENS[0], "an int64 tensor (batch, tokens), got torch.int64 (5,)"),
    (TOKENS[None], "an int64 tensor (batch, tokens), got torch.int64 (1, 2, 5)"),
    (TOKENS.float(), "an int64 tensor (batch, tokens), got torch.float32 (2, 5)"),
    (TOKENS > 0, "an int64 tensor (batch, tokens), got torch.bool (2, 5)"),
    (TOKENS.to("meta"), "on cpu like the model, got meta"),
    (TOKENS + 2, "within 0..10, got 11"),
    (TOKENS - 3, "within 0..10, got -3"),
)


def token_rows(call: Callable[..., Any]) -> list[Row]:
    return [
        *[Row(partial(call, tokens), f"tokens must be {words}") for tokens, words in NO_TOKENS],
        *each(partial(call, TOKENS), {}, "positions", NO_POSITIONS, "a Positions or None"),
        Row(partial(call, TOKENS, positions=Positions.arange(4)), "positions has 4 tokens, the batch has 5"),
        Row(partial(call, TOKENS, positions=LINE.expand(3)), "positions must have 1 or 2 rows like the batch, got 3"),
        Row(partial(call, TOKENS, positions=LINE.to("meta")), "positions must be on cpu like the tokens, got meta"),
        Row(
            partial(call, torch.zeros(1, 6).long(), positions=GRID),
            "… takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        ),
    ]


def generate(*given: Any, max_new_tokens: Any = 2, **how: Any) -> Tensor:
    new: Tensor = DECODER.generate(*given, max_new_tokens=max_new_tokens, **how)
    return new


ENCODES_LINES = made(Encoder, VOCAB, DIM, 1, HEADS, position=RoPE(HEAD_DIM))
MODELS: dict[str, list[Row]] = {
    "models.position_parameters": each(
        posenc.models.position_parameters,
        {},
        "model",
        ((None, "None"), ([], "[]"), (RoPE, "the class RoPE")),
        "a Module",
    ),
    "models.Decoder": model_rows(Decoder, MODEL, "vocab_size"),
    "models.Encoder": model_rows(Encoder, MODEL, "vocab_size"),
    "models.ImageClassifier": [
        *model_rows(ImageClassifier, IMAGE_MODEL, "num_classes", "patch", "channels"),
        *flags(ImageClassifier, IMAGE_MODEL, "raster"),
    ],
    "models.Decoder.forward": [
        *token_rows(DECODER),
        *each(partial(DECODER, TOKENS), {}, "cache", (({}, "{}"), ([], "[]"), (True, "True")), "a KVCache or None"),
    ],
    "models.Encoder.forward": token_rows(ENCODES_LINES),
    "models.Decoder.generate": [
        *token_rows(generate),
        Row(lambda: generate(TOKENS[:, :0]), "tokens must be a prompt of at least one token, got torch.int64 (2, 0)"),
        *each(
            partial(generate, TOKENS),
            {},
            "max_new_tokens",
            [*NO_SIZES[:8], NO_SIZES[9]],
            "a whole number of at least 0",
        ),
        *each(partial(generate, TOKENS), {}, "temperature", NO_NUMBERS, "a finite number"),
        Row(lambda: generate(TOKENS, temperature=-0.5), "temperature must not be negative, got -0.5"),
        *each(partial(generate, TOKENS), {}, "generator", ((7, "7"), ("x", "'x'")), "a Generator or None"),
    ],
    "models.ImageClassifier.forward": [
        Row(lambda: CLASSIFIER([[1.0]]), "images must be a tensor (batch, 3, height, width), got [[1.0]]"),
        Row(lambda: CLASSIFIER(IMAGES.numpy()), "images must be …, got ndarray float32 (2, 3, 4, 6)"),
        Row(lambda: CLASSIFIER(IMAGES[0]), "images must be …, got torch.float32 (3, 4, 6)"),
        Row(lambda: CLASSIFIER(IMAGES[:, :1]), "images must be …, got torch.float32 (2, 1, 4, 6)"),
        Row(lambda: CLASSIFIER(IMAGES.to("meta")), "images must be on cpu like the model, got meta"),
        Row(lambda: CLASSIFIER(IMAGES.byte()), "images must be torch.float32 like the model, got torch.uint8"),
        Row(lambda: CLASSIFIER(IMAGES.double()), "images must be torch.float32 like the model, got torch.float64"),
        Row(lambda: CLASSIFIER(IMAGES[..., :5]), "images must be a whole number of patches of 2, got 4 x 5"),
        Row(lambda: CLASSIFIER(IMAGES[..., :0]), "images must be a whole number of patches of 2, got 4 x 0"),
        *each(partial(CLASSIFIER, IMAGES), {}, "positions", NO_POSITIONS, "a Positions or None"),
        Row(lambda: CLASSIFIER(IMAGES, LINE), "positions has 5 tokens, the batch has 6"),
    ],
    "models.ForwardPass": [
        Row(lambda: ForwardPass("rope", LINE), "scheme must be a Scheme or a Schedule, got 'rope'"),
        Row(
            lambda: ForwardPass(NoPE(), Positions.arange(2), READ),
            "positions begin at or before the last token of the cache: …",
        ),
        *each(partial(ForwardPass, NoPE()), {}, "positions", NO_POSITIONS, "a Positions"),
        *each(partial(ForwardPass, NoPE(), LINE), {}, "cache", (({}, "{}"), (True, "True")), "a KVCache or None"),
        *flags(ForwardPass, {"scheme": NoPE(), "positions": LINE}, "is_causal"),
    ],
    **{
        f"models.ForwardPass.{name}": [
            Row(partial(getattr(PASS, name), layer), f"layer must be a whole number within 0..1, got {came}")
            for layer, came in ((2, "2"), (-1, "-1"), ("0", "'0'"), (True, "True"))
        ]
        for name in ("of_layer", "tokens", "pairs")
    },
    "models.ForwardPass.add": [
        Row(lambda: PASS.add(X[:, :4]), "x must be (batch, 5, dim) …, got …(2, 4, 8)"),
        Row(lambda: PASS.add(X, 2), "layer must be a whole number within 0..1, got 2"),
    ],
    "models.ForwardPass.features": [
        Row(
            lambda: ForwardPass(FoX(6), LINE).features({}),
            "the scheme needs the feature 'forgotten': project …, got []",
        )
    ],
    "models.ForwardPass.attention": [
        Row(lambda: PASS.attention(Q, Q[:, :3], Q[:, :3], 2), "layer must be a whole number within 0..1, got 2"),
        Row(
            lambda: PASS.attention(Q, Q[:, :3], Q[:, :3]),
            "layer must be an int where the layers of the schedule differ, got None…",
        ),
        Row(lambda: PASS.attention(Q[:, :, :3], K, V, 0), "query has 3 tokens, but the encoding was made for 5"),
        Row(
            lambda: PASS.attention(Q, Q[:, :3], Q[:, :3], 0, features={"clock": Q[:, :, :2]}),
            "feature 'clock' of the query must be (batch, heads, 5, ...), got torch.float32 (2, 6, 2, 4)",
        ),
    ],
    "models.KVCache.crop": [
        Row(lambda: READ.crop(-1), "tokens must be a whole number within 0..7, got -1"),
        Row(lambda: READ.crop(8), "tokens must be a whole number within 0..7, got 8"),
        Row(lambda: READ.crop(2.0), "tokens must be a whole number within 0..7, got 2.0"),  # type: ignore[arg-type]
    ],
    "models.KVCache.evict": [
        Row(lambda: READ.evict(-1, 4), "sinks must be a whole number of at least 0, got -1"),
        Row(lambda: READ.evict(4, 0), "recent must be a whole number of at least 1, got 0"),
    ],
    "models.KVCache.select": [
        Row(lambda: READ.select([0]), "rows must be int64 within 0..1, or a bool tensor (2,), got [0]"),  # type: ignore[arg-type]
        Row(lambda: READ.select(torch.ones(3) > 0), "rows must be int64 …, or a bool tensor (2,), got torch.bool (3,)"),
        Row(lambda: READ.select(torch.tensor([0, 2])), "rows must be int64 within 0..1, …, got [0, 2]"),
    ],
    "models.KVCache.cat": [
        Row(lambda: KVCache.cat(READ), "caches must be KVCaches that hold tokens, got KVCache(7 tokens, 1 layers)"),  # type: ignore[arg-type]
        Row(lambda: KVCache.cat([READ, KVCache()]), "caches must be KVCaches that hold tokens, got […]"),
        Row(lambda: KVCache.cat([]), "caches must be KVCaches that hold tokens, got []"),
        Row(lambda: KVCache.cat([READ, OTHER]), "caches must be of the same layers, got … and …"),
    ],
    "models.KVCache.append": [
        Row(lambda: FILLED.append(2, K, V), "layer must be a whole number within 0..1, got 2"),
        Row(lambda: FILLED.append(-1, K, V), "layer must be a whole number within 0..1, got -1"),
        Row(lambda: FILLED.append("0", K, V), "layer must be a whole number within 0..1, got '0'"),
        Row(lambda: FILLED.append(0, [1], V), "key must be a tensor (batch, kv_heads, tokens, head_dim), got [1]"),
        Row(lambda: FILLED.append(0, K, V[0]), "value must be a tensor …, got torch.float32 (3, 7, 8)"),
        Row(
            lambda: FILLED.append(0, K, V[:, :, :2]),
            "value must have (batch, kv_heads, tokens) = (2, 3, 7) like key, got (2, 3, 2)",
        ),
        Row(
            lambda: READ.append(0, K.double(), V.double()),
            "the cache holds torch.float32 on cpu, got torch.float64 on cpu",
        ),
    ],
}

TABLE = SCHEMES | DOORS | ATTENTION | WHAT_IS_BOUND | MODELS
for module in MODULES.values():
    TABLE |= getattr(module, "REFUSED", {})
for entry in CATALOG:
    TABLE[entry.scheme.__name__] = [*of_types(entry), *TABLE.get(entry.scheme.__name__, [])]
TABLE = {name: rows for name, rows in TABLE.items() if rows}

# They take nothing.
NO_ARGUMENTS = {
    "Cameras.projections",
    "Encoding.tensors",
    "NoPE",
    "Scheme",
    "Scheme.another",
    "Scheme.reset_parameters",
    "catalog",
    "onnx_operators",
    "models.KVCache",
    "models.PositionalConvolution.reset_parameters",
}
# Called by `Scheme.forward`, `Scheme.rotation` and models, which have checked what they pass on.
CHECKED_BEFORE = {"Scheme.bind", "Scheme.score", "Scheme.value", "models.ForwardPass.is_first"}
# Python's own: what is no scheme cannot be added to one.
PYTHONS = {"Scheme.__add__"}


# -- the table ---------------------------------------------------------------------------------------------------------


def members(prefix: str, kind: type) -> Iterator[str]:
    """The class and its public methods; what it overrides of a module or a scheme is theirs."""
    yield prefix
    for name, member in vars(kind).items():
        own = name in ("__add__", "__getitem__", "forward") or not name.startswith("_")
        inherited = any(hasattr(base, name) for base in kind.__mro__[1:]) and name != "forward"
        if own and not inherited and isinstance(member, (FunctionType, classmethod, staticmethod)):
            yield f"{prefix}.{name}"


def test_every_public_name_is_in_the_table() -> None:
    given = {name: getattr(posenc, name) for name in posenc.__all__ if name not in posenc._ROOMS}
    given |= {f"models.{name}": getattr(posenc.models, name) for name in posenc.models.__all__}
    names = set()
    for name, it in given.items():
        names |= set(members(name, it)) if isinstance(it, type) else {name}
    listed = [set(TABLE), NO_ARGUMENTS, CHECKED_BEFORE, PYTHONS]
    assert set().union(*listed) == names
    assert sum(map(len, listed)) == len(names)  # each once
    assert all(TABLE.values())


def test_what_is_said_to_take_no_argument_takes_none() -> None:
    for name in NO_ARGUMENTS:
        it: Any = posenc
        for part in name.split("."):
            it = getattr(it, part)
        given = [p for p in inspect.signature(it).parameters if p not in ("self", "args", "kwargs")]
        assert given == [], name


def works() -> tuple[Tensor, ...]:
    """Right use of what the wrong calls were about."""
    with torch.no_grad():
        out = attention(Q, K, V, RoPE(HEAD_DIM) + ALiBi(HEADS), attn_mask=SEEN, is_causal=True)
        assert isinstance(out, Tensor)
        held = FILLED._pending[0].values()
        return out, DECODER(TOKENS), ENCODER(TOKENS), CLASSIFIER(IMAGES), *held, torch.tensor(len(FILLED._layers))


WORKED = works()
WEIGHTS = [{k: v.clone() for k, v in model.state_dict().items()} for model in (DECODER, ENCODER, CLASSIFIER)]


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_argument_is_named_with_what_was_expected_and_what_came_and_leaves_nothing_behind(name: str) -> None:
    """No generator, switch or weight is another; and right use gives what it gave before, bit for bit."""
    for row in TABLE[name]:
        generator = torch.get_rng_state()
        row.check()
        assert torch.is_grad_enabled()
        assert torch.equal(torch.get_rng_state(), generator), row.pattern
    for before, now in zip(WORKED, works(), strict=True):
        assert torch.equal(before, now)
    for weights, model in zip(WEIGHTS, (DECODER, ENCODER, CLASSIFIER), strict=True):
        assert all(torch.equal(weights[name], x) for name, x in model.state_dict().items())


def test_explain_says_what_attention_says() -> None:
    good = {"query": Q, "key": K, "value": V}
    for wrong, _ in (*SHARED, *VALUE_DOOR, *PAST_TABLES):
        said = []
        for function in (attention, explain):
            with pytest.raises(ValueError) as caught:  # noqa: PT011 (of each, the other's words are the pattern)
                function(**{**good, **wrong})
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]


# -- right use ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_cache_goes_on_after_a_failed_call() -> None:
    whole = DECODER(TOKENS)
    cache = KVCache()
    first = DECODER(TOKENS[:, :3], cache=cache)
    for wrong in (TOKENS[:, 3:].float(), TOKENS[:, 3:] + VOCAB, TOKENS[:1, 3:]):
        with pytest.raises(ValueError, match=r"tokens must be|the cache holds keys or values"):
            DECODER(wrong, cache=cache)
        assert len(cache) == 3
    with pytest.raises(ValueError, match="positions has 3 tokens, the batch has 2"):
        DECODER(TOKENS[:, 3:], Positions.arange(3, start=3), cache=cache)
    torch.testing.assert_close(torch.cat((first, DECODER(TOKENS[:, 3:], cache=cache)), 1), whole)


def test_what_python_refuses_stays_a_type_error() -> None:
    for call in (
        lambda: ALiBi(),  # type: ignore[call-arg]
        lambda: ALiBi(6, slope=2),  # type: ignore[call-arg]
        lambda: attention(Q, K),  # type: ignore[call-arg]
        lambda: attention(Q, K, V, mask=None),  # type: ignore[call-arg]
        lambda: Decoder(VOCAB, DIM, 2),  # type: ignore[call-arg]
        lambda: RoPE(4) + 3,
    ):
        with pytest.raises(TypeError):
            call()
