"""Compares what the explorer's JavaScript makes of a case with posenc's reference."""

from typing import Any

import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.encoding.features import projected_at_random
from posenc.positions.positions import PADDING
from tests.explore.case import Case, contents, facts_of, options_of
from tests.explore.node import Node


def job_of(name: str, case: Case, scheme: Scheme) -> dict[str, Any]:
    """The scheme, as JavaScript builds it."""
    return {"name": name, "options": options_of(case, scheme), "parameters": dict(scheme.state_dict())}


def window_of(window: Any) -> Any:
    """A window, as JavaScript takes it."""
    return {"chunk": window.size} if isinstance(window, posenc.Chunk) else window


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
            window=window_of(window),
            features=features,
        )
        roundings = case.head_dim + len(keys) + far
        # Of two documents, or of padding, a pair has no score: posenc computes what is at hand there.
        met = (queries.document[0][:, None] == keys.document[0]) & (keys.document[0] != PADDING)
        assert_alike(found["logits"][:, met], expected[0][:, met], roundings)
        # An error of a score is as large an error of its weight, relative to it.
        assert_alike(found["out"], out[0], roundings * max(1.0, largest(expected[0][:, met])))
    return len(case.windows)
