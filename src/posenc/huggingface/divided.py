"""A layer of transformers whose tokens are divided among processes: see `posenc.distributed.sharded`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.huggingface.masks import WITHIN, Visible
from posenc.huggingface.placing import PLAN, Plan, bound
from posenc.models.forward_pass import EXCHANGES, ForwardPass
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Window
from posenc.schemes.nope import NoPE
from posenc.schemes.softcap import Softcap

ROTARY = "posenc_rotary"
"""The attribute of an attention whose rotary module posenc has replaced: that module, in a tuple."""

RUNS_ON_TOKENS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
NOPE = NoPE()
IN_SHARDS = "pass position_ids=sharding.positions.coords"


class _LayerPass(ForwardPass):
    """Without the add door, which is that of the model's table."""

    _token_doors: ClassVar = ("rotate",)


def divided(
    module: nn.Module,
    query: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None,
    position_bias: Tensor | None,
    position_ids: Tensor | None,
) -> tuple[ForwardPass, Window]:
    """The forward pass of a layer, and its window. Raises ValueError on all processes if a model's positions or padding
    are not those of the sharding on any of them."""
    plan: Plan | None = getattr(module, PLAN, None)
    _check_kind(module, plan)
    if position_bias is not None:
        raise ValueError(f"position_bias is not supported {WITHIN}: it has a number for each pair of the whole text")
    if not isinstance(attention_mask, Visible):
        raise ValueError(
            f"attention_mask must be (rows, tokens) or None {WITHIN}, so that the model makes its mask by posenc, got "
            f"{shown(attention_mask)} in {type(module).__name__}"
        )
    sharding, kept = EXCHANGES[-1].sharding, attention_mask.kept
    if "agreed" not in kept:  # once in a forward pass, before anything is sent
        sharding.agree(_wrong(module, plan, attention_mask, position_ids, sharding.positions))
        kept["agreed"] = True
    seen = attention_mask.visibility
    window: Window = (seen.left, seen.right)
    if attention_mask.chunk_size is not None:
        window = Chunk(attention_mask.chunk_size)
    if plan is not None and plan.window is not None:
        window = plan.window
    scheme = NOPE if plan is None else plan.scheme
    dtype = torch.promote_types(query.dtype, torch.float32)

    def made() -> ForwardPass:
        capped = scheme if softcap is None else scheme + Softcap(float(softcap))
        return _LayerPass(capped, sharding.positions, is_causal=seen.is_causal, dtype=dtype)

    return bound(kept, scheme, (dtype, softcap), made), window


def _check_kind(module: nn.Module, plan: Plan | None) -> None:
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
    if plan is None and not hasattr(module, ROTARY) and (kind := _by_length(config)) is not None:
        raise ValueError(
            f"rope_type {kind!r} in {name} would take the length of this process's tokens for that of the text: "
            "patch(model, scaling) with posenc.DynamicNTK or posenc.LongRoPE, which use the length of the whole text"
        )


def _by_length(config: Any) -> str | None:
    """The type of a configuration's rotation that depends on the length of the text."""
    params = getattr(config, "rope_parameters", None) or {}
    every = [params, *(params.values() if isinstance(params, dict) else ())]
    kinds = (each.get("rope_type") for each in every if isinstance(each, dict))
    return next((kind for kind in kinds if kind in ("dynamic", "longrope")), None)


def _wrong(
    module: nn.Module, plan: Plan | None, visible: Visible, position_ids: Tensor | None, positions: Positions
) -> str | None:
    """What a model was given that differs from the sharding, in words."""
    rows, attention_mask = visible.kept["given"]
    is_token = (positions.document != PADDING).expand(rows, -1)
    if attention_mask is not None and not _agrees(attention_mask.bool(), is_token):
        return (
            "attention_mask must be 1 at this process's tokens and 0 at its padding, as sharding.positions says, got "
            f"{shown(attention_mask)} that differs: make the sharding from Positions.padded(attention_mask), and leave "
            "the model's out or divide it with sharding.shard(attention_mask)"
        )
    if plan is not None and plan.counts:  # the model has no position_ids
        return None
    ids = position_ids
    if ids is None and hasattr(module, ROTARY):
        ids = getattr(module, ROTARY)[0].seen
    if plan is not None and (ids is None or plan.by_source):
        ids = plan.position_ids()
    if ids is None:
        return (
            f"position_ids do not reach {type(module).__name__}, so posenc cannot see whether the model has those of "
            f"this process's tokens: patch(model, scheme or scaling), and {IN_SHARDS}"
        )
    if positions.coords.dim() != 2 or not _agrees(ids.long(), positions.coords, is_token):
        return (
            f"position_ids must be those of this process's tokens, got {shown(ids)} that differs from "
            f"sharding.positions.coords: {IN_SHARDS}"
        )
    return None


def _agrees(given: Tensor, expected: Tensor, where: Tensor | None = None) -> bool:
    """Whether rows of tokens are the same, ``where`` true; either may have one row for all."""
    if given.dim() != 2 or given.size(1) != expected.size(1):
        return False
    if given.size(0) != expected.size(0) and 1 not in (given.size(0), expected.size(0)):
        return False
    same = given.to(expected.device) == expected
    return bool((same if where is None else same | ~where).all())
