# A finding of posenc check, which this script repeats without posenc.
# attn_gym, alibi: check 19, bounds, slopes
# What is past the end is refused by name, slopes are right for any number of heads, and rows do not mix.

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from attn_gym.mods import generate_alibi_bias
from torch import Tensor, nn

PADDING = -1  # the document that no token belongs to


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

    def takes(self, name: str) -> bool:
        return name in inspect.signature(self.call).parameters

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


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    heads: int = 3


@dataclass(frozen=True, kw_only=True)
class Bias(_Heads):
    slopes: Sequence[float] | None = None
    heads_option: str = ""

    def bias(self, made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        if self.takes("query_positions"):
            bias = self.call(made, query_positions=query_positions, key_positions=key_positions)
        else:
            queries, keys = query_positions.size(1), key_positions.size(1)
            line = torch.arange(keys, device=key_positions.device)
            if not (
                key_positions.dim() == 2
                and torch.equal(key_positions, line.expand_as(key_positions))
                and torch.equal(query_positions, line[keys - queries :].expand_as(query_positions))
            ):
                raise NotApplicableError("call takes lengths and no positions")
            bias = self.call(made, query_length=queries, key_length=keys)
        return bias if bias.dim() == 4 else bias[None]


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


def build_alibi(heads):
    return generate_alibi_bias(heads), heads


def bias(made, query_length, key_length):
    mod, heads = made
    h = torch.arange(heads).view(-1, 1, 1)
    i = torch.arange(key_length - query_length, key_length).view(1, -1, 1)
    j = torch.arange(key_length).view(1, 1, -1)
    return mod(torch.zeros(heads, query_length, key_length, dtype=torch.float64), torch.tensor(0), h, i, j)


def published_slopes(heads: int) -> list[float]:
    power = 2 ** (heads.bit_length() - 1)
    coarse, fine = ([2 ** (-8 * (h + 1) / n) for h in range(n)] for n in (power, 2 * power))
    return [*coarse, *fine[::2][: heads - power]]


def slopes_are_as_published(subject: Bias, batch: Batch, heads: int | None) -> Outcome:
    if heads is None:
        slopes, made = list(subject.slopes or ()), subject.make()
    else:
        slopes, made = published_slopes(heads), subject.make(**{subject.heads_option: heads})
    places, seen = subject.places(batch), subject.visible(batch)[:, None]
    came = subject.bias(made, places, places).double()
    if came.size(1) != len(slopes):
        return Outcome(False, f"{len(slopes)} heads", f"a bias of shape {tuple(came.shape)}")
    came = came - came.diagonal(dim1=-2, dim2=-1)[..., None]
    away = (places[:, None, :, None] - places[:, None, None, :]).abs().double()
    expected = -torch.tensor(slopes, dtype=torch.float64, device=away.device)[:, None, None] * away
    came = came.expand_as(expected)
    return near(expected.masked_fill(~seen, 0.0), came.masked_fill(~seen, 0.0), 2**-20 * float(expected.abs().max()))


subject = Bias(
    build=build_alibi,
    call=bias,
    options={'heads': 4},
    causal=True,
    heads=4,
    heads_option='heads',
)
batch = Batch(ids=[[0, 0]])
try:
    outcome = slopes_are_as_published(subject, batch, heads=3)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
