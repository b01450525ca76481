"""Subjects from vectors, or token ids, to vectors. Plain PyTorch: scripts hold a copy."""

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.tools.check.subjects import PADDING, Batch, Subject, require


def kind_of(value: Any) -> str:
    """The type of a value, for an error message."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


@dataclass(frozen=True, kw_only=True)
class Layer(Subject):
    """A module from vectors to vectors: ``call(made, x, …)``, x (rows, tokens, dim), gives (rows, tokens, …).

    It may take ``positions`` (rows, tokens[, axes]), of the tokens of x; ``padding`` (rows, tokens so far), True where
    there is a token; ``document`` (rows, tokens so far), -1 for padding; ``order`` (rows, tokens), for causality;
    ``cache``, None at first: it then gives (output, cache); ``memory`` (rows, keys, dim), the tokens that are keys,
    and ``memory_positions``; ``grid``, (height, width), which every row has that is given no positions, unless it may
    take a cache. A parameter with a default is left out where there is nothing to say.

    A further claim: ``softmax_scale``, what products of queries and keys are multiplied by, beside what the scheme that
    it is ``like`` does to them: 1.0 where T5's authors are followed, elsewhere often 1/sqrt(head_dim).
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
    softmax_scale: float | None = None

    def can(self, what: str) -> bool:
        if what == "padding":
            return self.takes("padding") or self.takes("document")
        return self.takes({"queries": "memory"}.get(what, what))

    def content(self, batch: Batch) -> Tensor:
        return self.vectors(batch, self.dim)

    def run(self, made: Any, batch: Batch) -> Tensor:
        x = self.content(batch)
        require(
            not self.registers or batch.tokens > self.registers,
            f"nothing to do: a row of {batch.tokens} tokens has no patch behind its {self.registers} registers",
        )
        require(
            batch.keys is None, "nothing to do: a layer gives no log-sum-exp, so parts of the keys cannot be merged"
        )
        if batch.queries is not None:
            require(self.takes("memory"), "let call take `memory` (rows, keys, dim), for queries are the keys")
            rows = list(batch.queries)
            out = self._call(made, x[:, rows], batch, rows, memory=x)[0]
            alone = self._call(made, x[:, rows[:1]], batch, rows[:1], memory=x)[0]
            same = torch.allclose(out[:, :1], alone, rtol=1e-3, atol=1e-3 * float(out.detach().abs().max()))
            require(same, "let tokens of x be queries alone: the output of one depends on the others")
            return out
        outputs, cache = [], None
        for rows, _, _ in batch.steps():
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.chunks):  # a cache is for inference
                out, cache = self._call(made, x[:, rows], batch, rows, cache=cache)
            outputs.append(out)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    def _call(self, made: Any, x: Tensor, batch: Batch, rows: list[int], **extra: Any) -> tuple[Tensor, Any]:
        parameters = inspect.signature(self.call).parameters
        places, queries = self.places(batch), "memory" in extra
        end = batch.tokens if queries or not rows else rows[-1] + 1
        grid = batch.grid
        if grid is None and batch.positions is None and self.on_grids:
            grid = self.grid_of(batch.tokens)
            require(grid, f"nothing to do: {batch.tokens} tokens are no grid that it has")
        said: dict[str, Any] = {"grid": grid, **extra}
        if batch.positions is not None:
            said |= {"positions": places[:, rows], "memory_positions": places if queries else None}
        if batch.document is not None:
            document = torch.tensor(batch.document, dtype=torch.int64, device=self.device)[:, :end]
            said |= {"padding": document != PADDING, "document": document}
        if batch.order is not None:
            said["order"] = torch.tensor(batch.order, dtype=torch.int64, device=self.device)[:, rows]
        said = {name: value for name, value in said.items() if value is not None}
        for name in ("positions", "memory_positions"):
            if name in said and name not in parameters:
                self.require_plain_positions(batch, name)
        matters = {
            "padding": "padding" in said and not said["padding"].all() and "document" not in parameters,
            "document": len({d for row in batch.document or () for d in row} - {PADDING}) > 1,
            "order": "order" in said,
            "grid": "grid" in said,
            "cache": bool(batch.chunks),
        }
        for name, it_does in matters.items():
            require(not it_does or name in parameters, f"let call take `{name}`")
        plain = {  # for required parameters, where the batch says nothing
            "positions": places[:, rows],
            "padding": torch.ones(len(batch.ids), end, device=self.device).bool(),
            "document": torch.zeros(len(batch.ids), end, device=self.device).long(),
            "memory_positions": places,
            "memory": x,
        }
        taken = [name for name in self.gives if name in said or self.needs(name)]
        given = {name: said.get(name, plain.get(name)) for name in taken if name in parameters}
        out = self.call(made, x, **given)
        if "cache" not in parameters:
            return out, None
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"call takes a cache, so it must end with `return output, cache`; it gave {kind_of(out)}")
        return out


@dataclass(frozen=True, kw_only=True)
class Model(Layer):
    """A model from token ids to vectors or logits: a `Layer` whose x are ids (rows, tokens) of int64, below 48."""

    def content(self, batch: Batch) -> Tensor:
        return torch.tensor(batch.ids, dtype=torch.int64, device=self.device)


def call_module(module: Any, x: Tensor) -> Tensor:
    """A module that is given vectors and nothing else."""
    return module(x)
