"""`from_pretrained`: loads a model that was saved while it was patched, and patches it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from posenc.huggingface.loading import RECORD, record_of
from posenc.huggingface.patching import patch

HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
"""The options of transformers about where files are."""


def from_pretrained(place: str | Path, what: Any, kind: Any = None, **options: Any) -> Any:
    """Loads a model that ``save_pretrained`` wrote while it was patched, and patches it again.

    ``place`` is a folder or a name on the hub. ``what`` is that of `patch`, as it was then. ``kind`` is the class of
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
    """Loads the parameters of the schemes that were put in. Raises ValueError, naming one, if the files lack any."""
    named = dict(model.named_parameters(remove_duplicate=False))
    device = next((p.device for name, p in named.items() if ".scheme." not in name and not p.is_meta), None)
    named = {name: parameter for name, parameter in named.items() if ".scheme." in name}
    left = {id(parameter): name for name, parameter in reversed(named.items())}
    for key, tensor in _tensors(place, hub) if named else ():
        for name, parameter in named.items():
            if f".{key}".endswith(f".{name}") or f".{name}".endswith(f".{key}"):
                if tensor.shape != parameter.shape:
                    raise ValueError(
                        f"{key} of {str(place)!r} must be of shape {tuple(parameter.shape)}, got {tuple(tensor.shape)}"
                    )
                parameter.data = tensor.to(device, dtype if isinstance(dtype, torch.dtype) else tensor.dtype)
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
        files = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(files):
        with safe_open(cached_file(place, name, **hub), framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # no mapping
                if ".scheme." in key:
                    yield key, file.get_tensor(key)
