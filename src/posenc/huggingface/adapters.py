"""Models of transformers whose attention is their own, and takes no other: theirs is exchanged for one of posenc's.

Each function is the forward of a family's attention, rewritten to hand queries, keys and values to posenc *before* the
model's own positions are put on them. The layer keeps its weights: only its class is exchanged, for one that is derived
from it.

In `ADAPTERS` the positions are a scheme's, and any other may be put in their place. In `BOUND` they are made of each
layer's own weights: the scheme is made in every call, so that it holds what the layer is handed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.backends.attention import attention as posenc_attention
from posenc.huggingface.attention import EAGER, REFUSED, attention
from posenc.huggingface.masks import Visible, mask
from posenc.huggingface.variants import DividedALiBi, LayerDeBERTa, LayerSwinV2, RoundedALiBi
from posenc.positions.positions import Positions
from posenc.scheme import Scheme

Forward = Callable[..., tuple[Tensor, None]]


def _attend(
    module: Any, qkv: Iterable[Tensor], given: Mapping[str, Any], dropout: float = 0.0, scaling: float | None = None
) -> Tensor:
    """Attention over all that the cache holds, (batch, tokens, heads x head_dim). ``given`` is what the layer was
    called with, beside its tokens.
    """
    query, key, value = qkv
    cache = given.get("layer_past", given.get("past_key_values"))
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    out, _ = attention(
        module,
        query,
        key,
        value,
        given.get("attention_mask"),
        scaling=scaling,
        dropout=dropout if module.training else 0.0,
        position_ids=given.get("position_ids"),
        output_attentions=given.get("output_attentions"),
    )
    return out.flatten(2)


def bloom(self: Any, hidden_states: Tensor, residual: Tensor, **given: Any) -> tuple[Tensor, None]:
    """BLOOM: the bias ``alibi`` is not read."""
    if self.pretraining_tp > 1 and self.slow_but_exact:
        raise ValueError("slow_but_exact cannot be honoured by posenc: it is for models that were trained in slices")
    qkv = self._reshape(self.query_key_value(hidden_states))
    out = _attend(self, qkv, given, self.attention_dropout.p, scaling=self.inv_norm_factor)
    return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), None


def mpt(self: Any, hidden_states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """MPT: the bias ``position_bias`` is not read."""
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    qkv = (x.unflatten(2, (self.n_heads, self.head_dim)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    return self.out_proj(_attend(self, qkv, given, self.attn_dropout_p, scaling=self.softmax_scale)), None


def gptj(self: Any, hidden_states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """GPT-J: its table of sines is not read."""
    heads = (self.num_attention_heads, self.head_dim)
    projections = (self.q_proj, self.k_proj, self.v_proj)
    qkv = (projection(hidden_states).unflatten(2, heads).transpose(1, 2) for projection in projections)
    return self.resid_dropout(self.out_proj(_attend(self, qkv, given, self.attn_dropout.p))), None


def falcon(self: Any, hidden_states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """Falcon: cos and sin are not read, and no bias is made. Where it has ALiBi it counts tokens, not position_ids, and
    has dropout, which its rotating attention has not."""
    qkv = (part.transpose(1, 2) for part in self._split_heads(self.query_key_value(hidden_states)))
    counts = self.config.alibi
    if counts:
        given["position_ids"] = None
    return self.dense(_attend(self, qkv, given, self.attention_dropout.p if counts else 0.0)), None


ADAPTERS: dict[str, tuple[str, Forward]] = {
    "bloom": ("BloomAttention", bloom),
    "falcon": ("FalconAttention", falcon),
    "gptj": ("GPTJAttention", gptj),
    "mpt": ("MptAttention", mpt),
}
"""By model_type: the class whose forward is exchanged, and for what."""


def as_computed(scheme: Scheme) -> Scheme:
    """What a configuration says, as the model's code computes it."""
    if isinstance(scheme, DividedALiBi):
        return RoundedALiBi(scheme.num_heads, scheme.head_dim)
    return scheme


# -- layers whose positions are made of their own weights -------------------------------------------------------------


def swin_v2(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
) -> tuple[Tensor]:
    """Swin v2: rows are windows, (images x windows, patches, channels). The mask of shifted windows is added twice, as
    the model does: -200 in place of the -100 that is in it."""
    _no_weights(output_attentions)
    shape = (*hidden_states.shape[:2], self.num_attention_heads, self.attention_head_size)
    query, key, value = (
        projection(hidden_states).view(shape).transpose(1, 2) for projection in (self.query, self.key, self.value)
    )
    if attention_mask is not None:
        images = query.size(0) // attention_mask.size(0)
        attention_mask = (2 * attention_mask).repeat(images, 1, 1)[:, None]
    places = Positions.grid(*self.window_size, device=query.device)
    dropout = self.dropout.p if self.training else 0.0
    out = posenc_attention(
        query,
        key,
        value,
        LayerSwinV2(self),
        query_positions=places,
        key_positions=places,
        attn_mask=attention_mask,
        dropout_p=dropout,
    )
    assert isinstance(out, Tensor)
    return (out.transpose(1, 2).flatten(2),)


def deberta_v2(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    """DeBERTa v2 and v3. ``query_states`` are those of the layers that a model repeats at its end."""
    _no_weights(output_attentions)
    if relative_pos is not None:
        raise ValueError(
            "relative_pos cannot be honoured by posenc, which counts distances by itself: leave it out, or undo()"
        )
    source = hidden_states if query_states is None else query_states
    if source.size(1) != hidden_states.size(1):
        raise ValueError(
            f"query_states must be of as many tokens as hidden_states, got {source.size(1)} and {hidden_states.size(1)}"
        )
    query, key, value = (
        projection(x).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
        for projection, x in (
            (self.query_proj, source),
            (self.key_proj, hidden_states),
            (self.value_proj, hidden_states),
        )
    )
    table = self.pos_dropout(rel_embeddings) if self.relative_attention and rel_embeddings is not None else None
    if isinstance(attention_mask, Visible):
        queries, keys, seen = attention_mask.queries, attention_mask.keys, None
    else:
        queries = keys = Positions.arange(key.size(2), device=key.device)
        seen = attention_mask.bool()
    out = posenc_attention(
        query,
        key,
        value,
        LayerDeBERTa(self, table),
        query_positions=queries,
        key_positions=keys,
        attn_mask=seen,
        dropout_p=self.dropout.p if self.training else 0.0,
    )
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).flatten(2), None


def deberta_v2_mask(self: Any, attention_mask: Tensor) -> Tensor:
    """Which keys are tokens, not laid out as queries x keys, where the mask says no more than that."""
    if attention_mask.dim() > 2:
        return attention_mask.unsqueeze(1) if attention_mask.dim() == 3 else attention_mask
    from transformers.masking_utils import bidirectional_mask_function

    rows, tokens = attention_mask.shape
    made = mask(
        rows,
        tokens,
        tokens,
        mask_function=bidirectional_mask_function,
        attention_mask=attention_mask,
        device=attention_mask.device,
    )
    assert made is not None
    return made


def deberta_v2_distances(
    self: Any, hidden_states: Tensor, query_states: Any = None, relative_pos: Tensor | None = None
) -> Tensor | None:
    """No table of distances, queries x keys: posenc makes what it needs."""
    return relative_pos


def _no_weights(output_attentions: bool | None) -> None:
    if output_attentions:
        raise ValueError(
            "output_attentions cannot be honoured by posenc, got True: "
            + REFUSED["output_attentions"].replace(EAGER, "undo()")
        )


def check_swin_v2(layer: Any) -> LayerSwinV2:
    """The scheme of a layer, or a ValueError for one that it cannot say."""
    return LayerSwinV2(layer)


def check_deberta_v2(layer: Any) -> LayerDeBERTa:
    """The scheme of a layer, without its table, or a ValueError for one that it cannot say."""
    scheme = LayerDeBERTa(layer)
    scheme.check(layer)
    return scheme


BOUND: dict[str, tuple[Callable[[Any], Any], dict[str, dict[str, Callable[..., Any]]]]] = {
    "deberta-v2": (
        check_deberta_v2,
        {
            "DisentangledSelfAttention": {"forward": deberta_v2},
            "DebertaV2Encoder": {"get_attention_mask": deberta_v2_mask, "get_rel_pos": deberta_v2_distances},
        },
    ),
    "swinv2": (check_swin_v2, {"Swinv2SelfAttention": {"forward": swin_v2}}),
}
"""By model_type: what makes the scheme of a layer, and by class the methods that are exchanged; attention first."""

PUT_IN_PLACE = {
    "deberta-v2": "its positions meet queries and keys through the layer's own projections",
    "swinv2": "its bias is made by a network over windows that the layer cuts itself",
}
"""Why nothing can be put in place of these positions. `adapt` runs them as they are."""

OTHERS = {
    "deberta": "its positions meet queries and keys through the layer's own projections",
    "swin": "its bias stands in windows that the layer cuts itself",
}
"""Families that are neither adapted nor go through transformers' table of attention functions, and why."""


def unscaled(self: Any, *given: Any, position_ids: Tensor, **more: Any) -> Any:
    """Ministral 3 and Mistral 4, whose queries are then not scaled by their position: the factor of position 0 is 1.
    What they hand on to posenc are therefore no positions, and its `Plan` goes by its source.
    """
    own: Any = next(kind for kind in type(self).__mro__ if vars(kind).get("forward") is unscaled)
    return super(own, self).forward(*given, position_ids=torch.zeros_like(position_ids), **more)


def check_rotates(config: Any) -> None:
    """ValueError where a family that rotates does not with this configuration, so that there is nothing to scale."""
    if config.model_type == "falcon" and config.alibi:
        raise ValueError("falcon with alibi=True does not rotate: there are no frequencies to put a scaling on")


def adapted(kind: type, methods: Mapping[str, Callable[..., Any]]) -> type:
    """A class like this one, with other methods. It stands in no module, so its modules are pickled by what made it;
    those of classes derived from it, as by what they are.
    """

    def reduced(self: Any, protocol: Any) -> Any:
        if type(self) is not made:
            return object.__reduce_ex__(self, protocol)
        return _remade, (kind, methods), vars(self)

    own = {"__module__": kind.__module__, "__reduce_ex__": reduced}
    made = type(f"{PREFIX}{kind.__name__}", (kind,), {**methods, **own})
    return made


def _remade(kind: type, methods: Mapping[str, Callable[..., Any]]) -> Any:
    """A module as pickle wants it, still empty."""
    return object.__new__(adapted(kind, methods))


PREFIX = "Posenc"


def is_adapted(module: nn.Module) -> bool:
    """Whether its class was exchanged, or is derived from one that was."""
    return any(
        kind.__name__.startswith(PREFIX) and kind.__module__.startswith("transformers.")
        for kind in type(module).__mro__
    )
