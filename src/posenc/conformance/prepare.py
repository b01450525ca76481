"""Whether a subject can be checked: its claims are of their types, a script can be made of it, and it runs."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from inspect import Parameter, signature

import torch

from posenc.arguments import check_choice, check_flag, check_type, number, shown, whole
from posenc.conformance.heads import Attention, Bias, Rotary
from posenc.conformance.layers import Layer
from posenc.conformance.outcome import described
from posenc.conformance.standalone import check_sources
from posenc.conformance.subjects import Subject
from posenc.conformance.trial import Plan

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # those that outputs can be compared in


def prepared(subject: Subject) -> Subject:
    """The subject as it is checked, in float32 where it does not run in float64. ValueError as `check` has it."""
    check_type("subject", subject, Subject)
    _check_claims(subject)
    check_sources(subject)
    _check_parameters(subject)
    return _that_runs(subject)


def _check_claims(subject: Subject) -> None:
    """ValueError for a field of the subject that is not of its type, or that nothing could be."""
    values = vars(subject)
    for name in ("options", "varied", *(["other_layout"] if isinstance(subject, Rotary) else [])):
        check_type(name, values[name], Mapping)
    check_type("flat", subject.flat, Mapping, None)
    for name in ("refused", "backends", "state"):
        kind, kinds = (str, "names") if name == "state" else (Mapping, "mappings")
        if not isinstance(values[name], list | tuple) or not all(isinstance(item, kind) for item in values[name]):
            raise ValueError(f"{name} must be a list or tuple of {kinds}, got {shown(values[name])}")
    for name in ("causal", "linear_memory", "compiles", "exports", "symmetric"):
        check_flag(name, values[name])
    check_type("relative", subject.relative, bool, None)
    sizes = ["axes"]
    sizes += [name for name in ("max_positions", "distinct_to", "threshold") if values[name] is not None]
    sizes += ["heads", "head_dim"] if isinstance(subject, Rotary | Bias | Attention) else []
    sizes += ["dim"] if isinstance(subject, Layer) else []
    for name in sizes:
        whole(name, values[name])
    whole("registers", subject.registers, 0)
    whole("seed", subject.seed, -(2**63), 2**64 - 1)  # what a generator takes
    if number("jitter", subject.jitter) < 0:
        raise ValueError(f"jitter must be at least 0, got {subject.jitter}")
    check_choice("dtype", subject.dtype, DTYPES)
    if subject.computes_in is not None:
        check_choice("computes_in", subject.computes_in, DTYPES)
    if isinstance(subject, Rotary):
        _check_rotation(subject)
    if isinstance(subject, Bias):
        _check_numbers("slopes", subject.slopes)
        check_type("heads_option", subject.heads_option, str)
    check_type("device", subject.device, str, torch.device)
    try:
        float(torch.zeros((), device=subject.device))  # read too: "meta" holds no numbers
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device must be one that is here, got {str(subject.device)!r}, on which "
            f"the subject does not run: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from None


def _check_parameters(subject: Subject) -> None:
    """ValueError for a parameter of ``call`` that this kind of subject gives nothing to."""
    if not subject.gives:
        return
    for parameter in list(signature(subject.call).parameters.values())[subject.by_place :]:
        name, is_named = parameter.name, parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if is_named and name not in subject.gives:
            hint = "".join(f". Did you mean {close!r}?" for close in get_close_matches(name, subject.gives, 1))
            raise ValueError(
                f"call's parameters must be of those that a {type(subject).__name__} gives, "
                f"{', '.join(subject.gives)}; got {name!r}{hint}"
            )


def _check_rotation(subject: Rotary) -> None:
    for name in ("base", "scale"):
        if getattr(subject, name) is not None:
            number(name, getattr(subject, name), above=0)
    if subject.layout is not None:
        check_choice("layout", subject.layout, ("half", "interleaved"))
    if subject.rotary_dim is not None:
        whole("rotary_dim", subject.rotary_dim, 1, subject.head_dim)
    _check_numbers("frequencies", subject.frequencies)


def _check_numbers(name: str, values: object) -> None:
    """ValueError for what is neither None nor a list or tuple of finite numbers."""
    check_type(name, values, list, tuple, None)
    if isinstance(values, list | tuple):
        for index, value in enumerate(values):
            number(f"{name}[{index}]", value)


def _that_runs(subject: Subject) -> Subject:
    """The subject in float64, or in float32 where it cannot be run in that. ValueError where it cannot be run."""
    candidates = [subject] + [replace(subject, dtype=torch.float32)] * (subject.dtype == torch.float64)
    failure = Exception()
    for candidate in candidates:
        plan = Plan(candidate)
        try:
            with quiet():
                out = candidate.run(candidate.make(), plan.text(1, min(5, plan.limit)))
        except Exception as error:
            failure = error
            continue
        if not isinstance(out, torch.Tensor) or out.dim() < 3:
            raise ValueError(f"call must give a tensor (rows, tokens, …), got {_described(out)}")
        return candidate
    raise ValueError(
        f"the subject does not run: {described(failure)}. call is given what its parameters name"
    ) from failure


def _described(value: object) -> str:
    return f"one of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of what is checked, nor what the compiler logs of it."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
