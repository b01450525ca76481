"""Replaces the attention of models of transformers that cannot change their attention implementation.

Each function is the forward method of a family's attention, rewritten to pass queries, keys and values to posenc
*before* the model applies its own positions. The layer keeps its class and weights.

Families in `ADAPTERS` have positions that are a scheme, which another scheme can replace. Those in `BOUND` compute
positions from each layer's own weights: every call makes the scheme anew from what the layer is given."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from posenc.backends.api import attention as posenc_attention
from posenc.huggingface.attention import EAGER, REFUSED, WITHIN, Visible, attention, mask
from posenc.huggingface.variants import LayerDeBERTa, LayerSwinV2
from posenc.models.forward_pass import EXCHANGES
from posenc.positions.positions import Positions
from posenc.scheme import Scheme

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


# -- layers that compute positions from their own weights -------------------------------------------------------------


def _attend_bound(
    module: Any, qkv: Iterable[Tensor], scheme: Scheme, queries: Positions, keys: Positions, seen: Tensor | None
) -> Tensor:
    """Attention with a layer's own scheme, (batch, tokens, heads x head_dim)."""
    if EXCHANGES:
        raise ValueError(f"{type(module).__name__} cannot be run {WITHIN}: its positions are those of a whole text")
    where: dict[str, Any] = {"query_positions": queries, "key_positions": keys, "attn_mask": seen}
    query, key, value = qkv
    out = posenc_attention(query, key, value, scheme, dropout_p=module.dropout.p if module.training else 0.0, **where)
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).flatten(2)


def _no_weights(output_attentions: bool | None) -> None:
    if output_attentions:
        why = REFUSED["output_attentions"].replace(EAGER, "undo()")
        raise ValueError(f"output_attentions is not supported by posenc, got True: {why}")


def swin_v2(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
) -> tuple[Tensor]:
    """Swin v2. Rows are windows, (images x windows, patches, channels). The mask of shifted windows is added twice, as
    in the model: -200 instead of the -100 that it contains."""
    _no_weights(output_attentions)
    shape = (*hidden_states.shape[:2], self.num_attention_heads, self.attention_head_size)
    qkv = [projection(hidden_states).view(shape).transpose(1, 2) for projection in (self.query, self.key, self.value)]
    if attention_mask is not None:
        images = hidden_states.size(0) // attention_mask.size(0)
        attention_mask = (2 * attention_mask).repeat(images, 1, 1)[:, None]
    patches = Positions.grid(*self.window_size, device=hidden_states.device)
    return (_attend_bound(self, qkv, LayerSwinV2(self), patches, patches, attention_mask),)


def deberta_v2(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    """DeBERTa v2 and v3. ``query_states`` are given in layers that a model repeats at its end."""
    _no_weights(output_attentions)
    if relative_pos is not None:
        raise ValueError(
            "relative_pos is not supported by posenc, which computes distances itself: leave it out, or undo()"
        )
    source = hidden_states if query_states is None else query_states
    if source.size(1) != hidden_states.size(1):
        raise ValueError(
            f"query_states must have as many tokens as hidden_states, got {source.size(1)} and {hidden_states.size(1)}"
        )
    projected = (self.query_proj(source), self.key_proj(hidden_states), self.value_proj(hidden_states))
    qkv = (x.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2) for x in projected)
    table = self.pos_dropout(rel_embeddings) if self.relative_attention and rel_embeddings is not None else None
    if isinstance(attention_mask, Visible):
        queries, keys, seen = attention_mask.queries, attention_mask.keys, None
    else:
        queries = keys = Positions.arange(hidden_states.size(1), device=hidden_states.device)
        seen = attention_mask.bool()
    return _attend_bound(self, qkv, LayerDeBERTa(self, table), queries, keys, seen), None


def deberta_v2_mask(self: Any, attention_mask: Tensor) -> Tensor:
    """The mask of all layers. A mask that only says which keys are tokens is not expanded to queries x keys."""
    if attention_mask.dim() > 2:
        return attention_mask.unsqueeze(1) if attention_mask.dim() == 3 else attention_mask
    from transformers.masking_utils import bidirectional_mask_function as both

    rows, tokens = attention_mask.shape
    is_token = attention_mask.bool()  # without one, the model's is of floating numbers
    made = mask(rows, tokens, tokens, mask_function=both, attention_mask=is_token, device=is_token.device)
    assert made is not None
    return made


def deberta_v2_distances(
    self: Any, hidden_states: Tensor, query_states: Any = None, relative_pos: Tensor | None = None
) -> Tensor | None:
    """No table of distances, queries x keys: posenc computes distances itself."""
    return relative_pos


BOUND: dict[str, tuple[Callable[[Any], Any], dict[str, dict[str, Callable[..., Any]]]]] = {
    "deberta-v2": (
        LayerDeBERTa.checked,
        {
            "DisentangledSelfAttention": {"forward": deberta_v2},
            "DebertaV2Encoder": {"get_attention_mask": deberta_v2_mask, "get_rel_pos": deberta_v2_distances},
        },
    ),
    "swinv2": (LayerSwinV2, {"Swinv2SelfAttention": {"forward": swin_v2}}),
}
"""By model_type: a function that makes the scheme of a layer, and the new methods by class, attention first."""

REPLACED_IN_PLACE = {
    "deberta-v2": "its positions go through each layer's own projections of queries and keys",
    "swinv2": "its bias is computed by an MLP over windows that the layer makes itself",
}
"""Families whose positions cannot be replaced, and why. `adapt` runs them unchanged."""

UNSUPPORTED = {
    "deberta": REPLACED_IN_PLACE["deberta-v2"],
    "swin": "its bias is for windows that the layer makes itself",
}
"""Families that posenc cannot run, and why."""


def is_adapted(module: nn.Module) -> bool:
    """Whether a function of this file is its forward method, also within accelerate's hook."""
    own = (getattr(vars(module).get(name), "func", None) for name in ("forward", "_old_forward"))
    return any(getattr(function, "__module__", None) == __name__ for function in own)
