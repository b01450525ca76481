"""The explorer's mathematics, in JavaScript, gives the numbers of posenc's reference, scheme by scheme."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.features import projected_at_random
from posenc.positions import PADDING
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Law, Shape
from tests.explorer import cases_of_tokens
from tests.explorer.case import Case, contents, facts_of, options_of
from tests.explorer.node import Node

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
    yield from cases_of_tokens.CASES.get(entry.name, {}).items()


ALL = {f"{entry.name}: {name}": (entry, case) for entry in CATALOG for name, case in cases(entry)}


def job_of(name: str, case: Case, scheme: Scheme) -> dict[str, Any]:
    """The scheme, as JavaScript builds it."""
    return {"name": name, "options": options_of(case, scheme), "parameters": dict(scheme.state_dict())}


def largest(x: Tensor) -> float:
    """The greatest of the finite numbers' sizes; 0 where there is none."""
    return float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 0.0


def assert_alike(found: Tensor, expected: Tensor, roundings: float) -> None:
    """Equal but for so many roundings of the largest number there is; minus infinity equals itself alone.

    Both are computed in doubles, in other orders: a sum of n products differs by up to n roundings of the largest
    partial sum, and an angle by one of the coordinate that it is taken of. So what is allowed is eps times the numbers
    summed and the furthest coordinate, times 100 for the functions (exponentials, solved systems, layers) on the way.
    """
    assert found.shape == expected.shape
    allowed = 100 * torch.finfo(torch.float64).eps * roundings * max(largest(expected), 1.0)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=allowed)


@torch.no_grad()
def compare(javascript: Node, name: str, case: Case) -> int:
    """Tries one scheme in all its situations, and says in how many."""
    scheme = case.scheme()
    job = job_of(name, case, scheme)
    tried = 0
    for words, queries, keys in case.situations():
        far = float(keys.coords.abs().max()) if keys.coords.numel() else 0.0
        if scheme.doors == ("add",):
            expected = scheme.table(queries, torch.float64)
            assert expected is not None
            found = javascript("table", scheme=job, positions=facts_of(queries))
            assert_alike(found, expected[0], expected.size(-1) + far)
            tried += 1
            continue
        for causal in (True,) if scheme.for_decoders else (True, False):
            print(f"{words}, {causal=}")  # shown where it fails
            tried += compare_attention(javascript, case, scheme, job, queries, keys, causal, far)
    return tried


def compare_attention(
    javascript: Node,
    case: Case,
    scheme: Scheme,
    job: dict[str, Any],
    queries: Positions,
    keys: Positions,
    causal: bool,
    far: float,
) -> int:
    """Tries one call with each of the case's windows."""
    q, k, v = contents(case, len(queries), len(keys))
    encoding = scheme(queries, keys, dtype=torch.float64)
    features: dict[str, Tensor] = {}
    if encoding.wanted:
        x = torch.randn(1, len(keys), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        of_keys = projected_at_random(encoding.wanted, x, seed=3)
        of_queries = {name: each[:, :, -len(queries) :] for name, each in of_keys.items()}
        encoding = encoding.with_projected(of_queries, of_keys)
        features = {n: (of_keys if encoding.wanted[n].is_clock else of_queries)[n][0] for n in encoding.wanted}
    for window in case.windows:
        visibility: dict[str, Any] = {"is_causal": causal, "window": window}
        expected = posenc.logits(q, k, encoding, **visibility)
        out = posenc.attention(q, k, v, encoding, **visibility, backend="reference")
        found = javascript(
            "attend",
            schemes=[job],
            q=q[0],
            k=k[0],
            v=v[0],
            positions=facts_of(queries),
            keyPositions=facts_of(keys),
            causal=causal,
            window={"chunk": window.size} if isinstance(window, posenc.Chunk) else window,
            features=features,
        )
        roundings = case.head_dim + len(keys) + far
        # Of two documents, or of padding, a pair has no score: posenc computes what is at hand there.
        met = (queries.document[0][:, None] == keys.document[0]) & (keys.document[0] != PADDING)
        assert_alike(found["logits"][:, met], expected[0][:, met], roundings)
        # An error of a score is as large an error of its weight, relative to it.
        assert_alike(found["out"], out[0], roundings * max(1.0, largest(expected[0][:, met])))
    return len(case.windows)


def test_javascript_has_the_schemes_of_the_catalog(javascript: Node) -> None:
    assert sorted(javascript("names")) == sorted(entry.name for entry in CATALOG)


@pytest.mark.parametrize("name", ALL)
def test_it_gives_the_numbers_of_the_reference(javascript: Node, name: str) -> None:
    entry, case = ALL[name]
    assert compare(javascript, entry.name, case) > 0
