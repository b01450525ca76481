"""The schemes that the page computes in JavaScript have the numbers of posenc's reference."""

import inspect
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Chunk, Positions, Scheme
from posenc.encoding.context import projected_at_random
from posenc.positions.positions import PADDING
from posenc.rotation import scalings
from posenc.scheme import Composition
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Law
from posenc_lab.explore.numbers import JAVASCRIPT
from tests.explore.node import Node

KINDS = {"PositionInterpolation": "linear", "NTKAware": "ntk", "DynamicNTK": "dynamic"}
KINDS |= {"YaRN": "yarn", "Llama3": "llama3", "LongRoPE": "longrope", "Proportional": "proportional"}

ROWS = """
NoPE()                                                                        |  4 4 8
Learned(32, 7)                                                                |  1 1 8
Sinusoidal(12, base=313.0, layout="concatenated")                             |  1 1 8
Sinusoidal(12, base=313.0, layout="tensor2tensor")                            |  1 1 8
Sinusoidal(12, axes=3)                                                        |  1 1 8
AxialRoPE(8)                                                                  |  4 2 8
AxialRoPE(8, "gemma4")                                                        |  4 4 8
AxialRoPE(8, "step3")                                                         |  4 4 8
AxialRoPE(8, "eva", extent=(4, 2))                                            |  4 4 8
MRoPE(16, (2, 3, 3), "interleaved", 313.0)                                    |  4 4 16
MRoPE(16, (4, 2, 2), "ernie")                                                 |  4 4 16
MRoPE(16, (2, 3, 3), "videorope")                                             |  4 4 16
RoPE(8)                                                                       | 12 3 8
RoPE(10, rotary_dim=6, first_channel=3)                                       |  4 4 10
RoPE(8, axes=3, allocation=(2, 0, 1, 1))                                      |  4 4 8
RoPE(8, 100.0, "interleaved", axes=2)                                         |  4 4 8
RoPE(8, scaling=PositionInterpolation(4.0))                                   |  4 4 8
RoPE(8, scaling=scalings.NTKAware(3.0, 16))                                   |  4 4 8
RoPE(8, scaling=scalings.DynamicNTK(2.0, 8))                                  |  4 4 8
RoPE(8, scaling=scalings.YaRN(8.0, 4096, ramp="ratio", beta_fast=16.0, attention_factor=1.3)) | 4 4 8
RoPE(8, scaling=scalings.YaRN(8.0, 4096, truncate=False, mscale=0.7, mscale_all_dim=0.4))     | 4 4 8
RoPE(8, scaling=scalings.Llama3(16.0, 64, 1.0, 1.0))                          |  4 4 8
RoPE(8, scaling=scalings.LongRoPE([1.0, 1.1, 1.2, 1.3], [1.0, 2.0, 3.0, 4.0], 8, factor=4.0)) | 4 4 8
RoPE(8, scaling=scalings.Proportional(0.7, 2.0))                              |  4 4 8
RoPE3D(10, (2, 2, 6), 256.0)                                                  |  4 4 10
RoPE3D(14, (4, 4, 4), 313.0, layout="half")                                   |  4 4 14
RoPE3D(14, base=313.0, form="vjepa2")                                         |  4 4 14
ALiBi(12)                                                                     | 12 3 8
ALiBi(5, "bidirectional")                                                     |  5 5 8
CoPE(7, 3)                                                                    |  5 5 7
CoPE(8, 20, scaled=False)                                                     |  4 2 8
DistanceAware(12)                                                             | 12 4 8
FoX(5)                                                                        |  5 5 8
Relative2D((4, 4), 8)                                                         |  4 4 8
Relative2D((4, 5), 8, 4, convention="sam")                                    |  4 4 8
Shaw(8, 3)                                                                    |  4 2 8
T5(4)                                                                         |  4 4 8
T5(5, 8, 9, bidirectional=False)                                              |  5 5 8
""".strip().splitlines()  # how a scheme is built, and of how many heads queries and keys are, and how wide


class Case:
    """A scheme, its parameters from N(0, 1), so that none hides behind its small beginning, and its name and sizes."""

    def __init__(self, row: str) -> None:
        self.written, sizes = (part.strip() for part in row.rsplit("|", 1))
        self.heads, self.kv_heads, self.head_dim = map(int, sizes.split())
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            names = {name: getattr(posenc, name) for name in dir(posenc)}
            self.scheme: Scheme = eval(self.written, names | {"scalings": scalings}).double()
            for parameter in self.scheme.parameters():
                torch.nn.init.normal_(parameter)
        (self.entry,) = (entry for entry in CATALOG if entry.title == type(self.scheme).__name__)
        self.axes = getattr(self.scheme, "axes", self.entry.least_axes)

    def places(self) -> Iterator[Positions]:
        """Few tokens, of even and odd numbers, and of coordinates that a table of 32 holds."""
        odd = torch.tensor([[7, 3, 3, 0, 12, 9, 1]])
        facts = {"order": [[3, 0, 1, 1, 2, 0, 5]], "document": [[0, 1, 0, 0, 1, 0, -1]]}
        if self.axes == 1:
            yield from (Positions.arange(10), Positions.arange(7, start=9))
            if "scaling" not in self.written:  # a row of several documents has no one length
                yield Positions.packed([3, 4, 2])
                yield Positions(odd, **{name: torch.tensor(fact) for name, fact in facts.items()})
            if Law.FRACTIONAL in self.entry.laws:
                yield Positions(odd.double() / 3 + 0.1)
        elif self.axes == 2:
            yield from (Positions.grid(3, 4), Positions.grid(2, 3, prefix=1))
        else:
            yield from (Positions.grid(2, 2, frames=3), Positions.multimodal([2, (1, 2, 2), 3]))

    def options(self) -> dict[str, Any]:
        """The arguments that it was made with, by their names, as JavaScript takes them."""
        options = {}
        for name in inspect.signature(type(self.scheme)).parameters:
            value = getattr(self.scheme, name, {"keys": True, "values": True}.get(name))
            scaled = is_dataclass(value) and not isinstance(value, type)
            options[name] = {"kind": KINDS[type(value).__name__], **asdict(value)} if scaled else value
        return options

    def job(self) -> dict[str, Any]:
        return {"name": self.entry.name, "options": self.options(), "parameters": dict(self.scheme.state_dict())}

    def contents(self, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        sizes = ((self.heads, queries), (self.kv_heads, keys), (self.kv_heads, keys))
        q, k, v = (torch.randn(1, *n, self.head_dim, dtype=torch.float64, generator=generator) for n in sizes)
        return q, k, v


CASES = {row.partition("|")[0].strip(): row for row in ROWS}


def facts_of(positions: Positions) -> dict[str, Any]:
    """One row of positions, as JavaScript takes them."""
    facts = {name: getattr(positions, name) for name in ("coords", "order", "document", "segment")}
    return {name: None if x is None else x[0].tolist() for name, x in facts.items()}


def largest(x: Tensor) -> float:
    return float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 0.0


def assert_alike(found: Tensor, expected: Tensor, roundings: float) -> None:
    """Equal but for so many roundings of the largest number there is; minus infinity equals itself alone.

    Both are computed in doubles, in other orders: a sum of n products differs by up to n roundings of the largest
    partial sum, and an angle by one of the coordinate that it is taken of. So what is allowed is eps times the numbers
    summed and the furthest coordinate, times 100 for the functions on the way.
    """
    assert found.shape == expected.shape
    allowed = 100 * torch.finfo(torch.float64).eps * roundings * max(largest(expected), 1.0)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=allowed)


WINDOWS = (None, 3, (2, 1), (None, 0), Chunk(4))


@torch.no_grad()
def compare(javascript: Node, case: Case) -> int:
    """Tries one scheme at all its places, and says at how many."""
    tried = 0
    for keys in case.places():
        if case.scheme.doors == ("add",):
            expected = case.scheme.table(keys, torch.float64)
            assert expected is not None
            found = javascript("table", scheme=case.job(), positions=facts_of(keys))
            assert_alike(found, expected[0], 20 + float(keys.coords.abs().max()))
            tried += 1
            continue
        for queries in (keys, keys[-3:]):
            for causal in (True,) if case.scheme.for_decoders else (True, False):
                for window in WINDOWS if case.axes == 1 and not causal else (None,):
                    compare_attention(javascript, case, queries, keys, causal, window)
                    tried += 1
    return tried


def compare_attention(
    javascript: Node, case: Case, queries: Positions, keys: Positions, causal: bool, window: Any
) -> None:
    q, k, v = case.contents(len(queries), len(keys))
    encoding = case.scheme(queries, keys, dtype=torch.float64)
    features: dict[str, Tensor] = {}
    if encoding.wanted:
        x = torch.randn(1, len(keys), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        of_keys = projected_at_random(encoding.wanted, x, seed=3)
        encoding = encoding.with_projected({n: each[:, :, -len(queries) :] for n, each in of_keys.items()}, of_keys)
        features = {name: each[0] for name, each in of_keys.items()}
    how: dict[str, Any] = {"is_causal": causal, "window": window}
    expected = posenc.logits(q, k, encoding, **how)[0]
    out = posenc.attention(q, k, v, encoding, **how, backend="reference")
    places = {"positions": facts_of(queries), "keyPositions": facts_of(keys)}
    told = {"chunk": window.size} if isinstance(window, Chunk) else window
    given = {"q": q[0], "k": k[0], "v": v[0], "causal": causal, "window": told, "features": features}
    found = javascript("attend", schemes=[case.job()], **places, **given)
    roundings = case.head_dim + len(keys) + float(keys.coords.abs().max())
    # Of two documents, or of padding, a pair has no score: posenc computes what is at hand there.
    met = (queries.document[0][:, None] == keys.document[0]) & (keys.document[0] != PADDING)
    assert_alike(found["logits"][:, met], expected[:, met], roundings)
    # An error of a score is as large an error of its weight, relative to it.
    assert_alike(found["out"], out[0], roundings * max(1.0, largest(expected[:, met])))


def test_javascript_has_the_schemes_that_python_does_not_compute_numbers_of(javascript: Node) -> None:
    of_rope = {"p_rope", "partial_rope"}  # entries of the same class
    assert set(javascript("names")) == JAVASCRIPT == of_rope | {Case(row).entry.name for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition("|")[0].strip())
def test_it_gives_the_numbers_of_the_reference(javascript: Node, row: str) -> None:
    assert compare(javascript, Case(row)) > 0


@torch.no_grad()
def test_schemes_compose_in_their_order_under_sinks(javascript: Node) -> None:
    cases = [Case(CASES[row]) for row in ("RoPE(8)", "ALiBi(12)", "DistanceAware(12)")]
    positions, (q, k, v) = Positions.arange(9, start=2), cases[0].contents(9, 9)
    encoding = Composition(*(case.scheme for case in cases))(positions, dtype=torch.float64)
    sinks = [0.5, -1.0, 2.0, 0.0] * 3
    given = {"q": q[0], "k": k[0], "v": v[0], "positions": facts_of(positions), "causal": True, "features": {}}
    found = javascript("attend", schemes=[case.job() for case in cases], **given, sinks=sinks, scale=0.3)
    assert_alike(found["logits"], posenc.logits(q, k, encoding, is_causal=True, scale=0.3)[0], 30)
    told = torch.tensor(sinks, dtype=torch.float64)
    out = posenc.attention(q, k, v, encoding, is_causal=True, scale=0.3, sinks=told, backend="reference")
    assert_alike(found["out"], out[0], 30 * max(1.0, largest(found["logits"])))


@pytest.mark.parametrize("causal", [False, True])
def test_scores_become_weights(javascript: Node, causal: bool) -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[1, 0] = torch.nan  # not seen
    hidden = scores.isnan() | (torch.ones_like(scores).triu(5 - 3 + 1).bool() if causal else torch.tensor(False))
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, torch.nan)
    found = javascript("weighed", scores=scores, causal=causal)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0, equal_nan=True)


FOUR, LINE = {"num_heads": 4, "form": "causal"}, {"coords": [0, 1, 2, 3, 4]}
NTK = {"kind": "ntk", "factor": 0.5}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("ALiBi(12)", {"num_heads": 0, "form": "causal"}, {}, "num_heads must be a whole number of at least 1, got 0"),
    ("ALiBi(12)", {"num_heads": 4, "form": "both"}, {}, "form must be one of causal, bidirectional, directed"),
    ("ALiBi(12)", {}, {}, "ALiBi was made for 12 heads, got 4"),
    ("ALiBi(12)", FOUR, {"window": [1]}, "window must be a number of keys or"),
    ("ALiBi(12)", FOUR, {"window": {"chunk": 0}}, "window.chunk must be a whole number"),
    ("RoPE(8)", {"base": 1.0}, {}, "base must be a finite number above 1, got 1"),
    ("RoPE(8)", {"head_dim": 6, "rotary_dim": 6}, {}, "the rotation was made for head_dim 6, got 8"),
    ("RoPE(8)", {"values": True}, {}, "values, heads and imaginary must be left out"),
    ("RoPE(8)", {"scaling": NTK}, {}, "factor must be"),
    ("FoX(5)", {"num_heads": 4}, {}, "FoX needs the feature 'forgotten' of every key"),
    ("FoX(5)", {}, {"features": {"forgotten": torch.zeros(4, 3, 1)}}, r"must be \(5, 5, 1\), got \(4, 3, 1\)"),
    (
        "T5(4)",
        {},
        {"positions": {"coords": [0.5, 1, 2, 3, 4]}},
        "T5 looks distances up in a table and needs whole",
    ),
    ("Relative2D((4, 4), 8)", {}, {"positions": LINE}, "Relative2D takes 2 coordinates per token"),
]


@pytest.mark.parametrize(("row", "options", "how", "words"), REFUSED)
def test_what_cannot_be_is_a_named_error(
    javascript: Node, row: str, options: dict[str, Any], how: dict[str, Any], words: str
) -> None:
    job = Case(CASES[row]).job()
    x = torch.zeros(4, 5, 8)
    with pytest.raises(AssertionError, match=words):
        javascript(
            "attend",
            schemes=[{**job, "options": job["options"] | options}],
            **{"q": x, "k": x, "v": x, "features": {}, "causal": True} | how,
        )


@pytest.mark.parametrize("length", [2, 4, 7])
def test_the_skew_is_that_of_its_python(length: int, javascript: Node) -> None:
    """Step by step that of the lines that the page shows; at the end query i has at key j its number at j - i."""
    q, table = torch.randn(length, 3).double(), torch.randn(2 * length - 1, 3).double()
    found = javascript("skew", x=q @ table.T)
    names: dict[str, Any] = {"q": q, "table": table, "pad": torch.nn.functional.pad}
    for line, made in zip(found["lines"], found["made"], strict=True):
        exec(line, names)
        assert torch.equal(names["x"], made), line
    places = torch.arange(length)
    assert torch.equal(names["x"], (q @ table.T).gather(1, places - places[:, None] + length - 1))
