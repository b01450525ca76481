"""`patch` and `adapt`: replace the positional encoding or the attention of a model of transformers, and
`from_pretrained`, which loads one that was saved so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.huggingface.adapters import ADAPTERS, BOUND, REPLACED_IN_PLACE, UNSUPPORTED, is_adapted
from posenc.huggingface.attention import LayerScheme
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.loading import MARK, RECORD, has_own_attention, record_of
from posenc.huggingface.patched import Patched, named, text_config, transformer
from posenc.huggingface.replace_positions import (
    is_scaling,
    replace_adapted_attention,
    replace_bound_attention,
    replace_scaling,
    replace_with_scheme,
)
from posenc.huggingface.seams import PosencTable, is_patched
from posenc.huggingface.variants import DividedALiBi, RoundedALiBi
from posenc.schedule import Schedule
from posenc.scheme import bare_parts, is_scheme

STACKS = {"encoder", "decoder"}


def patch(model: nn.Module, what: Any) -> Patched:
    """Replaces a model's positional encoding by ``what``, until ``undo()`` or the end of the ``with`` block.

    - A *scaling*, such as ``YaRN(4.0, 4096)``, is applied to the model's own rotary frequencies, in every layer that
      rotates, instead of the scaling of its configuration; transformers' dictionary, such as ``{"rope_type": "linear",
      "factor": 4.0}``, is one too. A mapping {layer type: scaling} applies only to layers of these types (Gemma 3 has
      several). If the model's softmax scale includes YaRN's mscale^2 (DeepSeek-V3), it is
      adapted to the new scaling. A scaling that depends on the length (`DynamicNTK`, `LongRoPE`) is exact with a cache
      and for each row separately: the cache then keeps unrotated keys.
    - A *scheme*, such as ``ALiBi(num_heads)`` or ``NoPE()``, replaces the model's positions: its rotation is switched
      off, its learned table, sinusoids and T5's bias are not added, and queries are not scaled by position. What does
      so is found by asking a model of the same class and configuration, and none of it may be left. Layers share the
      scheme, and its parameters become the model's.
    - A `Schedule` does the same for each layer, with its window instead of the model's.
    - A mapping {"encoder": scheme, "decoder": scheme}, or of one of them, is for T5, BART and the like; each
      may be a `Schedule`. Attention of the decoder to the encoder has no positions.

    Schemes get queries and keys as they reach the model's attention, and must pair channels in the layout that these
    have there (DeepSeek-V3: half). The changes are listed in ``changes`` and printed. The configuration says what was
    put in, and transformers refuses to load a model that save_pretrained has written so: `from_pretrained` does. A
    scheme's parameters are saved too, once if layers share them. Works inside wrappers such as PEFT's, and on meta.

    Raises ValueError for a model that is already patched or whose positions are not understood, and for a scheme that
    does not fit the model.
    """
    patched, base = _begin(model)
    if (kind := text_config(base).model_type) in REPLACED_IN_PLACE:
        raise ValueError(
            f"{named(base)} cannot be patched: {REPLACED_IN_PLACE[kind]}; adapt() runs it through posenc unchanged"
        )
    try:
        if isinstance(what, Schedule) or is_scheme(what):
            replace_with_scheme(patched, base, what)
        elif base.config.is_encoder_decoder and isinstance(what, Mapping) and what and what.keys() <= STACKS:
            for name, scheme in what.items():
                patched.changes.append(f"{name}:")
                replace_with_scheme(patched, getattr(base, f"get_{name}")(), scheme)
        elif isinstance(what, Mapping) or is_scaling(what):
            replace_scaling(patched, base, what)
        else:
            raise ValueError(
                f"what must be a scaling, a scheme, a Schedule or {{layer type: scaling}}, got {shown(what)}"
            )
        _heed_peft(patched, base)
        patched.watch_ids()
        _record(patched, base, what)
    except BaseException:
        patched.undo()
        raise
    return patched


def adapt(model: nn.Module) -> Patched:
    """Runs a model that has its own attention code through posenc, with unchanged positions, until ``undo()`` or the
    end of the ``with`` block.

    - BLOOM, MPT, GPT-J and Falcon: with the positions of their configuration. Falcon's ALiBi is rounded to bfloat16, as
      in its published code and transformers' "sdpa"; ``patch(model, scheme_from_config(config).schedule)`` is exact.
    - Swin v2 and DeBERTa-v2: with the layers' own weights, which can still be trained.

    Models that support ``set_attn_implementation("posenc")`` do not need it. Raises ValueError for other models, for
    configurations that posenc's schemes do not cover, and for ``output_attentions``.
    """
    patched, base = _begin(model)
    config = text_config(base)
    if config.model_type not in ADAPTERS | BOUND:
        advice = "use model.set_attn_implementation('posenc')"
        if has_own_attention(base):
            advice = "it has its own attention, which cannot be replaced, so posenc cannot run it"
        raise ValueError(
            f"{named(base)} is not among {', '.join(sorted(ADAPTERS | BOUND))}, whose attention posenc replaces: "
            f"{advice}"
        )
    try:
        if config.model_type in BOUND:
            replace_bound_attention(patched, base)
        else:
            own = scheme_from_config(config).schedule
            rounded = [RoundedALiBi(s.num_heads, s.head_dim) if isinstance(s, DividedALiBi) else s for s, _ in own]
            replace_adapted_attention(
                patched, base, Schedule(list(zip(rounded, (window for _, window in own), strict=True)))
            )
        _heed_peft(patched, base)
        patched.watch_ids()
    except BaseException:
        patched.undo()
        raise
    return patched


def _begin(model: nn.Module) -> tuple[Patched, Any]:
    base = transformer(model)
    if (kind := text_config(base).model_type) in UNSUPPORTED:
        raise ValueError(f"{named(base)} cannot be patched: {UNSUPPORTED[kind]}")
    if any(isinstance(m, LayerScheme) or is_adapted(m) or is_patched(m) for m in base.modules()):
        raise ValueError("model is patched already: undo() that first")
    return Patched(model), base


def _record(patched: Patched, base: Any, what: Any) -> None:
    """Writes what was put in into the configuration until `undo`, for `save_pretrained`."""
    config, record = base.config, record_of(what)

    def back() -> None:
        if getattr(config, RECORD, None) is record:  # else that of another model with this configuration
            delattr(config, RECORD)
            delattr(config, "attn_implementation")

    setattr(config, RECORD, record)
    config.attn_implementation = MARK
    patched.on_undo(back)


def _heed_peft(patched: Patched, base: Any) -> None:
    """ValueError for prefix tuning if posenc rotates keys in attention; a remark if PEFT would not save a scheme's
    parameters."""
    wrappers = [getattr(module, "peft_config", None) for module in patched.model.modules()]
    methods = [config.peft_type for configs in wrappers if isinstance(configs, dict) for config in configs.values()]
    schemes = [
        module.scheme for module in base.modules() if isinstance(module, LayerScheme | PosencTable) and module.scheme
    ]
    turning = [part for scheme in schemes for part in bare_parts(scheme) if "rotate" in part.doors]
    if "PREFIX_TUNING" in methods and turning:
        raise ValueError(
            f"{type(turning[0]).__name__} in attention rotates all keys of the cache, but those that prefix tuning has "
            "learned are already rotated: use a scheme that does not rotate keys, a scaling that does not depend on "
            "the length, or prompt tuning"
        )
    learned = [scheme for scheme in schemes if any(p.requires_grad for p in scheme.parameters())]
    if methods and learned:
        names = " and ".join(dict.fromkeys(type(part).__name__ for scheme in learned for part in bare_parts(scheme)))
        patched.changes.append(f"PEFT does not save the parameters of {names}: save the scheme separately")


# -- loading a patched model ------------------------------------------------------------------------------------------

HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
"""The options of transformers about where files are."""


def from_pretrained(place: str | Path, what: Any, kind: Any = None, **options: Any) -> Any:
    """Loads a model that ``save_pretrained`` wrote while it was patched, and patches it again.

    ``place`` is a folder or a name on the hub. ``what`` is that of `patch`, as it was then, which is known by its repr
    and parameters: of a function only the name. ``kind`` is the class of
    transformers; by default that which was saved. Learned parameters of schemes are loaded too, in the dtype in which
    they were saved unless ``dtype`` is given. ``options`` are those of transformers' ``from_pretrained``.

    >>> patch(model, YaRN(4.0, 4096))
    >>> model.save_pretrained("trained")
    >>> model = posenc.huggingface.from_pretrained("trained", YaRN(4.0, 4096))

    Raises ValueError for a model that was not patched when it was saved, or with something else, and for a scheme whose
    parameters are not in the files.
    """
    import transformers

    hub = {name: options[name] for name in HUB if name in options}
    trusted = {name: options[name] for name in ("trust_remote_code",) if name in options}
    config = transformers.AutoConfig.from_pretrained(place, **hub, **trusted)
    record = getattr(config, RECORD, None)
    if record is None:
        raise ValueError(
            f"the configuration of {str(place)!r} must have {RECORD!r}, as save_pretrained writes it for patched "
            "models, and has none: load it by transformers' from_pretrained, and patch() it or its part"
        )
    if record_of(what) != record:
        raise ValueError(f"what must be that which was patched into {str(place)!r}, {record}, got {record_of(what)}")
    delattr(config, RECORD)
    config._attn_implementation = options.pop("attn_implementation", None)
    kind = kind or next(
        (getattr(transformers, n) for n in config.architectures or () if hasattr(transformers, n)), None
    )
    if kind is None:
        raise ValueError(
            f"kind must be given for {str(place)!r}, a class of transformers or its subclass, since its configuration "
            f"names none that transformers has, got architectures {config.architectures}"
        )
    expected = [*(kind._keys_to_ignore_on_load_unexpected or ()), r"\.scheme\."]
    with mock.patch.object(kind, "_keys_to_ignore_on_load_unexpected", expected):
        loaded = kind.from_pretrained(place, config=config, **options)
    model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
    patch(model, what)
    _load(model, place, hub, options.get("dtype", options.get("torch_dtype")))
    return loaded


@torch.no_grad()
def _load(model: nn.Module, place: Any, hub: dict[str, Any], dtype: Any) -> None:
    """Loads the parameters of the schemes that were put in. Raises ValueError, naming one, if the files lack any, or
    have others."""
    named = dict(model.named_parameters(remove_duplicate=False))
    others = {name: p.device for name, p in named.items() if ".scheme." not in name and not p.is_meta}
    first = next(iter(others.values()), None)

    def device_of(name: str) -> torch.device | None:
        """That of the layer which the scheme is in, since layers may be on several."""
        layer = name.partition(".scheme.")[0].rpartition(".")[0]
        return next((device for other, device in others.items() if other.startswith(f"{layer}.")), first)

    named = {name: parameter for name, parameter in named.items() if ".scheme." in name}
    left = {id(parameter): name for name, parameter in reversed(named.items())}
    for key, tensor in _tensors(place, hub):
        own = {n: p for n, p in named.items() if f".{key}".endswith(f".{n}") or f".{n}".endswith(f".{key}")}
        shapes = {tuple(parameter.shape) for parameter in own.values()}
        if shapes != {tuple(tensor.shape)}:
            must = f"be of shape {min(shapes)}" if shapes else "not be there"
            raise ValueError(f"{key} of {str(place)!r} must {must} by what, got {tuple(tensor.shape)}")
        for name, parameter in own.items():
            parameter.data = tensor.to(device_of(name), dtype if isinstance(dtype, torch.dtype) else tensor.dtype)
            left.pop(id(parameter), None)
    if left:
        raise ValueError(f"{str(place)!r} must have the parameters of the schemes, and lacks {min(left.values())}")


def _tensors(place: Any, hub: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of schemes in the files of a model."""
    from safetensors import safe_open
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
    from transformers.utils.hub import cached_file

    index = cached_file(place, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **hub)
    files = {SAFE_WEIGHTS_NAME}
    if index is not None:
        files_of = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        files = {file for key, file in files_of.items() if ".scheme." in key}
    for name in sorted(files):
        path = cached_file(place, name, _raise_exceptions_for_missing_entries=False, **hub)
        if path is None:  # saved under another name, which matters where something was learned
            continue
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # no mapping
                if ".scheme." in key:
                    yield key, file.get_tensor(key)
