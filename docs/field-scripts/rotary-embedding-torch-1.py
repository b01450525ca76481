# A finding of posenc check, which this script repeats without posenc.
# rotary_embedding_torch, xpos: check 9, unequal lengths, the last of the keys
# Some tokens that ask all others get what they get where all ask all: the last of them, or any.

import inspect
from collections.abc import Callable, Mapping
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
    if query.size(2) == key.size(2):
        query, key = module.rotate_queries_and_keys(query, key)
    else:
        query, key = module.rotate_queries_with_cached_keys(query, key)
    return attend(query, key, value, visible[:, 0])[0]


def queries_equal_rows_of_the_square(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    if not batch.queries:
        raise NotApplicableError("nobody asks")
    square = subject.run(subject.make(), replace(batch, queries=None))
    return near(square[:, list(batch.queries)], subject.run(subject.make(), batch), tolerance)


subject = Attention(
    build=RotaryEmbedding,
    call=attention,
    options={'dim': 16, 'use_xpos': True},
    causal=True,
)
batch = Batch(ids=[[0, 1]], queries=(1,))
try:
    outcome = queries_equal_rows_of_the_square(subject, batch, tolerance=8.982879941819337e-06)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
