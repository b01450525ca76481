"""Every backend against the reference in double precision: output, log-sum-exp, and the gradients of both of everything
that has one. Every scheme meets every other kind of positions, and the next scheme those between; in turn every way to
ask, every number of key heads, and small blocks or large. And what a backend refuses, it is to refuse."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.parity_cases import (
    ATTENDING,
    FAST,
    HEADS,
    LINEAR,
    PLACES,
    WAYS,
    Case,
    built,
    case,
    fits,
    refuses,
    small_blocks,
    with_gradients,
)
from tests.rounding import largest, of_sums
from tests.rows import every_second, first_of, with_more

TOKENS = 97  # a block of 64 and a part of one
SHORT = 45

Run = tuple[str, str, str, int, bool]  # scheme, place, way, key heads, whether blocks are small
KV_HEADS = (2, HEADS, 1)


def runs(rest: int) -> list[Run]:
    """A third of the runs, of which each has half of the schemes at a place."""
    return [
        (
            name,
            place,
            tuple(WAYS)[(a + b) // 2 % len(WAYS)],
            KV_HEADS[((a + b) // 2 + a // 6) % 3],
            (a // 2 + b // 4) % 2 == 0,
        )
        for a, name in enumerate(ATTENDING)
        for b, place in enumerate(PLACES)
        if (a + b) % 2 == 0 and ((a + b) // 2 + b // 6) % 3 == rest and fits(name, place)
    ]


RUNS, FURTHER = runs(0), runs(1)


def check_refused(run: Case, backend: str, **how: Any) -> None:
    with pytest.raises(ValueError, match=f"^backend '{backend}' cannot run this: .*; these can: .*reference"):
        run.attend(backend, **how)


def check_close(found: dict[str, Tensor], truth: dict[str, Tensor], run: Case) -> None:
    """Each number is a sum over keys, and a parameter's gradient one over all pairs. No product exceeds 128, and no
    bias a distance. The terms are of order 1, or of that of the largest sum, and each is as inexact as its score."""
    assert found.keys() == truth.keys()
    ends = torch.cat([p.coords.double().flatten() for p in (run.query_positions, run.key_positions)])
    score = 128 + (ends.max() - ends.min()).item()
    keys = run.key.size(2)
    pairs = run.query.size(0) * run.query.size(2) * keys
    for name, expected in truth.items():
        terms = keys + run.query.size(2) if name.split()[-1] in ("output", "query", "key", "value") else pairs
        tolerance = of_sums(torch.float64, terms, math.sqrt(terms) * largest(expected), score=score)
        torch.testing.assert_close(
            found[name], expected, rtol=0, atol=tolerance, msg=lambda told, name=name: f"{name}: {told}"
        )


def check_parity(it: Case, refused: dict[str, bool]) -> None:
    """Each backend against the reference, or refused."""
    wants_lse = {"return_lse": True}
    outs = it.attend("reference", **wants_lse)
    with_lse = with_gradients(it, outs)
    for backend, is_refused in refused.items():
        how = {} if backend == "sdpa" else wants_lse
        if is_refused:
            check_refused(it, backend, **how)
        else:
            found = with_gradients(it, it.attend(backend, **how))
            check_close(found, with_lse if how else with_gradients(it, outs[:1]), it)


def check_run(run: Run, device: torch.device | str = "cpu", backends: tuple[str, ...] = FAST) -> None:
    name, place, way, kv_heads, is_small = run
    it = case(name, place, TOKENS, way, kv_heads=kv_heads)
    if str(device) != "cpu":
        it = it.to(torch.device(device))
    with pytest.MonkeyPatch.context() as patch:
        if is_small:
            small_blocks(patch)
        check_parity(it, {backend: refuses(backend, name, place, way) for backend in backends})


def identified(run: Run) -> str:
    name, place, way, kv_heads, is_small = run
    return f"{name}-{place}-{way}-{kv_heads}-{'small' if is_small else 'large'}"


@pytest.mark.parametrize("run", with_more(RUNS, ((run,) for run in FURTHER)), ids=identified)
def test_a_backend_is_the_reference_or_says_that_it_cannot(run: Run, device: torch.device) -> None:
    check_run(run, device)


PADDED = ("padded left and right", "padded inside and wholly", "decoding", "position ids", "packed", "unwritten slots")
GARBAGE = [
    (name, place, way, backend, garbage)
    for a, name in enumerate(ATTENDING)
    for b, (place, way) in enumerate([*((place, "causal") for place in PADDED), ("text", "a mask")])
    for c, backend in enumerate((*FAST, "reference"))
    for d, garbage in enumerate((math.nan, math.inf, -math.inf))
    if (a + 2 * b + 5 * c + 13 * d) % 27 == 0 and fits(name, place) and not refuses(backend, name, place, way)
]


@pytest.mark.parametrize(("name", "place", "way", "backend", "garbage"), GARBAGE)
def test_what_no_query_sees_has_no_effect(name: str, place: str, way: str, backend: str, garbage: float) -> None:
    """Padding, as queries, keys, values and features, and keys that a mask hides from all queries: whatever they hold,
    output, log-sum-exp and gradients are the same, and their own gradients are zero."""
    it = case(name, place, TOKENS, way)
    how: dict[str, Any] = {} if backend == "sdpa" else {"return_lse": True}
    asking, hidden = ((p.document == -1)[:, None] for p in (it.query_positions, it.key_positions))
    if way == "a mask":
        hidden = torch.arange(TOKENS)[None, None] % 5 == 3
        with torch.no_grad():
            mask = it.how["attn_mask"]
            mask.masked_fill_(hidden[:, :, None], False if mask.dtype == torch.bool else -math.inf)
    truth = with_gradients(it, it.attend("reference", **how))
    with torch.no_grad():
        features = {} if way == "a mask" else it.features
        for of, x in {"query": it.query, "key": it.key, "value": it.value, **features}.items():
            unseen = asking if of.startswith("query") else hidden
            x.masked_fill_(unseen.reshape(*unseen.shape, *(1,) * (x.dim() - 3)), garbage)
    check_close(with_gradients(it, it.attend(backend, **how)), truth, it)


# Longer than the kernel's longest blocks, of 512 tokens.
LONG = [
    ("shaw", "text", "both"),
    ("bent line", "packed", "a window"),
    ("t5 bidirectional", "padded left and right", "causal, sinks"),
    ("alibi", "text", "causal"),
    ("alibi bidirectional", "cache", "both"),
    ("disentangled, wide", "text", "causal"),
    ("transformer_xl", "other keys", "both"),
    ("squeezing", "a gap", "causal"),
    ("clocked", "text", "a window, sinks"),
    ("fire", "text", "causal"),
    ("alibi+fire+softcap", "packed", "a window"),
    ("capping", "cache", "both"),
]


@pytest.mark.parametrize(("name", "place", "way"), first_of(LONG))
def test_so_it_is_over_blocks_of_their_real_size(name: str, place: str, way: str, device: torch.device) -> None:
    it = case(name, place, 512 + 170, way, heads=2)
    it = it if device.type == "cpu" else it.to(device)
    check_parity(it, {backend: refuses(backend, name, place, way) for backend in LINEAR})


# --- some gradients and not others ------------------------------------------------------------------------------------


def check_some(it: Case, backend: str, is_refused: bool) -> None:
    if is_refused:
        check_refused(it, backend)
    else:
        truth = it.run("reference")
        assert len(truth) > 1
        check_close(it.run(backend), truth, it)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("name", every_second(name for name in ATTENDING if dict(built(name).named_parameters())))
def test_parameters_alone_have_their_gradients(name: str, backend: str) -> None:
    """As where a bias is fitted to a frozen model: query, key and value require none."""
    it = case(name, "padded left and right", SHORT, True)
    for tensor in (it.query, it.key, it.value):
        tensor.requires_grad_(False)
    check_some(it, backend, refuses(backend, name, "padded left and right"))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("wanted", ["query", "key", "value"])
@pytest.mark.parametrize("name", ["nope", "alibi", "shaw", "clocked", "disentangled", "distance_aware"])
def test_one_tensor_alone_has_its_gradient(name: str, wanted: str, backend: str) -> None:
    it = case(name, "text", SHORT, True)
    for leaf_name, leaf in it.leaves.items():
        leaf.requires_grad_(leaf_name == wanted)
    check_some(it, backend, refuses(backend, name, "text"))


# --- derivatives by differences, and of derivatives -------------------------------------------------------------------


@pytest.mark.parametrize("name", every_second(ATTENDING))
def test_the_references_gradients_are_those_by_differences(name: str) -> None:
    """By central differences in steps of 1e-6: truncation some 1e-12, rounding 1e-10, both below gradcheck's 1e-5."""
    it = case(name, "padded left and right", 5, True, heads=2)
    leaves = tuple(it.leaves.values())  # gradcheck moves them where they are
    torch.autograd.gradcheck(lambda *_: it.attend("reference"), leaves, fast_mode=True)


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("name", ["alibi", "shaw keys", "transformer_xl"])
def test_gradients_of_gradients_are_right_or_refused(name: str, backend: str) -> None:
    it = case(name, "text", 5, True, heads=2)
    leaves = tuple(it.leaves.values())

    def attend(*_: Tensor) -> Tensor:
        return it.attend(backend)[0]

    first = torch.autograd.grad(attend().square().sum(), leaves, create_graph=True, materialize_grads=True)
    refusal = None
    try:
        torch.autograd.grad(sum(g.square().sum() for g in first), leaves, materialize_grads=True)
    except ValueError as error:  # a kernel that has none; PyTorch's own has, or not, by what needs a gradient
        refusal = str(error)
    if refusal is None:
        torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)
    else:
        assert backend != "reference"
        assert refusal.startswith("attention's fused kernels have only a first derivative: pass backend='reference'")


# --- what the comparison is worth -------------------------------------------------------------------------------------


def test_a_backend_without_double_precision_says_so() -> None:
    check_refused(case("alibi", "text", 5, True), "flex")
