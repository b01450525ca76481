"""The explorer's mathematics, in JavaScript, gives the numbers of posenc's reference, scheme by scheme."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Chunk, Positions, Scheme
from posenc.scheme import Composition
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Law, Shape
from tests.explore import cases_of_scores, cases_of_tokens
from tests.explore.case import Case, contents, facts_of, options_of
from tests.explore.compare import assert_alike, compare, job_of, largest, window_of
from tests.explore.node import STATIC, Node
from tests.rows import first_of

HEADS, HEAD_DIM, DIM, LIMIT = 4, 12, 48, 32


def built(entry: Entry, axes: int, causal: bool) -> Case:
    """What the catalog builds."""
    grid = {1: None, 2: (4, 4), 3: (3, 4, 4)}[axes]
    shape = Shape(DIM, HEADS, HEAD_DIM, LIMIT, causal=causal, grid=grid)
    segments = Positions.arange(5).with_segment(torch.tensor([[0, 1, 1, 0, 1]]))
    return Case(
        lambda: entry.build(shape),
        {"dim": DIM, "keys": True, "values": True},
        head_dim=HEAD_DIM,
        axes=axes,
        fractional=Law.FRACTIONAL in entry.laws,
        positions={"segments": segments} if entry.needs_segments else {},
        only=entry.needs_segments,
    )


def cases(entry: Entry) -> Iterator[tuple[str, Case]]:
    """Every way in which a scheme is tried: as the catalog builds it, and in its other options."""
    most = {"one": (1,), "two": (2,), "three": (3,), "any": (1, 2, 3)}[entry.axes]
    for axes in most:
        yield f"built for decoders on {axes} axes", built(entry, axes, causal=True)
        yield f"built for encoders on {axes} axes", built(entry, axes, causal=False)
    for others in (cases_of_tokens, cases_of_scores):
        yield from others.CASES.get(entry.name, {}).items()


ALL = {entry: dict(cases(entry)) for entry in CATALOG}
# Every scheme once, at every kind of positions; its other options are much like it.
TRIED = [
    pytest.param(entry, name, id=f"{entry.name}: {name}", marks=[pytest.mark.more] * (number > 0))
    for entry, of_entry in ALL.items()
    for number, name in enumerate(of_entry)
]


def test_javascript_has_the_schemes_of_the_catalog(javascript: Node) -> None:
    assert sorted(javascript("names")) == sorted(entry.name for entry in CATALOG)


@pytest.mark.parametrize(("entry", "name"), TRIED)
def test_it_gives_the_numbers_of_the_reference(javascript: Node, entry: Entry, name: str) -> None:
    assert compare(javascript, entry.name, ALL[entry][name]) > 0


DRAWS = 200


# Encoders learn the same.
@pytest.mark.parametrize(("entry", "name"), [one for one in TRIED if "for encoders" not in one.id])
def test_parameters_begin_as_those_of_python(javascript: Node, entry: Entry, name: str) -> None:
    case = ALL[entry][name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        scheme = case.build()
        expected: dict[str, list[Tensor]] = {key: [] for key in scheme.state_dict()}
        for _ in range(DRAWS if expected else 0):
            scheme.reset_parameters()
            for key, parameter in scheme.state_dict().items():
                expected[key].append(parameter.double().clone())
    found = javascript("begin", name=entry.name, options=options_of(case, scheme), draws=DRAWS)
    assert set(found) == set(expected)
    for key, draws in expected.items():
        assert_drawn_alike(found[key], torch.stack(draws))


def assert_drawn_alike(found: Tensor, expected: Tensor) -> None:
    """Draws (draws, ...) of one distribution: the means of every number and of its square, and of the squares of all
    numbers, within six standard errors. What is not drawn is equal to float32, PyTorch's."""
    assert found.shape == expected.shape
    assert torch.equal(found.std(0) > 0, expected.std(0) > 0)
    moments = (lambda x: x, lambda x: x**2, lambda x: x.reshape(DRAWS, -1).pow(2).mean(1))
    for moment in moments:
        x, y = moment(found), moment(expected)
        error = ((x.var(0) + y.var(0)) / DRAWS).sqrt()
        assert ((x.mean(0) - y.mean(0)).abs() <= 6 * error + 1e-6 * y.abs().mean(0)).all()


COMPOSED: dict[str, dict[str, Callable[[], Scheme]]] = {
    "rope + alibi": {"rope": lambda: posenc.RoPE(8), "alibi": lambda: posenc.ALiBi(4)},
    "rope + softcap": {"rope": lambda: posenc.RoPE(8), "softcap": lambda: posenc.Softcap(2.0)},
    "alibi + query_scale": {"alibi": lambda: posenc.ALiBi(4), "query_scale": lambda: posenc.QueryScale("beam")},
    "shaw + mla": {"shaw": lambda: posenc.Shaw(8, 3), "mla": lambda: posenc.MLA(8, 4)},
}
SINKS = [0.5, -1.0, 2.0, 0.0]


@pytest.mark.parametrize("words", COMPOSED)
@torch.no_grad()
def test_schemes_compose_in_their_order(javascript: Node, words: str) -> None:
    cases = {name: Case(build, {"keys": True, "values": True}) for name, build in COMPOSED[words].items()}
    schemes = {name: case.scheme() for name, case in cases.items()}
    positions = Positions.arange(9, start=2)
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, n, 9, 8, dtype=torch.float64, generator=generator) for n in (4, 2, 2))
    encoding = Composition(*schemes.values())(positions, dtype=torch.float64)
    for window, sinks, scale in ((None, None, None), (3, SINKS, None), ((4, 2), None, 0.3), (Chunk(4), None, None)):
        found = javascript(
            "attend",
            schemes=[job_of(name, cases[name], scheme) for name, scheme in schemes.items()],
            q=q[0],
            k=k[0],
            v=v[0],
            positions=facts_of(positions),
            causal=True,
            window=window_of(window),
            sinks=sinks,
            scale=scale,
            features={},
        )
        how: dict[str, Any] = {"is_causal": True, "window": window, "scale": scale}
        assert_alike(found["logits"], posenc.logits(q, k, encoding, **how)[0], 30)
        given = None if sinks is None else torch.tensor(sinks, dtype=torch.float64)
        out = posenc.attention(q, k, v, encoding, **how, sinks=given, backend="reference")
        assert_alike(found["out"], out[0], 30 * max(1.0, largest(found["logits"])))
        left_of_sinks = 1.0 - found["weights"].sum(-1)
        assert (left_of_sinks > 0.0).all() if sinks else left_of_sinks.abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_scores_become_weights(javascript: Node, causal: bool) -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[1, 0] = torch.nan  # not seen
    hidden = scores.isnan() | (torch.ones_like(scores).triu(5 - 3 + 1).bool() if causal else torch.tensor(False))
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, torch.nan)
    found = javascript("weighed", scores=scores, causal=causal)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0, equal_nan=True)


@torch.no_grad()
def test_positions_left_out_are_those_of_the_last_queries(javascript: Node) -> None:
    case = Case(lambda: posenc.ALiBi(5), heads=5, kv_heads=1)
    scheme = case.scheme()
    for queries, keys in ((7, 7), (3, 8), (1, 5)):
        q, k, v = contents(case, queries, keys)
        job = job_of("alibi", case, scheme)
        found = javascript("attend", schemes=[job], q=q[0], k=k[0], v=v[0], causal=True, features={})
        expected = posenc.attention(q, k, v, scheme, is_causal=True, backend="reference")
        assert_alike(found["out"], expected[0], 30 * max(1.0, largest(found["logits"])))


MUTANTS = {
    "a frequency too low": ("rope", "math/phases.js", "(-2 * k) / dim", "(-2 * (k + 1)) / dim"),
    "the sine's sign": ("rope", "math/phases.js", "a * cos[k] - b * sin[k]", "a * cos[k] + b * sin[k]"),
    "slopes for powers of two alone": (
        "alibi",
        "math/score/alibi.js",
        "const power = 2 ** Math.floor(Math.log2(heads));",
        "const power = heads;",
    ),
    "the scale of the wide": ("pope", "math/rotate/others.js", "1 / Math.sqrt(d) }", "1 / Math.sqrt(2 * d) }"),
    "columns for rows": (
        "axial_rope",
        "math/rotate/axes.js",
        'layout: "interleaved", axes: [1, 0]',
        'layout: "interleaved", axes: [0, 1]',
    ),
    "cosines first": ("sinusoidal", "math/add.js", "row[c] = Math.sin", "row[c] = Math.cos"),
}


@pytest.mark.parametrize("words", first_of(MUTANTS))
def test_a_wrong_formula_is_seen(executable: str, tmp_path: Path, words: str) -> None:
    name, file, right, wrong = MUTANTS[words]
    static = tmp_path / "static"
    shutil.copytree(STATIC, static)
    text = (static / file).read_text()
    assert right in text
    (static / file).write_text(text.replace(right, wrong))
    case = Case(lambda: posenc.ALiBi(12), heads=12) if name == "alibi" else next(cases(_entry(name)))[1]
    with Node(executable) as sound:
        assert compare(sound, name, case) > 0
    with Node(executable, static) as broken, pytest.raises(AssertionError, match="Tensor-likes are not close"):
        compare(broken, name, case)


def _entry(name: str) -> Entry:
    return next(entry for entry in CATALOG if entry.name == name)


def test_a_bad_option_is_a_named_error(javascript: Node) -> None:
    for name, options, words in (
        ("alibi", {"num_heads": 0, "form": "causal"}, "num_heads must be a whole number of at least 1, got 0"),
        ("alibi", {"num_heads": 4, "form": "both"}, "form must be one of causal, bidirectional, directed"),
        ("sinusoidal", {"dim": 7, "base": 10.0, "layout": "interleaved", "axes": 1}, "dim must be a positive multiple"),
        ("rope", {"head_dim": 8, "base": 1.0}, "base must be a finite number above 1, got 1"),
        ("rope", {"head_dim": 8, "base": 2.0, "scaling": {"kind": "ntk", "factor": 0.5}}, "factor must be"),
    ):
        with pytest.raises(AssertionError, match=words):
            javascript(
                "attend",
                schemes=[{"name": name, "options": options, "parameters": {}}],
                **{side: torch.zeros(4, 3, 8) for side in "qkv"},
                features={},
            )
