"""Builds a model from a folder or the hub for `posenc check`. Scripts of findings import this module."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc.arguments import shown
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.loading import RECORD
from posenc.huggingface.reading import reason
from posenc.schemes.alibi import ALiBi
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE
from posenc.schemes.t5 import T5

MAX_PARAMETERS = 500_000_000  # parameters, since some checks hold several copies of the model in float32
TEXT = 48  # checks use token ids below this, so the padding id must be another
RELATIVE = (ALiBi, NoPE, RoPE, T5)
BY_PADDING = frozenset({"camembert", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"})
"""Models whose positions start after the row of the padding token, so that its id cannot be changed."""


@dataclass(frozen=True)
class Pretrained:
    """A model before it is built: the options of `build_pretrained` and the claims of its configuration."""

    options: dict[str, Any]
    claims: dict[str, Any]
    takes_implementation: bool
    has_weights: bool


def pretrained(place: str) -> Pretrained:
    """Describes the model of a folder that `save_pretrained` wrote, or of a name on the hub. Custom code of a
    checkpoint is never run.

    A folder without weights gets random ones, from a seed. Claims are what `scheme_from_config` reads: whether the
    model is causal and relative, and how many positions its table has.

    Raises ValueError if transformers is not installed or the model does not exist, for an encoder-decoder model, for
    quantized weights, and for more than ``MAX_PARAMETERS`` parameters.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(
            "hf: needs transformers, which is not installed: in a clone of posenc, pip install "
            "'./packages/posenc[huggingface]'"
        )
    config = _config_of(place)
    refused = (("is_encoder_decoder", "an encoder with a decoder"), ("quantization_config", "quantized"))
    for name, why in (*refused, (RECORD, "patched by posenc")):
        if getattr(config, name, None):
            raise ValueError(f"hf:{place} must be a decoder or an encoder in floating numbers, got one that is {why}")
    if not hasattr(config, "vocab_size") and getattr(config, "text_config", None) is not None:
        raise ValueError(
            f"hf:{place} must be one model, got {config.model_type}, which holds several: save its text model to "
            "another folder"
        )
    kind = _class_of(place, config)
    count = _parameters(kind, config)
    if count > MAX_PARAMETERS:
        raise ValueError(
            f"hf:{place} has {count:,} parameters, {count * 4 / 2**30:.1f} GiB in float32, which is too large to "
            f"check (at most {MAX_PARAMETERS:,}). Copy its config.json to another folder, with fewer layers"
        )
    options: dict[str, Any] = {"place": str(Path(place).absolute()) if Path(place).is_dir() else place}
    options["kind"] = kind.__name__
    has_weights = not Path(place).is_dir() or any(
        path.suffix in (".safetensors", ".bin") and path.stat().st_size for path in Path(place).iterdir()
    )
    if not has_weights:
        options["seed"] = 0
    pad = getattr(config, "pad_token_id", None)
    if pad is not None and 0 <= pad < TEXT and config.model_type not in BY_PADDING:
        options["pad_token_id"] = config.vocab_size - 1
    claims = _claims(config)
    return Pretrained(options, claims, bool(getattr(kind, "_supports_sdpa", False)), has_weights)


def build_pretrained(
    place: str,
    kind: str,
    seed: int | None = None,
    pad_token_id: int | None = None,
    attn_implementation: str = "sdpa",
) -> nn.Module:
    """The model in float32, with the weights of ``place``, or with random ones if there is a ``seed``. On "meta" it has
    no weights."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(place)
    if pad_token_id is not None:
        config.pad_token_id = pad_token_id
    made = getattr(transformers, kind)
    how = {"dtype": torch.float32, "attn_implementation": attn_implementation}
    if seed is None and torch.get_default_device().type != "meta":
        try:
            with _without_progress():
                model, said = made.from_pretrained(place, config=config, output_loading_info=True, **how)
        except Exception as error:
            raise ValueError(f"hf:{place} could not be loaded: {reason(error)}") from None
        if said["missing_keys"]:
            lacking = ", ".join(sorted(said["missing_keys"]))
            raise ValueError(
                f"hf:{place} must have all weights of {kind}, and lacks {lacking}: save the model again, or copy its "
                "config.json to another folder, for random ones"
            )
        return model
    with torch.random.fork_rng([]):
        torch.manual_seed(seed or 0)
        return made._from_config(config, **how)


@contextmanager
def _without_progress() -> Iterator[None]:
    """Hides the progress bars of transformers: checks build a model many times, and show their own progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def build_eager(place: str, kind: str, seed: int | None = None, pad_token_id: int | None = None) -> nn.Module:
    """`build_pretrained` for a model that supports only its own attention."""
    return build_pretrained(place, kind, seed, pad_token_id, "eager")


def _config_of(place: str) -> Any:
    import transformers

    path = Path(place)
    if place and path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(f"hf:{place} must be a folder with a config.json, as save_pretrained writes it, and has none")
    is_path = not place or path.exists() or place.startswith((".", "/", "~")) or place.count("/") > 1
    if is_path and not (place and path.is_dir()):
        raise ValueError(f"hf:PATH_OR_NAME must be a folder or a name on the hub, and there is no folder {place!r}")
    try:
        return transformers.AutoConfig.from_pretrained(place)
    except Exception as error:
        where = "" if path.is_dir() else f", and there is no folder {place!r}"
        raise ValueError(f"hf:{place} could not be loaded{where}: {reason(error)}") from None


def _class_of(place: str, config: Any) -> Any:
    """The class that the checkpoint names, or else the family's causal language model, or its model without a head."""
    import transformers

    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ValueError(f"hf:{place} must be a model of transformers, got architectures {shown(config.architectures)}")


def _parameters(kind: Any, config: Any) -> int:
    """The number of parameters, without allocating them."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in kind._from_config(config, attn_implementation="eager").parameters())
    except Exception as error:
        raise ValueError(f"hf:{config.name_or_path} could not be built: {reason(error)}") from None


def _claims(config: Any) -> dict[str, Any]:
    """The claims about positions, if `scheme_from_config` supports the family."""
    try:
        said = scheme_from_config(config)
    except ValueError:
        return {}
    claims: dict[str, Any] = {"causal": said.causal}
    parts = [part for scheme, _ in said.schedule for part in scheme.parts]
    if said.input is None and all(isinstance(part, RELATIVE) and not part.needs_lengths for part in parts):
        claims["relative"] = True
    if isinstance(said.input, Learned):
        claims |= {"relative": False, "max_positions": said.input.max_positions - getattr(said.input, "offset", 0)}
    return claims
