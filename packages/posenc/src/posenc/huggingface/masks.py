"""Makes the masks of transformers as *positions*, in a tensor that becomes a boolean mask when it is read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from posenc.models.forward_pass import EXCHANGES
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Visibility, visible


class Visible(Tensor):
    """A boolean mask (rows, 1, queries, keys), True = may attend, without data: it holds positions, a visibility and
    the size of the model's chunks along the coordinates. Operations on it get the plain tensor. ``layer_cache`` holds
    what layers share in a forward pass; ``is_packed`` says whether a row holds several documents.
    """

    queries: Positions
    keys: Positions
    visibility: Visibility
    is_packed: bool
    chunk_size: int | None
    layer_cache: dict[Any, Any]

    @staticmethod
    def __new__(
        cls,
        queries: Positions,
        keys: Positions,
        visibility: Visibility,
        rows: int,
        is_packed: bool = False,
        chunk_size: int | None = None,
    ) -> Visible:
        shape = (rows, 1, len(queries), len(keys))
        made: Visible = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=queries.device)
        made.queries, made.keys, made.visibility = queries, keys, visibility
        made.is_packed, made.chunk_size, made.layer_cache = is_packed, chunk_size, {}
        return made

    def in_chunks(self) -> tuple[Positions, Positions]:
        """Queries and keys. If the model has chunks, each chunk is a document of its own, which attends only to
        itself."""
        if self.chunk_size is None:
            return self.queries, self.keys
        if "in chunks" not in self.layer_cache:
            self.layer_cache["in chunks"] = (
                self.queries.in_chunks(self.chunk_size),
                self.keys.in_chunks(self.chunk_size),
            )
        queries, keys = self.layer_cache["in chunks"]
        return queries, keys

    def of_last(self, keys: int, reach: int | None) -> Visible:
        """The mask of the last keys, for a layer whose queries attend to ``reach`` keys before their own and whose
        cache has dropped others; unchanged for fewer keys than that."""
        if reach is None or not reach + len(self.queries) <= keys < len(self.keys):
            return self
        if ("last", keys) not in self.layer_cache:
            self.layer_cache["last", keys] = Visible(
                self.queries, self.keys[-keys:], self.visibility, self.size(0), self.is_packed, self.chunk_size
            )
        last: Visible = self.layer_cache["last", keys]
        return last

    def dense(self) -> Tensor:
        """The mask as a plain tensor."""
        seen = visible(*self.in_chunks(), self.visibility)
        if seen is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        return seen[:, None].expand(self.shape)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        chunks = "" if self.chunk_size is None else f", {Chunk(self.chunk_size)}"
        return f"Visible({self.queries} to {self.keys}, {self.visibility}{chunks})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without cls and func
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(Visible, Visible.dense, (args, kwargs or {}))
        made = func(*args, **kwargs)
        if func.overloadpacket.__name__ in ARITHMETIC and made.is_floating_point():
            raise ValueError(
                "attn_implementation='posenc' gives a boolean mask, and this layer adds it to its scores as numbers, "
                "True as 1, so it does not use posenc's attention. Give the layer the model's configuration if it has "
                "a copy of its own, or set attn_implementation='eager'; posenc.huggingface.adapt(model) says whether "
                "posenc supports a model whose attention implementation cannot be changed"
            )
        return made


ARITHMETIC = frozenset({"add", "add_", "cat", "mul", "mul_"})
"""Functions that give floating numbers only if code treats the boolean mask as an additive one. torch itself refuses
to subtract boolean tensors."""

EVERYTHING = Visibility()
WITHIN = "while a text is divided among processes"


@dataclass(frozen=True)
class Rule:
    """The meaning of a known mask function of transformers."""

    visibility: Visibility = EVERYTHING
    chunk: int | None = None
    left_padding: Tensor | None = None
    document: Tensor | None = None
    order: Tensor | None = None


def read_rule(function: Callable[..., Any]) -> Rule | None:
    """The rule of a mask function, read from its closure, or None for an unknown function."""
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return None
    name = function.__qualname__.removesuffix(".<locals>.inner_mask")
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    if name == "bidirectional_mask_function":
        return Rule()
    if name == "causal_mask_function":
        return Rule(Visibility(is_causal=True))
    if name == "sliding_window_overlay" and held["sliding_window"] > 0:
        return Rule(Visibility(left=held["sliding_window"] - 1))
    if name == "sliding_window_bidirectional_overlay" and held["sliding_window"] >= 0:
        return Rule(Visibility(left=held["sliding_window"], right=held["sliding_window"]))
    if name == "chunked_overlay":
        return Rule(chunk=held["chunk_size"], left_padding=held["left_padding"])
    if name == "packed_sequence_mask_function":
        return Rule(document=held["packed_sequence_mask"])
    if name == "remap_positions_for_packed_sequence":
        inner = read_rule(held["mask_function"])
        return None if inner is None or inner.order is not None else replace(inner, order=held["position_ids"])
    if name == "and_masks.<locals>.and_mask":
        return _both([read_rule(part) for part in held["mask_functions"]])
    return None


def _both(rules: list[Rule | None]) -> Rule | None:
    """The conjunction of rules; None if one is unknown, or if two set the same field."""
    fields: dict[str, Any] = {}
    for rule in rules:
        if rule is None:
            return None
        seen = rule.visibility
        said = {"is_causal": seen.is_causal or None, "left": seen.left, "right": seen.right, **vars(rule)}
        del said["visibility"]
        for name, value in said.items():
            if value is not None:
                if name in fields:
                    return None
                fields[name] = value
    sees = {name: fields.pop(name) for name in ("is_causal", "left", "right") if name in fields}
    return Rule(Visibility(**sees), **fields)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """The mask that transformers passes to `attention`: a `Visible`, or a plain boolean mask for an unknown mask
    function, for a static cache that counts on the device, and in a compiled graph (there also None, as for "sdpa").
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    is_compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    rule = None if is_compiled or isinstance(q_offset, Tensor) else read_rule(function)
    if EXCHANGES:
        if rule is None:
            raise ValueError(
                f"the mask must be of a known function, made uncompiled, {WITHIN}, got "
                f"{getattr(function, '__qualname__', function)}"
            )
        return _of_shard(q_length, rule.visibility, batch_size, rule.chunk, attention_mask)
    if rule is None or batch_size == 0:
        dense: Tensor | None = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            function,
            attention_mask,
            allow_is_causal_skip=allow_is_causal_skip and is_compiled,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip and is_compiled,
            device=device,
            **others,
        )
        return dense
    is_token = None if attention_mask is None else attention_mask.to(device=device, dtype=torch.bool)
    if is_token is not None:
        lacking = kv_offset + kv_length - is_token.size(1)
        is_token = nn.functional.pad(is_token, (0, max(lacking, 0)))[:, kv_offset : kv_offset + kv_length]
        is_token = None if bool(is_token.all()) else is_token
    if rule.left_padding is not None and not bool(rule.left_padding.any()):
        rule = replace(rule, left_padding=None)
    queries = _positions(rule, q_offset, q_length, None, device)
    keys = _positions(rule, kv_offset, kv_length, is_token, device)
    # transformers passes documents only if a row has several
    return Visible(queries, keys, rule.visibility, batch_size, rule.document is not None, rule.chunk)


def _of_shard(
    queries: int, visibility: Visibility, rows: int, chunk: int | None, attention_mask: Tensor | None
) -> Visible:
    """The mask of a model that has a shard of a text: what layers need to know. Positions and padding are those of the
    sharding, with which ``attention_mask`` is compared later, by all processes together."""
    # Only the function of transformers that makes the mask knows: an empty cache does not show in sizes. It calls it
    # "cache" from 5.24 on.
    its = sys._getframe(2).f_locals
    if next((its[name] for name in ("cache", "past_key_values") if name in its), its) is not None:
        raise ValueError(
            f"use_cache must be False {WITHIN}, got a cache, which would hold the keys of this process alone: pass "
            "use_cache=False. Generate with the whole text in one process, outside of posenc.distributed.sharded"
        )
    sharding = EXCHANGES[-1].sharding
    if 0 in sharding.counts:
        raise ValueError(
            f"every process must have tokens where it runs a model of transformers, got {sharding.counts}: use fewer "
            "processes, or another order"
        )
    tokens = len(sharding.positions)
    sharding.agree(
        None
        if queries == tokens
        else f"input_ids must have the {tokens} tokens of this process, got {queries}: divide it with "
        "sharding.shard(input_ids)"
    )
    made = Visible(sharding.positions, sharding.positions, visibility, rows, chunk_size=chunk)
    made.layer_cache["given"] = rows, attention_mask
    return made


def _positions(rule: Rule, offset: int, tokens: int, is_token: Tensor | None, device: torch.device | str) -> Positions:
    """The positions of tokens offset .. offset + tokens - 1 of a text, some of which may be padding."""
    if rule.left_padding is None and rule.document is None and rule.order is None and is_token is None:
        return Positions.arange(tokens, start=offset, device=device)
    order = torch.arange(offset, offset + tokens, device=device)[None]
    if rule.order is not None:  # the whole text from 0 on, as transformers checks
        order = rule.order.long()
    coords = order if rule.left_padding is None else order - rule.left_padding[:, None]  # chunks are counted from there
    document = torch.zeros_like(order) if rule.document is None else rule.document.long()
    if is_token is not None:
        document = torch.where(is_token, document, PADDING)
    rows = max(coords.size(0), document.size(0))
    coords, order, document = (x.expand(rows, -1) for x in (coords, order, document))
    return Positions(coords, order=order, document=document)
