"""Calls models of the transformers library. Plain PyTorch: scripts hold a copy."""

import inspect
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.subjects import PADDING, NotApplicableError, require


def decode_with_positions(
    model: Any, ids: Tensor, positions: Tensor | None = None, padding: Tensor | None = None, cache: Any = None
) -> tuple[Tensor, Any]:
    """A decoder that is given positions."""
    out = _called(model, ids, padding, cache, position_ids=positions, use_cache=True)
    return _outputs(out), getattr(out, cache_name(model))


def decode_by_index(model: Any, ids: Tensor, padding: Tensor | None = None, cache: Any = None) -> tuple[Tensor, Any]:
    """A decoder that finds positions itself."""
    out = _called(model, ids, padding, cache, use_cache=True)
    return _outputs(out), getattr(out, cache_name(model))


def decode_packed(
    model: Any,
    ids: Tensor,
    positions: Tensor | None = None,
    padding: Tensor | None = None,
    document: Tensor | None = None,
    cache: Any = None,
) -> tuple[Tensor, Any]:
    """A decoder that takes a position which does not go up by one for the beginning of a document."""
    if document is None or len(set(document.flatten().tolist()) - {PADDING}) < 2:
        return decode_with_positions(model, ids, positions, padding, cache)
    known = "nothing to do: packed documents are known by positions alone"
    if positions is None or cache is not None or (document == PADDING).any():
        raise NotApplicableError(f"{known}: with no padding, and no cache")
    starts, jumps = document.diff(dim=-1) != 0, positions.diff(dim=-1) != 1
    require(torch.equal(starts, jumps), f"{known}: each unbroken, the next not following it")
    return _outputs(model(input_ids=ids, position_ids=positions, use_cache=False)), None


def encode_with_positions(
    model: Any, ids: Tensor, positions: Tensor | None = None, padding: Tensor | None = None
) -> Tensor:
    """An encoder that is given positions."""
    return _outputs(_called(model, ids, padding, position_ids=positions))


def encode_by_index(model: Any, ids: Tensor, padding: Tensor | None = None) -> Tensor:
    """An encoder that finds positions itself."""
    return _outputs(_called(model, ids, padding))


def cache_name(model: Any) -> str:
    """What forward calls its cache: "past_key_values" is "cache" from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _called(model: Any, ids: Tensor, padding: Tensor | None, cache: Any = None, **given: Any) -> Any:
    """Calls a model with the mask of all tokens so far, and the padding token in place of padding, as from a
    tokenizer."""
    if cache is not None:
        given[cache_name(model)] = cache
    if padding is None and given.get("position_ids") is not None:
        # Without a mask, positions that are not consecutive would mean packed documents.
        before = 0 if cache is None else cache.get_seq_length()
        padding = torch.ones(ids.size(0), before + ids.size(1), dtype=torch.bool, device=ids.device)
    if padding is not None and getattr(model.config, "pad_token_id", None) is not None:
        ids = ids.masked_fill(~padding[:, -ids.size(1) :], model.config.pad_token_id)
    return model(input_ids=ids, attention_mask=None if padding is None else padding.long(), **given)


def _outputs(out: Any) -> Tensor:
    """The logits, or the last hidden state of a model without a head."""
    return out.logits if getattr(out, "logits", None) is not None else out.last_hidden_state
