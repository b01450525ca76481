"""Reads the positional encoding of a model from its configuration."""

import copy
import functools
import json
import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.arguments import check_choice, meant, shown
from posenc.huggingface.families import READERS
from posenc.huggingface.loading import RECORD
from posenc.huggingface.reading import (
    BYTES,
    Keys,
    ModelPositions,
    check_sizes,
    default_keys,
    is_said,
    positional,
    reason,
)
from posenc.rotation.scaling_parameters import ROPE_TYPES
from posenc.schemes.rope import RoPE

PARTS = {"text": "text_config", "vision": "vision_config"}
"""The keys of the parts that can be read, in a configuration of several models."""

STACKS = ("encoder", "decoder")


def scheme_from_config(config: Any, part: str | None = None, *, ignore: Sequence[str] = ()) -> ModelPositions:
    """Reads the positional encoding of a Hugging Face configuration; printing the result describes it in words.

    ``config`` is a configuration object, the dictionary of a config.json, or a path to the file or its folder. ``part``
    is the part to read in a configuration of several models: "text" (the default) or "vision", or for an
    encoder-decoder model "encoder" or "decoder" (the default). ``ignore`` are names of keys that mean nothing, which
    would otherwise be errors.

    >>> print(scheme_from_config({"model_type": "llama", "num_hidden_layers": 2, "rope_theta": 5e5}))
    llama: decoder, 2 layers, 2048 positions
      layers 0, 1: RoPE, base 500000, all 128 channels, half layout, whole text

    A model is read by asking, unless its family has a reader: it is built with all its layers and no weights, what its
    code does to queries and keys at chosen positions is fitted, and the fit is compared at others. Layouts are those in
    which queries and keys reach attention, unless it is seen that the model has only moved channels, and a remark says
    that it was asked. Schemes are in evaluation mode.

    Errors: ValueError, naming the key, for a key about positions that changes nothing and that transformers does not
    know (if it does, this is a remark); ValueError for an unsupported family, for a configuration that transformers
    does not accept, or a path without one; ModuleNotFoundError without transformers.
    """
    if isinstance(ignore, str) or not isinstance(ignore, Sequence) or not all(isinstance(n, str) for n in ignore):
        raise ValueError(f"ignore must be a list of names of keys, got {shown(ignore)}")
    ignored = tuple(ignore)
    raw = _raw(config)
    check_sizes("config", config.to_dict() if raw is None else raw)
    found = whole = config if raw is None else _build(raw)
    inside = name = None
    if part in PARTS or whole.model_type not in READERS:
        name = PARTS["vision"] if part == "vision" else _text_of(whole)
        if getattr(whole, name, None) is not None:
            found, inside = getattr(whole, name), whole.model_type
            if raw is not None:
                raw = raw.get(name, raw)
                raw = raw if isinstance(raw, Mapping) else None  # an object in a dictionary
            _check_outer(whole, name, ignored)
        elif part in PARTS:
            raise ValueError(f"part must be one that {whole.model_type} has, and it has no {name}, got {part!r}")
    if found.model_type not in READERS and getattr(found, "is_encoder_decoder", False):
        inside = "decoder" if part in (None, *PARTS) else part
        check_choice("part", inside, STACKS)
    elif part not in (None, name, *PARTS):
        raise ValueError(f"part must be left out for {found.model_type}, which is one model, got {part!r}")
    keys = Keys(found, inside, ignored)
    read, said = _entries(keys), _read(keys)
    if said.causal:
        keys.refuse("is_causal", True, why="must be true: only causal attention is read")
    remarks = [*said.remarks, *_unread_keys(keys, found.to_dict() if raw is None else raw, said, read)]
    if (put := getattr(found, RECORD, getattr(whole, RECORD, None))) is not None:
        remarks.append(f"not so in the model itself, which was patched: {RECORD} = {put}")
    return replace(said, remarks=tuple(remarks))


def _text_of(whole: Any) -> str:
    """The key of the configuration of the text, or of what else a causal model is of."""
    from posenc.huggingface.questions import model_class

    kind = None
    with suppress(ImportError):  # of a library that its model needs
        kind = getattr(model_class(whole), "config_class", None)
    parts = [name for name in getattr(whole, "sub_configs", {}) if type(getattr(whole, name, None)) is kind]
    return parts[0] if parts and getattr(whole, PARTS["text"], None) is None else PARTS["text"]


def _read(keys: Keys) -> ModelPositions:
    """What a configuration says, by its reader or by asking its own code."""
    from posenc.huggingface.asking import positions_by_asking

    if keys.model_type in READERS:
        return READERS[keys.model_type](keys)
    kind = keys.get("position_embedding_type")
    if str(kind).startswith("relative") and "position_embedding_type" not in keys.ignored:  # without positions then
        raise keys.unread("position_embedding_type", kind)
    try:
        said = positions_by_asking(keys)
    except ValueError as error:
        inner = [name for name in getattr(keys.config, "sub_configs", {}) if keys.get(name) is not None]
        parts = f" (the configurations of its parts, such as {inner[0]}, are read alone)" if inner else ""
        raise ValueError(
            f"the positions of {keys.model_type} could not be read from its model's code: {error}{parts}"
        ) from error
    blocks = keys.inside == "gemma4" and keys.get("use_bidirectional_attention") == "vision"
    if blocks or keys.inside in ("gemma3", "shieldgemma2"):  # a mask for images, which a text does not show
        each = zip(said.layers, said.schedule, strict=True)
        layers = tuple(replace(layer, images=not blocks or window is not None) for layer, (_, window) in each)
        said = replace(said, layers=layers)
    return said


# -- keys that change nothing -----------------------------------------------------------------------------------------

ROPE = ("rope_parameters", "rope_scaling")
PUBLISHED = re.compile(
    "attention_factor|beta_(fast|slow)|factor|max_position_embeddings|max_window_layers|mrope_interleaved|n_positions"
    "|mscale(_all_dim)?|offset_alibi|original_max_position_embeddings|position_embedding_type|type"
)
"""Keys of published configurations that some models' code does not read."""


def _entries(keys: Keys) -> set[str]:
    """The entries of rope_parameters that a known rope_type reads. ValueError for one that is invalid."""
    params, found = getattr(keys.config, ROPE[0], None), set[str]()
    params = params if isinstance(params, Mapping) else {}
    nested = [name for name, value in params.items() if isinstance(value, Mapping)]
    for of_type in nested or [None] * bool(params):
        read = keys.parameters(of_type)
        kind = read.kind({"su": "longrope", "mrope": "default"})
        read.optional("rope_theta")
        share = read.optional("partial_rotary_factor")
        if kind in ROPE_TYPES:
            read.scaling(kind, share or 1.0, keys.get("max_position_embeddings"))
        # HunYuan's alpha takes the place of all that the scaling reads.
        found |= read.was_read if params.get("alpha") is None else {"alpha"}
        found -= {"rope_theta"} if kind == "proportional" else {"rope_theta", "partial_rotary_factor"}
    return found


def _unread_keys(keys: Keys, given: Mapping[str, Any], said: ModelPositions, read: set[str]) -> list[str]:
    """Remarks on keys about positions that transformers knows and that change nothing; ValueError for unknown ones."""
    kind: Any = type(keys.config)
    defaults, remarks = default_keys(kind), list[str]()
    turns = any(isinstance(part, RoPE) for scheme, _ in said.schedule for part in scheme.parts)
    paths: list[tuple[str, ...]] = [(name,) for name, _ in positional(keys.config, given) if name not in ROPE]
    for name in ROPE:
        params = given.get(name)
        for entry, value in params.items() if isinstance(params, Mapping) else ():
            paths += [(name, entry, each) for each in value] if isinstance(value, Mapping) else [(name, entry)]
    for path in paths:
        name, value = path[-1], _at(given, path)
        is_known = bool(PUBLISHED.fullmatch(name)) and not str(value).startswith("relative")
        is_known |= (len(path) == 1 and name in defaults) or (name == "rope_theta" and not turns)
        if value is None or name in keys.ignored or (len(path) == 1 and is_known and defaults.get(name) == value):
            continue
        if len(path) > 1 and defaults.get(path[0]) == given[path[0]]:  # as the class has them
            continue
        if name == "partial_rotary_factor" and value == 1:  # all channels
            continue
        if (len(path) > 1 and name in read) or is_said(said, name, value) or _matters(keys, given, path, said):
            continue
        where = name if len(path) == 1 else f"{path[0]}{[*path[1:]]}"
        if not is_known:
            raise keys.unread(name, value)
        remarks.append(f"{where} = {shown(value)} is not read by the model")
    return remarks


def _at(given: Any, path: Sequence[str]) -> Any:
    """What dictionaries within one another hold."""
    return functools.reduce(operator.getitem, path, given)


def _matters(keys: Keys, given: Mapping[str, Any], path: tuple[str, ...], said: ModelPositions) -> bool:
    """Whether a configuration without a key, or also without a list that transformers derives from it, says another;
    with another number, if there must be one; or transformers has the same value without it."""
    name, value, config = path[-1], _at(given, path), keys.config
    try:
        others = [_changed(config, given, path)]
        with suppress(KeyError, TypeError):
            if _at(others[0].to_dict(), path) == value:
                return len(path) > 1 or _is_hidden(config, given, name, value)
        for each in [(name,) for name, found in given.items() if isinstance(found, list) and name != path[0]]:
            with suppress(ValueError):  # transformers cannot derive this list
                rest, less = (_changed(config, given, each, *more) for more in ((), (path,)))
                if getattr(config, each[0], None) == getattr(rest, each[0], None) != getattr(less, each[0], None):
                    others.append(less)
        differs = _differ(keys, others, said)
    except ValueError:  # neither transformers nor the model does without it
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        try:
            differs = _differ(keys, [_changed(config, given, path, to=value + 1)], said)
        except ValueError:
            return True
    return differs or _is_hidden(config, given, name, value)


def _differ(keys: Keys, others: list[Any], said: ModelPositions) -> bool:
    """Whether any configuration says something else. One that is the same need not be asked."""
    others = [config for config in others if config.to_dict() != keys.config.to_dict()]
    found = [_read(Keys(config, keys.inside, keys.ignored)) for config in others]
    return any(repr(replace(each, remarks=())) != repr(replace(said, remarks=())) for each in found)


def _is_hidden(config: Any, given: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether a class has a default beside its keys, which this number equals: another changes what it derives."""
    if type(value) is not int or name not in given:
        return False
    try:
        other = _changed(config, given, (name,), to=value + 1)
    except ValueError:
        return True
    return bool(other.to_dict() | {name: value} != config.to_dict() | {name: value})


def _changed(config: Any, given: Mapping[str, Any], *paths: tuple[str, ...], to: Any = None) -> Any:
    """A configuration of the same class without some keys, or with another value of one."""
    other = copy.deepcopy(dict(given))
    for *outer, name in paths:
        _at(other, outer).pop(name, None)
        if to is not None:
            _at(other, outer)[name] = to
    try:
        return type(config).from_dict(other)
    except Exception as error:  # of any type
        raise ValueError(reason(error)) from error


def _raw(config: Any) -> dict[str, Any] | None:
    """The dictionary as given, or None for a configuration object."""
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise ValueError(
                f"config must be a file or a folder with a config.json, and there is no {str(path)!r}: nothing is "
                "downloaded; for a family's defaults give {'model_type': its name}"
            )
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
        near = meant(model_type, tuple(CONFIG_MAPPING))
        raise ValueError(f"model_type must be a family of transformers, got {model_type!r}{near}")
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
