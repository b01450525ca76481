"""Calls models of the transformers library; `hugging_face` finds out how. Plain PyTorch: scripts hold a copy.

transformers itself is imported by the code that builds the model, never here.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.subjects import PADDING, VOCABULARY, Model, NotApplicableError, require


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
    """Calls a model with the mask of all tokens so far, and the padding token in place of padding."""
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


JITTER = 0.2  # initial weights of N(0, 0.02²) make attention nearly uniform, so that positions have no effect
# These models compute phases, norms and softmax in float32 whatever the dtype. In float64 their mask, the lowest number
# of that dtype, becomes -inf there, so rows that see nothing would be NaN; and nobody runs these models in float64.
DTYPE = torch.float32


def hugging_face(
    build: Callable[..., Any],
    *,
    options: Mapping[str, Any] | None = None,
    call: Callable[..., Any] | None = None,
    documents: bool = False,
    **claims: Any,
) -> Model:
    """The subject for a causal or a bidirectional model of transformers.

    ``build(**options)`` gives the model, with random weights, such as ``LlamaForCausalLM(LlamaConfig(...))``; it must
    have a vocabulary of 48 or more, and no padding token among the first 48, which the checks write their text in.
    What ``forward`` takes decides how it is called: ids as ``input_ids``; padding as ``attention_mask``, with the
    padding token of the configuration, if any, in its places; positions as ``position_ids``, if it takes them; a cache
    as ``cache`` or ``past_key_values``. Outputs are logits, or ``last_hidden_state`` of a model without a head.

    ``documents``: it separates packed documents where ``position_ids`` start again and there is no ``attention_mask``,
    which transformers 5 promises for models that pass positions on to their mask. ``call`` replaces the function that
    calls the model. Further claims are those of `Model`; by default the model is causal if it is a decoder, is moved by
    a jitter of 0.2, runs in float32, may ignore positions (``order_free``) if no part of it is named for them, and, if
    ``build`` takes ``attn_implementation``, gives the same with "eager" as with "sdpa".

    Raises ValueError for what is no such model.
    """
    options = dict(options or {})
    made = build(**options)
    takes = inspect.signature(made.forward).parameters if hasattr(made, "forward") else {}
    if not hasattr(made, "config") or not {"input_ids", "attention_mask"} <= set(takes):
        raise ValueError(
            f"build must give a transformers model whose forward takes input_ids and attention_mask, "
            f"got {type(made).__name__} with {', '.join(takes) or 'no forward'}"
        )
    size, pad = made.config.vocab_size, getattr(made.config, "pad_token_id", None)
    if size < VOCABULARY or (pad is not None and not VOCABULARY <= pad < size):
        raise ValueError(
            f"build must give a model with a vocab_size of at least {VOCABULARY} and a pad_token_id of None or from "
            f"{VOCABULARY} to vocab_size - 1, got vocab_size={size}, pad_token_id={pad}"
        )
    is_decoder = getattr(made.config, "is_decoder", None)  # None in configurations of models that are always decoders
    decodes = cache_name(made) in takes and (is_decoder is not False or type(made).__name__.endswith("ForCausalLM"))
    if documents and not (decodes and "position_ids" in takes):
        raise ValueError(f"documents need a decoder whose forward takes position_ids, got {type(made).__name__}")
    if call is None and decodes:
        call = decode_packed if documents else decode_with_positions if "position_ids" in takes else decode_by_index
    elif call is None:
        call = encode_with_positions if "position_ids" in takes else encode_by_index
    said: dict[str, Any] = {"causal": decodes, "jitter": JITTER, "dtype": DTYPE, "order_free": not _places(made)}
    said |= claims
    if "attn_implementation" in inspect.signature(build).parameters:
        options.setdefault("attn_implementation", made.config._attn_implementation)
        said.setdefault("backends", ({"attn_implementation": "eager"}, {"attn_implementation": "sdpa"}))
    return Model(build=build, call=call, options=options, **said)


def _places(model: nn.Module) -> bool:
    """Whether any part of a model is named for positions: some state-space models take position_ids and have none."""
    named = [*model.named_modules(), *model.named_parameters(), *model.named_buffers()]
    names = {name.rpartition(".")[2] for name, _ in named} | {type(module).__name__ for module in model.modules()}
    return any(NAMED.search(name) for name in names)


NAMED = re.compile(r"pos(?!t)|rotary|rope|wpe|alibi|relative|place", re.IGNORECASE)
