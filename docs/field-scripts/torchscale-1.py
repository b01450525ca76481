# A finding of posenc check, which this script repeats without posenc.
# torchscale, xpos: check 1, phase, late tokens
# In bfloat16, float16 and under autocast, far positions are as exact as near ones.

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchscale.component.xpos_relative_position import XPOS

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

    def takes(self, name: str) -> bool:
        return name in inspect.signature(self.call).parameters

    def needs(self, name: str) -> bool:
        return self.takes(name) and inspect.signature(self.call).parameters[name].default is inspect.Parameter.empty

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

    def require_plain_positions(self, batch: Batch, what: str = "positions") -> None:
        if batch.positions is not None and not torch.equal(
            self.places(batch), torch.arange(batch.tokens, device=self.device).expand(len(batch.ids), -1)
        ):
            raise NotApplicableError(f"call takes no {what}")

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
class Bias(_Heads):
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

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.projected(batch)
        positions, visible = self.places(batch), self.visible(batch)
        parts = []
        for rows, columns, _ in self.rows_and_columns(batch):
            bias = self.bias(made, positions[:, rows], positions[:, columns])
            seen = visible[:, rows][:, :, columns]
            parts.append(attend(query[:, :, rows], key[:, :, columns], value[:, :, columns], seen, bias))
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)


@dataclass(frozen=True, kw_only=True)
class Attention(_Heads):
    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.projected(batch)
        parts = [
            self._step(made, batch, query[:, :, rows], key[:, :, columns], value[:, :, columns], rows, columns, lse)
            for rows, columns, _ in self.rows_and_columns(batch)
        ]
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)

    def _step(
        self,
        made: Any,
        batch: Batch,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: list[int],
        columns: list[int],
        lse: bool,
    ) -> tuple[Tensor, Tensor]:
        lower_right = rows == columns[len(columns) - len(rows) :]
        facts = {"positions": self.places(batch)}
        if batch.document is not None or self.needs("query_document"):
            one = [[0] * batch.tokens] * len(batch.ids)
            facts["document"] = torch.tensor(batch.document or one, device=self.device)
        if batch.order is not None or self.needs("query_order") or (self.causal and self.takes("query_order")):
            line = [list(range(batch.tokens))] * len(batch.ids)
            facts["order"] = torch.tensor(batch.order or line, device=self.device)
        given: dict[str, Any] = {}
        if self.takes("visible"):
            given["visible"] = self.visible(batch)[:, None, rows][..., columns]
        for name, value_of in facts.items():
            if self.takes(f"query_{name}"):
                given |= {f"query_{name}": value_of[:, rows], f"key_{name}": value_of[:, columns]}
            elif name == "positions":
                self.require_plain_positions(batch)
                if not lower_right or columns != list(range(len(columns))):
                    raise NotApplicableError("call takes no positions, so queries are the last of the keys")
            elif not self.takes("visible"):
                raise NotApplicableError(f"call takes no query_{name}")
        if lse:
            return self.call(made, query, key, value, **given, return_lse=True)
        out = self.call(made, query, key, value, **given)
        return out, out.new_full(out.shape[:3], torch.nan)


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


def attention(module, query, key, value, visible):
    queries = module(query.flatten(0, 1), offset=key.size(2) - query.size(2)).view_as(query)
    keys = module(key.flatten(0, 1), downscale=True).view_as(key)
    return attend(queries, keys, value, visible[:, 0])[0]


def with_weights_in(subject: Subject, dtype: torch.dtype) -> Any:
    made = subject.make()
    if isinstance(made, nn.Module):
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter.copy_(parameter.to(dtype))
    return made


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


EARLY, LATE = 64, 257  # rows of a text before anything is lost, and from where bfloat16 has lost the odd ones


def outputs(subject: Subject, made: Any, batch: Batch) -> Tensor:
    if not isinstance(subject, Bias):
        return subject.run(made, batch).detach()
    places, seen = subject.places(batch), subject.visible(batch)[:, None]
    bias = subject.bias(made, places, places)
    return bias.detach().masked_fill(~seen | bias.isneginf(), 0.0).transpose(1, 2)


def no_worse(
    exact: tuple[Tensor, Tensor], came: tuple[Tensor, Tensor], eps: float, slack: float, effect: float | None
) -> Outcome:
    (exact_first, exact_second), (first, second) = exact, came
    size_first, size_second = float(exact_first.abs().max()), float(exact_second.abs().max())
    error = float((first.double() - exact_first.double()).abs().max())
    effect = size_second if effect is None else effect
    tolerance = 4 * max(error, error / max(size_first, 1e-30) * size_second, eps * size_second) + slack * effect
    outcome = near(exact_second, second, tolerance)
    if outcome.ok and tolerance > effect / 2:
        raise NotApplicableError(
            f"positions move the outputs by {effect:.2g}, which rounding to {second.dtype} ({tolerance:.2g}) hides"
        )
    return outcome


def late_as_exact_as_early(
    subject: Subject, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None, effect: float | None
) -> Outcome:
    if batch.tokens <= LATE:
        raise NotApplicableError(f"no token is at {LATE} or later")
    places = (slice(None, EARLY), slice(LATE, None))
    return _compared(subject, places, tokens_of, dtype, autocast, effect, batch.tokens, batch)


def tokens_of(subject: Subject, made: Any, tokens: slice, batch: Batch) -> Tensor:
    return outputs(subject, made, batch)[:, tokens]


def _compared(
    subject: Subject,
    places: tuple[Any, Any],
    measure: Callable[..., Tensor],
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    effect: float | None,
    highest: int,
    *rest: Any,
) -> Outcome:
    first, second = (lowered(subject, dtype, autocast, measure, place, *rest) for place in places)
    outcome = Outcome(True, "", "")
    for reference in (subject, replace(subject, dtype=torch.float32)):
        made = with_weights_in(reference, dtype)
        exact_first, exact_second = (measure(reference, made, place, *rest) for place in places)
        # A phase, or a product with a slope, that is rounded to float32 may be off by as much as p units of 2^-23.
        eps, slack = torch.finfo(autocast or dtype).eps, 4 * 2**-23 * highest
        outcome = no_worse((exact_first, exact_second), (first, second), eps, slack, effect)
        if outcome.ok:
            break
    return outcome


subject = Attention(
    build=XPOS,
    call=attention,
    options={'head_dim': 16},
    causal=True,
)
batch = Batch(ids=[[5, 21, 47, 2, 34, 17, 8, 15, 30, 22, 39, 18, 43, 22, 37, 40, 39, 8, 45, 19, 24, 47, 26, 41, 5, 0, 38, 12, 44, 21, 10, 15, 14, 40, 28, 24, 45, 43, 36, 26, 2, 25, 44, 36, 26, 42, 45, 2, 10, 28, 4, 16, 44, 10, 28, 33, 31, 35, 38, 0, 2, 31, 20, 19, 29, 3, 26, 12, 35, 40, 5, 46, 8, 0, 25, 43, 26, 20, 0, 13, 0, 45, 0, 43, 33, 39, 6, 12, 7, 38, 41, 12, 19, 17, 44, 11, 6, 30, 25, 40, 5, 1, 17, 28, 7, 16, 8, 41, 33, 41, 41, 22, 7, 9, 17, 1, 2, 2, 13, 43, 16, 35, 20, 23, 36, 2, 47, 44, 38, 41, 31, 45, 41, 29, 40, 27, 23, 34, 11, 13, 24, 37, 18, 0, 8, 9, 17, 21, 21, 23, 45, 5, 21, 39, 2, 2, 17, 10, 9, 37, 18, 23, 25, 35, 8, 18, 7, 30, 46, 15, 3, 19, 11, 33, 46, 4, 19, 25, 21, 19, 26, 6, 6, 35, 30, 30, 21, 21, 7, 30, 7, 44, 31, 27, 2, 19, 21, 47, 43, 9, 10, 40, 36, 24, 40, 5, 4, 5, 12, 47, 14, 3, 24, 0, 6, 25, 35, 33, 18, 28, 31, 37, 45, 43, 13, 27, 5, 23, 14, 16, 37, 10, 27, 12, 22, 7, 4, 44, 1, 33, 28, 43, 12, 7, 31, 25, 16, 13, 41, 2, 13, 39, 9, 6, 12, 29, 24, 23]])
try:
    outcome = late_as_exact_as_early(subject, batch, dtype=torch.bfloat16, autocast=None, effect=2.4661932558108326)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
