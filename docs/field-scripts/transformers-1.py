# A finding of posenc check, which this script repeats without posenc.
# transformers_decoders, falcon_alibi: check 16, backend parity, outputs
# Every backend gives the same outputs and gradients, for one token and around the sizes of blocks.

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import transformers
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

    @property
    def real(self) -> list[list[bool]]:
        document = self.document or [[0] * len(row) for row in self.ids]
        return [[d != PADDING for d in row] for row in document]

    def owed(self, x: Tensor) -> Tensor:
        real = torch.tensor(self.real, device=x.device)
        return x.masked_fill(~real.view(*real.shape, *[1] * (x.dim() - 2)), 0.0)


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


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def build(family, attn_implementation="sdpa", **options):
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **options}, attn_implementation=attn_implementation)
    return transformers.AutoModelForCausalLM.from_config(config)


def decode_with_positions(
    model: Any, ids: Tensor, positions: Tensor | None = None, padding: Tensor | None = None, cache: Any = None
) -> tuple[Tensor, Any]:
    if positions is not None and padding is None:
        padding = _no_padding(ids, 0 if cache is None else cache.get_seq_length())
    ids, mask = _padded_inputs(model, ids, padding)
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    return _outputs(out), out.past_key_values


def _no_padding(ids: Tensor, before: int) -> Tensor:
    return torch.ones(ids.size(0), before + ids.size(1), dtype=torch.bool, device=ids.device)


def _padded_inputs(model: Any, ids: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if padding is None:
        return ids, None
    if getattr(model.config, "pad_token_id", None) is not None:
        ids = ids.masked_fill(~padding[:, -ids.size(1) :], model.config.pad_token_id)
    return ids, padding.long()


def _outputs(out: Any) -> Tensor:
    return out.logits if getattr(out, "logits", None) is not None else out.last_hidden_state


def outputs_agree(subject: Subject, batch: Batch, other: Mapping[str, Any], tolerance: float) -> Outcome:
    made = subject.make()
    expected = batch_owed(batch, subject.run(made, batch))
    return near(expected, batch_owed(batch, subject.run(made_as(subject, made, other), batch)), tolerance)


def made_as(subject: Subject, made: Any, other: Mapping[str, Any]) -> Any:
    twin = subject.make(**other)
    if isinstance(twin, nn.Module) and isinstance(made, nn.Module):
        twin.load_state_dict(made.state_dict(), strict=False)
    return twin


def batch_owed(batch: Batch, out: Tensor) -> Tensor:
    return out if batch.document is None else batch.owed(out)


subject = Model(
    build=build,
    call=decode_with_positions,
    options={'family': 'falcon', 'alibi': True, 'attn_implementation': 'sdpa'},
    jitter=0.2,
    dtype=torch.float32,
)
batch = Batch(ids=[[0, 1]])
try:
    outcome = outputs_agree(subject, batch, other={'attn_implementation': 'eager'}, tolerance=0.0007013982665284857)
except Exception as error:
    outcome = Outcome(False, "an answer", f"{type(error).__name__}: {error}")
print("expected:", outcome.expected)
print("came:    ", outcome.came)
raise SystemExit(0 if outcome.ok else 1)
