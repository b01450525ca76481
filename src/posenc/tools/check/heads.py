"""Subjects between queries and keys: rotations, biases, attention as a function. Plain PyTorch: scripts hold a copy."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.tools.check.subjects import Batch, Subject, require


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Dense softmax(query key' / √d + bias) value, and the log-sum-exp of each row; zeros where nothing is visible."""
    scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + bias
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores.softmax(-1), 0.0)
    return weights.to(value.dtype) @ value, scores.logsumexp(-1)


def asked(batch: Batch) -> tuple[list[int], list[int]]:
    """The tokens that are queries, and those that are keys."""
    everyone = list(range(batch.tokens))
    return list(batch.queries or everyone), list(batch.keys or everyone)


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    """A subject between queries and keys (rows, heads, tokens, head_dim), which are given to it."""

    heads: int = 3
    head_dim: int = 16

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("positions")  # the attention around it does the rest

    def run(self, made: Any, batch: Batch) -> Tensor:
        return self.partial(made, batch, lse=False)[0].transpose(1, 2)

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.content(batch)
        positions = self.places(batch)
        rotated: list[Tensor] = []  # a cache keeps keys as rotated when they were new
        parts = []
        for rows, columns, new in batch.steps():
            asking = self.rotate(made, query[:, :, rows], positions[:, rows], 0)
            rotated.append(self.rotate(made, key[:, :, new], positions[:, new], 1))
            vectors = [asking, torch.cat(rotated, 2), value[:, :, columns]]
            parts.append(self._step(made, batch, vectors, rows, columns, lse))
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)

    def content(self, batch: Batch) -> list[Tensor]:
        """Queries, keys and values (rows, heads, tokens, head_dim)."""
        drawn = (self.vectors(batch, self.heads * self.head_dim, which) for which in (1, 2, 3))
        return [x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for x in drawn]

    def rotate(self, made: Any, x: Tensor, positions: Tensor, which: int = 0) -> Tensor:
        """x (rows, heads, tokens, head_dim) as a query (0) or a key (1), at positions (rows, tokens[, axes])."""
        return x

    def bias(self, made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor | float:
        """What is added to the scores: (rows, heads, queries, keys)."""
        return 0.0

    def _step(
        self, made: Any, batch: Batch, vectors: list[Tensor], rows: list[int], columns: list[int], lse: bool
    ) -> tuple[Tensor, Tensor]:
        """The attention output of these queries for these keys, and, if ``lse``, the log-sum-exp of the scores."""
        query, key, value = vectors
        positions, visible = self.places(batch), self.visible(batch)
        bias = self.bias(made, positions[:, rows], positions[:, columns])
        return attend(query, key, value, visible[:, rows][:, :, columns], bias)


@dataclass(frozen=True, kw_only=True)
class Rotary(_Heads):
    """A rotation of queries and keys: ``call(made, x, positions)`` or ``call(made, query, key, positions)``.

    x, query and key are (rows, heads, tokens, head_dim), positions (rows, tokens) of int64, with ``axes`` above 1
    (rows, tokens, axes). It gives x rotated, or query and key. In place of ``positions`` it may take ``offset``, the
    position of the first token, or nothing: tokens are then at 0, 1, 2, … .

    Further claims: ``frequencies``, radians per position of each pair of channels, or ``base``, for
    base^(-2c/rotary_dim); ``layout``, "half" (channels c and c + rotary_dim/2 are a pair) or "interleaved" (2c and 2c +
    1); ``direction``, "forward" where the first channel x of a pair (x, y) becomes x cos(pθ) - y sin(pθ), "backward"
    where it becomes x cos(pθ) + y sin(pθ); ``rotary_dim``, the channels that are rotated (None: all); ``scale``, what
    the length of a rotated vector is multiplied by (attention factors; None: it depends on the position);
    ``other_layout``: options that build the same in the other layout.
    """

    gives: ClassVar[tuple[str, ...]] = ("x", "query", "key", "positions", "offset")

    frequencies: Sequence[float] | None = None
    base: float | None = None
    layout: str | None = None
    direction: str | None = None
    rotary_dim: int | None = None
    scale: float | None = 1.0
    other_layout: Mapping[str, Any] = field(default_factory=dict)

    def rotate(self, made: Any, x: Tensor, positions: Tensor, which: int = 0) -> Tensor:
        names = list(inspect.signature(self.call).parameters)[1:]
        given: dict[str, Any] = {name: x for name in names if name in ("x", "query", "key")}
        if "positions" in names:
            given["positions"] = positions
        else:
            start = int(positions[0, 0]) if positions.dim() == 2 else 0
            run = torch.arange(start, start + x.size(2), device=x.device).expand(x.size(0), -1)
            require(positions.dim() == 2 and torch.equal(positions, run), "let call take `positions` (rows, tokens)")
            require(not start or "offset" in names, "let call take `positions` (rows, tokens), or an `offset`")
            if "offset" in names:
                given["offset"] = start
        out = self.call(made, **given)
        return out[which] if isinstance(out, tuple) else out


@dataclass(frozen=True, kw_only=True)
class Bias(_Heads):
    """What is added to the scores: ``call(made, query_positions, key_positions)``, (rows, queries[, axes]) and (rows,
    keys[, axes]) of int64, gives (heads, queries, keys) or (rows, heads, queries, keys).

    It may take ``query_length, key_length`` instead: keys are then at 0 … key_length - 1 and queries are the last of
    them. Further claims, where it is minus a slope times the distance: ``slopes``, that of every head; or
    ``heads_option``, the option that says how many heads there are, for those that ALiBi publishes for any number.
    """

    gives: ClassVar[tuple[str, ...]] = ("query_positions", "key_positions", "query_length", "key_length")

    slopes: Sequence[float] | None = None
    heads_option: str = ""

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("query_positions")

    def bias(self, made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        if self.takes("query_positions"):
            bias = self.call(made, query_positions=query_positions, key_positions=key_positions)
        else:
            queries, keys = query_positions.size(1), key_positions.size(1)
            line = torch.arange(keys, device=key_positions.device)
            plain = key_positions.dim() == 2 and torch.equal(key_positions, line.expand_as(key_positions))
            last = plain and torch.equal(query_positions, line[keys - queries :].expand_as(query_positions))
            require(last, "let call take `query_positions` and `key_positions` (rows, tokens), for it takes lengths")
            bias = self.call(made, query_length=queries, key_length=keys)
        return bias if bias.dim() == 4 else bias[None]


@dataclass(frozen=True, kw_only=True)
class Attention(_Heads):
    """Attention as a function: ``call(made, query, key, value, …)`` gives (rows, heads, queries, head_dim).

    It may take ``query_positions`` and ``key_positions`` (rows, tokens[, axes]); ``query_document`` and
    ``key_document`` (rows, tokens), where -1 is padding; ``query_order`` and ``key_order`` (rows, tokens), for
    causality; or ``visible`` (rows, 1, queries, keys) in place of documents, order and causality. With ``return_lse``
    it is asked for (output, log-sum-exp of the scores). Without positions, keys are at 0 … and queries are the last of
    them.
    """

    by_place: ClassVar[int] = 4
    gives: ClassVar[tuple[str, ...]] = (
        "query_positions",
        "key_positions",
        "query_document",
        "key_document",
        "query_order",
        "key_order",
        "visible",
        "return_lse",
    )

    def can(self, what: str) -> bool:
        if what in ("padding", "document", "order"):
            return self.takes("visible") or self.takes("query_order" if what == "order" else "query_document")
        return self.takes({"positions": "query_positions", "lse": "return_lse"}.get(what, "query"))

    def _step(
        self, made: Any, batch: Batch, vectors: list[Tensor], rows: list[int], columns: list[int], lse: bool
    ) -> tuple[Tensor, Tensor]:
        facts = {"positions": self.places(batch)}
        if batch.document is not None or self.needs("query_document"):
            one = [[0] * batch.tokens] * len(batch.ids)
            facts["document"] = torch.tensor(batch.document or one, dtype=torch.int64, device=self.device)
        if batch.order is not None or self.needs("query_order") or (self.causal and self.takes("query_order")):
            line = [list(range(batch.tokens))] * len(batch.ids)
            facts["order"] = torch.tensor(batch.order or line, dtype=torch.int64, device=self.device)
        given: dict[str, Any] = {}
        if self.takes("visible"):
            given["visible"] = self.visible(batch)[:, None, rows][..., columns]
        for name, value_of in facts.items():
            if self.takes(f"query_{name}"):
                given |= {f"query_{name}": value_of[:, rows], f"key_{name}": value_of[:, columns]}
            elif name == "positions":
                self.require_plain_positions(batch)
                lower_right = rows == columns[len(columns) - len(rows) :] and columns == list(range(len(columns)))
                require(
                    lower_right,
                    "let call take `query_positions` and `key_positions`, for queries are the last of the keys",
                )
            else:
                require(self.takes("visible"), f"let call take `query_{name}` and `key_{name}` (rows, tokens)")
        if lse:
            return self.call(made, *vectors, **given, return_lse=True)
        out = self.call(made, *vectors, **given)
        return out, out.new_full(out.shape[:3], torch.nan)
