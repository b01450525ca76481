"""`from_pretrained`: loads a model that was saved with what `patch` had put into it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.huggingface.loading import RECORD
from posenc.huggingface.patching import patch
from posenc.huggingface.placing import PLAN, Plan
from posenc.huggingface.put_schemes import PosencTable
from posenc.huggingface.recorded import read

HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
"""The options of transformers about where files are."""


def from_pretrained(place: str | Path, kind: Any = None, *, what: Any = None, **options: Any) -> Any:
    """Loads a model that ``save_pretrained`` wrote while it was patched, and patches it again.

    ``place`` is a folder or a name on the hub. ``kind`` is the class of transformers; by default that which was saved.
    ``what`` is that of `patch`, by default what the configuration says: needed for schemes and scalings of one's own,
    of which the configuration has no code. Learned parameters of schemes are loaded too, in the dtype in which they
    were saved unless ``dtype`` is given. ``options`` are those of transformers' ``from_pretrained``.

    >>> patch(model, YaRN(4.0, 4096))
    >>> model.save_pretrained("trained")
    >>> model = posenc.huggingface.from_pretrained("trained")

    Raises ValueError for a model that was not patched when it was saved, for a record that cannot be read, and for a
    scheme whose parameters are not in the files.
    """
    import transformers

    hub = {name: options[name] for name in HUB if name in options}
    config = copy.deepcopy(options.pop("config", None))
    if config is None:
        trusted = {"trust_remote_code": options["trust_remote_code"]} if "trust_remote_code" in options else {}
        config = transformers.AutoConfig.from_pretrained(place, **hub, **trusted)
    found = [(path, part) for path, part in _parts(config) if getattr(part, RECORD, None) is not None]
    if len(found) != 1:
        which = f"in {len(found)} of its parts" if found else "nowhere"
        raise ValueError(
            f"the configuration of {str(place)!r} must have {RECORD!r} once, as save_pretrained writes it for "
            f"patched models, and has it {which}: load it by transformers' from_pretrained, and patch() it"
        )
    path, part = found[0]
    record = getattr(part, RECORD)
    delattr(part, RECORD)
    put = read(record) if what is None else what
    config._attn_implementation = options.pop("attn_implementation", None)
    kind = _kind_of(place, config) if kind is None else kind
    with _expecting_schemes(kind):
        loaded = kind.from_pretrained(place, config=config, **options)
    model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
    patch(_part_of(model, path), put)
    _load(model, place, hub, options.get("dtype", options.get("torch_dtype")))
    return loaded


def _parts(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A configuration and those inside it, with the names that lead there."""
    yield path, config
    for name in getattr(config, "sub_configs", ()):
        if (inside := getattr(config, name, None)) is not None:
            yield from _parts(inside, (*path, name))


def _part_of(model: Any, path: tuple[str, ...]) -> Any:
    """The model of a part of the configuration."""
    from transformers import PreTrainedModel

    config = reduce(getattr, path, model.config)
    return next(each for each in model.modules() if isinstance(each, PreTrainedModel) and each.config is config)


def _kind_of(place: Any, config: Any) -> Any:
    """The class that was saved."""
    import transformers

    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    raise ValueError(
        f"kind must be given for {str(place)!r}, a class of transformers or its subclass, since its configuration "
        f"names none that transformers has, got architectures {shown(config.architectures)}"
    )


@contextmanager
def _expecting_schemes(kind: Any) -> Iterator[None]:
    """Leaves parameters of schemes out of the tensors that transformers reports as unexpected."""
    was = vars(kind).get("_keys_to_ignore_on_load_unexpected")
    before = getattr(kind, "_keys_to_ignore_on_load_unexpected", None)
    kind._keys_to_ignore_on_load_unexpected = [*(before or ()), r"\.scheme\."]
    try:
        yield
    finally:
        kind._keys_to_ignore_on_load_unexpected = was
        if was is None:
            del kind._keys_to_ignore_on_load_unexpected


@torch.no_grad()
def _load(model: nn.Module, place: Any, hub: dict[str, Any], dtype: Any) -> None:
    """Loads the parameters of the schemes that were put in. Raises ValueError, naming one, if the files lack any."""
    names: dict[str, nn.Parameter] = {}
    for home, module in model.named_modules():
        scheme = module.scheme if isinstance(module, Plan | PosencTable) else None
        if scheme is None:
            continue
        near = model.get_submodule(home.removesuffix(f".{PLAN}"))
        device = next((p.device for p in near.parameters() if not p.is_meta), torch.device("cpu"))
        for name, parameter in scheme.named_parameters(remove_duplicate=False):
            parameter.data = parameter.data.to(device)
            names[f"{home}.scheme.{name}"] = parameter
    left = {id(parameter): name for name, parameter in reversed(names.items())}
    for key, tensor in _tensors(place, hub) if names else ():
        for name, parameter in names.items():
            if f".{key}".endswith(f".{name}") or f".{name}".endswith(f".{key}"):
                given = tensor.to(parameter.device, dtype if isinstance(dtype, torch.dtype) else tensor.dtype)
                if given.shape != parameter.shape:
                    raise ValueError(
                        f"{key} of {str(place)!r} must be of shape {tuple(parameter.shape)}, got {tuple(given.shape)}"
                    )
                parameter.data = given
                left.pop(id(parameter), None)
    if left:
        raise ValueError(f"{str(place)!r} must have the parameters of the schemes, and lacks {min(left.values())}")


def _tensors(place: Any, hub: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of schemes in the files of a model."""
    from safetensors import safe_open
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
    from transformers.utils.hub import cached_file

    index = cached_file(place, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **hub)
    names = {SAFE_WEIGHTS_NAME}
    if index is not None:
        of_key = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        names = {name for key, name in of_key.items() if ".scheme." in key}
    for name in sorted(names):
        with safe_open(cached_file(place, name, **hub), framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # no mapping
                if ".scheme." in key:
                    yield key, file.get_tensor(key)
