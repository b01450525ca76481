"""Checks that a call writes nothing but constant tables, and that no call changes another (check 5)."""

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.calls import attributes_of, gradient_tolerances, gradients_of, one_line, with_call, with_tokens
from posenc_check.outcome import Outcome, Outcomes, first_failure, near
from posenc_check.subjects import REFUSALS, Batch, Bias, NotApplicableError, Rotary, Subject, applies
from posenc_check.trial import Case, Check, Trial, TrialPlan

BETWEEN = ("the same", "shorter", "longer", "others", "bfloat16", "autocast", "inference mode")


def nothing_is_written(subject: Subject, batch: Batch) -> Outcome:
    """The state_dict, torch's random state and default dtype are the same before and after a call; and everything that
    the subject holds is the same after a second call. So the first call may make tables, which then stay."""
    made = subject.make()

    def saved() -> dict[str, Any]:
        state = made.state_dict() if isinstance(made, nn.Module) else {}
        return as_now({f"it.{name}": x for name, x in state.items()})

    before = saved()
    subject.run(made, batch)
    actual, once = changed_attributes(before, saved()), as_now(dict(attributes_of(made)))
    subject.run(made, batch)
    actual = list(dict.fromkeys(actual + changed_attributes(once, as_now(dict(attributes_of(made))))))
    return Outcome(not actual, "nothing written", "; ".join(actual[:3]) or "nothing written")


def changed_attributes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two states."""
    found = [f"{name} is new" for name in after if name not in before]
    found += [f"{name} is gone" for name in before if name not in after]
    return found + [f"{name} changed" for name in after if name in before and not equal(before[name], after[name])]


def inputs_stay_as_they_are(subject: Subject, batch: Batch) -> Outcomes:
    """Every tensor that call is given is the same after it."""
    found: list[tuple[str, Outcome]] = []

    def call(*given: Any, **named: Any) -> Any:
        bound = inspect.signature(subject.call).bind(*given, **named).arguments
        tensors = {name: x for name, x in list(bound.items())[1:] if isinstance(x, Tensor)}
        before = {name: x.clone() for name, x in tensors.items()}
        out = subject.call(*given, **named)
        found.extend((name, near(before[name], x, 0.0)) for name, x in tensors.items())
        return out

    with_call(subject, call).run(subject.make(), batch)
    yield from found


def no_call_changes_another(subject: Subject, batch: Batch, between: str, limit: int, tolerance: float) -> Outcomes:
    """A call gives the same before and after others, and, if the subject is causal, at the start of a longer row."""
    if isinstance(subject, Rotary | Bias):
        subject = replace(subject, causal=True)  # attention is not theirs, and so the start of a longer row is known
    if between == "autocast":
        subject = replace(subject, dtype=torch.float32)
    # Each kind of call has a length of its own, since tables kept by length may be kept for good.
    longer = with_tokens(batch, min(2 * batch.tokens + 3 + BETWEEN.index(between), limit))
    made, before = subject.make(), torch.get_rng_state()
    first = subject.run(made, batch)
    if between == "the same":
        outcome = near(first, subject.run(made, batch), 0.0)  # the arithmetic is the same
        still = torch.equal(before, torch.get_rng_state())
        drawn = "" if still else ", by numbers that each call draws: is dropout on?"
        yield "again", Outcome(outcome.ok, outcome.expected, outcome.actual + drawn)
        return
    try:
        call_between(subject, made, between, batch if between == "shorter" else longer)
        if between in ("bfloat16", "autocast"):  # also in the same shape, by which tables may be kept
            call_between(subject, made, between, batch)
    except (RuntimeError, *REFUSALS) as error:
        if between not in ("bfloat16", "autocast"):
            raise
        raise NotApplicableError(f"nothing to do: it does not run with {between}: {one_line(error)}") from error
    yield "again", near(first, subject.run(made, batch), tolerance)
    if subject.causal and subject.threshold is None:
        start = subject.run(made, replace(longer, ids=[(batch.ids[0] + longer.ids[0])[: longer.tokens]]))
        yield "at the start of more tokens", near(first[:1], start[:1, : batch.tokens], tolerance)


def call_between(subject: Subject, made: Any, how: str, batch: Batch) -> None:
    """A call, or calls, of another kind."""
    modes: dict[str, AbstractContextManager[Any]] = {
        "autocast": torch.autocast(torch.device(subject.device).type, torch.bfloat16),
        "inference mode": torch.inference_mode(),
    }
    if how == "bfloat16":
        subject = replace(subject, dtype=torch.bfloat16)
    if how == "shorter":
        batch = batch.pick(range((batch.tokens + 1) // 2))
    with modes.get(how, nullcontext()):
        for other in others(subject) if how == "others" else [made]:
            subject.run(other, batch)


def others(subject: Subject) -> Iterator[Any]:
    """Builds with other options, if they are not refused, and with another seed."""
    for name, value in subject.varied.items():
        try:
            yield subject.make(**{name: value})
        except (ValueError, TypeError, AssertionError):
            continue
    yield subject.with_next_seed().make()


def inference_mode_leaves_no_trace(subject: Subject, batch: Batch, highest: int) -> Outcome:
    """The gradients after a call in inference mode, against those of a new build."""
    made = subject.make()
    with torch.inference_mode():
        subject.run(made, batch)
    given: list[Any] = []

    def call(*arguments: Any, **named: Any) -> Any:
        given.append(subject.call(*arguments, **named))
        return given[-1]

    _, actual = gradients_of(with_call(subject, call), made, batch)
    outs = [x for out in given for x in (out if isinstance(out, tuple) else (out,))]
    if any(isinstance(x, Tensor) and x.is_inference() for x in outs):
        return Outcome(False, "outputs that can be trained with", "one that was made under inference mode")
    applies(actual, "nothing in it is trained, and call takes no vectors")
    _, expected = gradients_of(subject, subject.make(), batch)
    tolerances = gradient_tolerances(subject, batch, highest)
    return first_failure([(name, near(expected[name], actual[name], tolerances[name])) for name in expected])


def as_now(held: dict[str, Any]) -> dict[str, Any]:
    """A copy of these values, and of torch's random state and default dtype."""
    held = {name: x.detach().clone() if isinstance(x, Tensor) else x for name, x in held.items()}
    return held | {"the random state": torch.get_rng_state(), "the default dtype": torch.get_default_dtype()}


def equal(a: Any, b: Any) -> bool:
    """Whether two tensors or plain values are the same; NaN equals NaN."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return a.is_meta or bool(((a == b) | ((a != a) & (b != b))).all())


# -- cases -------------------------------------------------------------------------------------------------------------


def _texts(plan: TrialPlan, with_positions: bool = False) -> Iterator[Case]:
    for tokens in plan.sizes:
        yield Case(plan.text(2, tokens))
        if with_positions and plan.subject.can("positions"):
            yield Case(plan.line(2, tokens))


def _between(plan: TrialPlan, which: str) -> Iterator[Case]:
    # bfloat16 represents positions up to 256 exactly: only past those can it spoil a table that later calls use.
    for tokens in [*plan.sizes, *([plan.room(300)] if which == "bfloat16" and plan.limit >= 300 else [])]:
        tolerance = 0.0 if which == "the same" else plan.tolerance(2 * tokens + 9)
        yield Case(plan.text(1, tokens), {"between": which, "limit": plan.limit, "tolerance": tolerance})


def _trained(plan: TrialPlan) -> Iterator[Case]:
    # Lengths that no other check begins with: global tables kept by length would exist already.
    for tokens in sorted({plan.room(5), plan.room(11)}):
        yield Case(plan.text(1, tokens), {"highest": tokens})


CHECK = Check(
    number=5,
    name="purity",
    rule="A call changes neither its inputs nor the module, except constant tables, and no call affects the result of "
    "another.",
    why="Tables that grow in a call keep the precision, mode and configuration of the first call.",
    pains=(5, 6, 15),
    remedy="Write nothing on the module or into the inputs: make tables new in each call, or by the length, dtype "
    "and device alone.",
    trials=(
        Trial("what is written", nothing_is_written, _texts),
        Trial("inputs", inputs_stay_as_they_are, _texts, {"with_positions": True}),
        *(Trial(f"calls between: {which}", no_call_changes_another, _between, {"which": which}) for which in BETWEEN),
        Trial("inference, then training", inference_mode_leaves_no_trace, _trained),
    ),
)
