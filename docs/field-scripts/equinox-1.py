# A finding of posenc check, which this script repeats without posenc.
# equinox, rotary: check 14, configuration, options count
# Frequencies and lengths are those of the configuration; each option counts, and an unknown one is refused.

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import equinox
import jax
import numpy
import torch
from torch import Tensor, nn

PADDING = -1  # the document that no token belongs to
VOCABULARY = 48  # tokens are drawn from so many


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

    @property
    def tokens(self) -> int:
        return len(self.ids[0])


@dataclass(frozen=True, kw_only=True)
class Subject:
    build: Callable[..., Any]
    call: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = False
    axes: int = 1
    registers: int = 0
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

    def run(self, made: Any, batch: Batch) -> Tensor:
        raise NotImplementedError

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        raise NotApplicableError("call gives no log-sum-exp, so parts of the keys cannot be merged")

    def vectors(self, batch: Batch, size: int, which: int = 0) -> Tensor:
        table = torch.randn(VOCABULARY, size, generator=torch.Generator().manual_seed(which), dtype=torch.float64)
        return table[torch.tensor(batch.ids)].to(self.device, self.dtype)

    def places(self, batch: Batch) -> Tensor:
        if batch.positions is not None:
            return torch.tensor(batch.positions, device=self.device)
        if batch.grid is not None and self.axes == 2:
            height, width = batch.grid
            raster = [[0, 0]] * self.registers
            raster += [[row, column] for row in range(height) for column in range(width)]
            return torch.tensor([raster] * len(batch.ids), device=self.device)
        line = torch.arange(batch.tokens, device=self.device).expand(len(batch.ids), -1)
        return line if self.axes == 1 else line[..., None].expand(-1, -1, self.axes)

    def visible(self, batch: Batch) -> Tensor:
        shape = (len(batch.ids), batch.tokens)
        document = torch.tensor(batch.document, device=self.device) if batch.document else torch.zeros(shape).long()
        order = torch.tensor(batch.order) if batch.order else torch.arange(batch.tokens).expand(shape)
        seen = (document[:, :, None] == document[:, None, :]) & (document != PADDING)[:, None, :]
        if self.causal:
            seen = seen & (order[:, None, :] <= order[:, :, None])
        return seen.to(self.device)


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + bias
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores.softmax(-1), 0.0)
    return weights.to(value.dtype) @ value, scores.logsumexp(-1)


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    heads: int = 3
    head_dim: int = 16

    def run(self, made: Any, batch: Batch) -> Tensor:
        return self.partial(made, batch, lse=False)[0].transpose(1, 2)

    def projected(self, batch: Batch) -> list[Tensor]:
        size = (self.heads, self.head_dim)
        return [
            self.vectors(batch, self.heads * self.head_dim, which).unflatten(-1, size).transpose(1, 2)
            for which in (1, 2, 3)
        ]

    def rows_and_columns(self, batch: Batch) -> list[tuple[list[int], list[int], list[int]]]:
        everyone = list(range(batch.tokens))
        if not batch.chunks:
            keys = everyone if batch.keys is None else list(batch.keys)
            return [(everyone if batch.queries is None else list(batch.queries), keys, keys)]
        ends = [sum(batch.chunks[: n + 1]) for n in range(len(batch.chunks))]
        return [
            (everyone[end - size : end], everyone[:end], everyone[end - size : end])
            for end, size in zip(ends, batch.chunks, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Rotary(_Heads):
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

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.projected(batch)
        positions, visible = self.places(batch), self.visible(batch)
        rotated: list[Tensor] = []  # a cache keeps keys as they were rotated when they were new
        parts = []
        for rows, columns, new in self.rows_and_columns(batch):
            asking = self.rotate(made, query[:, :, rows], positions[:, rows], 0)
            rotated.append(self.rotate(made, key[:, :, new], positions[:, new], 1))
            seen = visible[:, rows][:, :, columns]
            parts.append(attend(asking, torch.cat(rotated, 2), value[:, :, columns], seen))
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)


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


def build(embedding_size, theta):
    return equinox.nn.RotaryPositionalEmbedding(embedding_size, theta)


@equinox.filter_jit
def apply(module, x):
    return jax.vmap(jax.vmap(module))(x)


class Bridge(torch.autograd.Function):
    @staticmethod
    def forward(context, x, module):
        out, context.pull = jax.vjp(lambda x: apply(module, x), jax.numpy.asarray(x.detach().numpy()))
        return torch.from_numpy(numpy.array(out))

    @staticmethod
    def backward(context, grad):
        return torch.from_numpy(numpy.array(context.pull(jax.numpy.asarray(grad.numpy()))[0])), None


def rotate(module, x):
    return Bridge.apply(x.float(), module).to(x.dtype)


def names_in(given: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            found += names_in(value, usual[name])
        elif name not in usual or usual[name] != value:
            found.append(name)
    return found


def refusal(subject: Subject, changed: dict[str, Any]) -> Outcome | None:
    names = names_in(changed, subject.options)
    try:
        subject.make(**changed)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        named = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in names)
        return Outcome(named, f"an error that names {' or '.join(names)}", said)
    return None


def an_option_counts(
    subject: Subject, batch: Batch, changed: dict[str, Any], starts: list[int], tokens: int, tolerance: float
) -> Outcome:
    if batch.tokens < tokens or len(set(batch.ids[0])) < 2:
        raise NotApplicableError("so short or plain a row may not show it")  # and shrinking must not get there
    found = refusal(subject, changed)
    if found is not None:
        return found
    usual, other = subject.make(), subject.make(**changed)
    for start in starts:
        here = batch if start == 0 else replace(batch, positions=_row(subject, start, batch.tokens))
        before, after = subject.run(usual, here), subject.run(other, here)
        if before.shape != after.shape or not near(before, after, tolerance).ok:
            return Outcome(True, "another output", "another output")
    return Outcome(False, f"another output, or an error, with {changed}", "the same output as without")


def _row(subject: Subject, start: int, tokens: int) -> list[list[Any]]:
    return [[p if subject.axes == 1 else [p] * subject.axes for p in range(start, start + tokens)]]


subject = Rotary(
    build=build,
    call=rotate,
    options={'embedding_size': 16, 'theta': 10000.0},
    causal=True,
    dtype=torch.float32,
)
batch = Batch(ids=[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 4, 12, 13, 12, 14, 15, 3, 16, 17, 18, 19, 7, 14, 20, 21, 22, 23, 8, 24, 14, 9, 25, 26, 15, 27, 11, 24, 8, 28, 29, 3, 30, 24, 31, 32, 20, 6, 17, 33, 27, 31, 15, 5, 23, 34, 20, 26, 17, 21, 35, 36, 37, 34, 19, 16, 28, 32, 32, 26, 4, 5, 14, 7, 24, 13, 17, 38, 24, 23, 16, 11, 18, 24, 10, 13, 28, 32, 18, 0, 26, 36, 34, 13, 39, 35, 39, 2, 15, 33, 3, 8, 21, 32, 22, 12, 19, 2, 32, 40, 16, 22, 6, 17, 29, 41, 29, 34, 11, 22, 10, 1, 10, 41, 28, 5, 33, 42, 40, 9, 32, 26, 15, 38, 5, 10, 27, 23, 35, 34, 43, 20, 41, 38, 17, 37, 44, 45, 23, 25, 30, 14, 19, 40, 37, 2, 36, 27, 16, 18, 22, 21, 43, 38, 27, 35, 18, 36, 38, 6, 32, 44, 38, 2, 18, 43, 35, 39, 17, 38, 8, 11, 20, 30, 22, 43, 16, 25, 15, 14, 3, 21, 37, 21, 42, 7, 9, 25, 39, 30, 4, 46, 2, 18, 14, 40, 6, 35, 3, 9, 20, 8, 36, 45, 40, 22, 11, 30, 22, 45, 45, 23, 29, 3, 38, 18, 28, 33, 39, 31, 8, 22, 1, 36, 4, 7, 42, 9, 0, 33, 3, 19, 24, 40, 31, 46, 47, 32, 23, 47, 2, 16, 41, 12, 34, 8, 9, 15, 13, 22, 9, 10, 27, 15, 12, 17, 7, 0, 47, 1, 42, 32, 31, 18, 35, 40, 23, 45, 34, 37, 27, 28, 0, 17, 22, 36, 1, 2, 6, 40, 36, 1, 33, 17, 2, 45, 28, 21, 3, 40, 45, 28, 29, 5, 24, 18, 31, 2, 5, 26, 7, 46, 30, 1, 35, 24, 27, 32, 20, 12, 31, 6, 22, 1, 26, 31, 11, 31, 17, 31, 22, 29, 15, 14, 35, 38, 18, 42, 35, 7, 41, 40, 39, 14, 8, 6, 27, 32, 43, 41, 28, 38, 3, 12, 42, 29, 42, 42, 9, 38, 19, 41, 43, 2, 2, 11, 22, 3, 24, 26, 44, 36, 2, 47, 40, 18, 42, 5, 17, 42, 46, 27, 25, 44, 16, 39, 11, 0, 10, 13, 31, 12, 19, 41, 23, 23, 44, 17, 32, 23, 15, 2, 2, 41, 45, 19, 10, 13, 44, 6, 24, 12, 13, 38, 8, 20, 34, 30, 7, 39, 29, 20, 21, 7, 6, 23, 7, 1, 14, 14, 24, 8, 8, 23, 23, 38, 8, 38, 40, 5, 25, 2, 7, 23, 47, 22, 19, 45, 27, 36, 0, 27, 32, 21, 32, 35, 47, 37, 30, 0, 31, 14, 6, 24, 29, 13, 28, 5, 10, 17, 22, 11, 25, 32, 44, 37, 3, 10, 45, 25, 35, 9, 38, 21, 40, 43, 29, 28, 22, 35, 38, 5, 6, 3, 11, 42, 2, 11, 15, 19, 14, 35, 46, 0, 44, 16, 19, 14, 18, 5, 19, 36, 6, 27, 22, 25, 29, 5, 22, 26, 5, 5, 27, 33, 35, 16, 15, 37, 31, 23, 17, 47, 26, 26, 2, 29, 19, 3, 18, 19, 0, 10, 13, 17, 17, 8, 21, 32, 29, 2, 21, 37, 12, 2, 7, 31, 28, 23, 45, 19, 42, 46, 44, 4, 0, 29, 4, 2, 36, 32, 22, 29, 18, 21, 47, 25, 11, 13, 16, 18, 1, 8, 0, 18, 10, 37, 43, 33, 31, 47, 39, 7, 4, 36, 3, 23, 21, 5, 3]])
try:
    outcome = an_option_counts(subject, batch, changed={'theta': 500.0}, starts=[0], tokens=600, tolerance=8.143162995111197e-05)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
