# A finding of posenc check, which this script repeats without posenc.
# x_transformers, decoder_sinusoidal: check 7, padding, with a mask alone, at the ends
# Real tokens come out as they do without padding, whether it is left, right, inside, or mixed by row.

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper

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

    @property
    def real(self) -> list[list[bool]]:
        document = self.document or [[0] * len(row) for row in self.ids]
        return [[d != PADDING for d in row] for row in document]

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

    def run(self, made: Any, batch: Batch) -> Tensor:
        raise NotImplementedError

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


@dataclass(frozen=True, kw_only=True)
class Model(Layer):
    def content(self, batch: Batch) -> Tensor:
        return torch.tensor(batch.ids, device=self.device)


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


def build_decoder(use_abs_pos_emb=False, scaled_sinu_pos_emb=False, **layers):
    return TransformerWrapper(
        num_tokens=48,
        max_seq_len=2048,
        use_abs_pos_emb=use_abs_pos_emb,
        scaled_sinu_pos_emb=scaled_sinu_pos_emb,
        attn_layers=Decoder(dim=32, depth=2, heads=3, attn_dim_head=16, verbose=False, **layers),
    )


def decode(model, ids, positions=None, padding=None, cache=None):
    seen, seen_positions, kept = cache or (ids[:, :0], None, None)
    new, ids = ids.size(1), torch.cat((seen, ids), 1)
    if positions is not None and seen_positions is not None:
        positions = torch.cat((seen_positions, positions), 1)
    out, kept_next = model(
        ids, cache=kept, cache_age=new, return_intermediates=True, pos=positions, **padding_facts(padding, positions)
    )
    return out[:, -new:], (ids, positions, kept_next)


def decode_by_index(model, ids, padding=None, cache=None):
    return decode(model, ids, None, padding, cache)


def padding_facts(padding, positions):
    if padding is None or padding.all():
        return {}
    left = padding.long().cumsum(-1) == 0
    if positions is not None or not left.any():
        return {"mask": padding}
    facts = {"seq_start_pos": left.sum(-1)}
    return facts if (padding | left).all() else {**facts, "self_attn_kv_mask": padding}


def padding_changes_nothing(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    made = subject.make()
    together = subject.run(made, batch)
    found = []
    for row, real in enumerate(batch.real):
        kept = [n for n, token in enumerate(real) if token]
        if not kept:
            continue
        expected = subject.run(made, replace(batch.pick(kept, row), document=None))
        found.append((f"row {row}", near(expected, together[row : row + 1, torch.tensor(kept)], tolerance)))
    return first_failure(found)


subject = Model(
    build=build_decoder,
    call=decode_by_index,
    options={'use_abs_pos_emb': True, 'scaled_sinu_pos_emb': True},
    jitter=0.2,
    dtype=torch.float32,
)
batch = Batch(ids=[[0]], document=[[-1]])
try:
    outcome = padding_changes_nothing(subject, batch, tolerance=0.00012145865036927717)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
