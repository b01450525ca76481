# A finding of posenc check, which this script repeats without posenc.
# positional_encodings, one: check 5, purity, calls between: bfloat16
# A call writes nothing, neither on the module nor into its inputs, and no call changes what another gives.

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from positional_encodings.torch_encodings import PositionalEncoding1D, Summer
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

    def pick(self, tokens: Sequence[int], row: int | None = None) -> "Batch":
        rows = range(len(self.ids)) if row is None else [row]

        def of(field: list[list[Any]] | None) -> list[list[Any]] | None:
            return None if field is None else [[field[r][n] for n in tokens] for r in rows]

        return Batch(of(self.ids) or [], of(self.positions), of(self.document), of(self.order))


@dataclass(frozen=True, kw_only=True)
class Subject:
    build: Callable[..., Any]
    call: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = False
    threshold: int | None = None
    axes: int = 1
    varied: Mapping[str, Any] = field(default_factory=dict)
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
class Layer(Subject):
    dim: int = 32

    def content(self, batch: Batch) -> Tensor:
        return self.vectors(batch, self.dim)

    def run(self, made: Any, batch: Batch) -> Tensor:
        x = self.content(batch)
        if batch.keys is not None:
            raise NotApplicableError("call gives no log-sum-exp, so parts of the keys cannot be merged")
        if batch.queries is not None:
            if not self.takes("memory"):
                raise NotApplicableError("call takes no memory, so queries are the keys")
            rows = list(batch.queries)
            return self._call(made, x[:, rows], batch, rows, memory=x)[0]
        outputs, cache, end = [], None, 0
        for size in batch.chunks or (batch.tokens,):
            rows = list(range(end, end + size))
            end += size
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.chunks):  # a cache is for inference
                out, cache = self._call(made, x[:, rows], batch, rows, cache=cache)
            outputs.append(out)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    def _call(self, made: Any, x: Tensor, batch: Batch, rows: list[int], **known: Any) -> tuple[Tensor, Any]:
        parameters = inspect.signature(self.call).parameters
        positions = self.places(batch)
        end = batch.tokens if "memory" in known or not rows else rows[-1] + 1
        document = torch.tensor(batch.document, device=self.device) if batch.document is not None else None
        facts: dict[str, Any] = {
            "positions": positions[:, rows] if batch.positions is not None else None,
            "padding": document[:, :end] != PADDING if document is not None else None,
            "document": document[:, :end] if document is not None else None,
            "order": torch.tensor(batch.order, device=self.device)[:, rows] if batch.order is not None else None,
            "memory_positions": positions if "memory" in known and batch.positions is not None else None,
            "grid": batch.grid,
            "cache": None,
            "memory": None,
            **known,
        }
        needed = {
            "positions": positions[:, rows],
            "padding": torch.ones(len(batch.ids), end, device=self.device).bool(),
        }
        needed |= {
            "document": torch.zeros(len(batch.ids), end, device=self.device).long(),
            "memory_positions": positions,
            "memory": x,
        }
        given = {}
        for name, value in facts.items():
            if name not in parameters:
                if name in ("positions", "memory_positions") and value is not None:
                    self.require_plain_positions(batch, name)
                elif (
                    name == "document"
                    and document is not None
                    and len(set(document.flatten().tolist()) - {PADDING}) > 1
                ):
                    raise NotApplicableError("call takes no document")
                elif name == "padding" and value is not None and not value.all() and "document" not in parameters:
                    raise NotApplicableError("call takes no padding")
                elif name in ("order", "grid") and value is not None:
                    raise NotApplicableError(f"call takes no {name}")
                elif name == "cache" and batch.chunks:
                    raise NotApplicableError("call takes no cache")
            elif value is not None:
                given[name] = value
            elif parameters[name].default is inspect.Parameter.empty:
                given[name] = needed.get(name)
        out = self.call(made, x, **given)
        return out if "cache" in parameters else (out, None)


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


def build(channels):
    return Summer(PositionalEncoding1D(channels))


def add(module, x):
    return module(x)


def with_tokens(batch: Batch, tokens: int, axes: int = 0) -> Batch:
    positions = [[n if axes == 1 else [n] * axes for n in range(tokens)]]
    return Batch([[(batch.ids[0][0] + 7 * n) % VOCABULARY for n in range(tokens)]], positions if axes else None)


def one_line(error: BaseException) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m| at 0x[0-9a-fA-F]+", "", str(error))
    return f"{type(error).__name__}: {text.strip().splitlines()[0] if text.strip() else ''}"


BETWEEN = ("the same", "shorter", "longer", "others", "bfloat16", "autocast", "inference mode")


def no_call_changes_another(subject: Subject, batch: Batch, between: str, limit: int, tolerance: float) -> Outcome:
    if isinstance(subject, Rotary | Bias):
        subject = replace(subject, causal=True)  # attention is not theirs, and so the start of a longer row is known
    if between == "autocast":
        subject = replace(subject, dtype=torch.float32)
    # A length for each, longer than those before: what is remembered by the length, or grown to it, may be so for good.
    longer = with_tokens(batch, min(2 * batch.tokens + 3 + BETWEEN.index(between), limit))
    made = subject.make()
    first = subject.run(made, batch)
    if between == "the same":
        return near(first, subject.run(made, batch), 0.0)  # the same arithmetic on the same numbers
    try:
        call_between(subject, made, between, batch if between == "shorter" else longer)
        if between in ("bfloat16", "autocast"):  # and of the same shape, which a table may be remembered by
            call_between(subject, made, between, batch)
    except RuntimeError as error:
        if between not in ("bfloat16", "autocast"):
            raise
        raise NotApplicableError(f"it does not run with {between}: {one_line(error)}") from error
    found = [("again", near(first, subject.run(made, batch), tolerance))]
    if subject.causal and subject.threshold is None:
        start = subject.run(made, replace(longer, ids=[(batch.ids[0] + longer.ids[0])[: longer.tokens]]))
        found.append(("at the start of more tokens", near(first[:1], start[:1, : batch.tokens], tolerance)))
    return first_failure(found)


def call_between(subject: Subject, made: Any, how: str, batch: Batch) -> None:
    if how == "shorter":
        subject.run(made, batch.pick(range((batch.tokens + 1) // 2)))
    elif how == "longer":
        subject.run(made, batch)
    elif how == "bfloat16":
        replace(subject, dtype=torch.bfloat16).run(made, batch)
    elif how == "autocast":
        with torch.autocast(torch.device(subject.device).type, torch.bfloat16):
            subject.run(made, batch)
    elif how == "inference mode":
        with torch.inference_mode():
            subject.run(made, batch)
    else:
        for other in others(subject):
            subject.run(other, batch)


def others(subject: Subject) -> Iterator[Any]:
    for name, value in subject.varied.items():
        try:
            yield subject.make(**{name: value})
        except (ValueError, TypeError, AssertionError):
            continue
    yield replace(subject, seed=subject.seed + 1).make()


subject = Layer(
    build=build,
    call=add,
    options={'channels': 32},
)
batch = Batch(ids=[[0, 0]])
try:
    outcome = no_call_changes_another(subject, batch, between='bfloat16', limit=1025, tolerance=1.831873373086536e-05)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
