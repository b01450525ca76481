"""A cache of transformers that holds what the windows of a patched model need."""

from __future__ import annotations

from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from posenc.huggingface.attention import LAYER_SCHEME
from posenc.huggingface.seams import named, transformer

PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)


class _Recent(DynamicSlidingWindowLayer):
    """The last ``reach`` keys. The model's mask is that of all keys, since layers of one type, which share it, may have
    different windows; attention takes what it says of the last."""

    is_sliding = False

    def __init__(self, reach: int) -> None:
        super().__init__(max(reach, 1) + 1)  # which holds one less, and all of them where that is 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All keys, from the first on."""
        return self.cumulative_length + query_length, 0


def bounded_cache(model: nn.Module) -> DynamicCache:
    """An empty `transformers.DynamicCache` for a patched model: layers with a window, or with chunks of the model's
    own, hold the keys that these reach, and others all keys, also those with chunks of a `Schedule`.

    ``generate`` would make one by the windows of the model's configuration, which those of a `Schedule` replace.

    >>> patch(model, Schedule([(RoPE(64), 512)] * 5 + [(NoPE(), None)]))
    >>> model.generate(ids, cache=bounded_cache(model))  # past_key_values= before transformers 5.24

    Layers hold keys as attention gets them, unrotated where a scheme rotates them. Raises ValueError for a model of an
    encoder and a decoder, and for one whose layers have no scheme by `patch`.
    """
    base = transformer(model)
    modules = [module for module in base.modules() if hasattr(module, LAYER_SCHEME)]
    if base.config.is_encoder_decoder or not modules:
        what = "is of an encoder and a decoder" if base.config.is_encoder_decoder else "has none"
        raise ValueError(
            f"model must be a decoder whose layers have a scheme by patch(), and {named(base)} {what}: use "
            "transformers.DynamicCache(config=model.config), which its own windows bound"
        )
    made = DynamicCache(config=base.config)
    for module in modules:
        index, reach = module.layer_idx, getattr(module, LAYER_SCHEME).reach
        if index < len(made.layers) and type(made.layers[index]) in PLAIN:  # else it shares an earlier layer's keys
            made.layers[index] = DynamicLayer() if reach is None else _Recent(reach)
    return made
