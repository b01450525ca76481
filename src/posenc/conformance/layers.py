"""Subjects from vectors, or token ids, to vectors. Plain PyTorch: scripts hold a copy."""

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.conformance.subjects import PADDING, Batch, NotApplicableError, Subject


@dataclass(frozen=True, kw_only=True)
class Layer(Subject):
    """A module from vectors to vectors: ``call(made, x, …)``, x (rows, tokens, dim), gives (rows, tokens, …).

    It may take ``positions`` (rows, tokens[, axes]), of the tokens of x; ``padding`` (rows, tokens so far), True where
    there is a token; ``document`` (rows, tokens so far), -1 for padding; ``order`` (rows, tokens), for causality;
    ``cache``, None at first: it then gives (output, cache); ``memory`` (rows, keys, dim), the tokens that are keys,
    and ``memory_positions``; ``grid``, (height, width). A parameter with a default is left out where there is nothing
    to say.
    """

    by_place: ClassVar[int] = 2
    gives: ClassVar[tuple[str, ...]] = (
        "positions",
        "padding",
        "document",
        "order",
        "cache",
        "memory",
        "memory_positions",
        "grid",
    )

    dim: int = 32

    def can(self, what: str) -> bool:
        if what == "padding":
            return self.takes("padding") or self.takes("document")
        return self.takes({"queries": "memory"}.get(what, what))

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
            out = self._call(made, x[:, rows], batch, rows, memory=x)[0]
            alone = self._call(made, x[:, rows[:1]], batch, rows[:1], memory=x)[0]
            if not torch.allclose(out[:, :1], alone, rtol=1e-3, atol=1e-3 * float(out.detach().abs().max())):
                raise NotApplicableError(
                    "the output of a token depends on the other tokens of x, so they are not only queries"
                )
            return out
        outputs, cache, end = [], None, 0
        for size in batch.chunks or (batch.tokens,):
            rows = list(range(end, end + size))
            end += size
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.chunks):  # a cache is for inference
                out, cache = self._call(made, x[:, rows], batch, rows, cache=cache)
            outputs.append(out)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    def _call(self, made: Any, x: Tensor, batch: Batch, rows: list[int], **extra: Any) -> tuple[Tensor, Any]:
        parameters = inspect.signature(self.call).parameters
        positions = self.places(batch)
        end = batch.tokens if "memory" in extra or not rows else rows[-1] + 1
        document = torch.tensor(batch.document, device=self.device) if batch.document is not None else None
        facts: dict[str, Any] = {
            "positions": positions[:, rows] if batch.positions is not None else None,
            "padding": document[:, :end] != PADDING if document is not None else None,
            "document": document[:, :end] if document is not None else None,
            "order": torch.tensor(batch.order, device=self.device)[:, rows] if batch.order is not None else None,
            "memory_positions": positions if "memory" in extra and batch.positions is not None else None,
            "grid": batch.grid,
            "cache": None,
            "memory": None,
            **extra,
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
    """A model from token ids to vectors or logits: a `Layer` whose x are ids (rows, tokens) of int64, below 48."""

    def content(self, batch: Batch) -> Tensor:
        return torch.tensor(batch.ids, device=self.device)


def call_module(module: Any, x: Tensor) -> Tensor:
    """A module that is given vectors and nothing else."""
    return module(x)
