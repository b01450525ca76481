"""Finds the positions of a layer's tokens, and binds the scheme of a patched layer to them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.encoding.encoding import Context, Encoding
from posenc.huggingface.masks import WITHIN, Visible
from posenc.models.forward_pass import EXCHANGES, ForwardPass
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window
from posenc.positions.validation import is_readable
from posenc.scheme import Scheme
from posenc.schemes.nope import NoPE
from posenc.schemes.softcap import Softcap

T = TypeVar("T")
WHOLE = (None, None)
"""The window of a layer without one."""


class LayerScheme(nn.Module):
    """The scheme that replaces a layer's positions, and a window (left, right) or `Chunk` that replaces the layer's;
    None keeps the layer's own. `patch` makes it a submodule of the layer's attention, named PLAN, so that the scheme's
    parameters are the model's.

    ``source`` gets the model's position_ids, as ``seen``, for layers that do not, and with ``by_source`` for all.
    ``counts``: the model has no position_ids, and tokens are counted. ``own`` is the layer's own window, which cannot
    be removed from a mask given as a plain tensor."""

    _tied_weights_keys: ClassVar = {"scheme": "scheme"}
    """For save_pretrained: layers may share the scheme, which is then written once."""

    def __init__(
        self,
        scheme: Scheme,
        window: tuple[int | None, int | None] | Chunk | None = None,
        source: Any = None,
        counts: bool = False,
        by_source: bool = False,
        own: tuple[int | None, int | None] | Chunk = WHOLE,
    ) -> None:
        super().__init__()
        self.scheme, self.window, self.counts, self.by_source = scheme, window, counts, by_source
        self.own = own
        self._source = (source,)  # in a tuple, so that it is not a part of this module as well

    def position_ids(self) -> Tensor | None:
        """The position_ids that the source got in this forward pass."""
        seen: Tensor | None = getattr(self._source[0], "seen", None)
        return seen

    @property
    def reach(self) -> int | None:
        """How many keys before its own a query attends to; None: any or, with chunks of a schedule, which divide
        coordinates and not the slots of a cache, unknown."""
        if self.window is None and isinstance(self.own, Chunk):
            return self.own.size - 1
        window = self.own if self.window is None else self.window
        return None if isinstance(window, Chunk) else check_window(window)[0]


LAYER_SCHEME = "posenc_plan"


def bind_layer(
    layer_scheme: LayerScheme,
    query: Tensor,
    queries: Positions,
    keys: Positions,
    bias: Tensor | None,
    seen: Visibility,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> tuple[Encoding, Visibility]:
    """The encoding of a patched layer, bound to the positions of its tokens, and the visibility."""
    if layer_scheme.window is not None:
        if isinstance(attention_mask, Visible):
            queries, keys = attention_mask.queries, attention_mask.keys  # without the model's own chunks
        if bias is not None and (layer_scheme.own != WHOLE or queries.order.size(1) != keys.order.size(1)):
            raise ValueError(
                "a window of a schedule needs the positions of queries and keys, and a plain mask was given instead: "
                "let the model make its mask, with a dynamic cache and uncompiled"
            )
        chunk = layer_scheme.window if isinstance(layer_scheme.window, Chunk) else None
        left, right = (chunk.size - 1, None) if chunk is not None else check_window(layer_scheme.window)
        first, before = keys.layout.start, queries.layout.start  # that of the window of the first query is the latter's
        reach = 0 if left is None or before is None else before[1] - left
        if first is not None and first[1] > max(0, reach):
            raise ValueError(
                f"the cache of this layer has dropped keys that are within a window of {layer_scheme.window}: generate "
                "with use_cache=False, or with the cache that posenc.huggingface.bounded_cache(model) makes"
            )
        seen = replace(seen, left=None if chunk is not None else left, right=right)
    layer_cache = attention_mask.layer_cache if isinstance(attention_mask, Visible) else {}
    dtype = torch.promote_types(query.dtype, torch.float32)
    own_chunks = layer_scheme.window is None  # queries and keys are then in the model's own chunks, if it has any
    if ("placed", own_chunks) not in layer_cache:
        ids = layer_scheme.position_ids() if position_ids is None or layer_scheme.by_source else position_ids
        layer_cache["placed", own_chunks] = locate_tokens(queries, keys, bias, ids, layer_scheme.counts)

    def bind() -> Encoding:
        at, there, lengths = layer_cache["placed", own_chunks]
        if layer_scheme.scheme.needs_lengths and "one text" not in layer_cache:
            _check_one_text(at, keys, bias, isinstance(attention_mask, Visible) and attention_mask.is_packed)
            layer_cache["one text"] = True
        context = Context(lengths=lengths if layer_scheme.scheme.needs_lengths else None)
        encoding = layer_scheme.scheme(at, there, dtype=dtype, context=context, doors=("rotate", "score", "value"))
        return encoding.in_chunks(layer_scheme.window.size) if isinstance(layer_scheme.window, Chunk) else encoding

    return bind_once(
        layer_cache,
        layer_scheme.scheme,
        (dtype, layer_scheme.window if isinstance(layer_scheme.window, Chunk) else own_chunks),
        bind,
    ), seen


def bind_once(layer_cache: dict[Any, Any], scheme: nn.Module, key: tuple[Any, ...], make: Callable[[], T]) -> T:
    """What layers with this scheme, bound in this way, share: from the ``layer_cache``, or bound now.

    While a scheme is trained, every layer binds it separately: with gradient checkpointing a layer is recomputed in the
    backward pass, and must build the same graph again instead of finding what was bound without one.
    """
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in scheme.parameters()):
        return make()
    if (scheme, *key) not in layer_cache:
        layer_cache[scheme, *key] = make()
    result: T = layer_cache[scheme, *key]
    return result


def locate_tokens(
    queries: Positions, keys: Positions, bias: Tensor | None, position_ids: Tensor | None, counts: bool = False
) -> tuple[Positions, Positions, Tensor]:
    """Queries and keys with the coordinates that the model gives them, and the current length of each row's text.

    ``position_ids`` (rows, queries) are those of the queries. Keys of a cache are counted back from the last query,
    one by one without padding. Raises ValueError for position_ids that skip or repeat, where that can be read.
    ``bias`` is a plain mask that replaces the visibility of the positions. ``counts``: without position_ids, the tokens
    of the row are counted.
    """
    m, n = queries.order.size(1), keys.order.size(1)
    is_key = keys.document != PADDING if bias is None else _is_seen(bias)
    slot = torch.arange(n, device=is_key.device)[None]
    if m == n:
        slots = slot
    elif bias is None:
        slots = queries.order - keys.order[:, :1]
    else:  # the last key that any query attends to is the last query's own
        slots = slot.masked_fill(~is_key, 0).amax(1, keepdim=True) + torch.arange(1 - m, 1, device=slot.device)
    if counts and position_ids is None:
        count = is_key.long().cumsum(1)
        position_ids = (count.gather(1, slots.expand(count.size(0), -1)) - 1).clamp(min=0)
    ids = _ids(queries, keys, bias, position_ids)
    there, is_token = ids, is_key
    if m != n:
        rows = max(is_key.size(0), ids.size(0))
        slots, ids, is_key = slots.expand(rows, -1), ids.expand(rows, -1), is_key.expand(rows, -1)
        count = is_key.long().cumsum(1)
        there = count - count.gather(1, slots[:, -1:]) + ids[:, -1:]
        there = torch.where(is_key, there, there.clamp(min=0))  # some schemes refuse positions below 0
        is_token = is_key & (slot <= slots[:, -1:])
        if is_readable(ids):
            skips = (there.gather(1, slots) != ids) & is_key.gather(1, slots)
            if bool(skips.any()):
                raise ValueError(
                    "position_ids must count the tokens of a cache one by one where posenc derives those of keys, got "
                    "some that skip or repeat"
                )
    there, is_token = torch.broadcast_tensors(there, is_token)
    lengths = there.masked_fill(~is_token, -1).amax(1) + 1
    return _with_coords(queries, ids), _with_coords(keys, there), lengths


def _ids(queries: Positions, keys: Positions, bias: Tensor | None, position_ids: Tensor | None) -> Tensor:
    """The coordinates of the queries, (rows, queries)."""
    if position_ids is not None:
        if position_ids.dim() != 2:
            raise ValueError(f"position_ids must be (rows, queries), got {shown(position_ids)}")
        return position_ids.long()
    if bias is not None or keys.layout.start is None:
        raise ValueError(
            "position_ids do not reach the attention of this layer, and with padding, packing or a plain mask the "
            "positions of its tokens are unknown: pass unpadded rows of one text"
        )
    return queries.order


def _check_one_text(at: Positions, keys: Positions, bias: Tensor | None, is_packed: bool) -> None:
    """ValueError for rows of several documents, to which `locate_tokens` would give one length, that of the longest. If
    the mask does not mark documents, positions that do not increase do; a compiled graph cannot read them. With a cache
    `locate_tokens` has already checked that they count one by one."""
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
            "a row of several documents has no single length, got position_ids that start again in a row: give each "
            "document its own row, or use a scaling that does not depend on the length, such as YaRN"
        )


def _with_coords(positions: Positions, ids: Tensor) -> Positions:
    """The same tokens at other coordinates; unchanged, with their layout, if these are equal."""
    if is_readable(ids) and bool((positions.coords == ids).all()):
        return positions
    return Positions(ids, order=positions.order, document=positions.document)


def _is_seen(mask: Tensor) -> Tensor:
    """Which keys any query attends to, (rows, keys)."""
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.any(2).any(1)


ROTARY = "posenc_rotary"
"""The attribute of an attention whose rotary module posenc has replaced: that module, in a tuple."""

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
    sharding, layer_cache = EXCHANGES[-1].sharding, attention_mask.layer_cache
    if "agreed" not in layer_cache:  # once in a forward pass, before anything is sent
        sharding.agree(_mismatch_with_sharding(module, layer_scheme, attention_mask, position_ids, sharding.positions))
        layer_cache["agreed"] = True
    seen = attention_mask.visibility
    window: Window = (seen.left, seen.right)
    if attention_mask.chunk_size is not None:
        window = Chunk(attention_mask.chunk_size)
    if layer_scheme is not None and layer_scheme.window is not None:
        window = layer_scheme.window
    scheme = NOPE if layer_scheme is None else layer_scheme.scheme
    dtype = torch.promote_types(query.dtype, torch.float32)

    def bind() -> ForwardPass:
        capped = scheme if softcap is None else scheme + Softcap(float(softcap))
        return _LayerPass(capped, sharding.positions, is_causal=seen.is_causal, dtype=dtype)

    return bind_once(layer_cache, scheme, (dtype, softcap), bind), window


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


def _mismatch_with_sharding(
    module: nn.Module,
    layer_scheme: LayerScheme | None,
    visible: Visible,
    position_ids: Tensor | None,
    positions: Positions,
) -> str | None:
    """What a model was given that differs from the sharding, in words."""
    rows, attention_mask = visible.layer_cache["given"]
    is_token = (positions.document != PADDING).expand(rows, -1)
    if attention_mask is not None and not _have_equal_rows(attention_mask.bool(), is_token):
        return (
            "attention_mask must be 1 at this process's tokens and 0 at its padding, as sharding.positions says, got "
            f"{shown(attention_mask)} that differs: make the sharding from Positions.padded(attention_mask), and leave "
            "the model's out or divide it with sharding.shard(attention_mask)"
        )
    if layer_scheme is not None and layer_scheme.counts:  # the model has no position_ids
        return None
    ids = position_ids
    if ids is None and hasattr(module, ROTARY):
        ids = getattr(module, ROTARY)[0].seen
    if layer_scheme is not None and (ids is None or layer_scheme.by_source):
        ids = layer_scheme.position_ids()
    if ids is None:
        return (
            f"position_ids do not reach {type(module).__name__}, so posenc cannot see whether the model has those of "
            f"this process's tokens: patch(model, scheme or scaling), and {IN_SHARDS}"
        )
    if positions.coords.dim() != 2 or not _have_equal_rows(ids.long(), positions.coords, is_token):
        return (
            f"position_ids must be those of this process's tokens, got {shown(ids)} that differs from "
            f"sharding.positions.coords: {IN_SHARDS}"
        )
    return None


def _have_equal_rows(given: Tensor, expected: Tensor, where: Tensor | None = None) -> bool:
    """Whether rows of tokens are the same, ``where`` true; either may have one row for all."""
    if given.dim() != 2 or given.size(1) != expected.size(1):
        return False
    if given.size(0) != expected.size(0) and 1 not in (given.size(0), expected.size(0)):
        return False
    same = given.to(expected.device) == expected
    return bool((same if where is None else same | ~where).all())
