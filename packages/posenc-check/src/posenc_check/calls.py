"""Inspects a call: its arguments, its gradients, and the tensors that an object holds.

Plain PyTorch: scripts hold a copy of what they need.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial, wraps
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.outcome import Outcome
from posenc_check.subjects import VOCABULARY, Batch, Subject, require


def with_call(subject: Subject, call: Callable[..., Any]) -> Subject:
    """The subject with another function in place of ``call``, with the signature of the old one."""
    return replace(subject, call=wraps(subject.call)(call))


def arguments_of(subject: Subject, made: Any, batch: Batch) -> dict[str, Any]:
    """The arguments of the first call for a batch, by name, without the built subject."""

    class ArgumentsCapturedError(Exception):
        pass

    captured: dict[str, Any] = {}

    def call(*given: Any, **named: Any) -> Any:
        bound = inspect.signature(subject.call).bind(*given, **named).arguments
        captured.update(list(bound.items())[1:])
        raise ArgumentsCapturedError

    with suppress(ArgumentsCapturedError):
        with_call(subject, call).run(made, batch)
    return captured


def with_leaves(subject: Subject, leaves: dict[str, Tensor]) -> Subject:
    """The subject, for one run, whose call gets these leaves, by name, for its tensors; it adds missing ones."""
    calls = iter(range(1, 1_000_000))

    def call(*given: Any, **named: Any) -> Any:
        number = next(calls)
        bound = inspect.signature(subject.call).bind(*given, **named)
        for name, value in list(bound.arguments.items())[1:]:
            if isinstance(value, Tensor) and value.is_floating_point():
                leaf = name if number == 1 else f"{name} of call {number}"
                bound.arguments[name] = leaves.setdefault(leaf, value.detach().clone().requires_grad_())
        return subject.call(*bound.args, **bound.kwargs)

    return with_call(subject, call)


def parameters_of(made: Any) -> dict[str, Tensor]:
    """The parameters of a module, by name; none of anything else."""
    return dict(made.named_parameters()) if isinstance(made, nn.Module) else {}


def weighted(out: Tensor) -> Tensor:
    """A weighted sum of all outputs, with fixed weights."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    return (out * weights.to(out)).sum() / max(out.numel(), 1) ** 0.5


def gradients_of(
    subject: Subject, made: Any, batch: Batch, leaves: dict[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradients of its `weighted` sum, by name, of parameters and of call's vectors."""
    leaves = {} if leaves is None else leaves
    with torch.enable_grad():
        out = with_leaves(subject, leaves).run(made, batch)
        trained = {name: leaf for name, leaf in (parameters_of(made) | leaves).items() if leaf.requires_grad}
        if not trained or not out.requires_grad:
            return out.detach(), {name: torch.zeros_like(leaf) for name, leaf in trained.items()}
        counted = out if batch.document is None else batch.masked_outputs(out)
        found = torch.autograd.grad(weighted(counted), list(trained.values()), allow_unused=True)
    zeroed = (torch.zeros_like(leaf) if g is None else g for leaf, g in zip(trained.values(), found, strict=True))
    return out.detach(), dict(zip(trained, zeroed, strict=True))


def gradient_tolerances(subject: Subject, batch: Batch, highest: int) -> dict[str, float]:
    """How far two equal gradients may be apart, by name, as `TrialPlan.tolerance` says it for outputs."""
    single = replace(subject, dtype=torch.float32 if subject.dtype == torch.float64 else subject.dtype)
    exact, rounded = (gradients_of(one, one.make(), batch)[1] for one in (subject, single))
    sizes = {name: float(g.abs().max()) if g.numel() else 0.0 for name, g in exact.items()}
    # A gradient that is zero in theory, such as that of the bias of all keys, is the rounding of the others.
    least = max(256 * torch.finfo(subject.dtype).eps, 8 * subject.eps() if subject.computes_in else 0.0)
    least *= max(sizes.values(), default=0.0)
    noise = {n: 8 * float((g - rounded[n].to(g)).abs().max()) if g.numel() else 0.0 for n, g in exact.items()}
    return {name: max(least, noise[name]) + 4 * 2**-23 * highest * sizes[name] for name in exact}


def with_tokens(batch: Batch, tokens: int, axes: int = 0) -> Batch:
    """One row of that many tokens, the first of the batch and then ids in steps of 7, with positions of these axes."""
    positions = [[n if axes == 1 else [n] * axes for n in range(tokens)]]
    return Batch([[(batch.ids[0][0] + 7 * n) % VOCABULARY for n in range(tokens)]], positions if axes else None)


def one_line(error: BaseException) -> str:
    """The first line of an error, without colours and without addresses, which differ from run to run."""
    text = re.sub(r"\x1b\[[0-9;]*m| at 0x[0-9a-fA-F]+", "", str(error))
    return f"{type(error).__name__}: {text.strip().splitlines()[0] if text.strip() else ''}"


def require_module(made: Any) -> nn.Module:
    """NotApplicableError unless it is one."""
    require(isinstance(made, nn.Module), "let build give an nn.Module, to run this")
    return made


def poison(module: nn.Module) -> None:
    """Fills all parameters and buffers with NaN, or with integers that are out of every range."""
    with torch.no_grad():
        for held in (*module.parameters(), *module.buffers()):
            if held.is_floating_point() or held.is_complex():
                held.fill_(torch.nan)
            else:
                held.fill_(True if held.dtype == torch.bool else torch.iinfo(held.dtype).max)


def with_difference_named(outcome: Outcome, normal: nn.Module, other: nn.Module) -> Outcome:
    """The outcome; if it did not hold, it names the parameters and buffers that differ from a normal build."""
    if outcome.ok:
        return outcome
    held = [{**dict(module.named_parameters()), **dict(module.named_buffers())} for module in (normal, other)]
    apart = [name for name, x in held[0].items() if name not in held[1] or not torch.equal(x, held[1][name])]
    told = f"; {', '.join(apart[:3])} {'is' if len(apart) == 1 else 'are'} not as in a normal build" if apart else ""
    return outcome._replace(actual=outcome.actual + told)


def attributes_of(thing: Any, path: str = "it", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Every tensor and plain value that an object reaches, with its path, but not through torch or modules."""
    seen = set() if seen is None else seen
    if isinstance(thing, Tensor | int | float | complex | str | bytes | range | torch.dtype | torch.device | None):
        yield path, thing
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    for name, part in _inside(thing):
        yield from attributes_of(part, path + name, seen)


def _inside(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        return [(f"[{key!r}]", thing[key]) for key in thing if isinstance(key, str | int | float | tuple)]
    if isinstance(thing, Sequence):
        return [(f"[{n}]", part) for n, part in enumerate(thing)]
    if isinstance(thing, Set):
        return [("{}", str(sorted(map(str, thing))))]
    if isinstance(thing, partial):
        return [(".func", thing.func), (".args", thing.args), (".keywords", thing.keywords)]
    if isinstance(thing, MethodType):
        return [("", thing.__self__)]
    if isinstance(thing, FunctionType):
        return [*_closure_of(thing), ("'s defaults", thing.__defaults__ or ()), ("", vars(thing))]
    if isinstance(thing, type | ModuleType) or not hasattr(thing, "__dict__"):
        return []
    named = dict(vars(thing))
    if isinstance(thing, nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            named |= named.pop(kind)
    elif type(thing).__module__.split(".")[0] == "torch":
        return []
    # The value of a cached property follows from the object. Only tensors can become stale: by another device, dtype or
    # inference mode.
    kept = {name for name in named if isinstance(getattr(type(thing), name, None), cached_property)}
    return [
        (f".{name}", part)
        for name, part in named.items()
        if name not in kept or any(isinstance(value, Tensor) for _, value in attributes_of(part))
    ]


def _closure_of(function: FunctionType) -> list[tuple[str, Any]]:
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is empty
            found.append((f"'s {name}", cell.cell_contents))
    return found
