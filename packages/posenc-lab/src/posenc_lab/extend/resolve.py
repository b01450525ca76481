"""Resolves the settings of an extension: lengths, the model and its memory, and scalings by name."""

import importlib.util
import math
from dataclasses import replace
from typing import Any

from posenc.rotation.scalings import LongRoPE
from posenc_lab.extend import model as models
from posenc_lab.extend.scalings import NAMED, Base, factors_of
from posenc_lab.extend.settings import PLAIN, Extension
from posenc_lab.kit.machine import device_of


def resolved(settings: Extension, source: models.Source) -> Extension:
    """The settings, with the model's lengths and trained length filled in."""
    trained = settings.trained_length or source.trained
    longest = int(trained * settings.factor)
    lengths = settings.lengths or tuple(
        sorted({trained // 2, *(trained * 2**n for n in range(int(math.log2(settings.factor)) + 1)), longest})
    )
    settings = replace(
        settings,
        trained_length=trained,
        lengths=lengths,
        train_length=settings.train_length or max(lengths),
        final=settings.final or min(256, *lengths, trained),
    )
    settings.require("final", settings.scored <= trained, f"at most the trained length ({trained:,})")
    return settings


def check(settings: Extension) -> tuple[Extension, models.Source, str]:
    """The resolved settings, the model's source, and the memory needed. ValueError for a model that is missing or does
    not fit, and for an unavailable device."""
    device = device_of(settings.device)
    source = models.find(settings.model)
    settings = resolved(settings, source)
    memory = models.require_room(source, settings, device)
    if settings.factors is not None:
        factors_of(settings.factors, pairs_of(source), "factors")
    if settings.lora and importlib.util.find_spec("peft") is None:
        raise ValueError("--lora needs peft, which is not installed: pip install 'posenc-lab[extend]'")
    for name in {"longrope", "base"}.intersection(settings.scalings):
        if len(bases := source.bases()) != 1:
            raise ValueError(f"{name} needs one base of all rotating layers, and {source.name} has {sorted(bases)}")
    if settings.base is not None:
        (own,) = source.bases()
        settings.require("base", settings.base > own, f"above that of {source.name} ({own:g})")
    return settings, source, memory


def scaling_of(name: str, settings: Extension, factors: tuple[list[float], list[float]] | None = None) -> Any:
    """The scaling of a name, for a factor and a trained length; None for none."""
    factor, trained = settings.factor, settings.trained_length
    assert trained is not None
    if name == PLAIN:
        return None
    if name == "longrope":
        assert factors is not None
        short, long = factors
        return LongRoPE(tuple(short), tuple(long), trained, factor=factor)
    if name == "base":
        assert settings.base is not None
        return Base(settings.base)
    return NAMED[name](factor, trained)


def pairs_of(source: models.Source) -> int:
    """The number of rotated channel pairs of a head."""
    text = source.text
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    share = (getattr(text, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    return int(head_dim * share) // 2
