"""posenc as an attention implementation of transformers: ``attn_implementation="posenc"``.

A model of transformers asks for a mask once per forward pass, which holds *positions* and becomes a boolean mask when
it is read, and passes it to the attention of every layer. Patched layers have a `LayerScheme`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from posenc.arguments import shown
from posenc.backends.api import attention as posenc_attention
from posenc.encoding.encoding import Context, Encoding
from posenc.models.forward_pass import EXCHANGES, ForwardPass
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window, visible
from posenc.positions.validation import is_readable
from posenc.scheme import Scheme
from posenc.schemes.nope import NoPE
from posenc.schemes.softcap import Softcap

T = TypeVar("T")
NAME = "posenc"
WITHIN = "while a text is divided among processes"

# -- masks ------------------------------------------------------------------------------------------------------------

# What gives floating numbers only if code treats the boolean mask as an additive one. torch itself refuses to subtract
# boolean tensors.
ARITHMETIC = frozenset({"add", "add_", "cat", "mul", "mul_"})


class Visible(Tensor):
    """A boolean mask (rows, 1, queries, keys), True = may attend, without data: it holds positions, a visibility and
    the size of the model's chunks along the coordinates. Operations on it get the plain tensor. ``layer_cache`` holds
    what layers share in a forward pass; ``is_packed`` says whether a row holds several documents."""

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

    def shared(self, key: Any, make: Callable[[], T]) -> T:
        """What layers share in a forward pass, made once."""
        if key not in self.layer_cache:
            self.layer_cache[key] = make()
        found: T = self.layer_cache[key]
        return found

    def in_chunks(self) -> tuple[Positions, Positions]:
        """Queries and keys. If the model has chunks, each is a document of its own, which attends only to itself."""
        both, size = (self.queries, self.keys), self.chunk_size
        return (
            both if size is None else self.shared("chunks", lambda: (both[0].in_chunks(size), both[1].in_chunks(size)))
        )

    def of_last(self, keys: int, reach: int | None) -> Visible:
        """The mask of the last keys, for a layer whose queries attend to ``reach`` keys before their own and whose
        cache has dropped others; unchanged for fewer keys than that."""
        if reach is None or not reach + len(self.queries) <= keys < len(self.keys):
            return self
        rest = self.visibility, self.size(0), self.is_packed, self.chunk_size
        return self.shared(("last", keys), lambda: Visible(self.queries, self.keys[-keys:], *rest))

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
                "a copy of its own, or set attn_implementation='eager'"
            )
        return made


Rule = dict[str, Any]
"""What a mask function says: is_causal, left, right, chunk, left_padding, document, order."""


def read_rule(function: Callable[..., Any]) -> Rule | None:
    """The rule of a mask function of transformers, read from its closure, or None for an unknown function."""
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells}
    match function.__qualname__.removesuffix(".<locals>.inner_mask"):
        case "bidirectional_mask_function":
            return {}
        case "causal_mask_function":
            return {"is_causal": True}
        case "sliding_window_overlay" if held["sliding_window"] > 0:
            return {"left": held["sliding_window"] - 1}
        case "sliding_window_bidirectional_overlay" if held["sliding_window"] >= 0:
            return {"left": held["sliding_window"], "right": held["sliding_window"]}
        case "chunked_overlay":
            return {"chunk": held["chunk_size"], "left_padding": held["left_padding"]}
        case "packed_sequence_mask_function":
            return {"document": held["packed_sequence_mask"]}
        case "remap_positions_for_packed_sequence":
            return _joined([read_rule(held["mask_function"]), {"order": held["position_ids"]}])
        case "and_masks.<locals>.and_mask":
            return _joined(map(read_rule, held["mask_functions"]))
    return None


def _joined(rules: Iterable[Rule | None]) -> Rule | None:
    """The conjunction of rules; None if one is unknown, or if two say the same."""
    said: Rule = {}
    for rule in rules:
        if rule is None or said.keys() & rule.keys():
            return None
        said |= rule
    return said


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
    if rule is None and EXCHANGES:
        name = getattr(function, "__qualname__", function)
        raise ValueError(f"the mask must be of a known function, made uncompiled, {WITHIN}, got {name}")
    if rule is None or (batch_size == 0 and not EXCHANGES):
        skips = {
            "allow_is_causal_skip": allow_is_causal_skip,
            "allow_is_bidirectional_skip": allow_is_bidirectional_skip,
        }
        others |= {name: skip and is_compiled for name, skip in skips.items()} | {"device": device}
        dense: Tensor | None = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, **others
        )
        return dense
    seen = Visibility(**{name: rule[name] for name in ("is_causal", "left", "right") if name in rule})
    if EXCHANGES:
        return _of_shard(q_length, seen, batch_size, rule.get("chunk"), attention_mask)
    is_token = None if attention_mask is None else attention_mask.to(device=device, dtype=torch.bool)
    if is_token is not None:
        lacking = kv_offset + kv_length - is_token.size(1)
        is_token = nn.functional.pad(is_token, (0, max(lacking, 0)))[:, kv_offset : kv_offset + kv_length]
        is_token = None if bool(is_token.all()) else is_token
    queries = _positions(rule, q_offset, q_length, None, device)
    keys = _positions(rule, kv_offset, kv_length, is_token, device)
    # transformers passes documents only if a row has several
    return Visible(queries, keys, seen, batch_size, "document" in rule, rule.get("chunk"))


def _positions(rule: Rule, offset: int, tokens: int, is_token: Tensor | None, device: torch.device | str) -> Positions:
    """The positions of tokens offset .. offset + tokens - 1 of a text, some of which may be padding."""
    padding = rule.get("left_padding")
    padding = None if padding is None or not bool(padding.any()) else padding
    if padding is None and is_token is None and not rule.keys() & {"document", "order"}:
        return Positions.arange(tokens, start=offset, device=device)
    order = torch.arange(offset, offset + tokens, device=device)[None]
    order = rule["order"].long() if "order" in rule else order  # the whole text from 0 on, as transformers checks
    coords = order if padding is None else order - padding[:, None]  # chunks are counted from there
    document = rule["document"].long() if "document" in rule else torch.zeros_like(order)
    if is_token is not None:
        document = torch.where(is_token, document, PADDING)
    rows = max(coords.size(0), document.size(0))
    coords, order, document = (x.expand(rows, -1) for x in (coords, order, document))
    return Positions(coords, order=order, document=document)


def _of_shard(tokens: int, seen: Visibility, rows: int, chunk: int | None, attention_mask: Tensor | None) -> Visible:
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
    mine = len(sharding.positions)
    wrong = f"input_ids must have the {mine} tokens of this process, got {tokens}: divide it with "
    sharding.agree(None if tokens == mine else f"{wrong}sharding.shard(input_ids)")
    made = Visible(sharding.positions, sharding.positions, seen, rows, chunk_size=chunk)
    made.layer_cache["given"] = rows, attention_mask
    return made


# -- the positions of a patched layer ---------------------------------------------------------------------------------

LAYER_SCHEME = "posenc_plan"
"""The submodule of an attention that holds its `LayerScheme`."""

ROTARY = "posenc_rotary"
"""The attribute of an attention whose rotary module posenc has replaced: that module, in a tuple."""

WHOLE = (None, None)
"""The window of a layer without one."""


class LayerScheme(nn.Module):
    """The scheme that replaces a layer's positions, and a window (left, right) or `Chunk` that replaces the layer's;
    None keeps the layer's own. It is a submodule of the layer's attention, so that the scheme's parameters are the
    model's.

    ``source`` gets the model's position_ids, as ``seen``, for layers that do not, and with ``by_source`` for all.
    ``counts``: the model has no position_ids, and tokens are counted. ``own`` is the layer's own window, which cannot
    be removed from a mask given as a plain tensor."""

    _tied_weights_keys: ClassVar = {"scheme": "scheme"}
    """For save_pretrained: layers may share the scheme, which is then written once."""

    def __init__(
        self,
        scheme: Scheme,
        window: Any = None,
        source: Any = None,
        counts: bool = False,
        by_source: bool = False,
        own: Any = WHOLE,
    ) -> None:
        super().__init__()
        self.scheme, self.window, self.counts, self.by_source, self.own = scheme, window, counts, by_source, own
        self._source = (source,)  # in a tuple, so that it is not a part of this module as well

    def position_ids(self, given: Tensor | None) -> Tensor | None:
        """Those that the layer is given, or that the source got in this forward pass."""
        return getattr(self._source[0], "seen", None) if given is None or self.by_source else given

    @property
    def reach(self) -> int | None:
        """How many keys before its own a query attends to; None: any or, with chunks of a schedule, which divide
        coordinates and not the slots of a cache, unknown."""
        if self.window is None and isinstance(self.own, Chunk):
            return self.own.size - 1
        window = self.own if self.window is None else self.window
        return None if isinstance(window, Chunk) else check_window(window)[0]


def bind_layer(
    layer_scheme: LayerScheme,
    dtype: torch.dtype,
    queries: Positions,
    keys: Positions,
    bias: Tensor | None,
    seen: Visibility,
    mask: Visible | None,
    position_ids: Tensor | None,
) -> tuple[Encoding, Visibility]:
    """The encoding of a patched layer, bound to the positions of its tokens, and the visibility."""
    scheme, window = layer_scheme.scheme, layer_scheme.window
    chunk = window if isinstance(window, Chunk) else None
    if window is not None:
        if mask is not None:
            queries, keys = mask.queries, mask.keys  # without the model's own chunks
        if bias is not None and (layer_scheme.own != WHOLE or queries.order.size(1) != keys.order.size(1)):
            raise ValueError(
                "a window of a schedule needs the positions of queries and keys, and a plain mask was given instead: "
                "let the model make its mask, with a dynamic cache and uncompiled"
            )
        left, right = check_window(window) if chunk is None else (chunk.size - 1, None)
        first, before = keys.layout.start, queries.layout.start  # that of the window of the first query is the latter's
        reach = 0 if left is None or before is None else before[1] - left
        if first is not None and first[1] > max(0, reach):
            raise ValueError(
                f"the cache of this layer has dropped keys that are within a window of {window}: generate with "
                "use_cache=False, or with the cache that posenc.huggingface.bounded_cache(model) makes"
            )
        seen = replace(seen, left=left if chunk is None else None, right=right)
    cache = {} if mask is None else mask.layer_cache
    in_own_chunks = window is None  # if the model has any
    if ("placed", in_own_chunks) not in cache:
        ids = layer_scheme.position_ids(position_ids)
        cache["placed", in_own_chunks] = locate_tokens(queries, keys, bias, ids, layer_scheme.counts)

    def bind() -> Encoding:
        at, there, lengths = cache["placed", in_own_chunks]
        if scheme.needs_lengths and "one text" not in cache:
            _check_one_text(at, keys, bias, mask is not None and mask.is_packed)
            cache["one text"] = True
        context = Context(lengths=lengths if scheme.needs_lengths else None)
        encoding = scheme(at, there, dtype=dtype, context=context, doors=("rotate", "score", "value"))
        return encoding if chunk is None else encoding.in_chunks(chunk.size)

    return bind_once(cache, scheme, (dtype, in_own_chunks if chunk is None else chunk), bind), seen


def bind_once(layer_cache: dict[Any, Any], scheme: nn.Module, key: tuple[Any, ...], make: Callable[[], T]) -> T:
    """What layers with this scheme, bound in this way, share: from the ``layer_cache``, or bound now.

    While a scheme is trained, every layer binds it separately: with gradient checkpointing a layer is recomputed in the
    backward pass, and must build the same graph again instead of finding what was bound without one."""
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in scheme.parameters()):
        return make()
    if (scheme, *key) not in layer_cache:
        layer_cache[scheme, *key] = make()
    result: T = layer_cache[scheme, *key]
    return result


def locate_tokens(
    queries: Positions, keys: Positions, bias: Tensor | None, ids: Tensor | None, counts: bool = False
) -> tuple[Positions, Positions, Tensor]:
    """Queries and keys with the coordinates that the model gives them, and the current length of each row's text.

    ``ids`` (rows, queries) are the position_ids of the queries. Keys of a cache are counted back from the last query,
    one by one without padding. ``bias`` is a plain mask that replaces the visibility of the positions. ``counts``:
    without ids, the tokens of the row are counted. Raises ValueError for ids that skip or repeat, where that can be
    read."""
    m, n = queries.order.size(1), keys.order.size(1)
    is_key = _is_key(keys, bias)
    slot = torch.arange(n, device=is_key.device)[None]
    if m == n:
        slots = slot
    elif bias is None:
        slots = queries.order - keys.order[:, :1]
    else:  # the last key that any query attends to is the last query's own
        slots = slot.masked_fill(~is_key, 0).amax(1, keepdim=True) + torch.arange(1 - m, 1, device=slot.device)
    if ids is not None and ids.dim() != 2:
        raise ValueError(f"position_ids must be (rows, queries), got {shown(ids)}")
    if ids is None and counts:
        count = is_key.long().cumsum(1)
        ids = (count.gather(1, slots.expand(count.size(0), -1)) - 1).clamp(min=0)
    elif ids is None and (bias is not None or keys.layout.start is None):
        raise ValueError(
            "position_ids do not reach the attention of this layer, and with padding, packing or a plain mask the "
            "positions of its tokens are unknown: pass unpadded rows of one text"
        )
    ids = queries.order if ids is None else ids.long()
    there, is_token = ids, is_key
    if m != n:
        rows = max(is_key.size(0), ids.size(0))
        slots, ids, is_key = (x.expand(rows, -1) for x in (slots, ids, is_key))
        count = is_key.long().cumsum(1)
        there = count - count.gather(1, slots[:, -1:]) + ids[:, -1:]
        there = torch.where(is_key, there, there.clamp(min=0))  # some schemes refuse positions below 0
        is_token = is_key & (slot <= slots[:, -1:])
        if is_readable(ids) and bool(((there.gather(1, slots) != ids) & is_key.gather(1, slots)).any()):
            raise ValueError(
                "position_ids must count the tokens of a cache one by one where posenc derives those of keys, got some "
                "that skip or repeat"
            )
    there, is_token = torch.broadcast_tensors(there, is_token)
    lengths = there.masked_fill(~is_token, -1).amax(1) + 1
    return _with_coords(queries, ids), _with_coords(keys, there), lengths


def _check_one_text(at: Positions, keys: Positions, bias: Tensor | None, is_packed: bool) -> None:
    """ValueError for rows of several documents, to which `locate_tokens` would give one length, that of the longest. If
    the mask does not mark documents, positions that do not increase do; a compiled graph cannot read them. With a cache
    `locate_tokens` has already checked that they count one by one."""
    ids, run = at.coords, at.layout.run
    rises = run is not None and run.coords is not None and run.steps == (1,)
    if not is_packed and not rises and ids.size(1) == keys.order.size(1):
        if torch.compiler.is_compiling() or ids.device.type == "meta":
            return
        is_token = _is_key(keys, bias)
        before = ids.masked_fill(~is_token, -1).cummax(1).values[:, :-1]
        is_packed = bool((is_token[:, 1:] & (ids[:, 1:] <= before)).any())
    if is_packed:
        raise ValueError(
            "a row of several documents has no single length, got position_ids that start again in a row: give each "
            "document its own row, or use a scaling that does not depend on the length, such as YaRN"
        )


def _with_coords(positions: Positions, ids: Tensor) -> Positions:
    """The same tokens at other coordinates; unchanged, with their layout, if these are equal."""
    if is_readable(ids) and bool((positions.coords == ids).all()):
        return positions
    return Positions(ids, order=positions.order, document=positions.document)


def _is_key(keys: Positions, mask: Tensor | None) -> Tensor:
    """Which keys are tokens or, of a plain mask, which any query attends to, (rows, keys)."""
    if mask is None:
        return keys.document != PADDING
    return (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2).any(2).any(1)


# -- a text that is divided among processes ---------------------------------------------------------------------------

RUNS_ON_TOKENS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
NOPE = NoPE()
IN_SHARDS = "pass position_ids=sharding.positions.coords"


class _LayerPass(ForwardPass):
    """Without the add door, which is that of the model's table."""

    _token_doors: ClassVar = ("rotate",)


def sharded_pass(
    module: nn.Module,
    query: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None,
    position_bias: Tensor | None,
    position_ids: Tensor | None,
) -> tuple[ForwardPass, Window]:
    """The forward pass of a layer, and its window. Raises ValueError on all processes if a model's positions or padding
    are not those of the sharding on any of them."""
    layer_scheme: LayerScheme | None = getattr(module, LAYER_SCHEME, None)
    _check_kind(module, layer_scheme)
    if position_bias is not None:
        raise ValueError(f"position_bias is not supported {WITHIN}: it has a number for each pair of the whole text")
    if not isinstance(attention_mask, Visible):
        raise ValueError(
            f"attention_mask must be (rows, tokens) or None {WITHIN}, so that the model makes its mask by posenc, got "
            f"{shown(attention_mask)} in {type(module).__name__}"
        )
    sharding = EXCHANGES[-1].sharding
    given = attention_mask, position_ids, sharding.positions
    # once in a forward pass, before anything is sent
    attention_mask.shared("agreed", lambda: sharding.agree(_mismatch(module, layer_scheme, *given)))
    seen, chunk = attention_mask.visibility, attention_mask.chunk_size
    window: Window = (seen.left, seen.right) if chunk is None else Chunk(chunk)
    scheme: Scheme = NOPE
    if layer_scheme is not None:
        scheme, window = layer_scheme.scheme, window if layer_scheme.window is None else layer_scheme.window
    dtype = torch.promote_types(query.dtype, torch.float32)

    def bind() -> ForwardPass:
        capped = scheme if softcap is None else scheme + Softcap(float(softcap))
        return _LayerPass(capped, sharding.positions, is_causal=seen.is_causal, dtype=dtype)

    return bind_once(attention_mask.layer_cache, scheme, (dtype, softcap), bind), window


def _check_kind(module: nn.Module, layer_scheme: LayerScheme | None) -> None:
    """ValueError for a model that computes something of a shard as if it were the text."""
    config: Any = getattr(module, "config", None)
    name = type(module).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is of an encoder-decoder, whose two texts cannot be divided among processes")
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    if others := sorted({str(kind) for kind in kinds} - RUNS_ON_TOKENS):
        raise ValueError(
            f"{name} is of a model with layers of type {', '.join(others)}, which would take this process's tokens for "
            "the text: it cannot be divided among processes"
        )
    if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", False):
        raise ValueError(
            f"{name} scales queries by their place among this process's tokens: patch(model, "
            "scheme_from_config(model.config).schedule), which scales them by their positions"
        )
    params = getattr(config, "rope_parameters", None) or {}
    every = [params, *(params.values() if isinstance(params, dict) else ())]
    types = [each.get("rope_type") for each in every if isinstance(each, dict)]
    kind = next((kind for kind in types if kind in ("dynamic", "longrope")), None)
    if layer_scheme is None and not hasattr(module, ROTARY) and kind is not None:
        raise ValueError(
            f"rope_type {kind!r} in {name} would take the length of this process's tokens for that of the text: "
            "patch(model, scaling) with posenc.DynamicNTK or posenc.LongRoPE, which use the length of the whole text"
        )


def _mismatch(
    module: nn.Module, layer_scheme: LayerScheme | None, mask: Visible, ids: Tensor | None, positions: Positions
) -> str | None:
    """What a model was given that differs from the sharding, in words."""
    rows, given = mask.layer_cache["given"]
    is_token = (positions.document != PADDING).expand(rows, -1)
    if given is not None and not _have_equal_rows(given.bool(), is_token):
        return (
            "attention_mask must be 1 at this process's tokens and 0 at its padding, as sharding.positions says, got "
            f"{shown(given)} that differs: make the sharding from Positions.padded(attention_mask), and leave the "
            "model's out or divide it with sharding.shard(attention_mask)"
        )
    if layer_scheme is not None and layer_scheme.counts:  # the model has no position_ids
        return None
    if ids is None and hasattr(module, ROTARY):
        ids = getattr(module, ROTARY)[0].seen
    ids = ids if layer_scheme is None else layer_scheme.position_ids(ids)
    if ids is None:
        return (
            f"position_ids do not reach {type(module).__name__}, so posenc cannot see whether the model has those of "
            f"this process's tokens: patch(model, scheme or scaling), and {IN_SHARDS}"
        )
    if positions.coords.dim() == 2 and _have_equal_rows(ids.long(), positions.coords, is_token):
        return None
    return (
        f"position_ids must be those of this process's tokens, got {shown(ids)} that differs from "
        f"sharding.positions.coords: {IN_SHARDS}"
    )


def _have_equal_rows(given: Tensor, expected: Tensor, where: Tensor | None = None) -> bool:
    """Whether rows of tokens are the same, ``where`` true; either may have one row for all."""
    if given.dim() != 2 or given.size(1) != expected.size(1):
        return False
    if given.size(0) != expected.size(0) and 1 not in (given.size(0), expected.size(0)):
        return False
    same = given.to(expected.device) == expected
    return bool((same if where is None else same | ~where).all())


# -- attention --------------------------------------------------------------------------------------------------------

# Arguments that do not affect scores: transformers passes on its own keyword arguments. The last two come beside
# cu_seq_lens_q, which is refused.
IGNORED_ARGUMENTS = {
    *("cache_position", "deterministic", "logits_to_keep", "num_items_in_batch", "output_hidden_states"),
    *("output_router_logits", "return_dict", "use_cache", "max_length_q", "max_length_k"),
}
DOCUMENTS = (
    "documents are recognized by position_ids that start again, without attention_mask and with use_cache=False; "
    "leave it out"
)
EAGER = "set attn_implementation='eager'"
# Unsupported arguments that change the scores: the reason, or what to do instead.
REFUSED = {
    "output_attentions": f"no attention weights are computed; {EAGER} to get them",
    "cache": "a paged cache is for continuous batching; use model.generate, or another attention implementation",
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"), DOCUMENTS),
    "indices": f"posenc has no attention to selected keys; {EAGER}",
    "block_indices": f"posenc has no attention to selected blocks of keys; {EAGER}",
    "head_mask": f"posenc does not mask heads; {EAGER}",
}


def check_runs(config: Any) -> None:
    """ValueError if a patched model runs another attention implementation, which would have no positions, or no tokens
    of other processes."""
    if (got := config._attn_implementation) == NAME:
        return
    call = f"call model.set_attn_implementation({NAME!r})"
    if EXCHANGES:
        raise ValueError(
            f"attn_implementation must be {NAME!r} {WITHIN}, got {got!r}, which attends to the tokens of this process "
            f"alone: {call}"
        )
    raise ValueError(
        f"attn_implementation must be {NAME!r} while this model is patched, got {got!r}, which would leave it without "
        f"positions: {call}, or undo() the patch"
    )


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

    ``attention_mask`` is the result of `mask`, or a mask of four dimensions, boolean or additive. Without one, queries
    and keys are one text from its start, causal if ``is_causal`` or else the module's attribute is true, within
    ``sliding_window``; a single query attends to all keys. ``softcap`` c: scores become c tanh(s / c). ``s_aux``: a
    sink, a logit per head; ``sinks`` (batch, heads, tokens, 1): one per head and query. ``position_bias`` is added to
    the scores.

    Raises ValueError, naming it, for any other argument that would change the scores.
    """
    layer_scheme: LayerScheme | None = getattr(module, LAYER_SCHEME, None)
    _check_others(others, is_patched=layer_scheme is not None)
    if layer_scheme is not None:
        _check_read(layer_scheme)
        position_bias = None  # the plan replaces it
        own = getattr(module, "scaling", None)
        if scaling == 1.0 and own is not None and own != 1.0:  # OPT has scaled its queries, but schemes scale keys too
            query, scaling = query / own, own
    how: dict[str, Any] = {"dropout_p": dropout, "scale": scaling, "sinks": s_aux if sinks is None else sinks[..., 0]}
    if EXCHANGES:
        step, window = sharded_pass(module, query, attention_mask, softcap, position_bias, position_ids)
        return _finish(step.attention(query, key, value, window=window, **how))
    made = attention_mask if isinstance(attention_mask, Visible) else None
    if made is not None and made.queries._is_shard:
        raise ValueError(
            "posenc.distributed.sharded must still be open when activation checkpointing computes layers again: put "
            "loss.backward() inside it"
        )
    if layer_scheme is not None and made is not None:
        made = attention_mask = made.of_last(key.size(2), layer_scheme.reach)
    queries, keys, bias, seen = _visibility(module, query, key, attention_mask, is_causal, sliding_window)
    if layer_scheme is not None:
        dtype = torch.promote_types(query.dtype, torch.float32)
        encoding, seen = bind_layer(layer_scheme, dtype, queries, keys, bias, seen, made, position_ids)
    else:  # one encoding for all layers, so that they share its plan
        bare = partial(Encoding, queries, keys, context=Context())
        encoding = bare() if made is None else made.shared("bare", bare)
    if softcap is not None:
        encoding = replace(encoding, score_terms=(*encoding.score_terms, *Softcap(float(softcap)).score(queries, keys)))
    if position_bias is not None:
        if bias is None or bias.dtype != torch.bool:
            bias = position_bias if bias is None else position_bias + bias
        else:
            bias = position_bias.masked_fill(~bias, -torch.inf)
    how |= {"attn_mask": bias, "is_causal": seen.is_causal}
    how["window"] = None if seen.left is None and seen.right is None else (seen.left, seen.right)
    return _finish(posenc_attention(query, key, value, encoding, **how))


def _finish(result: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
    """The output as transformers wants it, (batch, tokens, heads, head_dim)."""
    assert isinstance(result, Tensor)
    return result.transpose(1, 2).contiguous(), None


def _check_others(others: Mapping[str, Any], is_patched: bool) -> None:
    """ValueError for arguments that posenc would ignore."""
    if not torch.compiler.is_compiling():  # some families collect attention weights without passing output_attentions
        from transformers.utils.output_capturing import _active_collector

        others = {"output_attentions": "attentions" in (_active_collector.get() or ()), **others}
    for name, value in others.items():
        if value is None or value is False or name in IGNORED_ARGUMENTS:
            continue
        why = REFUSED.get(name, "posenc does not know whether it changes the scores")
        if is_patched:  # another attention would leave it without positions
            why = why.replace(EAGER, f"undo() the patch and {EAGER}")
        raise ValueError(f"{name} is not supported by attn_implementation='posenc', got {shown(value)}: {why}")


def _check_read(layer_scheme: LayerScheme) -> None:
    """ValueError if PEFT has wrapped a module of a scheme, which reads the module's weights without calling it."""
    for name, module in layer_scheme.scheme.named_modules():
        if "base_layer" in module._modules:
            raise ValueError(
                f"{name} of {type(layer_scheme.scheme).__name__} is wrapped by PEFT, and a scheme reads its weights "
                "without calling it: call get_peft_model first and patch() then, or give its configuration "
                f"exclude_modules='.*{LAYER_SCHEME}.*'"
            )


def _visibility(
    module: nn.Module, query: Tensor, key: Tensor, mask: Any, is_causal: bool | None, sliding_window: int | None
) -> tuple[Positions, Positions, Tensor | None, Visibility]:
    """The positions of queries and keys, a mask that is not expressed as positions, and the visibility."""
    m, n = query.size(2), key.size(2)
    if isinstance(mask, Visible):
        if (made := tuple(mask.shape[2:])) != (m, n):
            raise ValueError(f"attention_mask must be for the (queries, keys) of the layer, {(m, n)}, got {made}")
        return *mask.in_chunks(), None, mask.visibility
    queries, keys = Positions.arange(m, device=query.device), Positions.arange(n, device=query.device)
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dim() != 4:
            raise ValueError(
                "attention_mask must be of four dimensions (batch, heads, queries, keys) when it reaches the attention "
                f"of a layer, got {shown(mask)}"
            )
        return queries, keys, mask, Visibility()
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and m > 1
    if causal and m != n and not torch.compiler.is_compiling():
        raise ValueError(
            f"attention_mask must say which of {n} keys each of {m} queries attends to, got None: pass the model an "
            "attention_mask, or let it make one"
        )
    window = None
    if sliding_window is not None and n > sliding_window:
        if not causal:
            raise ValueError(f"{sliding_window=} is not supported without a mask if attention is not causal")
        window = sliding_window - 1
    return queries, keys, None, Visibility(is_causal=causal, left=window)
