"""What schemes that see two tokens at a time say beyond their scores, and what they refuse, in JavaScript."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.lowering.block import Block
from posenc.scheme import Composition
from tests.explore.case import Case, contents, facts_of
from tests.explore.cases_of_scores import CASES
from tests.explore.compare import assert_alike, compare, job_of, largest
from tests.explore.node import STATIC, Node
from tests.oracles import dual_chunk, re_rope, self_extend
from tests.rows import first_of

PLACES = [-31, -4, 0, 1, 2, 5, 6, 7, 11, 12, 13, 17, 23, 24, 40]
BANDS: dict[str, tuple[str, Callable[[], Scheme], Callable[[float, float], float]]] = {
    "ReRoPE": ("re_rope", lambda: posenc.ReRoPE(8, 6), lambda x, y: re_rope.distance(x - y, 6, 0.0)),
    "leaky": ("re_rope", lambda: posenc.ReRoPE(8, 5, leak=0.25), lambda x, y: re_rope.distance(x - y, 5, 0.25)),
    "Self-Extend": ("self_extend", lambda: posenc.SelfExtend(8, 3, 7), lambda x, y: self_extend.distance(x, y, 3, 7)),
    "dual chunk": (
        "dual_chunk",
        lambda: posenc.DualChunk(8, 9, 3),
        lambda x, y: dual_chunk.query_place(x, y, 9, 3) - y % 6,
    ),
}


@pytest.mark.parametrize("words", BANDS)
def test_a_pair_is_turned_by_the_distance_that_is_said(javascript: Node, words: str) -> None:
    name, build, distance = BANDS[words]
    case = Case(build)
    found = javascript("turnedBy", scheme=job_of(name, case, case.scheme()), queries=PLACES, keys=PLACES)
    assert found == [[distance(x, y) for y in PLACES] for x in PLACES]


@torch.no_grad()
def test_the_terms_of_transformer_xl_are_those_of_python(javascript: Node) -> None:
    case = Case(lambda: posenc.TransformerXL(4, 8, 6), kv_heads=2)
    scheme, positions = case.scheme(), Positions.arange(7, start=3)
    assert isinstance(scheme, posenc.TransformerXL)
    q, k, _ = contents(case, 7, 7)
    expected = scheme.terms(Block(q, k, positions, positions, 0.3))
    job = job_of("transformer_xl", case, scheme)
    found = javascript("terms", scheme=job, q=q[0], k=k[0], positions=facts_of(positions), scale=0.3)
    for term, of_python in zip(found, expected, strict=True):
        assert_alike(term, of_python[0], 8 + 7 + 9)
    # Their sum is the score, which JavaScript computes in another way.
    scores = posenc.logits(q, k, scheme(positions, dtype=torch.float64), scale=0.3)[0]
    assert_alike(sum(found), scores, 8 + 7 + 9)


COMPOSED: dict[str, dict[str, Callable[[], Scheme]]] = {
    "softcap, then alibi": {"softcap": lambda: posenc.Softcap(0.5), "alibi": lambda: posenc.ALiBi(4)},
    "alibi, then softcap": {"alibi": lambda: posenc.ALiBi(4), "softcap": lambda: posenc.Softcap(0.5)},
    "alibi, then distance_aware": {"alibi": lambda: posenc.ALiBi(4), "distance_aware": lambda: posenc.DistanceAware(4)},
    "t5, then cope": {"t5": lambda: posenc.T5(4), "cope": lambda: posenc.CoPE(8, 4)},
    "kerple, then stick_breaking": {
        "kerple": lambda: posenc.KERPLE(4),
        "stick_breaking": lambda: posenc.StickBreaking(),
    },
    "deberta, then shaw": {"deberta": lambda: posenc.DeBERTa(4, 8, None, 5), "shaw": lambda: posenc.Shaw(8, 2)},
    "transformer_xl after rope": {"rope": lambda: posenc.RoPE(8), "transformer_xl": lambda: posenc.TransformerXL(4, 8)},
    "bands that are scaled": {
        "self_extend": lambda: posenc.SelfExtend(8, 2, 3, layout="interleaved"),
        "query_scale": lambda: posenc.QueryScale("beam", length=4),
        "alibi": lambda: posenc.ALiBi(4),
    },
}


@pytest.mark.parametrize("words", COMPOSED)
@torch.no_grad()
def test_pieces_are_applied_in_their_order(javascript: Node, words: str) -> None:
    said = {"keys": True, "values": True, "dim": None}
    cases = {name: Case(build, said) for name, build in COMPOSED[words].items()}
    schemes = {name: case.scheme() for name, case in cases.items()}
    positions = Positions.packed([6, 5])
    q, k, v = contents(Case(posenc.NoPE, kv_heads=2), 11, 11)
    encoding = Composition(*schemes.values())(positions, dtype=torch.float64)
    found = javascript(
        "attend",
        schemes=[job_of(name, cases[name], scheme) for name, scheme in schemes.items()],
        q=q[0],
        k=k[0],
        v=v[0],
        positions=facts_of(positions),
        causal=True,
        features={},
    )
    of_text = positions.document[0][:, None] == positions.document[0]
    expected = posenc.logits(q, k, encoding, is_causal=True)[0][:, of_text]
    assert_alike(found["logits"][:, of_text], expected, 30)
    out = posenc.attention(q, k, v, encoding, is_causal=True, backend="reference")[0]
    assert_alike(found["out"], out, 30 * max(1.0, largest(expected)))


REFUSED: dict[str, tuple[dict[str, Case], dict[str, Any], str]] = {
    "heads": ({"kerple": Case(lambda: posenc.KERPLE(5))}, {}, "KERPLE was made for 5 heads, got 4"),
    "width": (
        {"shaw": Case(lambda: posenc.Shaw(6, 2), {"keys": True, "values": True})},
        {},
        "Shaw was made for head_dim 6, got queries of head_dim 8",
    ),
    "reach": (
        {"relative_1d": Case(lambda: posenc.Relative1D(4, 8))},
        {},
        "Relative1D encodes distances up to 3, got 4",
    ),
    "axes": ({"swin": Case(lambda: posenc.Swin((3, 3), 4))}, {}, "Swin takes 2 coordinates per token"),
    "fractions": (
        {"t5": Case(lambda: posenc.T5(4))},
        {"positions": {"coords": [0.5, 1, 2, 3, 4]}},
        "T5 looks distances up in a table and needs whole coordinates, got 0.5",
    ),
    "a table": (
        {"absolute_in_attention": Case(lambda: posenc.AbsoluteInAttention(3, 8))},
        {},
        "AbsoluteInAttention encodes positions 0 to 2, got 3",
    ),
    "no gates": ({"fox": Case(lambda: posenc.FoX(4))}, {}, "FoX needs the feature 'forgotten' of every key"),
    "other gates": (
        {"fox": Case(lambda: posenc.FoX(4))},
        {"features": {"forgotten": torch.zeros(4, 3, 1)}},
        r"feature 'forgotten' must be \(4, 5, 1\), got \(4, 3, 1\)",
    ),
    "no profile": ({"inkling": Case(lambda: posenc.Inkling(4, 3, 5))}, {}, "Inkling needs the feature 'profile'"),
    "two bands": (
        {"re_rope": Case(lambda: posenc.ReRoPE(8, 2)), "self_extend": Case(lambda: posenc.SelfExtend(8, 2, 2))},
        {},
        "only one scheme can rotate distant pairs differently",
    ),
    "two scales": (
        {"deberta": Case(lambda: posenc.DeBERTa(4, 8, None, 5), {"dim": None}), "pope": Case(lambda: posenc.PoPE(8))},
        {},
        "only one rotation can set the softmax scale",
    ),
    "bands and rows": (
        {"re_rope": Case(lambda: posenc.ReRoPE(8, 2)), "cope": Case(lambda: posenc.CoPE(8, 4))},
        {},
        "a score term that needs whole rows of scores",
    ),
    "sinks": ({"stick_breaking": Case(posenc.StickBreaking)}, {"sinks": [0.0] * 4}, "sinks take a share of weights"),
    "a window": ({"alibi": Case(lambda: posenc.ALiBi(4))}, {"window": [1]}, "window must be a number of keys or"),
    "chunks": (
        {"alibi": Case(lambda: posenc.ALiBi(4))},
        {"window": {"chunk": 0}},
        "window.chunk must be a whole number of at least 1, got 0",
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_a_named_error(javascript: Node, words: str) -> None:
    cases, how, message = REFUSED[words]
    x: Tensor = torch.zeros(4, 5, 8)
    schemes = [job_of(name, case, case.scheme()) for name, case in cases.items()]
    with pytest.raises(AssertionError, match=message):
        javascript("attend", schemes=schemes, q=x, k=x, v=x, **{"features": {}, "causal": True} | how)


MUTANTS = {
    "a bias on the wrong side": ("swin", "a rectangle", "score/swin.js", "side - 1 - within", "side - 1 + within"),
    "the end of a bucket for its beginning": ("t5", "released", "score/t5.js", "away >= edge", "away > edge"),
    "a clip too narrow": ("shaw", "keys", "score/shaw.js", "Math.max(r, -k), k)", "Math.max(r, 1 - k), k)"),
    "positions in the terms' order": ("deberta", "past its table", "score/deberta.js", "let n = -r;", "let n = r;"),
    "a count of all keys": ("cope", "past its table", "score/cope.js", "visible[j] ? sigmoid(s) : 0", "sigmoid(s)"),
    "a clock of all documents": (
        "fox",
        "five heads",
        "score/fox.js",
        "positions.document[j] === at.document[i] &&",
        "",
    ),
    "a window one key wider": ("alibi", "five heads", "visibility.js", "window) - 1, 0]", "window), 0]"),
    "a band that begins late": ("self_extend", "interleaved", "attend.js", ">= bands[b].reach", "> bands[b].reach"),
}


@pytest.mark.parametrize("words", first_of(MUTANTS))
def test_a_wrong_formula_is_seen(executable: str, tmp_path: Path, words: str) -> None:
    name, case, file, right, wrong = MUTANTS[words]
    static = tmp_path / "static"
    shutil.copytree(STATIC, static)
    text = (static / "math" / file).read_text()
    assert right in text
    (static / "math" / file).write_text(text.replace(right, wrong))
    with Node(executable, static) as broken, pytest.raises(AssertionError, match="Tensor-likes are not close"):
        compare(broken, name, CASES[name][case])
