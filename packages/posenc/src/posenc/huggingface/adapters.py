"""Replaces the attention of models of transformers that cannot change their attention implementation.

Each function is the forward method of a family's attention, rewritten to pass queries, keys and values to posenc
*before* the model applies its own positions. The layer keeps its class and weights."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from posenc.huggingface.attention import attention

CACHES = ("layer_past", "cache", "past_key_values")
"""What families call a layer's cache: "past_key_values" is "cache" from transformers 5.24 on."""


def _attend(
    module: Any, qkv: Iterable[Tensor], given: Mapping[str, Any], dropout: float = 0.0, scaling: float | None = None
) -> Tensor:
    """Attention to all keys of the cache, (batch, tokens, heads x head_dim). ``given`` are the layer's other
    arguments."""
    query, key, value = qkv
    cache = next((given[name] for name in CACHES if given.get(name) is not None), None)
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    how = {name: given.get(name) for name in ("attention_mask", "position_ids", "output_attentions")}
    dropout = dropout if module.training else 0.0
    return attention(module, query, key, value, scaling=scaling, dropout=dropout, **how)[0].flatten(2)


def bloom(self: Any, hidden_states: Tensor, residual: Tensor, **given: Any) -> tuple[Tensor, None]:
    """BLOOM. Ignores the bias ``alibi``."""
    if self.pretraining_tp > 1 and self.slow_but_exact:
        raise ValueError("slow_but_exact is not supported by posenc: it is for models that were trained in slices")
    qkv = self._reshape(self.query_key_value(hidden_states))
    out = _attend(self, qkv, given, self.attention_dropout.p, scaling=self.inv_norm_factor)
    return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), None


def mpt(self: Any, hidden_states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """MPT. Ignores the bias ``position_bias``."""
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    qkv = (x.unflatten(2, (self.n_heads, self.head_dim)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    return self.out_proj(_attend(self, qkv, given, self.attn_dropout_p, scaling=self.softmax_scale)), None


def gptj(self: Any, hidden_states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """GPT-J. Does not read its table of sines."""
    heads = (self.num_attention_heads, self.head_dim)
    projections = (self.q_proj, self.k_proj, self.v_proj)
    qkv = (projection(hidden_states).unflatten(2, heads).transpose(1, 2) for projection in projections)
    return self.resid_dropout(self.out_proj(_attend(self, qkv, given, self.config.attn_pdrop))), None


def falcon(self: Any, hidden_states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """Falcon. Ignores cos and sin, and computes no bias. With ALiBi it counts tokens instead of using position_ids, and
    has dropout, which it does not have with rotation."""
    qkv = (part.transpose(1, 2) for part in self._split_heads(self.query_key_value(hidden_states)))
    if self.config.alibi:
        given["position_ids"] = None
    return self.dense(_attend(self, qkv, given, self.attention_dropout.p * self.config.alibi)), None


ADAPTERS: dict[str, tuple[str, Callable[..., tuple[Tensor, None]]]] = {
    "bloom": ("BloomAttention", bloom),
    "falcon": ("FalconAttention", falcon),
    "gptj": ("GPTJAttention", gptj),
    "mpt": ("MptAttention", mpt),
}
"""By model_type: the class whose forward method is replaced, and the new one."""

PROJECTED = "it has its own attention, and relative positions, if any, go through each layer's projections in it"
UNSUPPORTED = {
    "deberta": PROJECTED,
    "deberta-v2": PROJECTED,
    "swin": "its bias is for windows that the layer makes itself",
    "swinv2": "its bias is computed by an MLP over windows that the layer makes itself",
}
"""Families whose positions cannot be replaced, and why."""
