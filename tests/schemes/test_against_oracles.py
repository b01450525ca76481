"""Every scheme against its scalar-loop oracle: values, and gradients against the oracle's finite differences."""

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from tests.cases import CASES, DIM, TOKENS, Case, oracle, split

PLACES = [
    pytest.param(case, positions, id=f"{name}-{where}")
    for name, case in CASES.items()
    for where, positions in case.positions().items()
]
# The reference everywhere, and at one place of each case what "auto" takes; tests/backends compares every backend with
# the reference everywhere.
FIRST = {id(place.values[0]): place for place in reversed(PLACES)}.values()
RUNS = [
    pytest.param(*place.values, backend, id=f"{place.id}-{backend}")
    for backend, places in (("reference", PLACES), ("auto", FIRST))
    for place in places
]


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


@pytest.mark.parametrize(("case", "positions", "backend"), RUNS)
def test_output_is_the_oracles(case: Case, positions: Positions, backend: str) -> None:
    """The output and its log-sum-exp."""
    scheme = case.scheme()
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    for causal, few in ((True, 4), (False, 1)):
        out, lse = oracle(case, scheme, x, positions, TOKENS, causal)
        for last in (TOKENS, few):
            found = run(case, scheme, x, positions, last, causal, backend, return_lse=True)
            expected = out[:, :, -last:], lse[:, :, -last:]
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("case", "positions", "backend"), RUNS)
def test_gradients_are_the_oracles(case: Case, positions: Positions, backend: str) -> None:
    """Along one random direction of the input and of every parameter together, the derivative of a random projection
    of the output equals the oracle's central difference. Step 1e-6: truncation 1e-12, and 1e-7 of scores that change a
    hundred times as fast as the input, as Swin v2's; rounding 1e-10; all below the tolerance."""
    scheme = case.scheme()
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64, requires_grad=True)
    leaves = [x, *scheme.parameters()]
    directions = [torch.randn_like(leaf) for leaf in leaves]
    out = run(case, scheme, x, positions, TOKENS, True, backend)
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


BOUNDED = {name: case for name, case in CASES.items() if case.bounds}


@pytest.mark.parametrize("case", BOUNDED.values(), ids=BOUNDED)
def test_numbers_lie_on_every_side_of_their_bounds(case: Case) -> None:
    """So each branch of a clamp is compared with the oracle: past a bound nothing has a gradient, elsewhere all has."""
    scheme, x = case.scheme(), torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    out = run(case, scheme, x, next(iter(case.positions().values())), TOKENS, False, "reference")
    assert isinstance(out, Tensor)
    for name, bounds in case.bounds.items():
        parameter = scheme.get_parameter(name)
        (gradient,) = torch.autograd.grad(out.norm(), parameter, retain_graph=True)
        side = torch.bucketize(parameter.detach(), torch.tensor(bounds, dtype=torch.float64))
        counts = [tuple((gradient[side == n] != 0).unique().tolist()) for n in range(len(bounds) + 1)]
        assert set(counts) == {(True,), (False,)}, (name, counts)


def test_the_catalog_is_covered() -> None:
    assert {entry.scheme for entry in posenc.catalog()} <= {
        type(part) for c in CASES.values() for part in c.scheme().parts
    }


@pytest.mark.parametrize(("name", "case"), CASES.items())
def test_a_backend_refuses_what_is_said_and_nothing_else(name: str, case: Case) -> None:
    positions = next(iter(case.positions().values()))
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    for backend in ("reference", "sdpa", "chunked"):
        if backend in case.refused_by:
            with pytest.raises(ValueError, match=rf"backend '{backend}' cannot run this: .*; these can: "):
                run(case, case.scheme(), x, positions, TOKENS, True, backend)
        else:
            run(case, case.scheme(), x, positions, TOKENS, True, backend)
