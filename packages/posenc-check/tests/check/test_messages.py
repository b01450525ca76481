"""What a stranger is told: what was expected, what came, and the way out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc_check
from posenc_check import Attention, Bias, Layer, Model, Rotary, Subject, check
from posenc_check.checks import CHECKS
from posenc_check.prepare import COMMON_PARAMETER_NAMES, prepare_subject
from posenc_check.run import NOT_APPLICABLE
from posenc_check.subjects import call_module
from posenc_check.trial import NOTHING_TO_DO
from tests.check.small_subjects import nothing, rotate
from tests.rows import first_of


def with_ids(made: Any, x: Tensor, position_ids: Tensor) -> Tensor:
    return x


def with_mask(made: Any, x: Tensor, attention_mask: Tensor) -> Tensor:
    return x


def with_past(made: Any, x: Tensor, past_key_values: Any = None) -> Tensor:
    return x


def with_height(made: Any, x: Tensor, H: int, W: int) -> Tensor:
    return x


def of_q_and_k(made: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q, k


def by_length(made: Any, seq_len: int) -> Tensor:
    return torch.zeros(3, seq_len, seq_len)


def with_a_mask(made: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor) -> Tensor:
    return value


@pytest.mark.parametrize(
    ("subject", "got", "meant"),
    [
        (Layer(build=nothing, call=with_ids), "position_ids", "positions"),
        (Layer(build=nothing, call=with_mask), "attention_mask", "padding"),
        (Model(build=nothing, call=with_past), "past_key_values", "cache"),
        (Layer(build=nothing, call=with_height), "H", "grid"),
        (Rotary(build=nothing, call=of_q_and_k), "q", "query"),
        (Bias(build=nothing, call=by_length), "seq_len", "query_length"),
        (Attention(build=nothing, call=with_a_mask), "attn_mask", "visible"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_usual_names_of_parameters_are_known(subject: Subject, got: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"got '{got}' \(did you mean '{meant}'\?\)$"):
        prepare_subject(subject)


def test_what_is_meant_is_given_by_some_kind() -> None:
    given = {name for kind in (Rotary, Bias, Attention, Layer) for name in kind.known_parameters}
    assert {name for names in COMMON_PARAMETER_NAMES for name in names} <= given
    assert not given & set(" ".join(COMMON_PARAMETER_NAMES.values()).split())


# -- calls that do not give what they should ---------------------------------------------------------------------------


def without_its_cache(made: Any, x: Tensor, cache: Any = None) -> Tensor:
    return x


def with_weights(made: Any, x: Tensor) -> Any:
    return x, x


def on_a_grid(made: Any, x: Tensor, grid: tuple[int, int], cache: Any = None) -> tuple[Tensor, Any]:
    height, width = grid
    return x * height * width, cache


def tokens_first(made: Any, x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def one_for_all(made: Any, x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True)


def of_twelve_heads(made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return torch.zeros(12, query_positions.size(1), key_positions.size(1))


def of_wide_heads(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return x * torch.ones(64)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (
            Layer(build=nothing, call=without_its_cache),
            "call takes a cache, so it must end with `return output, cache`; it gave Tensor",
        ),
        (
            Layer(build=nothing, call=with_weights),
            "call must give a tensor (rows, tokens, …), got a tuple of 2: end it with `return output`, or let it take "
            "a `cache`, if the second is one",
        ),
        (
            Layer(build=nothing, call=on_a_grid),
            "Where a row has no grid, `grid` is None: give it a default, the shape that so many tokens have by itself",
        ),
        (
            Layer(build=nothing, call=tokens_first),
            "call must give (rows, tokens, …), here (1, 5) and more, got (5, 1, 32): end it with `return "
            "output.transpose(0, 1)`",
        ),
        (Layer(build=nothing, call=one_for_all), "here (1, 5) and more, got (1, 1, 32)"),
        (Bias(build=nothing, call=of_twelve_heads), "It was run with heads=3 and head_dim=16: set what your code has"),
        (Rotary(build=nothing, call=of_wide_heads), "set what your code has by Rotary(heads=…, head_dim=…)"),
        (Layer(build=nothing, call=of_wide_heads), "It was run with dim=32: set what your code has by Layer(dim=…)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.call.__name__,
)
def test_what_call_must_give_is_said_in_a_sentence(subject: Subject, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        prepare_subject(subject)


# -- reasons and remedies ----------------------------------------------------------------------------------------------

BEGINNINGS = ("claim ", "let ", "name in ", "give ", "build ", "run ", "install ", "unset ", NOTHING_TO_DO)
BARE_ROTARY = Rotary(build=nothing, call=rotate)
# A layer that takes vectors alone and claims nothing: what it lacks is what a new user is told to add.
BARE = Layer(build=nn.Linear, call=call_module, options={"in_features": 32, "out_features": 32})


@pytest.mark.parametrize("subject", first_of([BARE_ROTARY, BARE]))
def test_reasons_begin_with_what_can_be_done(subject: Subject) -> None:
    quick = [entry.number for entry in CHECKS if entry.number not in (1, 5)]
    trials = [trial for result in check(subject, checks=quick).results for trial in result.trials]
    reasons = {trial.reason for trial in trials if trial.status == NOT_APPLICABLE}
    assert len(reasons) > 10
    assert [reason for reason in reasons if not reason.startswith(BEGINNINGS)] == []


def written_reasons() -> Iterator[tuple[str, str]]:
    """The place and the beginning of every reason that is written where it is given."""
    for path in sorted(Path(posenc_check.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                at = {"require": 1, "applies": 1, "NotApplicableError": 0}.get(node.func.id)
                reason = None if at is None else node.args[at]
                start = reason.values[0] if isinstance(reason, ast.JoinedStr) else reason
                if isinstance(start, ast.Constant):
                    said = NOTHING_TO_DO if node.func.id == "applies" else str(start.value)
                    yield f"{path.name}, line {node.lineno}", said


def test_reasons_that_are_written_begin_with_what_can_be_done() -> None:
    reasons = dict(written_reasons())
    assert len(reasons) > 100
    assert {place: said for place, said in reasons.items() if not said.startswith(BEGINNINGS)} == {}


def test_every_trial_says_what_to_do_about_a_finding() -> None:
    assert [trial.name for entry in CHECKS for trial in entry.trials if not entry.remedy_of(trial)] == []
