"""Reads the rope_parameters of a configuration into a `RoPE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc.huggingface.keys import Keys, Params
from posenc.rotation.phases import PairLayout, frequencies
from posenc.rotation.scalings import DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, Scaling, YaRN
from posenc.schemes.rope import RoPE

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
NO_ALIASES: Mapping[str, str] = {}


def rotary(
    keys: Keys,
    head_dim: int,
    *,
    of_type: str | None = None,
    partial: bool = False,
    layout: PairLayout = "half",
    aliases: Mapping[str, str] = NO_ALIASES,
    also: tuple[str, ...] = (),
    **options: Any,
) -> RoPE:
    """The rotation of rope_parameters, or of those of a layer type.

    ``partial``: the model's code reads partial_rotary_factor, the share of rotated channels. ``also`` are keys that the
    caller reads itself; ``options`` are further arguments of `RoPE`. Raises ValueError for a key that is unknown,
    missing, or contradicts another.
    """
    read, where = keys.parameters(), "rope_parameters"
    if of_type is not None:
        where = f"rope_parameters[{of_type!r}]"
        read = Params(keys.model_type, where, read.get(of_type), keys.ignored)
    read.was_read.update(also)
    kind = read.kind(aliases)
    base = read.number("rope_theta")
    share = read.number("partial_rotary_factor", 1.0)
    if share > 1:
        raise read.wrong("partial_rotary_factor", "must be at most 1")
    for name, said in (("rope_theta", base), ("partial_rotary_factor", share)):
        if of_type is None and keys.get(name) not in (None, said):
            raise keys.wrong(name, f"contradicts {said:g} of {where}")
    turned: int = options.pop("rotary_dim", head_dim)
    if kind != "proportional" and share != 1.0:
        if not partial:
            raise read.wrong("partial_rotary_factor", f"must be 1, since {keys.model_type} rotates all channels")
        turned = int(head_dim * share)
    scaling = _scaling(keys, read, kind, share, base, turned)
    read.end(kind)
    return RoPE(head_dim, base, layout, rotary_dim=turned, scaling=scaling, **options)


def _scaling(keys: Keys, read: Params, kind: str, share: float, base: float, turned: int) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return PositionInterpolation(read.number("factor"))
    if kind == "dynamic":
        return DynamicNTK(read.number("factor"), keys.whole("max_position_embeddings"))
    if kind == "proportional":
        return Proportional(share, read.number("factor", 1.0))
    if kind not in KINDS:
        raise read.wrong("rope_type", f"must be one of {', '.join(KINDS)}")
    longest = keys.whole("max_position_embeddings")
    original = read.whole("original_max_position_embeddings", longest)
    if kind == "llama3":
        low, high = read.number("low_freq_factor"), read.number("high_freq_factor")
        return Llama3(read.number("factor"), original, low, high)
    factor = read.number("factor", longest / original)
    attention_factor = None if read.get("attention_factor") is None else read.number("attention_factor")
    if kind == "longrope":
        short, long = read.get("short_factor"), read.get("long_factor")
        if factor < 1 and attention_factor is None:
            attention_factor = 1.0  # a model for shorter texts than in training: cos and sin are not scaled
        return LongRoPE(short, long, original, factor if factor >= 1 else None, attention_factor)
    read.was_read.add("truncate")
    truncate = read.params.get("truncate", True)
    if not (truncate is None or isinstance(truncate, bool)):
        raise read.wrong("truncate", "must be true or false")
    if "[" in read.where and truncate is False:
        raise read.wrong("truncate", "must be true here, since transformers reads it only outside the layer types")
    truncate = bool(truncate) or "[" in read.where  # transformers takes null for false
    mscales = {}
    if attention_factor is None:  # else they are not read
        mscales = {name: value for name in ("mscale", "mscale_all_dim") if (value := read.get(name)) is not None}
        if mscales and (len(mscales) == 1 or 0 in mscales.values()):
            raise read.wrong(next(iter(mscales)), "is only read if both mscale and mscale_all_dim are above 0")
    fast, slow = read.number("beta_fast", 32.0), read.number("beta_slow", 1.0)
    yarn = YaRN(factor, original, fast, slow, truncate=truncate, attention_factor=attention_factor, **mscales)
    begin, end = map(float, yarn.ends(frequencies(turned, base)))
    if begin > end:
        raise ValueError(
            f"{read.named('original_max_position_embeddings')} must let YaRN's ramp begin before it ends, got "
            f"{original}: it begins at pair {begin:g} and ends at pair {end:g}, and transformers' model then divides "
            "the high frequencies and keeps the low ones"
        )
    return yarn
