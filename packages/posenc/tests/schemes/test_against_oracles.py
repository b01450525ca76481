"""Every scheme against its scalar-loop oracle: values, and gradients against the oracle's finite differences."""

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.encoding.terms import CumulativeBias, Row
from posenc.schemes.catalog import CATALOG
from tests.cases import CASES, DIM, HEAD_DIM, TOKENS, Case, oracle, split
from tests.rounding import of_sums
from tests.rows import named

# Where schemes differ. What is hidden is the core's, and for all alike, but for rows and clocks, which read it.
ALWAYS = ("offset", "fractional", "permuted patches")


def places(name: str) -> list[str]:
    """Where the case is tried: where schemes differ, and the other places one for each case in turn."""
    every = CASES[name].positions()
    first = next(iter(every.values()))
    encoding = CASES[name].scheme()(first)
    reads = any(isinstance(score_term, Row | CumulativeBias) for score_term in encoding.score_terms)
    reads = reads or any(feature.is_clock for feature in encoding.wanted.values())
    reads = reads or any(rotation.needs_whole_documents or rotation.feature for rotation in encoding.rotations)
    if reads and name in {entry.name for entry in CATALOG}:  # the first of the cases of its scheme
        return [*every]
    others = [where for where in every if where not in ALWAYS]
    return [where for where in every if where in ALWAYS] + [others[[*CASES].index(name) % len(others)]]


def run(
    case: Case,
    scheme: Scheme,
    x: Tensor,
    positions: Positions,
    last: int,
    causal: bool,
    backend: str,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    asking = positions[TOKENS - last :]
    added = scheme(positions, dtype=torch.float64).add(x)
    query, key, value = split(added)
    encoding = scheme(asking, positions, dtype=torch.float64, doors=("rotate", "score", "value"))
    projected = case.projected(query, key)
    if projected:
        of_last = {name: x[:, :, TOKENS - last :] for name, x in projected.items()}
        encoding = encoding.with_projected(of_last, projected)
    return posenc.attention(
        query[:, :, TOKENS - last :],
        key,
        value,
        encoding,
        attn_mask=None if causal else torch.ones(last, TOKENS, dtype=torch.bool),
        is_causal=causal,
        backend=backend,
        return_lse=return_lse,
    )


def check_output(case: Case, positions: Positions, causal: bool) -> None:
    """The output and its log-sum-exp, of all queries and of the last, by the reference and by what "auto" takes;
    tests/backends compares every backend with the reference everywhere."""
    scheme = case.scheme()
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    out, lse = oracle(case, scheme, x, positions, TOKENS, causal)
    for last in (TOKENS, 4 if causal else 1):
        for backend in ("reference", "auto"):
            found = run(case, scheme, x, positions, last, causal, backend, return_lse=True)
            expected = out[:, :, -last:], lse[:, :, -last:]
            for one, truth in zip(found, expected, strict=True):  # no score exceeds 128, as in tests/backends
                bound = of_sums(torch.float64, TOKENS + HEAD_DIM, truth, score=128)
                torch.testing.assert_close(one, truth, rtol=0, atol=bound)


@pytest.mark.parametrize("name", CASES)
def test_output_is_the_oracles(name: str) -> None:
    """Each case causal at one place and not at the next."""
    positions = CASES[name].positions()
    for turn, where in enumerate(places(name), [*CASES].index(name)):
        with named(where):
            check_output(CASES[name], positions[where], causal=turn % 2 == 0)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_oracles(name: str) -> None:
    """Along one random direction of the input and of every parameter together, the derivative of a random projection
    of the output equals the oracle's central difference. Step 1e-6: truncation 1e-12, and 1e-7 of scores that change a
    hundred times as fast as the input, as Swin v2's; rounding 1e-10; all below the tolerance."""
    case, where = CASES[name], places(name)[0]
    positions = case.positions()[where]
    scheme = case.scheme()
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64, requires_grad=True)
    leaves = [x, *scheme.parameters()]
    directions = [torch.randn_like(leaf) for leaf in leaves]
    out = run(case, scheme, x, positions, TOKENS, True, "reference")
    assert isinstance(out, Tensor)
    weight = torch.randn_like(out)
    gradients = torch.autograd.grad((out * weight).sum(), leaves)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))

    ends = []
    step = 1e-6
    with torch.no_grad():
        for sign in (1, -1):
            for leaf, direction in zip(leaves, directions, strict=True):
                leaf += sign * step * direction
            moved, _ = oracle(case, scheme, x, positions, TOKENS, causal=True)
            ends.append((moved * weight).sum())
            for leaf, direction in zip(leaves, directions, strict=True):
                leaf -= sign * step * direction
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-7)


def test_the_catalog_is_covered() -> None:
    assert {entry.scheme for entry in posenc.catalog()} <= {
        type(part) for c in CASES.values() for part in c.scheme().parts
    }
    met = {where for name in CASES for where in places(name)}
    assert met == {where for case in CASES.values() for where in case.positions()}


def test_a_backend_refuses_what_is_said_and_nothing_else() -> None:
    for name, case in CASES.items():
        positions = next(iter(case.positions().values()))
        x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
        for backend in ("reference", "sdpa", "chunked"):
            with named(name, backend):
                if backend in case.refused_by:
                    with pytest.raises(ValueError, match=rf"backend '{backend}' cannot run this: .*; these can: "):
                        run(case, case.scheme(), x, positions, TOKENS, True, backend)
                else:
                    run(case, case.scheme(), x, positions, TOKENS, True, backend)
