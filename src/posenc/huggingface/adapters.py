"""Models of transformers whose attention is their own, and takes no other: theirs is exchanged for one of posenc's.

Each function is the forward of a family's attention, rewritten to hand queries, keys and values to posenc *before* the
model's own positions are put on them. The layer keeps its weights: only its class is exchanged, for one that is derived
from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from posenc.huggingface.attention import attention

Forward = Callable[..., tuple[Tensor, None]]


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, cache: Any, output_attentions: bool, **more: Any
) -> Tensor:
    """Attention over all that the cache holds, (batch, tokens, heads x head_dim)."""
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    out, _ = attention(module, query, key, value, mask, output_attentions=output_attentions, **more)
    return out.flatten(2)


def bloom(
    self: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """BLOOM: the bias ``alibi`` is not read."""
    if self.pretraining_tp > 1 and self.slow_but_exact:
        raise ValueError("slow_but_exact cannot be honoured by posenc: it is for models that were trained in slices")
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    out = _attend(
        self,
        query,
        key,
        value,
        attention_mask,
        layer_past,
        output_attentions,
        scaling=self.inv_norm_factor,
        dropout=self.attention_dropout.p if self.training else 0.0,
    )
    return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), None


def mpt(
    self: Any,
    hidden_states: Tensor,
    position_bias: Tensor,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """MPT: the bias ``position_bias`` is not read."""
    batch, tokens = hidden_states.shape[:2]
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (
        x.reshape(batch, tokens, self.n_heads, self.head_dim).transpose(1, 2) for x in mixed.chunk(3, dim=2)
    )
    out = _attend(
        self,
        query,
        key,
        value,
        attention_mask,
        past_key_values,
        output_attentions,
        scaling=self.softmax_scale,
        dropout=self.attn_dropout_p if self.training else 0.0,
    )
    return self.out_proj(out), None


def gptj(
    self: Any,
    hidden_states: Tensor,
    layer_past: Any = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """GPT-J: its table of sines is not read."""
    shape = (*hidden_states.shape[:2], self.num_attention_heads, self.head_dim)
    query, key, value = (
        projection(hidden_states).view(shape).transpose(1, 2) for projection in (self.q_proj, self.k_proj, self.v_proj)
    )
    out = _attend(
        self,
        query,
        key,
        value,
        attention_mask,
        layer_past,
        output_attentions,
        position_ids=position_ids,
        dropout=self.attn_dropout.p if self.training else 0.0,
    )
    return self.resid_dropout(self.out_proj(out)), None


def falcon(
    self: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    position_embeddings: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Falcon with rotation: cos and sin are not read. There is no dropout in its rotating attention."""
    query, key, value = (part.transpose(1, 2) for part in self._split_heads(self.query_key_value(hidden_states)))
    out = _attend(self, query, key, value, attention_mask, layer_past, output_attentions, position_ids=position_ids)
    return self.dense(out), None


ADAPTERS: dict[str, tuple[str, Forward]] = {
    "bloom": ("BloomAttention", bloom),
    "falcon": ("FalconAttention", falcon),
    "gptj": ("GPTJAttention", gptj),
    "mpt": ("MptAttention", mpt),
}
"""By model_type: the class whose forward is exchanged, and for what."""

OTHERS = {
    "deberta-v2": "its positions meet queries and keys through the layer's own projections",
    "deberta": "its positions meet queries and keys through the layer's own projections",
    "swinv2": "its bias is made by a network over windows that the layer cuts itself",
    "swin": "its bias stands in windows that the layer cuts itself",
}
"""Families that are neither adapted nor go through transformers' table of attention functions, and why."""


def check_adapted(config: Any) -> None:
    """ValueError where the family is adapted but this configuration is not."""
    if config.model_type == "falcon" and config.alibi:
        raise ValueError(
            "falcon with alibi=True does not rotate, and its model adds the bias to the mask before any attention sees "
            "it: posenc can put nothing in its place"
        )


def adapted(module: nn.Module, forward: Forward) -> type:
    """A class like the module's, with another forward."""
    kind = type(module)
    return type(f"Posenc{kind.__name__}", (kind,), {"forward": forward, "__module__": kind.__module__})


def is_adapted(module: nn.Module) -> bool:
    """Whether its class was exchanged."""
    return type(module).__name__.startswith("Posenc") and "Attention" in type(module).__name__
