"""Resolves the target of the command line, such as ``module:name`` or ``path/to/file.py:name``, to subjects."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from typing import Any

from torch import nn

from posenc.schemes.user_code import TargetError, is_importable, load_object
from posenc_check.standalone import is_at_top_level
from posenc_check.subjects import Layer, Subject, call_module

PRETRAINED = "hf:"


def subjects_of(target: str, dim: int | None = None, **claims: Any) -> dict[str, Subject]:
    """The subjects that a target gives, by what they are to be called.

    The name in it is a subject, a sequence or a mapping of subjects, a function that gives one of these, or a function
    or class that gives an ``nn.Module`` without arguments. A model of transformers goes to `hugging_face`; any other
    module is a `Layer` from (rows, tokens, dim) to the same, called with vectors alone. ``claims`` are for modules.
    ``hf:PATH_OR_NAME`` is a model of transformers in a folder or on the hub, whose configuration claims for it.

    Raises ValueError for a target that is none of these, and `TargetError` where its own code fails.
    """
    if target.startswith(PRETRAINED):
        return _of_pretrained(target, dim, claims)
    value, module = load_object(target, "TARGET")
    if not is_importable(module):
        named = "must have a name that scripts can import, and no other module has: rename it"
        raise ValueError(f"{target.rpartition(':')[0]} {named}")
    if callable(value) and not isinstance(value, Subject | nn.Module):
        build = value
        needed = list[str]()
        with suppress(ValueError, TypeError):  # it has no signature
            every = signature(build).parameters.values()
            needed = [x.name for x in every if x.default is x.empty and x.kind < x.VAR_POSITIONAL]
        if needed:
            raise ValueError(f"{target} must take no arguments, or be a subject's call: it takes {', '.join(needed)}")
        try:
            value = build()
        except (Exception, SystemExit) as error:
            raise TargetError(f"{target}()", error) from error
        if isinstance(value, nn.Module):
            return {target: _of_module(target, build, value, dim, claims)}
    found = _flat(target, value)
    for name, value in [("dim", dim)] * (dim is not None) + list(claims.items()):
        flag = "--absolute" if (name, value) == ("relative", False) else "--" + name.replace("_", "-")
        raise ValueError(f"{flag} is for a module; {target} is a subject, which claims for itself")
    return found


def _of_pretrained(target: str, dim: int | None, claims: dict[str, Any]) -> dict[str, Subject]:
    """A model saved by transformers; if it has no weights, they are random, and its name says so."""
    from posenc_check.pretrained import build_eager, build_pretrained, pretrained

    found = pretrained(target.removeprefix(PRETRAINED))
    build = build_pretrained if found.takes_implementation else build_eager
    subject = _of_transformers(target, build, dim, {"options": found.options, **found.claims, **claims})
    if "relative" not in claims and not subject.can("positions"):  # a claim of its configuration, which none could try
        subject = replace(subject, relative=None)
    return {target if found.has_weights else f"{target} (random weights: it has none)": subject}


def _of_transformers(target: str, build: Callable[..., Any], dim: int | None, claims: Mapping[str, Any]) -> Subject:
    from posenc_check import hugging_face

    if dim is not None:
        raise ValueError(f"--dim is for a module that takes vectors; {target} is a model of transformers")
    return hugging_face(build, **claims)


def _flat(target: str, value: Any) -> dict[str, Subject]:
    if isinstance(value, Subject):
        return {target: value}
    several = dict(enumerate(value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
    found = {f"{target}[{key}]": item for key, item in several.items()} if isinstance(several, Mapping) else {}
    if not found or not all(isinstance(item, Subject) for item in found.values()):
        hint = ", which is built already: name what builds it" if isinstance(value, nn.Module) else ""
        raise ValueError(
            f"{target} must be a subject, several of them, or a function or class that gives one or an nn.Module, got "
            f"{'None' if value is None else type(value).__name__}{hint}"
        )
    return found


def _of_module(
    target: str, build: Callable[..., Any], made: nn.Module, dim: int | None, claims: dict[str, Any]
) -> Subject:
    if not is_at_top_level(build):
        raise ValueError(f"{target} must be a function or class that a file has at its top level, got {build!r}")
    # Finds a PreTrainedModel without importing transformers.
    if any(k.__name__ == "PreTrainedModel" and k.__module__.startswith("transformers.") for k in type(made).__mro__):
        return _of_transformers(target, build, dim, claims)
    if dim is None:
        raise ValueError(f"--dim N must say how wide the vectors are that {target} takes, (rows, tokens, N)")
    if "relative" in claims:
        raise ValueError(
            f"--relative and --absolute are for what is given positions; {target} is given vectors alone: "
            "describe it as a posenc_check.Layer whose call takes `positions`"
        )
    return Layer(build=build, call=call_module, dim=dim, **claims)
