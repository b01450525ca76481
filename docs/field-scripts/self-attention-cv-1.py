# A finding of posenc check, which this script repeats without posenc.
# self_attention_cv, square: check 20, grids, moving along an axis
# Rows and columns count each as itself, in grids of any shape; text among images is at its position.

import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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


def module_of(name):
    if "self_attention_cv" not in sys.modules:
        parent = types.ModuleType("self_attention_cv")
        parent.__path__ = importlib.util.find_spec("self_attention_cv").submodule_search_locations
        sys.modules["self_attention_cv"] = parent
    return getattr(importlib.import_module("self_attention_cv.pos_embeddings"), name)


def build(name, **options):
    return module_of(name)(**options)


def attention_of_places(module, query, key, value, visible, query_positions, key_positions):
    places = torch.cat((query_positions, key_positions), 1)
    if places.min() < 0 or (places.amax((0, 1)) >= torch.tensor([module.h, module.w])).any():
        raise NotApplicableError("the map has no such place")
    asked, keys = (p[..., 0] * module.w + p[..., 1] for p in (query_positions, key_positions))
    rows, heads, queries, dim = query.shape
    alone = query.new_zeros(rows, queries, heads, module.total_tokens, dim)
    at = asked[:, :, None, None, None].expand(-1, -1, heads, 1, dim)
    alone = alone.scatter(3, at, query.transpose(1, 2)[..., None, :])
    scores = module(alone.flatten(0, 1)).unflatten(0, (rows, queries))  # (rows, queries, heads, places, places)
    mine = scores.take_along_dim(asked[:, :, None, None, None], 3).squeeze(3)  # of the place that asks
    bias = mine.take_along_dim(keys[:, None, None, :], 3).transpose(1, 2)
    return attend(query, key, value, visible[:, 0], bias)[0]


def moved(batch: Batch, axis: int, by: int) -> Batch:
    rows = [
        [[p + by * (n == axis) for n, p in enumerate(position)] for position in row] for row in batch.positions or []
    ]
    return replace(batch, positions=rows)


def moving_along_an_axis_changes_nothing(
    subject: Subject, batch: Batch, axis: int, by: int, tolerance: float
) -> Outcome:
    made = subject.make()
    return near(subject.run(made, batch), subject.run(made, moved(batch, axis, by)), tolerance)


subject = Attention(
    build=build,
    call=attention_of_places,
    options={'name': 'RelPosEmb2D', 'feat_map_size': (8, 8), 'dim_head': 16},
    axes=2,
)
batch = Batch(ids=[[0, 1]], positions=[[[0, 0], [0, 1]]])
try:
    outcome = moving_along_an_axis_changes_nothing(subject, batch, axis=0, by=1, tolerance=8.955024357620965e-06)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
