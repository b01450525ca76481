"""The catalog's claims are what is measured, and what is measured is what the papers and the algebra say."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from posenc import ALiBi, RoPE, Scheme, Shaw, Sinusoidal
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Law, Shape
from posenc_lab.laws.laws import (
    LAWS,
    QUESTIONS,
    angles,
    bounded,
    counterexample,
    curves,
    linear,
    linear_map,
    rotary_bound,
    unique,
)
from posenc_lab.laws.probe import SHAPE, Finding, Probe
from posenc_lab.laws.table import audit
from tests.laws.audits import audit_of
from tests.oracles import rope as rope_oracle
from tests.rounding import of_sums
from tests.rows import first_of

WIDE = Shape(dim=128, num_heads=1, head_dim=128, max_positions=1024)
# Measured in other tests of this file anyway. Of the rest `make test` uses what was measured before, as the explorer
# keeps it.
MEASURED = {
    *("sinusoidal", "learned", "exponential_decay", "fourier_features", "rope", "alibi", "distance_aware"),
    *("shaw", "transformer_xl", "relative_1d", "relative_2d"),
}
AUDITED = [
    pytest.param(entry, id=entry.name, marks=[pytest.mark.more] * (entry.name not in MEASURED)) for entry in CATALOG
]


def found(law: str, names: str) -> Finding:
    return audit_of(names).findings[law]


def measured(law: str, build: Callable[[Shape], Scheme], shape: Shape = SHAPE) -> Finding:
    return LAWS[law](Probe(build, shape))


# --- the catalog ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", AUDITED)
def test_a_scheme_has_the_laws_it_claims_and_no_others(entry: Entry) -> None:
    """And what was measured is said; all of one audit, which takes long."""
    findings = {law: found(law, entry.name) for law in LAWS}
    wrong = {law: finding for law, finding in findings.items() if (finding.holds is True) != (law in entry.laws)}
    assert wrong == {}
    assert_it_says_what_was_measured(entry.name)
    assert_positions_end_where_they_do(entry.name)
    assert_what_is_relative_does_not_hinder(entry)
    assert_attention_without_it_is_blind_to_order(entry.name)


# With its base of 500,000 the bound is at the law's threshold: it holds for 16 channels per head and not for 24.
OF_SOME_SIZES = {"selective_rope": {Law.DECAYING_BOUND}}


@pytest.mark.parametrize("entry", first_of(CATALOG), ids=lambda entry: entry.name)
def test_claims_hang_on_no_draw_of_parameters_and_no_size(entry: Entry) -> None:
    probe = replace(Probe.named(entry.name, Shape(120, 5, 24, 700)), seed=7)
    assert {law for law, measure in LAWS.items() if measure(probe).holds} == entry.laws - OF_SOME_SIZES.get(
        entry.name, set()
    )


def assert_it_says_what_was_measured(name: str) -> None:
    for law in LAWS | QUESTIONS:
        finding = found(law, name)
        assert finding.words
        assert finding.value is None or math.isfinite(finding.value)
        assert finding.holds is not None or finding.value is None


def test_a_shape_too_small_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="max_positions must be at least 64 to measure, got 63"):
        audit("rope", replace(SHAPE, max_positions=63))


def test_what_a_scheme_refuses_is_said() -> None:
    with pytest.raises(ValueError, match="made for head_dim 8, got q or k of head_dim 16"):
        Probe(lambda shape: RoPE(8)).positions([0, 1])


# --- two questions --------------------------------------------------------------------------------------------------

ENDS = {
    "learned": "positions end at 1023",
    "absolute_in_attention": "positions end at 1023",
    "cameras": "positions end at 1023",
    "relative_1d": "distances end at 1023",
    "relative_2d": "distances end at 1023",
    "swin": "distances end at 63",
    "swin_v2": "distances end at 15",
    "tupe": "positions end at 1023",
}
FAINT = {"fire", "tupe"}  # as drawn they change scores by little


def assert_positions_end_where_they_do(name: str) -> None:
    finding = found("fixed_ahead", name)
    assert finding.words == (f"yes: {ENDS[name]}" if name in ENDS else "no: no end up to 2^31")
    assert finding.holds == (name in ENDS)


EXACT = of_sums(torch.float64, SHAPE.dim, score=64)  # of numbers of order 1 from scores that differ by rounding alone


def assert_what_is_relative_does_not_hinder(entry: Entry) -> None:
    """Exactly those do whose scores depend on where the phrase is: what is relative does not move at all."""
    finding = found("hinders", entry.name)
    assert finding.value is not None
    relative = "relative" in entry.laws or entry.name == "self_extend"  # whose window the phrase does not reach past
    assert finding.holds != relative
    assert finding.value < EXACT if relative else finding.value > (1e-4 if entry.name in FAINT else 0.1)


# --- sinusoids, learned vectors -------------------------------------------------------------------------------------


def test_a_sinusoid_moves_by_a_rotation_and_a_learned_table_by_nothing_linear() -> None:
    sinusoid, learned = (linear_map(Probe.named(name)) for name in ("sinusoidal", "learned"))
    assert sinusoid is not None
    assert learned is not None
    assert max(sinusoid.residual, sinusoid.bend, sinusoid.composed) < EXACT
    assert learned.residual > 0.5
    assert learned.composed > 0.5


def test_a_sinusoids_inner_product_is_the_published_one_and_rises_at_12() -> None:
    back, ahead = curves(Probe(lambda shape: Sinusoidal(128), WIDE))
    torch.testing.assert_close(back, ahead)
    assert back[0, 0].item() == pytest.approx(64.0)
    assert round(back[0, 10].item(), 1) == 42.8
    assert measured("monotone", lambda shape: Sinusoidal(128), WIDE).numbers["first turn"] == 12


# --- RoPE -----------------------------------------------------------------------------------------------------------

BOUND = {0: 32.5, 10: 17.95, 50: 12.63, 100: 10.23, 255: 6.78}


def test_ropes_bound_is_the_published_one_and_the_oracles() -> None:
    probe = Probe(lambda shape: RoPE(128), WIDE)
    theta = angles(probe)
    assert theta is not None
    torch.testing.assert_close(theta, torch.tensor(rope_oracle.frequencies(128), dtype=torch.float64))
    bound = rotary_bound(theta, torch.tensor(list(BOUND))).tolist()
    assert [round(value, 2) for value in bound] == list(BOUND.values())
    assert bound == pytest.approx([rope_oracle.bound(r, 128) for r in BOUND])
    finding = measured("decaying_bound", lambda shape: RoPE(128), WIDE)
    assert finding.words.startswith("bound, not behaviour")
    assert [round(finding.numbers[f"B({r})"], 2) for r in BOUND] == list(BOUND.values())


@pytest.mark.parametrize("peak", [0, 1, 17, 200, 255])
def test_rope_does_not_keep_far_tokens_from_influencing_each_other(peak: int) -> None:
    """The contrary is often said. For any query and distance there is a key whose score is highest there, and as high
    as a score can be."""
    example = counterexample(Probe.named("rope"), peak)
    assert example is not None
    assert int(example.built.argmax()) == peak
    assert example.built[peak].item() == pytest.approx(1, abs=1e-12)


# --- ALiBi ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "directed", "decaying"), [("causal", True, True), ("bidirectional", False, True), ("directed", True, True)]
)
def test_alibi_is_relative_and_monotone_and_directed_but_for_one_form(
    form: str, directed: bool, decaying: bool
) -> None:
    probe = Probe(lambda shape: ALiBi(shape.num_heads, form))  # type: ignore[arg-type]
    holds = {law: LAWS[law](probe).holds for law in ("relative", "monotone", "directed", "decaying")}
    assert holds == {"relative": True, "monotone": True, "directed": directed, "decaying": decaying}


# --- windows and tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 16])
@pytest.mark.parametrize("doors", [{}, {"values": False}, {"keys": False}], ids=["both", "keys", "values"])
def test_shaw_shares_a_vector_past_its_window_by_design(k: int, doors: dict[str, bool]) -> None:
    finding = unique(Probe(lambda shape: Shaw(shape.head_dim, k, **doors)))
    assert finding.holds is False
    assert finding.value == 0
    assert finding.numbers["float32 first collision"] == k + 1


def assert_attention_without_it_is_blind_to_order(name: str) -> None:
    finding = found("order_free", name)
    assert finding.numbers["without it"] < EXACT
    assert finding.holds == (name in ("nope", "re_po", "segment", "softcap"))


# --- more than one --------------------------------------------------------------------------------------------------


def test_a_composition_has_the_laws_of_both_where_both_have_them() -> None:
    both = Probe.named("rope+alibi")
    assert LAWS["relative"](both).holds
    assert not bounded(both).holds
    assert not LAWS["monotone"](both).holds
    assert not LAWS["relative"](Probe.named("sinusoidal+rope")).holds
    assert linear(Probe.named("sinusoidal+rope")).holds
    assert QUESTIONS["fixed_ahead"](Probe.named("learned+segment")).words == "yes: positions end at 1023"
