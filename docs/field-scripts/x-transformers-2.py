# A finding of posenc check, which this script repeats without posenc.
# x_transformers, rotary: check 1, phase, angles
# In bfloat16, float16 and under autocast, far positions are as exact as near ones.

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb


class NotApplicableError(Exception):
    """The subject cannot take part in a trial: the message says why."""


@dataclass(frozen=True)
class Batch:
    ids: list[list[int]]
    positions: list[list[Any]] | None = None
    document: list[list[int]] | None = None
    order: list[list[int]] | None = None
    chunks: tuple[int, ...] = ()
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    grid: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    build: Callable[..., Any]
    call: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    threshold: int | None = None
    axes: int = 1
    jitter: float = 0.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    seed: int = 0

    def make(self, **changed: Any) -> Any:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed)
            made = self.build(**{**self.options, **changed})
            if isinstance(made, nn.Module):
                with torch.no_grad():
                    for parameter in made.parameters():
                        if parameter.requires_grad:  # what is frozen, such as a table of sines, is as it must be
                            parameter.add_(self.jitter * torch.randn(parameter.shape))
                made = made.to(self.device, self.dtype).eval()
        return made

    def takes(self, name: str) -> bool:
        return name in inspect.signature(self.call).parameters


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    heads: int = 3
    head_dim: int = 16


@dataclass(frozen=True, kw_only=True)
class Rotary(_Heads):
    frequencies: Sequence[float] | None = None
    base: float | None = None
    layout: str | None = None
    rotary_dim: int | None = None

    def rotate(self, made: Any, x: Tensor, positions: Tensor, which: int = 0) -> Tensor:
        names = list(inspect.signature(self.call).parameters)[1:]
        given: dict[str, Any] = {name: x for name in names if name in ("x", "query", "key")}
        if "positions" in names:
            given["positions"] = positions
        else:
            start = int(positions[0, 0]) if positions.dim() == 2 else 0
            run = torch.arange(start, start + x.size(2), device=x.device).expand(x.size(0), -1)
            if positions.dim() != 2 or not torch.equal(positions, run):
                raise NotApplicableError("call takes no positions of each token")
            if start and "offset" not in names:
                raise NotApplicableError("call takes neither positions nor an offset")
            if "offset" in names:
                given["offset"] = start
        out = self.call(made, **given)
        return out[which] if isinstance(out, tuple) else out


class Outcome(NamedTuple):
    ok: bool
    expected: str
    came: str


def near(expected: Tensor, came: Tensor, tolerance: float) -> Outcome:
    if expected.shape != came.shape:
        return Outcome(False, f"shape {tuple(expected.shape)}", f"shape {tuple(came.shape)}")
    if expected.numel() == 0:
        return Outcome(True, "nothing", "nothing")
    off = (came.double() - expected.double()).abs().nan_to_num(torch.inf)
    worst, flat = float(off.max()), int(off.argmax())
    at: list[int] = []
    for size in reversed(off.shape):
        flat, index = divmod(flat, size)
        at.insert(0, index)
    return Outcome(
        worst <= tolerance,
        f"{float(expected[tuple(at)]):.6g} at {at}",
        f"{float(came[tuple(at)]):.6g}, off by {worst:.2g} (at most {tolerance:.2g})",
    )


def first_failure(outcomes: "list[tuple[str, Outcome]]") -> Outcome:
    for name, outcome in outcomes:
        if not outcome.ok:
            return Outcome(False, f"{name}: {outcome.expected}", f"{name}: {outcome.came}")
    return Outcome(True, "all", "all")


def rotate(module, x, positions):
    freqs, scale = module(positions)
    return apply_rotary_pos_emb(x, freqs, scale)


def row_of(batch: Batch) -> list[Any]:
    assert batch.positions is not None
    return batch.positions[0]


def first_axis(position: Any) -> int:
    return position[0] if isinstance(position, list) else position


def sides(subject: Rotary) -> list[tuple[str, int]]:
    return [("query", 0), ("key", 1)] if subject.takes("key") else [("x", 0)]


def turned(subject: Rotary, made: Any, vectors: Tensor, positions: list[Any], which: int = 0) -> Tensor:
    def at(where: Any) -> Tensor:
        here = torch.tensor(where, device=vectors.device)
        x = vectors[:, None, None].repeat(1, subject.heads, len(where), 1)
        return subject.rotate(made, x, here.repeat(len(vectors), *[1] * here.dim()), which).detach()

    if subject.takes("positions"):
        return at(positions)
    if not subject.takes("offset"):
        return at(list(range(max(positions) + 1)))[:, :, positions]
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    return torch.cat([at(run) for run in runs], 2)


def matrices(subject: Rotary, made: Any, positions: list[Any], which: int = 0) -> Tensor:
    basis = torch.eye(subject.head_dim, device=subject.device, dtype=subject.dtype)
    return turned(subject, made, basis, positions, which).permute(2, 1, 3, 0)


def unit(rotations: Tensor) -> Tensor:
    rotations = rotations.double()
    return rotations / rotations.norm(dim=-2, keepdim=True)


def pairs(subject: Rotary, layout: str) -> list[tuple[int, int]]:
    rotary = subject.rotary_dim or subject.head_dim
    if layout == "half":
        return [(c, c + rotary // 2) for c in range(rotary // 2)]
    return [(2 * c, 2 * c + 1) for c in range(rotary // 2)]


def claimed(subject: Rotary, positions: list[Any], like: Tensor) -> Tensor | None:
    rotary = subject.rotary_dim or subject.head_dim
    if subject.frequencies is not None:
        theta = [float(frequency) for frequency in subject.frequencies]
    elif subject.base is not None:
        theta = [subject.base ** (-2 * c / rotary) for c in range(rotary // 2)]
    else:
        return None
    if subject.threshold is not None and max(map(first_axis, positions)) >= subject.threshold:
        return None
    if len(theta) > rotary // 2:
        raise ValueError(f"frequencies must be at most {rotary // 2}, one for each pair of channels, got {len(theta)}")
    angle = (
        torch.tensor([first_axis(p) for p in positions], dtype=torch.float64)[:, None] * torch.tensor(theta).double()
    )
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
    made = subject.make()
    if isinstance(made, nn.Module):
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter.copy_(parameter.to(dtype))
    return made


def fastest(subject: Rotary) -> float:
    return max([1.0, *map(abs, subject.frequencies or ())])


def lowered(
    subject: Subject, dtype: torch.dtype, autocast: torch.dtype | None, measure: Callable[..., Tensor], *rest: Any
) -> Tensor:
    low = replace(subject, dtype=dtype)
    made = low.make()
    try:
        with torch.autocast(torch.device(subject.device).type, autocast or torch.bfloat16, autocast is not None):
            return measure(low, made, *rest)
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        raise NotApplicableError(f"in {dtype}, PyTorch says {error}") from None


def angles_are_exact(subject: Rotary, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcome:
    one = 1 if subject.axes == 1 else [1] * subject.axes
    asked = [one, *row_of(batch)]
    low = torch.finfo(autocast or dtype)
    made, found = with_weights_in(subject, dtype), []
    for name, which in sides(subject):
        exact = matrices(subject, made, asked, which)
        lengths = exact.double().norm(dim=-2)
        exact = unit(exact)
        if float((exact[0] - torch.eye(subject.head_dim, device=exact.device)).abs().max()) < 2**-23:
            raise NotApplicableError("position 1 turns nothing")
        expected = claimed(subject, asked, exact)
        if expected is None and subject.takes("positions"):
            powers = [torch.linalg.matrix_power(exact[0], first_axis(p)) for p in asked]
            expected = torch.stack(powers)
        came = unit(lowered(subject, dtype, autocast, matrices, asked, which))
        for n, p in enumerate(asked):
            if float(lengths[n].max()) > low.max or float(lengths[n].min()) < low.tiny:
                continue  # what is that long or short has no number in the dtype, or one of few digits
            # A phase p theta in float32 takes some four roundings of up to a unit (the exponent, the power, its
            # reciprocal, the product), each worth p theta 2^-23 at most. Then cos and sin are rounded to the dtype, and
            # so is what they are multiplied with and added up to: four times half a unit.
            tolerance = 4 * 2**-23 * first_axis(p) * fastest(subject) + 2 * low.eps
            found.append((f"{name} at {p}", near((exact if expected is None else expected)[n], came[n], tolerance)))
    return first_failure(found)


subject = Rotary(
    build=RotaryEmbedding,
    call=rotate,
    options={'dim': 16, 'base': 10000},
    base=10000.0,
    layout='interleaved',
)
batch = Batch(ids=[[0]], positions=[[39]])
try:
    outcome = angles_are_exact(subject, batch, dtype=torch.bfloat16, autocast=None)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
