"""posenc made known to transformers, and models refused that are loaded with it and would not run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc.huggingface.attention import NAME, attention
from posenc.huggingface.masks import mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADDS_ITS_MASK = frozenset({"deepseek_v4", "git"})
"""Models that add their mask to scores, or a bias to their mask, by themselves, although their code names the table:
a boolean mask would mean something else."""


class OwnAttentionError(ValueError):
    """A model computes its own attention and accepts no other."""


def register() -> None:
    """Makes "posenc" an attention implementation of transformers, with its mask. Importing ``posenc.huggingface`` does
    so; doing it again changes nothing.

    >>> model.set_attn_implementation("posenc")
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    theirs = PreTrainedModel.get_correct_attn_implementation
    if theirs.__module__ == __name__:
        return

    # transformers asks here, of every model that is made, whether it has sdpa or flash attention; a model that has none
    # but its own takes any other name, and would then add posenc's boolean mask to its scores.
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        if requested_attention == NAME and has_own_attention(self):
            raise OwnAttentionError(
                f"attn_implementation={NAME!r} cannot be honoured by {type(self).__name__} ({self.config.model_type}), "
                "whose attention is its own and takes no other: load it with attn_implementation='eager'; "
                "posenc.huggingface.adapt(model) says whether posenc has one for it"
            )
        return theirs(self, requested_attention, is_init_check)

    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation  # type: ignore[method-assign]


def has_own_attention(model: PreTrainedModel) -> bool:
    """Whether a model's attention does not go through transformers' table of attention functions. A class that is not
    of transformers is taken for what it is derived from; one derived from none is not judged."""
    theirs = next((kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers.models.")), None)
    is_own = theirs is not None and not theirs._can_set_attn_implementation()  # type: ignore[attr-defined]
    return is_own or model.config.model_type in ADDS_ITS_MASK
