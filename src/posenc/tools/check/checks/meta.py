"""Checks that a module built on "meta", materialised and loaded, equals a normal build (check 3)."""

import inspect

import torch

from posenc.tools.check.calls import naming_what_differs, poison, require_module
from posenc.tools.check.outcome import Outcome, near
from posenc.tools.check.subjects import Batch, Subject
from posenc.tools.check.trial import Check, Trial, texts

RESETS = ("reset_parameters", "init_weights", "reset")  # the usual names of the method that initialises parameters


def loaded_is_as_built(subject: Subject, batch: Batch, assign: bool, tolerance: float) -> Outcome:
    """A module built on "meta", materialised, poisoned, reset, and loaded from a normal build, equals that build."""
    normal = require_module(subject.make())
    expected = subject.run(normal, batch)
    with torch.random.fork_rng(devices=()):
        subject.sow()
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
    return naming_what_differs(near(expected, subject.run(built, batch), tolerance), normal, built)


# -- cases -------------------------------------------------------------------------------------------------------------

CHECK = Check(
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
