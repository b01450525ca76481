"""Registers posenc with transformers, and refuses models that would not run it."""

from __future__ import annotations

import inspect
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from posenc.huggingface.adapters import ADAPTERS
from posenc.huggingface.attention import NAME, LayerScheme, attention, mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADDS_ITS_MASK = frozenset({"deepseek_v4", "git"})
"""Models that use transformers' table of attention functions, but add their mask to scores, or a bias to their mask,
themselves: a boolean mask would be misread."""


RECORD = "posenc_patch"
"""The key of a configuration that says what `patch` has put into the model."""

AGAIN = "load learned parameters as in 'Saving and loading' of posenc's documentation"
"""What is left to do after the model was patched again."""

MARK = (
    "posenc.huggingface.patch changed this model: pass attn_implementation='eager' (or 'sdpa' where the model has it), "
    f"call patch() again with what {RECORD} in config.json says, and {AGAIN}"
)
"""The attention implementation of such a configuration, beside `RECORD`. transformers refuses it, also where posenc is
not imported, and so says what to do."""


class OwnAttentionError(ValueError):
    """A model computes its own attention and accepts no other."""


def register() -> None:
    """Makes "posenc" an attention implementation of transformers, with its mask. Importing ``posenc.huggingface`` calls
    this; calling it again changes nothing.

    >>> model.set_attn_implementation("posenc")
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    theirs = PreTrainedModel.get_correct_attn_implementation
    if theirs.__module__ == __name__:
        return

    # transformers calls this for every new model, to check for sdpa or flash attention. A model with only its own
    # attention accepts any other name, and would add posenc's boolean mask to its scores.
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        if requested_attention == NAME:
            _check_replaceable(self)
        put = getattr(self.config, RECORD, None)
        if is_init_check and put is not None and requested_attention != MARK:  # which transformers refuses
            said = f"posenc.huggingface.patch had put {put} into the model of this configuration"
            names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(inspect.currentframe())]
            users = (n for n, name in enumerate(names, 1) if not name.startswith(("posenc.", "transformers.")))
            said += f", and this one is without it: call patch() again with that, and {AGAIN}"
            warnings.warn(said, stacklevel=next(users, 1))
        return theirs(self, requested_attention, is_init_check)

    sets = PreTrainedModel.set_attn_implementation

    # For such a model it only logs a warning, and leaves its attention as it is.
    def set_attn_implementation(self: PreTrainedModel, attn_implementation: str | dict[str, Any], **how: Any) -> None:
        named = attn_implementation.get("") if isinstance(attn_implementation, dict) else attn_implementation
        if named == NAME and not any(isinstance(module, LayerScheme) for module in self.modules()):
            _check_replaceable(self)
        sets(self, attn_implementation, **how)

    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation  # type: ignore[method-assign]
    PreTrainedModel.set_attn_implementation = set_attn_implementation  # type: ignore[assignment]


def _check_replaceable(model: PreTrainedModel) -> None:
    """OwnAttentionError for a model that does not use transformers' table of attention functions. For a class outside
    transformers its base class there decides; without one there is no error."""
    theirs = next((kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers.models.")), None)
    is_own = theirs is not None and not theirs._can_set_attn_implementation()  # type: ignore[attr-defined]
    if not is_own and model.config.model_type not in ADDS_ITS_MASK:
        return
    advice = "load it with attn_implementation='eager'"
    if model.config.model_type in ADAPTERS:
        advice += ", and patch(model, scheme_from_config(model.config).schedule) runs it through posenc"
    raise OwnAttentionError(
        f"attn_implementation={NAME!r} is not supported by {type(model).__name__} ({model.config.model_type}), which "
        f"has its own attention that cannot be replaced: {advice}"
    )
