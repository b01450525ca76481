"""posenc as an attention implementation of transformers: ``attn_implementation="posenc"``.

A model of transformers asks for a mask once per forward pass, and hands it to the attention of every layer. `mask`
gives it what posenc needs: who sees whom as *positions*, in a tensor that is a boolean mask to anyone who looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from posenc.arguments import shown
from posenc.backends.attention import attention as posenc_attention
from posenc.encoding import Context, Encoding
from posenc.givens import is_readable
from posenc.pieces import Distance, Function
from posenc.positions import PADDING, Positions
from posenc.scheme import Scheme
from posenc.tiles import Chunk, Visibility
from posenc.visibility import visible

NAME = "posenc"

# What a model may hand to attention that says nothing of scores: transformers passes its own keyword arguments on.
SILENT = frozenset(
    (
        "cache_position",
        "deterministic",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "use_cache",
        "max_length_q",  # beside cu_seq_lens_q, which is refused
        "max_length_k",
    )
)
DOCUMENTS = (
    "documents are told apart by position_ids that start again, without attention_mask and with use_cache=False; leave "
    "it out"
)
# What changes the scores, and posenc cannot take from here; why, or what to do instead.
REFUSED = {
    "output_attentions": "no weights are made; set attn_implementation='eager' to look at them",
    "cache": "a paged cache is for continuous batching; use model.generate, or another attention implementation",
    "cu_seq_lens_q": DOCUMENTS,
    "cu_seq_lens_k": DOCUMENTS,
    "seq_idx": DOCUMENTS,
    "indices": "posenc has no attention to picked keys; set attn_implementation='eager'",
    "block_indices": "posenc has no attention to picked blocks of keys; set attn_implementation='eager'",
    "head_mask": "posenc does not weigh heads; set attn_implementation='eager'",
}


def register() -> None:
    """Makes "posenc" an attention implementation of transformers, with its mask. Importing ``posenc.huggingface`` does
    so; doing it again changes nothing.

    >>> model.set_attn_implementation("posenc")
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


# -- who sees whom ----------------------------------------------------------------------------------------------------


class Visible(Tensor):
    """A boolean mask (rows, 1, queries, keys), True = may be seen, that is not laid out: it holds the positions and the
    visibility that it follows from. Whoever reads or cuts it gets the plain tensor. ``kept`` holds what layers share in
    this pass, ``is_packed`` says whether a row holds several documents: chunks of one text are told apart in the same
    way, and are none.
    """

    queries: Positions
    keys: Positions
    visibility: Visibility
    is_packed: bool
    kept: dict[Any, Any]

    @staticmethod
    def __new__(
        cls, queries: Positions, keys: Positions, visibility: Visibility, rows: int, is_packed: bool = False
    ) -> Visible:
        shape = (rows, 1, len(queries), len(keys))
        made: Visible = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=queries.device)
        made.queries, made.keys, made.visibility = queries, keys, visibility
        made.is_packed, made.kept = is_packed, {}
        return made

    def dense(self) -> Tensor:
        """The mask, laid out."""
        seen = visible(self.queries, self.keys, self.visibility)
        if seen is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        return seen[:, None].expand(self.shape)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Visible({self.queries} to {self.keys}, {self.visibility})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without cls and func
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(Visible, Visible.dense, (args, kwargs or {}))
        return func(*args, **kwargs)


EVERYTHING = Visibility()


@dataclass(frozen=True)
class Rule:
    """What a mask function of transformers says, as far as it is one of those whose meaning is known."""

    visibility: Visibility = EVERYTHING
    chunk: int | None = None
    left_padding: Tensor | None = None
    document: Tensor | None = None
    order: Tensor | None = None


def read_rule(function: Callable[..., Any]) -> Rule | None:
    """The rule of a mask function, or None where it is not known. They are closures over what they were made from."""
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
    """What all of them allow; None where that is not known, or one thing is said twice."""
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
    """The mask that transformers hands to `attention`: a `Visible`, or a plain boolean mask where the function is
    somebody's own, where a static cache counts on the device, and in a compiled graph (there None too, as for "sdpa").
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    is_compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    rule = None if is_compiled or isinstance(q_offset, Tensor) else read_rule(function)
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
    queries = _positions(rule, q_offset, q_length, None, device)
    keys = _positions(rule, kv_offset, kv_length, is_token, device)
    # transformers tells documents apart only where it has found several in a row
    return Visible(queries, keys, rule.visibility, batch_size, is_packed=rule.document is not None)


def _positions(rule: Rule, offset: int, tokens: int, is_token: Tensor | None, device: torch.device | str) -> Positions:
    """Tokens offset .. offset + tokens - 1 of a text, of which some may be padding."""
    if rule.chunk is None and rule.document is None and rule.order is None and is_token is None:
        return Positions.arange(tokens, start=offset, device=device)
    order = torch.arange(offset, offset + tokens, device=device)[None]
    coords = order
    if rule.order is not None:  # the text starts at 0, and transformers sees that all of it is here
        order = coords = rule.order.long()
    document = torch.zeros_like(order) if rule.document is None else rule.document.long()
    if rule.chunk is not None:
        # A chunk is a document of its own, since nothing in it sees what is outside.
        before = order.new_zeros(1, 1) if rule.left_padding is None else rule.left_padding[:, None]
        before = (
            before % rule.chunk - rule.chunk
        )  # chunks are counted from one before the text, so that none is below 0
        chunk = torch.div(order - before, rule.chunk, rounding_mode="floor")
        document = document * (offset + tokens + 2) + chunk
    if is_token is not None:
        document = torch.where(is_token, document, PADDING)
    rows = max(order.size(0), document.size(0))
    return Positions(coords.expand(rows, -1), order=order.expand(rows, -1), document=document.expand(rows, -1))


# -- attention --------------------------------------------------------------------------------------------------------


class Plan(nn.Module):
    """What stands in place of a layer's own positions: a scheme, bound where its queries and keys are, and a window
    (left, right) or a `Chunk` in place of the model's, None: the model's own. `patch` gives it to a layer's attention
    by the name PLAN, so a scheme's parameters are the model's. ``source`` is the module that sees the model's
    position_ids, for layers that are not given them; with ``counts`` a model has none, and tokens are counted."""

    def __init__(
        self,
        scheme: Scheme,
        window: tuple[int | None, int | None] | Chunk | None = None,
        source: nn.Module | None = None,
        counts: bool = False,
    ) -> None:
        super().__init__()
        self.scheme, self.window, self.counts = scheme, window, counts
        self._source = (source,)  # in a tuple, so that it is not a part of this module as well

    def position_ids(self) -> Tensor | None:
        """What the model has given the source in this pass."""
        seen: Tensor | None = getattr(self._source[0], "seen", None)
        return seen


PLAN = "posenc_plan"


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    position_ids: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer of transformers: (batch, heads, tokens, head_dim) in, (batch, tokens, heads, head_dim) out.

    Who sees whom is in ``attention_mask``: what `mask` made, or a mask of four dimensions, bool or added. Where there
    is none, queries and keys are those of one text from its start, causal where ``is_causal``, or else the module, says
    so, within ``sliding_window``; a single query sees all keys. ``softcap`` c: scores are c tanh(s / c). ``s_aux``: a
    sink, a logit for each head; ``sinks``: one for each head and query. ``position_bias`` is added to the scores.

    ValueError for anything else that would change the scores, by its name.
    """
    _check_others(others)
    queries, keys, bias, seen = _visibility(module, query, key, attention_mask, is_causal, sliding_window)
    plan: Plan | None = getattr(module, PLAN, None)
    if plan is None:
        encoding = Encoding(queries, keys, context=Context())
    else:
        encoding, seen = _planned(plan, query, queries, keys, bias, seen, attention_mask, position_ids)
    if softcap is not None:
        capped = Function(squash, _Constant(float(softcap)), Distance("softcap", tail="constant"), formula="cap")
        encoding = replace(encoding, pieces=(*encoding.pieces, capped))
    if position_bias is not None:
        bias = _added(position_bias, bias)
    result = posenc_attention(
        query,
        key,
        value,
        encoding,
        attn_mask=bias,
        is_causal=seen.is_causal,
        window=None if seen.left is None and seen.right is None else (seen.left, seen.right),
        sinks=s_aux,
        dropout_p=dropout,
        scale=scaling,
        return_lse=sinks is not None,
    )
    if sinks is not None:
        assert isinstance(result, tuple)
        out, lse = result
        share = (lse[..., None] - sinks.to(lse.dtype)).sigmoid()
        result = (out.to(lse.dtype) * share).to(out.dtype)
    assert isinstance(result, Tensor)
    return result.transpose(1, 2).contiguous(), None


def _planned(
    plan: Plan,
    query: Tensor,
    queries: Positions,
    keys: Positions,
    bias: Tensor | None,
    seen: Visibility,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> tuple[Encoding, Visibility]:
    """The encoding of a layer whose positions posenc has taken over, bound to where the tokens are."""
    if plan.window is not None:
        if bias is not None and queries.order.size(1) != keys.order.size(1):
            raise ValueError(
                "a window of a schedule needs to know where queries and keys stand, and a mask was given instead: let "
                "the model make its mask, with a dynamic cache and uncompiled"
            )
        window = (None, None) if isinstance(plan.window, Chunk) else plan.window
        first = None if isinstance(plan.window, Chunk) else keys.layout.start
        if first is not None and first[1] > max(0, _reach(queries, window)):
            raise ValueError(
                f"the cache of this layer has let go of keys that a window of {window} sees: generate with "
                "use_cache=False, or a cache that keeps all"
            )
        seen = replace(seen, left=window[0], right=window[1])
    kept = attention_mask.kept if isinstance(attention_mask, Visible) else {}
    dtype = torch.promote_types(query.dtype, torch.float32)
    if "placed" not in kept:
        ids = plan.position_ids() if position_ids is None else position_ids
        kept["placed"] = place(queries, keys, bias, ids, plan.counts)
    # What is being learned is bound by every layer for itself: a layer that is computed once more on the way back, to
    # save memory, must make the same graph again, and must not find what was made without one.
    learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in plan.scheme.parameters())
    name = (id(plan.scheme), dtype, plan.window if isinstance(plan.window, Chunk) else None)
    if not learns and name in kept:
        return kept[name], seen
    at, there, lengths = kept["placed"]
    if plan.scheme.needs_lengths and "one text" not in kept:
        _check_one_text(at, keys, bias, isinstance(attention_mask, Visible) and attention_mask.is_packed)
        kept["one text"] = True
    context = Context(lengths=lengths if plan.scheme.needs_lengths else None)
    encoding = plan.scheme(at, there, dtype=dtype, context=context, doors=("rotate", "score", "value"))
    if isinstance(plan.window, Chunk):
        encoding = encoding.in_chunks(plan.window.size)
    if not learns:
        kept[name] = encoding
    return encoding, seen


def _reach(queries: Positions, window: tuple[int | None, int | None]) -> int:
    """The first place that the first query sees, where that is known."""
    return 0 if window[0] is None or queries.layout.start is None else queries.layout.start[1] - window[0]


def place(
    queries: Positions, keys: Positions, bias: Tensor | None, position_ids: Tensor | None, counts: bool = False
) -> tuple[Positions, Positions, Tensor]:
    """Queries and keys with the coordinates that the model gives them, and how long the text of each row is by now.

    ``position_ids`` (rows, queries) are those of the queries. Keys of a cache are counted back from the last query,
    token by token, padding left out: there they were, unless somebody left places out, which is a ValueError where it
    can be told. ``bias`` is a mask that says who sees whom in place of the positions. ``counts``: where there are no
    position_ids, the tokens of the row are counted.
    """
    m, n = queries.order.size(1), keys.order.size(1)
    is_key = keys.document != PADDING if bias is None else _is_seen(bias)
    slot = torch.arange(n, device=is_key.device)[None]
    if m == n:
        slots = slot
    elif bias is None:
        slots = queries.order - keys.order[:, :1]
    else:  # the last key that anyone sees is the last query's own
        slots = slot.masked_fill(~is_key, 0).amax(1, keepdim=True) + torch.arange(1 - m, 1, device=slot.device)
    if counts and position_ids is None:
        count = is_key.long().cumsum(1)
        position_ids = (count.gather(1, slots.expand(count.size(0), -1)) - 1).clamp(min=0)
    ids = _ids(queries, keys, bias, position_ids)
    there, is_here = ids, is_key
    if m != n:
        rows = max(is_key.size(0), ids.size(0))
        slots, ids, is_key = slots.expand(rows, -1), ids.expand(rows, -1), is_key.expand(rows, -1)
        count = is_key.long().cumsum(1)
        there = count - count.gather(1, slots[:, -1:]) + ids[:, -1:]
        is_here = is_key & (slot <= slots[:, -1:])
        if is_readable(ids):
            skips = (there.gather(1, slots) != ids) & is_key.gather(1, slots)
            if bool(skips.any()):
                raise ValueError(
                    "position_ids must count the tokens of a cache one by one where posenc places its keys, got some "
                    "that skip or repeat places"
                )
    there, is_here = torch.broadcast_tensors(there, is_here)
    lengths = there.masked_fill(~is_here, -1).amax(1) + 1
    return _at(queries, ids), _at(keys, there), lengths


def _ids(queries: Positions, keys: Positions, bias: Tensor | None, position_ids: Tensor | None) -> Tensor:
    """The coordinates of the queries, (rows, queries)."""
    if position_ids is not None:
        if position_ids.dim() != 2:
            raise ValueError(
                f"position_ids must be (rows, queries) where posenc places tokens, got {shown(position_ids)}"
            )
        return position_ids.long()
    if bias is not None or keys.layout.start is None:
        raise ValueError(
            "position_ids do not reach the attention of this layer, and padding, packing or a mask leaves open where "
            "its tokens are: pass unpadded rows of one text"
        )
    return queries.order


def _check_one_text(at: Positions, keys: Positions, bias: Tensor | None, is_packed: bool) -> None:
    """ValueError for rows of several documents, which `place` would give one length: that of the longest. Where a mask
    does not tell documents apart, places that do not rise do. A compiled graph cannot read them. Beside a cache `place`
    has seen that they are counted one by one."""
    ids, run = at.coords, at.layout.run
    rises = run is not None and run.coords is not None and run.steps == (1,)
    if not is_packed and not rises and ids.size(1) == keys.order.size(1):
        if torch.compiler.is_compiling() or ids.device.type == "meta":
            return
        is_token = keys.document != PADDING if bias is None else _is_seen(bias)
        before = ids.masked_fill(~is_token, -1).cummax(1).values[:, :-1]
        is_packed = bool((is_token[:, 1:] & (ids[:, 1:] <= before)).any())
    if is_packed:
        raise ValueError(
            "a row of several documents has no one length, got position_ids that start again in a row: give each "
            "document a row of its own, or take a scaling that does not depend on the length, such as YaRN"
        )


def _at(positions: Positions, ids: Tensor) -> Positions:
    """The same tokens at other coordinates; with their layout where these are the same."""
    if is_readable(ids) and bool((positions.coords == ids).all()):
        return positions
    return Positions(ids, order=positions.order, document=positions.document)


def _is_seen(mask: Tensor) -> Tensor:
    """Which keys any query sees, (rows, keys)."""
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.any(2).any(1)


def _check_others(others: Mapping[str, Any]) -> None:
    """ValueError for what would be lost."""
    for name, value in others.items():
        if value is None or value is False or name in SILENT:
            continue
        why = REFUSED.get(name, "posenc does not know whether it changes the scores, and drops nothing silently")
        raise ValueError(f"{name} cannot be honoured by attn_implementation='posenc', got {shown(value)}: {why}")


def _visibility(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> tuple[Positions, Positions, Tensor | None, Visibility]:
    """The positions of queries and keys, what is left of the mask, and who sees whom."""
    m, n = query.size(2), key.size(2)
    if isinstance(attention_mask, Visible):
        if attention_mask.shape[2:] != (m, n):
            made = tuple(attention_mask.shape[2:])
            raise ValueError(f"attention_mask must be for the (queries, keys) of the layer, {(m, n)}, got {made}")
        return attention_mask.queries, attention_mask.keys, None, attention_mask.visibility
    queries, keys = Positions.arange(m, device=query.device), Positions.arange(n, device=query.device)
    if attention_mask is not None:
        if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 4:
            raise ValueError(
                "attention_mask must be of four dimensions (batch, heads, queries, keys) when it reaches the attention "
                f"of a layer, got {shown(attention_mask)}"
            )
        return queries, keys, attention_mask, Visibility()
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and m > 1
    if causal and m != n and not torch.compiler.is_compiling():
        raise ValueError(
            f"attention_mask must say which of {n} keys each of {m} queries sees, got None: pass the model an "
            "attention_mask, or let it make one"
        )
    window = None
    if sliding_window is not None and n > sliding_window:
        if not causal:
            raise ValueError(
                f"sliding_window={sliding_window} cannot be honoured without a mask where attention is not causal"
            )
        window = sliding_window - 1
    return queries, keys, None, Visibility(is_causal=causal, left=window)


def _added(bias: Tensor, mask: Tensor | None) -> Tensor:
    """A bias and a mask as one that is added."""
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask


def squash(score: Tensor, cap: Tensor) -> Tensor:
    """cap tanh(s / cap)."""
    return cap * torch.tanh(score / cap)


@dataclass(frozen=True)
class _Constant:
    """One number for every distance."""

    number: float

    def __call__(self, r: Tensor) -> tuple[Tensor]:
        dtype = torch.float64 if r.device.type != "mps" else torch.float32
        return (torch.full((1, *r.shape), self.number, dtype=dtype, device=r.device),)
