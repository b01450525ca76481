"""Known answers: the kernel as built gives them, a kernel with a bug does not, and the report says what is wrong.

The answers are those of the reference backend; these tests hold the file to it. Every family of terms, and every kind
of geometry, has bugs here that are planted in the C++, built, and refused in the family's name.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from posenc.backends.native import build, library
from posenc.backends.native.proof import (
    GEOMETRIES,
    KNOWN_ANSWERS,
    MARGIN,
    PRECISIONS,
    TERMS,
    cases,
    differs,
    failures,
    fingerprint,
)
from tests.backends import known_answers
from tests.backends.planted_bugs import KernelBug, built, check_occurs_once


@pytest.mark.parametrize("precision", PRECISIONS)
def test_libraries_as_built_here_give_the_known_answers(precision: str) -> None:
    loaded = [library.load(candidate.path) for candidate in library.candidates(precision)]
    libraries = [one for one in loaded if one is not None]
    if not libraries:
        pytest.skip(f"no library of these sources was built here in {precision}")
    assert {one.path.name: failures(one.kernel, precision) for one in libraries} == {
        one.path.name: () for one in libraries
    }


# --- the answers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth() -> dict[str, dict[str, torch.Tensor]]:
    """What the reference answers, in double precision."""
    return {case.name: known_answers.answers(case) for case in cases()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_answers_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    binary = library.find("float")
    if isinstance(binary, library.UnavailableError):
        pytest.skip("there is no library")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert failures(binary.kernel, "float") == ()
    finally:
        torch.set_default_dtype(before)


def test_the_file_has_what_the_reference_says(truth: dict[str, dict[str, torch.Tensor]]) -> None:
    """To the rounding of double precision."""
    stored = json.loads(KNOWN_ANSWERS.read_text())
    assert list(stored) == list(truth), "python -m tests.backends.known_answers writes the file"
    for case, answers in truth.items():
        assert list(stored[case]) == list(answers)
        for name, x in answers.items():
            *was, off, least = stored[case][name]
            near = MARGIN * PRECISIONS["double"].unit * max(off, least)
            assert fingerprint(x) == pytest.approx(was, rel=0, abs=near), f"{case}: {name}"


def test_the_file_has_how_far_single_precision_is_off() -> None:
    """In powers of two, of every eighth case. Of a single number the furthest of three may well be eight times as
    far, or as near, where sums are made in another order."""
    stored = json.loads(KNOWN_ANSWERS.read_text())
    for case in list(cases())[::8]:
        for name, (*_, off, least) in known_answers.known(case).items():
            *_, was, least_was = stored[case.name][name]
            assert off / 8 <= was <= off * 8, f"{case.name}: {name}"
            assert least == least_was, f"{case.name}: {name}"


def test_an_error_of_a_hundredth_in_one_entry_shows(truth: dict[str, dict[str, torch.Tensor]]) -> None:
    """In double precision in every entry that is more than a millionth of the tensor's; in single precision in the
    greatest: whichever it is, it moves the projection by as much."""
    stored = json.loads(KNOWN_ANSWERS.read_text())
    for case, answers in truth.items():
        for name, x in answers.items():
            known = stored[case][name]
            assert not differs(x, known, PRECISIONS["double"])
            greatest = x.abs().max().item()
            assert MARGIN * PRECISIONS["double"].unit * max(known[3:]) < 1e-2 * 1e-6 * greatest, f"{case}: {name}"
            wrong = x.flatten().clone()
            wrong[x.abs().argmax()] *= 1.01
            assert differs(wrong, known, PRECISIONS["float"]), f"{case}: {name}"


def test_what_is_no_number_is_off() -> None:
    known = [*fingerprint(torch.ones(3)), 1e30, 1e30]
    assert not differs(torch.ones(3), known, PRECISIONS["float"])
    for bad in (torch.nan, torch.inf):
        assert differs(torch.tensor([1.0, bad, 1.0]), known, PRECISIONS["float"])


# --- planted bugs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A bug that only terms whose names begin so, in such geometries, have answers wrong by: ``answer`` among them."""

    bug: str
    wrong: KernelBug
    answer: str
    terms: tuple[str, ...] = ("",)
    geometries: tuple[str, ...] = tuple(GEOMETRIES)


def fault(
    bug: str, file: str, this: str, that: str, answer: str, *terms: str, geometries: Sequence[str] = tuple(GEOMETRIES)
) -> Fault:
    return Fault(bug, KernelBug(file, this, that), answer, terms or ("",), tuple(geometries))


FAINT, SHIFT = "what is too faint", "a vector added to queries"
OF_VECTORS = ("vectors that queries", "vectors that features", "values", SHIFT, f"{FAINT} (bias, vectors)")
OF_BIAS = ("bias", "functions of the score (relu times, last)", "functions of the score (cap)", f"{FAINT} (bias")
OF_CLOCKS = ("clocks", "functions of the score (one cap", f"{FAINT} (clocks")
FUNCTIONS = "functions of the score"
FAULTS = (
    fault(
        "a bias is off by a hundredth",
        "scores.h",
        "store(s + j, load(s + j) + c); });",
        "store(s + j, load(s + j) + c * Real(1.01)); });",
        "output",
        *OF_BIAS,
    ),
    fault(
        "the last entry of a table gets nothing of what lies past it",
        *("gradients.h", "line[end] += sum(after);", "", "gradient of the bias"),
        *("bias", FUNCTIONS, FAINT),
    ),
    fault(
        "the gradient of a table past its end goes nowhere",
        *("gradients.h", "if (!past || !t.gradient) return;", "return;", "gradient of the values"),
        *OF_VECTORS,
    ),
    fault(
        "keys meet the vectors of another query",
        *("key_meeting.h", "k * load(vectors + d * stride - r);", "k * load(vectors + d * stride);", "output"),
        "vectors that keys",
    ),
    fault(
        "the mass past a table of values is another's",
        *("forward.h", "l_high[at] * alpha + high;", "l_high[at] * alpha + low;", "output"),
        "values by distance (clipped)",
    ),
    fault(
        "the derivative of a cap is no square",
        *("gradients.h", "return g * (Real(1) - t * t);", "return g * (Real(1) - t);", "gradient of the query"),
        *(f"{FUNCTIONS} (cap", f"{FUNCTIONS} (one cap"),
    ),
    fault(
        "the gradient of lines forgets the query's share",
        *("broken.h", "d_lines[2 * n] += share * of_x", "d_lines[2 * n] += of_x", "gradient of the lines"),
        "broken line",
    ),
    fault(
        "the gradient of a clock is one side's alone",
        *("backward.h", "add(d_clock + left, d + left, 1, seen - left);", "", "gradient of the key clock", *OF_CLOCKS),
    ),
    fault(
        "the gradient of queries is turned on, not back",
        *("backward.h", "queries.rotate(i, -1, row);", "queries.rotate(i, 1, row);", "gradient of the query"),
        "rotated queries and keys",
    ),
    fault(
        "the query's column is forgotten",
        *("places.h", "t.key_place[2 * key + 1] - own[1] - t.low", "t.key_place[2 * key + 1] - t.low", "output"),
        "two coordinates",
    ),
    fault(
        "far keys are taken for quiet ones",
        *("bounds.h", "Real most = query * call.key_most", "Real most = 0 * call.key_most", "output", FAINT),
    ),
    fault(
        "a key past the window is seen",
        *("places.h", "std::min(last, i + tile->high + 1)", "std::min(last, i + tile->high + 2)", "log-sum-exp"),
        geometries=("window of 9", "window of 40", "packed", "few queries", "two threads"),
    ),
    fault(
        "weights of a block before are not brought down",
        *("forward.h", "l_i[at] = l_i[at] * alpha + sum(total);", "l_i[at] = l_i[at] + sum(total);"),
        "log-sum-exp",
        geometries=(
            "window of 40",
            "all keys",
            "packed",
            "few queries",
        ),  # of which keys are of several blocks, or tiles
    ),
    fault(
        "every head has the values of the first key head",
        *("buffers.h", "of_values{call, row_of(call.v, b, kv, 0)", "of_values{call, row_of(call.v, b, 0, 0)"),
        "gradient of the query",
        geometries=[name for name, geometry in GEOMETRIES.items() if geometry.kv_heads > 1],
    ),
    fault(
        "keys are of every part",
        *("backward.h", "int64_t n_block = part;", "int64_t n_block = 0;", "gradient of the value"),
        geometries=("two threads",),
    ),
)


def test_what_is_to_be_planted_has_its_place() -> None:
    for one in FAULTS:
        check_occurs_once(one.wrong)
    with pytest.raises(
        ValueError, match=r"^places\.h must have this once, to be mutated, got it 0 times: no such line"
    ):
        check_occurs_once(KernelBug("places.h", "no such line", ""))


def test_every_term_and_every_place_has_a_fault() -> None:
    for term in TERMS:
        assert term == "no term" or any(any(term.startswith(t) and t for t in one.terms) for one in FAULTS), term
    assert {geometry for one in FAULTS if one.terms == ("",) for geometry in one.geometries} == set(GEOMETRIES)


def marks_of(number: int) -> list[pytest.MarkDecorator]:
    """A library is built for each: `make test` tries one, CI a third, `make survey` the rest."""
    return [pytest.mark.sample] * (number == 0) + [pytest.mark.survey] * (number % 3 > 0)


@pytest.mark.mutant
@pytest.mark.parametrize("one", [pytest.param(x, id=x.bug, marks=marks_of(n)) for n, x in enumerate(FAULTS)])
def test_a_planted_bug_is_refused_in_its_familys_name(
    one: Fault, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    wrong_cases = failures(built(tmp_path, [one.wrong]), "double")
    assert any(re.search(rf": .*\b{re.escape(one.answer)}(,|$)", line) for line in wrong_cases), wrong_cases
    for line in wrong_cases:
        assert line.startswith(one.terms), line
        assert any(f", {geometry}: " in line for geometry in one.geometries), line
    record_property("caught by", wrong_cases[0])


HALVES = {
    "pairs of queries change places where they are summed over": (
        KernelBug(
            "halves.h",
            "pair_rows(x + r * ld + j, x + (r + 1) * ld + j,",
            "pair_rows(x + (r + 1) * ld + j, x + r * ld + j,",
        ),
        "gradient of the value",
    ),
    "the other operand has its pairs the other way round": (
        KernelBug("halves.h", "paired(one, other)", "paired(other, one)"),
        "gradient of the key",
    ),
    "a tile is multiplied by its neighbour's": (
        KernelBug("halves.h", "_tile_dpbf16ps(1, 4, 7)", "_tile_dpbf16ps(1, 4, 6)"),
        "output",
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("bug", HALVES)
def test_a_bug_of_bfloat16_alone_is_refused(
    bug: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """As the best level of the processor at hand multiplies it; what a matrix unit does is of those that have one."""
    wrong, answer = HALVES[bug]
    level = build.runnable("bfloat16")[0]
    if "_tile" in wrong.this and level.name != "amx":
        pytest.skip(f"this processor has no matrix unit for bfloat16, its best level is {level.name}")
    wrong_cases = failures(built(tmp_path, [wrong], "bfloat16", ("-O1", *level.flags)), "bfloat16")
    assert any(answer in line for line in wrong_cases), wrong_cases
    record_property("caught by", wrong_cases[0])


# --- what compilers did -----------------------------------------------------------------------------------------------


def flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return set(re.findall(r"\w+", "".join(re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)[:1])))
