"""Measures rotations channel by channel, and results in low precision. Plain PyTorch: scripts hold a copy."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check.heads import Rotary
from posenc.tools.check.subjects import REFUSALS, Batch, NotApplicableError, Subject, require


def row_of(batch: Batch) -> list[Any]:
    """The positions of a batch of one row."""
    assert batch.positions is not None
    return batch.positions[0]


def first_axis(position: Any) -> int:
    """The position, or its coordinate, which must be the same on every axis: only then is the expected rotation
    known."""
    if not isinstance(position, list):
        return position
    require(len(set(position)) == 1, f"nothing to do: what to expect of {position} is known on the diagonal alone")
    return position[0]


def of_two_tokens(batch: Batch) -> bool:
    """Whether every row has the same tokens, of which the first two differ."""
    return batch.tokens > 1 and len({tuple(row) for row in batch.ids}) == 1 and batch.ids[0][0] != batch.ids[0][1]


def sides(subject: Rotary) -> list[tuple[str, int]]:
    """What is rotated, by name and index: queries, and keys where they are rotated separately."""
    return [("query", 0), ("key", 1)] if subject.takes("key") else [("x", 0)]


def turned(subject: Rotary, made: Any, vectors: Tensor, positions: list[Any], which: int = 0) -> Tensor:
    """Every vector, rotated to every position: (vectors, heads, positions, head_dim) from (vectors, head_dim)."""

    def at(where: Any) -> Tensor:
        here = torch.tensor(where, device=vectors.device)
        x = vectors[:, None, None].repeat(1, subject.heads, len(where), 1)
        return subject.rotate(made, x, here.repeat(len(vectors), *[1] * here.dim()), which).detach()

    if subject.takes("positions"):
        return at(positions)
    if not subject.takes("offset"):
        return at(list(range(max(positions) + 1)))[:, :, positions]
    by_run = groupby(enumerate(positions), key=lambda numbered: numbered[1] - numbered[0])
    runs = [[position for _, position in run] for _, run in by_run]
    return torch.cat([at(run) for run in runs], 2)


def matrices(subject: Rotary, made: Any, positions: list[Any], which: int = 0) -> Tensor:
    """The rotation at every position, (positions, heads, head_dim, head_dim); column c is channel c, rotated."""
    basis = torch.eye(subject.head_dim, device=subject.device, dtype=subject.dtype)
    return turned(subject, made, basis, positions, which).permute(2, 1, 3, 0)


def unit(rotations: Tensor) -> Tensor:
    """The rotations without their scale, in float64."""
    rotations = rotations.double()
    return rotations / rotations.norm(dim=-2, keepdim=True)


def pairs(subject: Rotary, layout: str) -> list[tuple[int, int]]:
    """The channels of each pair."""
    half = (subject.rotary_dim or subject.head_dim) // 2
    return [(c, c + half) if layout == "half" else (2 * c, 2 * c + 1) for c in range(half)]


def frequencies(subject: Rotary) -> list[float] | None:
    """The radians per position of each pair that are claimed, by themselves or by the base; None: nothing is."""
    rotary = subject.rotary_dim or subject.head_dim
    if subject.frequencies is not None:
        return [float(frequency) for frequency in subject.frequencies]
    return None if subject.base is None else [subject.base ** (-2 * c / rotary) for c in range(rotary // 2)]


def claimed(subject: Rotary, positions: list[Any], like: Tensor) -> Tensor | None:
    """The rotations that are claimed, without their scale, in the shape of ``like``; None if nothing is claimed.

    Nothing is claimed for positions at or past a threshold, since frequencies may then depend on the length. Scores do
    not show in which direction queries and keys are rotated, if it is the same; nor, where no layout is claimed, which
    channels are pairs. So the result is the rotation nearest to ``like`` among those that the claim allows.
    """
    theta, most = frequencies(subject), (subject.rotary_dim or subject.head_dim) // 2
    if theta is None or (subject.threshold is not None and max(map(first_axis, positions)) >= subject.threshold):
        return None
    if len(theta) > most:
        raise ValueError(f"frequencies must be at most {most}, one for each pair of channels, got {len(theta)}")
    at = torch.tensor([first_axis(p) for p in positions], dtype=torch.float64)
    angle = at[:, None] * torch.tensor(theta).double()
    found = []
    for layout in [subject.layout] if subject.layout else ["half", "interleaved"]:
        for sign in (1, -1):
            turn = torch.eye(subject.head_dim, dtype=torch.float64).repeat(len(positions), 1, 1)
            for (a, b), phase in zip(pairs(subject, layout), angle.T, strict=False):
                turn[:, a, a] = turn[:, b, b] = phase.cos()
                turn[:, b, a] = sign * phase.sin()
                turn[:, a, b] = -sign * phase.sin()
            found.append(turn[:, None].to(like.device).expand_as(like))
    return min(found, key=lambda turn: float((turn - like).abs().nan_to_num(2.0).sum()))


def with_weights_in(subject: Subject, dtype: torch.dtype) -> Any:
    """Builds the subject, with trained parameters rounded to ``dtype``: what a module in that dtype has to compute
    with. Buffers and frozen parameters are not rounded, since they follow from the configuration."""
    made = subject.make()
    if isinstance(made, nn.Module):
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter.copy_(parameter.to(dtype))
    return made


def fastest(subject: Rotary) -> float:
    """The highest of the frequencies, 1 radian per position unless a higher one is claimed."""
    return max([1.0, *map(abs, subject.frequencies or ())])


def lowered(
    subject: Subject, dtype: torch.dtype, autocast: torch.dtype | None, measure: Callable[..., Tensor], *rest: Any
) -> Tensor:
    """``measure(subject, made, *rest)`` with the module and its inputs in ``dtype``, and under autocast to another."""
    low = replace(subject, dtype=dtype)
    made = low.make()
    try:
        with torch.autocast(torch.device(subject.device).type, autocast or torch.bfloat16, autocast is not None):
            return measure(low, made, *rest)
    except RuntimeError as error:
        if not any(lack in str(error) for lack in ("not implemented for", "Unexpected floating ScalarType")):
            raise
        raise NotApplicableError(f"nothing to do: in {dtype}, PyTorch says {error}") from None
    except REFUSALS as error:
        raise NotApplicableError(f"nothing to do: it refuses {autocast or dtype}: {error}") from None
