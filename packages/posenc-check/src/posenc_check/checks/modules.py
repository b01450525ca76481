"""Checks modules built on "meta" (check 3), copied, cast, saved and loaded (check 4)."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from posenc_check.calls import one_line, poison, require_module, with_difference_named
from posenc_check.outcome import Outcome, near
from posenc_check.subjects import REFUSALS, Batch, NotApplicableError, Subject
from posenc_check.trial import Case, Check, Trial, TrialPlan, texts

RESETS = ("reset_parameters", "init_weights", "reset")  # the usual names of the method that initialises parameters


def loaded_is_as_built(subject: Subject, batch: Batch, assign: bool, tolerance: float) -> Outcome:
    """A module built on "meta", materialised, poisoned, reset, and loaded from a normal build, equals that build."""
    normal = require_module(subject.make())
    expected = subject.run(normal, batch)
    with torch.random.fork_rng(devices=()):
        subject.seed_all()
        with torch.device("meta"):
            built = subject.build(**subject.options)
        built = built.to_empty(device=subject.device)
        poison(built)
        for module in built.modules():
            for name in RESETS:
                reset = getattr(module, name, None)
                if callable(reset) and not inspect.signature(reset).parameters:
                    reset()
    built = built.to(subject.dtype)
    built.eval()
    built.load_state_dict(normal.state_dict(), assign=assign)
    return with_difference_named(near(expected, subject.run(built, batch), tolerance), normal, built)


def copied_is_as_before(subject: Subject, batch: Batch, how: str, used: bool, tolerance: float) -> Outcome:
    """A copy, made before or after a call, gives the same once the parameters of the original are overwritten."""
    made = require_module(subject.make())
    expected = subject.run(subject.make(), batch).detach()
    if used:
        subject.run(made, batch)
    try:
        twin = copy.deepcopy(made) if how == "deepcopy" else pickle.loads(pickle.dumps(made))
    except Exception as error:
        return Outcome(False, "a copy", one_line(error))
    poison(made)
    return with_difference_named(near(expected, subject.run(twin, batch).detach(), tolerance), subject.make(), twin)


def cast_and_back_rounds_parameters_alone(
    subject: Subject, batch: Batch, low: torch.dtype, used: bool, tolerance: float
) -> Outcome:
    """A module cast to ``low``, perhaps called, and cast back equals a normal build whose parameters were rounded."""
    subject = replace(subject, dtype=torch.float32)
    normal, made = require_module(subject.make()), subject.make()
    saved = normal.state_dict(keep_vars=True)
    with torch.no_grad():
        for learned in (*normal.parameters(), *(saved[name] for name in subject.state)):
            learned.copy_(learned.to(low).to(learned.dtype))
    expected = subject.run(normal, batch)
    if used:
        subject.run(made, batch)
    made = made.to(low)
    if used:
        try:
            replace(subject, dtype=low).run(made, batch)
        except (RuntimeError, *REFUSALS) as error:  # of dtypes, or of what is not implemented for one
            raise NotApplicableError(f"nothing to do: it does not run in {low}: {one_line(error)}") from error
    outcome = near(expected, subject.run(made.to(torch.float32), batch), tolerance)
    return with_difference_named(outcome, normal, made)


def loaded_by_another_is_as_saved(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """A module built with another seed gives the same after loading the state_dict."""
    saved, other = require_module(subject.make()), subject.with_next_seed().make()
    other.load_state_dict(saved.state_dict())
    return with_difference_named(near(subject.run(saved, batch), subject.run(other, batch), tolerance), saved, other)


def nothing_derived_is_saved(subject: Subject, batch: Batch) -> Outcome:
    """No buffer in the state_dict is the same for every seed, except claimed state and those of torch's own modules."""
    made, other = require_module(subject.make()), subject.with_next_seed().make()
    saved, drawn = made.state_dict(), other.state_dict()
    expected = {name for name, _ in made.named_parameters(remove_duplicate=False)} | set(subject.state)
    for path, module in made.named_modules():
        if type(module).__module__.startswith("torch.nn."):
            expected |= {f"{path}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False)}
    buffers = [name for name, value in saved.items() if name not in expected and isinstance(value, torch.Tensor)]
    derived = [name for name in buffers if torch.equal(saved[name], drawn[name])]
    return Outcome(not derived, "parameters, and what was drawn", ", ".join(derived) or "nothing else")


# -- cases -------------------------------------------------------------------------------------------------------------


FAR = 300  # tokens: bfloat16 has all whole numbers up to 256


def _copies(plan: TrialPlan, how: str) -> Iterator[Case]:
    made = plan.subject.make() if how == "pickle" else None
    if any(
        "<locals>" in type(each).__qualname__ for each in (made.modules() if isinstance(made, torch.nn.Module) else ())
    ):
        raise NotApplicableError("let its classes stand at module level: Python cannot pickle local classes")
    for used in (False, True):
        yield from texts(plan, how=how, used=used)


def _casts(plan: TrialPlan) -> Iterator[Case]:
    lengths = sorted({*plan.sizes, plan.room(FAR)})
    for tokens, low, used in product(lengths, plan.low_dtypes, (False, True)):
        yield Case(plan.text(1, tokens), {"low": low, "used": used, "tolerance": plan.tolerance(tokens)})


def _once(plan: TrialPlan) -> Iterator[Case]:
    yield Case(plan.text(1, plan.room(1)))


META_CHECK = Check(
    number=3,
    name="meta",
    rule='A module built on "meta", materialised, reset and loaded from a state_dict equals a normal build.',
    why="Large models are built on meta, and only parameters are loaded: tables in buffers then hold garbage.",
    pains=(2,),
    remedy="Compute tables in forward, or fill them in `reset_parameters` too, since no state_dict holds them.",
    trials=(
        Trial("loaded by copying", loaded_is_as_built, texts, {"assign": False}),
        Trial("loaded by assignment", loaded_is_as_built, texts, {"assign": True}),
    ),
)

LIFE_CYCLE_CHECK = Check(
    number=4,
    name="life cycle",
    rule="Copying, pickling, casting to half precision and back, saving and loading change nothing; no table is saved.",
    why="Tables in buffers are rounded with the module and never recover, and saved ones overrule the configuration.",
    pains=(2,),
    remedy="Keep no table that follows from the options: compute it in forward from integers, or keep it out of "
    "casts and of the state_dict.",
    trials=(
        Trial("deepcopy", copied_is_as_before, _copies, {"how": "deepcopy"}),
        Trial("pickle", copied_is_as_before, _copies, {"how": "pickle"}),
        Trial("cast and back", cast_and_back_rounds_parameters_alone, _casts),
        Trial("state_dict", loaded_by_another_is_as_saved, texts),
        Trial("what is saved", nothing_derived_is_saved, _once),
    ),
)
