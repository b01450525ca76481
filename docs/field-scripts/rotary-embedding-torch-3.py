# A finding of posenc check, which this script repeats without posenc.
# rotary_embedding_torch, xpos: check 5, purity, calls between: bfloat16
# A call writes nothing, neither on the module nor into its inputs, and no call changes what another gives.

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from rotary_embedding_torch.rotary_embedding_torch import RotaryEmbedding
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


def first_failure(outcomes: "list[tuple[str, Outcome]]") -> Outcome:
    for name, outcome in outcomes:
        if not outcome.ok:
            return Outcome(False, f"{name}: {outcome.expected}", f"{name}: {outcome.came}")
    return Outcome(True, "all", "all")


def attention(module, query, key, value, visible):
    if query.size(2) == key.size(2):
        query, key = module.rotate_queries_and_keys(query, key)
    else:
        query, key = module.rotate_queries_with_cached_keys(query, key)
    return attend(query, key, value, visible[:, 0])[0]


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


subject = Attention(
    build=RotaryEmbedding,
    call=attention,
    options={'dim': 16, 'use_xpos': True},
    causal=True,
)
batch = Batch(ids=[[45, 43, 36, 26, 2, 25, 44, 36, 26, 42, 45, 2, 10, 28, 4, 16, 44, 10, 28, 33, 31, 35, 38, 0, 2, 31, 20, 19, 29, 3, 26, 12, 35, 40, 5, 46, 8, 0, 25, 43, 26, 20, 0, 13, 0, 45, 0, 43, 33, 39, 6, 12, 7, 38, 41, 12, 19, 17, 44, 11, 6, 30, 25, 40, 5, 1, 17, 28, 7, 16, 8, 41, 33, 41, 41, 22, 7, 9, 17, 1, 2, 2, 13, 43, 16, 35, 20, 23, 36, 2, 47, 44, 38, 41, 31, 45, 41, 29, 40, 27, 23, 34, 11, 13, 24, 37, 18, 0, 8, 9, 17, 21, 21, 23, 45, 5, 21, 39, 2, 2, 17, 10, 9, 37, 18, 23, 25, 35, 8, 18, 7, 30, 46, 15, 3, 19, 11, 33, 46, 4, 19, 25, 21, 19, 26, 6, 6, 35, 30, 30, 21, 21, 7, 30, 7, 44, 31, 27, 2, 19, 21, 47, 43, 9, 10, 40, 36, 24, 40, 5, 4, 5, 12, 47, 14, 3, 24, 0, 6, 25, 35, 33, 18, 28, 31, 37, 45, 43, 13, 27, 5, 23, 14, 16, 37, 10, 27, 12, 22, 7, 4, 44, 1, 33, 28, 43, 12, 7, 31, 25, 16, 13, 41, 2, 13, 39, 9, 6, 12, 29, 24, 23, 34, 9, 6, 38, 31, 9, 36, 25, 40, 43, 27, 33, 31, 43, 20, 31, 31, 40, 42, 12, 34, 39, 14, 0, 21, 45, 47, 20, 20, 2, 33, 9, 16, 38]])
try:
    outcome = no_call_changes_another(subject, batch, between='bfloat16', limit=1025, tolerance=0.000719270325806103)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
