"""Every backend against the reference in double precision: output, and the gradient of everything that has one, for
every scheme at every kind of position; and what a backend refuses, it is to refuse."""

import math
import re
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.grounds import (
    FAST,
    HEADS,
    KINDS,
    LINEAR,
    NAMES,
    PLACES,
    REFUSED,
    SINGLE_ONLY,
    VALUES,
    Case,
    built,
    case,
    fits,
    refuses,
    small_blocks,
)

U = 2.0**-53  # what rounding to double precision is off by, relatively

# 128 is where blocks of fast backends begin and end; at 1 there is hardly anything, and that has to work too.
EVERYWHERE = (1, 129)
AROUND_A_BLOCK = (127, 128)
THERE = ("plain", "packed", "padded left and right", "the last of the keys")
# Attention sees nothing of what is added to the input, so one of these stands for all in most places.
ADDING = frozenset(name for name in KINDS if built(name).doors in ((), ("add",))) - {"nope"}

Run = tuple[str, str, int, bool]
RUNS: list[Run] = [
    (name, place, tokens, causal)
    for name in KINDS
    for place in PLACES
    for tokens, ways in (*((n, (True, False)) for n in EVERYWHERE), *((n, (True,)) for n in AROUND_A_BLOCK))
    for causal in ways
    if fits(name, place)
    and (tokens == 129 or place in THERE)
    and (name not in ADDING or (place in THERE and tokens in EVERYWHERE))
]
LONG: list[Run] = [
    (name, place, 1025, causal)
    for name in KINDS
    for place, causal in (("plain", True), ("the last of the keys", False))
    if name not in ADDING and name != "cope"  # whose rows meet rows: T^3
]


def identified(run: Run) -> str:
    name, place, tokens, causal = run
    return f"{name}-{place}-{tokens}-{'causal' if causal else 'both'}"


def with_backends(runs: list[Run], backends: tuple[str, ...] = FAST) -> list[Any]:
    return [pytest.param(run, backend, id=f"{identified(run)}-{backend}") for run in runs for backend in backends]


def check_refused(run: Case, backend: str, wanted: tuple[str, ...] | None) -> None:
    with pytest.raises(ValueError, match=f"^backend '{backend}' cannot run this: .*; these can: .*reference"):
        run.run(backend, wanted)


def check_close(found: dict[str, Tensor], truth: dict[str, Tensor], run: Case) -> None:
    """Each number is a sum over keys, and a parameter's gradient one over all pairs. A score s is off by U s and by
    what its own sum adds, sqrt(d) U; here no product exceeds 128, and a bias no distance. A term of the sum is off by
    as much, relatively; the errors of n terms, of either sign, grow with sqrt(n). Terms are of order 1, or of that of
    the largest sum. 8 is for the operations in between."""
    assert found.keys() == truth.keys()
    ends = torch.cat([p.coords.double().flatten() for p in (run.query_positions, run.key_positions)])
    score = 128 + (ends.max() - ends.min()).item()
    keys = run.key.size(2)
    pairs = run.query.size(0) * run.query.size(2) * keys
    for name, expected in truth.items():
        terms = keys + run.query.size(2) if name.split()[-1] in ("output", "query", "key", "value") else pairs
        finite = expected[expected != -torch.inf].abs()
        scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
        tolerance = 8 * U * (score + math.sqrt(terms)) * math.sqrt(terms) * scale
        torch.testing.assert_close(
            found[name], expected, rtol=0, atol=tolerance, msg=lambda told, name=name: f"{name}: {told}"
        )


@lru_cache(maxsize=2)
def made(run: Run, heads: int, wanted: tuple[str, ...] | None) -> tuple[Case, dict[str, Tensor]]:
    """The case, and what the reference makes of it: once for all backends, which stand innermost."""
    it = case(*run, heads)
    return it, it.run("reference", wanted)


def check_run(run: Run, backend: str, heads: int = HEADS, wanted: tuple[str, ...] | None = None) -> None:
    name, place, _, causal = run
    wanted = wanted if PLACES[place].gradients else ()
    it, truth = made(run, heads, wanted)
    if refuses(backend, name, place, causal):
        check_refused(it, backend, wanted)
    else:
        check_close(it.run(backend, wanted), truth, it)


@pytest.mark.parametrize(("run", "backend"), with_backends(RUNS))
def test_a_backend_is_the_reference_or_says_that_it_cannot(run: Run, backend: str) -> None:
    check_run(run, backend)


@pytest.mark.parametrize(("run", "backend"), with_backends(LONG))
def test_so_it_is_over_many_blocks(run: Run, backend: str) -> None:
    check_run(run, backend, heads=2)


IN_BLOCKS: list[Run] = [
    (name, place, 129, causal)
    for name in KINDS
    if name not in ADDING
    for place in PLACES
    for causal in ((True, False) if place in ("plain", "cross", *THERE) else (True,))
    if fits(name, place)
]


@pytest.mark.parametrize(("run", "backend"), with_backends(IN_BLOCKS, LINEAR))
def test_so_it_is_over_many_small_ones(run: Run, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    check_run(run, backend)


# --- some gradients and not others ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("name", [name for name in KINDS if dict(built(name).named_parameters())])
def test_parameters_alone_have_their_gradients(name: str, backend: str) -> None:
    """As where a bias is fitted to a frozen model: query, key and value require none."""
    for place in ("plain", "padded left and right", "cross"):
        it = case(name, place, 129, True)
        for tensor in (it.query, it.key, it.value):
            tensor.requires_grad_(False)
        check_some(it, name, place, backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("wanted", ["query", "key", "value"])
@pytest.mark.parametrize("name", KINDS)
def test_one_tensor_alone_has_its_gradient(name: str, wanted: str, backend: str) -> None:
    it = case(name, "plain", 129, False)
    for leaf_name, leaf in it.leaves.items():
        leaf.requires_grad_(leaf_name == wanted)
    check_some(it, name, "plain", backend)


def check_some(it: Case, name: str, place: str, backend: str) -> None:
    if refuses(backend, name, place, it.how["is_causal"]):
        check_refused(it, backend, None)
    else:
        truth = it.run("reference")
        assert len(truth) > 1
        check_close(it.run(backend), truth, it)


# --- against differences, and derivatives of derivatives --------------------------------------------------------------

PLACES_TO_DIFFER = ("plain", "padded left and right", "cross", "the last of the keys")


def tiny(name: str, place: str) -> Case:
    """Few numbers, so that the whole Jacobian can be had by differences."""
    return case(name, place, 5, causal=True, heads=2)


def check_gradients(it: Case, backend: str) -> None:
    """By central differences in steps of 1e-6: truncation some 1e-12, rounding 1e-10, both below gradcheck's 1e-5."""
    leaves = tuple(it.leaves.values())  # gradcheck moves them where they are
    few = sum(leaf.numel() for leaf in leaves) < 200
    torch.autograd.gradcheck(lambda *_: it.attend(backend, it.query, it.key, it.value), leaves, fast_mode=not few)


@pytest.mark.parametrize("backend", [name for name in NAMES if name not in SINGLE_ONLY])
@pytest.mark.parametrize("place", PLACES_TO_DIFFER)
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_by_differences(name: str, place: str, backend: str) -> None:
    it = tiny(name, place)
    if refuses(backend, name, place, causal=True):
        check_refused(it, backend, None)
    else:
        check_gradients(it, backend)


@pytest.mark.parametrize("backend", [name for name in NAMES if name not in SINGLE_ONLY])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_gradients_are_right_or_refused(name: str, backend: str) -> None:
    it = tiny(name, "plain")
    if refuses(backend, name, "plain", causal=True):
        check_refused(it, backend, None)
        return
    leaves = tuple(it.leaves.values())

    def attend(*_: Tensor) -> Tensor:
        return it.attend(backend, it.query, it.key, it.value)[0]

    first = torch.autograd.grad(attend().square().sum(), leaves, create_graph=True, materialize_grads=True)
    refusal = None
    try:
        torch.autograd.grad(sum(g.square().sum() for g in first), leaves, materialize_grads=True)
    except RuntimeError as error:  # a kernel that has none; PyTorch's own has, or not, by what needs a gradient
        refusal = str(error)
    if refusal is None:
        torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)
    else:
        assert backend != "reference"
        assert re.search(r"derivative for .* is not implemented|no autograd formula was registered", refusal)


# --- the tables of this file and of grounds ---------------------------------------------------------------------------


def test_every_backend_says_what_it_is_to_refuse_of_what_there_is() -> None:
    assert REFUSED.keys() | set(SINGLE_ONLY) >= set(NAMES)
    for line in REFUSED.values():
        assert line.schemes <= KINDS.keys()
        assert line.places | line.causal_places <= PLACES.keys()


def test_every_scheme_with_a_value_door_is_known_to_have_one() -> None:
    assert {name for name in KINDS if "value" in built(name).doors} == VALUES


@pytest.mark.parametrize("backend", SINGLE_ONLY)
def test_a_backend_without_double_precision_says_so(backend: str) -> None:
    check_refused(case("alibi", "plain", 5, causal=True), backend, ())


@pytest.mark.parametrize("causal", [True, False])
def test_these_cases_see_a_wrong_bias_and_a_blind_gradient(causal: bool) -> None:
    """What the comparison is worth: it fails where one distance of one head is off by 1e-9, or one gradient is."""
    it = case("t5", "plain", 129, causal)
    truth = it.run("reference")
    with torch.no_grad():
        it.scheme.weight[3, 5] += 1e-9
    with pytest.raises(AssertionError, match="output: "):
        check_close(it.run("reference"), truth, it)
    wrong = {name: x.clone() for name, x in truth.items()}
    wrong["gradient of weight"][3, 5] += 1e-9
    with pytest.raises(AssertionError, match="gradient of weight: "):
        check_close(wrong, truth, it)
