"""posenc as an attention implementation of transformers: ``attn_implementation="posenc"``.

A model of transformers asks for a mask once per forward pass (`posenc.huggingface.masks`), and passes it to the
attention of every layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.backends.api import attention as posenc_attention
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.terms import Distance, Function
from posenc.huggingface.layer_positions import LAYER_SCHEME, LayerScheme, bind_layer, sharded_pass
from posenc.huggingface.masks import WITHIN, Visible
from posenc.models.forward_pass import EXCHANGES
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.rotation.phases import widest
from posenc.schemes.softcap import capped

NAME = "posenc"

# Arguments that do not affect scores: transformers passes on its own keyword arguments.
IGNORED_ARGUMENTS = frozenset(
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
    "documents are recognized by position_ids that start again, without attention_mask and with use_cache=False; "
    "leave it out"
)
EAGER = "set attn_implementation='eager'"
# Unsupported arguments that change the scores: the reason, or what to do instead.
REFUSED = {
    "output_attentions": f"no attention weights are computed; {EAGER} to get them",
    "cache": "a paged cache is for continuous batching; use model.generate, or another attention implementation",
    "cu_seq_lens_q": DOCUMENTS,
    "cu_seq_lens_k": DOCUMENTS,
    "seq_idx": DOCUMENTS,
    "indices": f"posenc has no attention to selected keys; {EAGER}",
    "block_indices": f"posenc has no attention to selected blocks of keys; {EAGER}",
    "head_mask": f"posenc does not mask heads; {EAGER}",
}


def check_runs(config: Any) -> None:
    """ValueError if a patched model runs another attention implementation, which would have no positions, or no tokens
    of other processes."""
    if config._attn_implementation != NAME:
        if EXCHANGES:
            raise ValueError(
                f"attn_implementation must be {NAME!r} {WITHIN}, got {config._attn_implementation!r}, which attends to "
                f"the tokens of this process alone: call model.set_attn_implementation({NAME!r})"
            )
        raise ValueError(
            f"attn_implementation must be {NAME!r} while this model is patched, got {config._attn_implementation!r}, "
            f"which would leave it without positions: call model.set_attn_implementation({NAME!r}), or undo() the patch"
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
    if isinstance(attention_mask, Visible) and attention_mask.queries._is_shard:
        raise ValueError(
            "posenc.distributed.sharded must still be open when activation checkpointing computes layers again: put "
            "loss.backward() inside it"
        )
    if layer_scheme is not None and isinstance(attention_mask, Visible):
        attention_mask = attention_mask.of_last(key.size(2), layer_scheme.reach)
    queries, keys, bias, seen = _visibility(module, query, key, attention_mask, is_causal, sliding_window)
    if layer_scheme is None:
        layer_cache = attention_mask.layer_cache if isinstance(attention_mask, Visible) else {}
        if "bare" not in layer_cache:  # one encoding for all layers, so that they share its plan
            layer_cache["bare"] = Encoding(queries, keys, context=Context())
        encoding = layer_cache["bare"]
    else:
        encoding, seen = bind_layer(layer_scheme, query, queries, keys, bias, seen, attention_mask, position_ids)
    if softcap is not None:
        cap = Function(capped, _Constant(float(softcap)), Distance("softcap", tail="constant"), formula="cap")
        encoding = replace(encoding, score_terms=(*encoding.score_terms, cap))
    if position_bias is not None:
        if bias is None or bias.dtype != torch.bool:
            bias = position_bias if bias is None else position_bias + bias
        else:
            bias = position_bias.masked_fill(~bias, -torch.inf)
    result = posenc_attention(
        query,
        key,
        value,
        encoding,
        attn_mask=bias,
        is_causal=seen.is_causal,
        window=None if seen.left is None and seen.right is None else (seen.left, seen.right),
        **how,
    )
    return _finish(result)


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
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> tuple[Positions, Positions, Tensor | None, Visibility]:
    """The positions of queries and keys, a mask that is not expressed as positions, and the visibility."""
    m, n = query.size(2), key.size(2)
    if isinstance(attention_mask, Visible):
        if attention_mask.shape[2:] != (m, n):
            made = tuple(attention_mask.shape[2:])
            raise ValueError(f"attention_mask must be for the (queries, keys) of the layer, {(m, n)}, got {made}")
        return *attention_mask.in_chunks(), None, attention_mask.visibility
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
            f"attention_mask must say which of {n} keys each of {m} queries attends to, got None: pass the model an "
            "attention_mask, or let it make one"
        )
    window = None
    if sliding_window is not None and n > sliding_window:
        if not causal:
            raise ValueError(
                f"sliding_window={sliding_window} is not supported without a mask if attention is not causal"
            )
        window = sliding_window - 1
    return queries, keys, None, Visibility(is_causal=causal, left=window)


@dataclass(frozen=True)
class _Constant:
    """A number for every distance."""

    number: float

    def __call__(self, r: Tensor) -> tuple[Tensor]:
        return (torch.full((1, *r.shape), self.number, dtype=widest(r.device), device=r.device),)
