"""Reads the positional encoding of a model from its configuration."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.arguments import check_choice, meant, shown
from posenc.huggingface.families import READERS
from posenc.huggingface.loading import RECORD
from posenc.huggingface.reading import (
    BYTES,
    FULL,
    SLIDING,
    Keys,
    ModelPositions,
    check_sizes,
    default_keys,
    positional,
    reason,
)

PARTS = {"text": "text_config", "vision": "vision_config"}
"""The keys of the parts that can be read, in a configuration of several models."""

STACKS = ("encoder", "decoder")
TWO_STACKS = frozenset({"m2m_100", "mt5", "nllb-moe", "t5", "umt5", "whisper"})

GEMMA: Mapping[str, tuple[str, ...]] = {"rope_theta": (FULL,), "rope_local_base_freq": (SLIDING,)}
MODERNBERT: Mapping[str, tuple[str, ...]] = {"global_rope_theta": (FULL,), "local_rope_theta": (SLIDING,)}
THETAS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("gemma3_text", "gemma3n_text"), GEMMA),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), MODERNBERT),
    "gpt_neox": {"rotary_emb_base": ()},
}
"""Older names of rope_theta and the layer types that they are for; () is all. By default ``rope_theta`` for all."""


def scheme_from_config(config: Any, part: str | None = None, *, ignore: Sequence[str] = ()) -> ModelPositions:
    """Reads the positional encoding of a Hugging Face configuration; printing the result describes it in words.

    ``config`` is a configuration object, the dictionary of a config.json, or a path to the file or its folder. ``part``
    is the part to read in a configuration of several models: "text" (the default) or "vision", or for an
    encoder-decoder model "encoder" or "decoder" (the default). ``ignore`` are names of keys that mean nothing, which
    would otherwise be errors.

    >>> print(scheme_from_config({"model_type": "llama", "num_hidden_layers": 2, "rope_theta": 5e5}))
    llama: decoder, 2 layers, 2048 positions
      layers 0, 1: RoPE, base 500000, all 128 channels, half layout, whole text

    A causal family that is not in the table of docs/huggingface.md is read by asking: its model is built with all its
    layers and no weights, what its code does to queries and keys at chosen positions is fitted, and the fit is compared
    at others. Layouts are those in which queries and keys reach attention, unless it is seen that the model has only
    moved channels, and a remark says that it was asked. Schemes are in evaluation mode.

    Errors: ValueError, naming the key, for a key about positions that is unknown, contradicts another, or is ignored by
    transformers' own model; ValueError for an unsupported family, for a configuration that transformers does not
    accept, or a path without one; ModuleNotFoundError without transformers.
    """
    if isinstance(ignore, str) or not isinstance(ignore, Sequence) or not all(isinstance(n, str) for n in ignore):
        raise ValueError(f"ignore must be a list of names of keys, got {shown(ignore)}")
    ignored = tuple(ignore)
    raw = _raw(config)
    check_sizes("config", config.to_dict() if raw is None else raw)
    found = whole = config if raw is None else _build(raw)
    inside = None
    if part in PARTS or whole.model_type not in READERS:
        name = PARTS["vision" if part == "vision" else "text"]
        if getattr(whole, name, None) is not None:
            found, inside = getattr(whole, name), whole.model_type
            if raw is not None:
                raw = raw.get(name, raw)
                raw = raw if isinstance(raw, Mapping) else None  # an object in a dictionary
            _check_outer(whole, name, ignored)
        elif part in PARTS:
            raise ValueError(f"part must be one that {whole.model_type} has, and it has no {name}, got {part!r}")
    if found.model_type in TWO_STACKS:
        inside = "decoder" if part in (None, *PARTS) else part
        check_choice("part", inside, STACKS)
    elif part not in (None, *PARTS):
        has_stacks = getattr(found, "is_encoder_decoder", False) and found.model_type not in READERS
        if has_stacks and part == "encoder":
            raise _unread(found.model_type, ", whose encoder is not read")
        if not has_stacks or part != "decoder":
            raise ValueError(f"part must be None for {found.model_type}, which is one model, got {part!r}")
    if part == "vision" and found.model_type not in READERS:
        raise ValueError(
            f"part must be 'text' for {whole.model_type}, whose vision part ({found.model_type}) is not read, got "
            "'vision'"
        )
    keys = Keys(found, inside, ignored)
    said = READERS.get(found.model_type, _asked)(keys)
    if said.causal:
        keys.refuse("is_causal", True, why="must be true: only causal attention is read")
    keys.end()
    if raw is not None and found.model_type in READERS:
        _check_thetas(raw, found)
    if (put := getattr(found, RECORD, getattr(whole, RECORD, None))) is not None:
        return replace(
            said, remarks=(*said.remarks, f"not so in the model itself, which was patched: {RECORD} = {put}")
        )
    return said


def _asked(keys: Keys) -> ModelPositions:
    """The positions of a causal family that is not in the table, which its own code is asked for."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    from posenc.huggingface.asking import positions_by_asking

    if type(keys.config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not keys.inside:
        raise _unread(keys.model_type)
    try:
        said = positions_by_asking(keys)
    except ValueError as error:
        raise _unread(keys.model_type, f", whose code was asked: {error}") from error
    keys.was_read.update(default_keys(keys.config))  # which the code has read, or ignores
    return said


def _unread(model_type: str, why: str = "") -> ValueError:
    """The error for a family that is not read."""
    near = meant(model_type, tuple(READERS))
    return ValueError(
        f"model_type must be one of the {len(READERS)} in docs/huggingface.md, got {model_type!r}{why}{near}"
    )


def _raw(config: Any) -> dict[str, Any] | None:
    """The dictionary as given, or None for a configuration object."""
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise ValueError(f"config must be a file or a folder with a config.json, and there is no {str(path)!r}")
        if path.stat().st_size > BYTES:
            raise ValueError(f"config must have at most {BYTES} bytes, and {str(path)!r} has {path.stat().st_size}")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"config must be JSON, and {str(path)!r} is not: {error}") from None
        if not isinstance(config, dict):
            raise ValueError(f"config must be a JSON object, and {str(path)!r} holds {shown(config)}")
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "model_type") or not hasattr(config, "to_dict"):
        raise ValueError(
            f"config must be a configuration of transformers, its dictionary, or a path to a config.json, "
            f"got {shown(config)}"
        )
    return None


def _build(raw: Mapping[str, Any]) -> Any:
    """The configuration object, with the defaults of transformers."""
    from transformers import CONFIG_MAPPING

    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(f"config must have a model_type, got {shown(model_type)}")
    parts = [each for name in PARTS.values() if isinstance(each := raw.get(name), Mapping)]
    for each in (raw, *parts):
        old, new = each.get("rope_scaling"), each.get("rope_parameters")
        if old and new and old != new:
            raise ValueError(f"rope_scaling and rope_parameters must be equal if both are given, got {old} and {new}")
    if model_type not in CONFIG_MAPPING:
        raise _unread(model_type)
    try:
        return CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(dict(raw)))
    except Exception as error:
        raise ValueError(
            f"config must be one that transformers accepts for {model_type}, and it raises {reason(error)}"
        ) from error


def _check_outer(whole: Any, name: str, ignored: tuple[str, ...]) -> None:
    """ValueError for a key about positions that is outside the part's configuration, where it belongs. Defaults of the
    whole configuration are allowed."""
    part = getattr(whole, name)
    for key, value in positional(whole):
        if key not in ignored and getattr(part, key, None) != value and key not in vars(type(whole)()):
            raise ValueError(
                f"{whole.model_type} has the key {key!r} = {shown(value)}, which is about positions, outside its "
                f"{name}, where it is not read: put it inside"
            )


def _check_thetas(raw: Mapping[str, Any], config: Any) -> None:
    """ValueError for a base in the configuration that is not used by the layers that it is for."""
    params = getattr(config, "rope_parameters", None)
    if not isinstance(params, Mapping):
        return
    names = THETAS.get(config.model_type, {"rope_theta": ()})
    nested = {kind: of_kind for kind, of_kind in params.items() if isinstance(of_kind, Mapping)}
    for name, kinds in names.items():
        if raw.get(name) is None:
            continue
        for kind in kinds or tuple(nested) or ("",):
            came = (nested[kind] if kind else params).get("rope_theta")
            if came != raw[name]:
                of = f" of {kind}" if kind else ""
                raise ValueError(f"{config.model_type}'s {name} is {raw[name]}, but transformers' model{of} has {came}")
    for given in ("rope_scaling", "rope_parameters"):
        inner = raw.get(given)
        theta = inner.get("rope_theta") if isinstance(inner, Mapping) else None
        if theta is not None and raw.get("rope_theta") not in (None, theta):
            raise ValueError(f"rope_theta is {raw['rope_theta']}, but {given} has {theta}")
