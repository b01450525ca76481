"""patch(): a scaling, a scheme or a schedule put into a model of transformers, and taken out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from posenc.arguments import shown
from posenc.huggingface.adapters import ADAPTERS, BOUND, OTHERS, PUT_IN_PLACE, as_computed, is_adapted
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.loading import has_own_attention
from posenc.huggingface.patched import Patched, named, text_config, transformer
from posenc.huggingface.placing import Plan
from posenc.huggingface.put_scalings import is_scaling, put_scaling
from posenc.huggingface.put_schemes import PosencTable, put_adapted, put_bound, put_scheme
from posenc.huggingface.rotary import PosencRotary
from posenc.schedule import Schedule
from posenc.scheme import bare_parts, is_scheme


def patch(model: nn.Module, what: Any) -> Patched:
    """Replaces a model's positional encoding by ``what``, until ``undo()`` or the end of the ``with`` block.

    - A *scaling*, such as ``YaRN(4.0, 4096)``, is put on the model's own rotary frequencies, in every layer that
      rotates, in place of the scaling that its configuration says. A mapping {layer type: scaling} puts it on the
      layers of these types alone, as Gemma 3 and its like name them. Where the model's scale of the scores has YaRN's
      mscale^2 in it (DeepSeek-V3), it becomes what goes with the new one. One that depends on the length (`DynamicNTK`,
      `LongRoPE`) is right from a cache and for each row by itself: keys are then kept unrotated.
    - A *scheme*, such as ``ALiBi(num_heads)`` or ``NoPE()``, replaces what the model does: its rotation is switched
      off, its learned table is not added. Layers share it, and its parameters are the model's.
    - A `Schedule` does so for each layer, with its window in place of the model's. Schemes see queries and keys as
      they reach the model's attention: DeepSeek-V3's rotated slice is in the half layout there.

    What was changed is in ``changes``, and printed. Configurations are not changed: what save_pretrained writes loads
    as the model was, without posenc. Parameters of a scheme are written too, once where layers share them, and left out
    with a warning when loaded so. Wrappers such as PEFT's are looked through.

    ValueError for a model that is patched already, for one whose positions are not understood, and for a scheme that
    does not fit it, by name.
    """
    patched, base = _begin(model)
    if (kind := text_config(base).model_type) in PUT_IN_PLACE:
        raise ValueError(
            f"{named(base)} cannot be patched: {PUT_IN_PLACE[kind]}; adapt() runs it through posenc as it is"
        )
    try:
        if isinstance(what, Schedule) or is_scheme(what):
            put_scheme(patched, base, what)
        elif isinstance(what, Mapping) or is_scaling(what):
            put_scaling(patched, base, what)
        else:
            raise ValueError(
                f"what must be a scaling, a scheme, a Schedule or {{layer type: scaling}}, got {shown(what)}"
            )
        _heed_peft(patched, base)
    except BaseException:
        patched.undo()
        raise
    return patched


def adapt(model: nn.Module) -> Patched:
    """Runs a model with its own attention code through posenc, with its own positions, until ``undo()`` or
    the end of the ``with`` block.

    - BLOOM, MPT, GPT-J and Falcon: with those that its configuration says. Falcon's ALiBi is there once and rounded to
      bfloat16, as in its published code and transformers' "sdpa"; ``patch(model, scheme_from_config(config).schedule)``
      gives it exactly.
    - Swin v2 and DeBERTa-v2: with the layers' own weights, which stay theirs and train.

    Models that take ``set_attn_implementation("posenc")`` need it not; for others, and for what a configuration says
    that posenc's schemes cannot, a ValueError says so by name. ``output_attentions`` is one too.
    """
    patched, base = _begin(model)
    config = text_config(base)
    if config.model_type not in ADAPTERS | BOUND:
        advice = "use model.set_attn_implementation('posenc')"
        if has_own_attention(base):
            advice = "its attention is its own and takes no other, so posenc cannot run it"
        raise ValueError(
            f"{named(base)} is not among {', '.join(sorted(ADAPTERS | BOUND))}, whose attention posenc exchanges: "
            f"{advice}"
        )
    try:
        if config.model_type in BOUND:
            put_bound(patched, base)
        else:
            own = scheme_from_config(config).schedule
            put_adapted(patched, base, Schedule([(as_computed(scheme), window) for scheme, window in own]))
        _heed_peft(patched, base)
    except BaseException:
        patched.undo()
        raise
    return patched


def _begin(model: nn.Module) -> tuple[Patched, Any]:
    base = transformer(model)
    if (kind := text_config(base).model_type) in OTHERS:
        raise ValueError(f"{named(base)} cannot be patched: {OTHERS[kind]}")
    if any(isinstance(m, PosencRotary | Plan | PosencTable) or is_adapted(m) for m in base.modules()):
        raise ValueError("model is patched already: undo() that first, one patch replaces what another one reads")
    return Patched(model), base


def _heed_peft(patched: Patched, base: Any) -> None:
    """ValueError for prefix tuning where posenc turns keys; a remark where PEFT would not save what is learned."""
    wrappers = [getattr(module, "peft_config", None) for module in patched.model.modules()]
    methods = [config.peft_type for configs in wrappers if isinstance(configs, dict) for config in configs.values()]
    schemes = [module.scheme for module in base.modules() if isinstance(module, Plan | PosencTable) and module.scheme]
    turning = [part for scheme in schemes for part in bare_parts(scheme) if "rotate" in part.doors]
    if "PREFIX_TUNING" in methods and turning:
        raise ValueError(
            f"{type(turning[0]).__name__} in attention turns all keys of the cache, and those that prefix tuning has "
            "learned are turned already: take what turns no keys, a scaling that does not depend on the length, or "
            "prompt tuning"
        )
    learned = [scheme for scheme in schemes if any(p.requires_grad for p in scheme.parameters())]
    if methods and learned:
        names = dict.fromkeys(type(part).__name__ for scheme in learned for part in bare_parts(scheme))
        patched.changes.append(f"PEFT does not save what {' and '.join(names)} learns: save the scheme by itself")
