"""Reads the rope_parameters of a configuration into a `RoPE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc.huggingface.keys import Keys
from posenc.rotation.given import NO_ALIASES, Params
from posenc.rotation.phases import PairLayout, frequencies
from posenc.rotation.scalings import YaRN
from posenc.schemes.rope import RoPE


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
    read = keys.parameters()
    if of_type is not None:
        read = Params(read.named(of_type), read.get(of_type), keys.ignored)
        if read.params.get("truncate") is False:
            why = "must be true here, since transformers reads it only outside the layer types"
            raise read.wrong("truncate", why)
        read.params = {name: value for name, value in read.params.items() if value is not None}  # also of truncate
    read.was_read.update(also)
    kind = read.kind(aliases)
    base = read.number("rope_theta")
    share = read.number("partial_rotary_factor", 1.0)
    if share > 1:
        raise read.wrong("partial_rotary_factor", "must be at most 1")
    for name, said in (("rope_theta", base), ("partial_rotary_factor", share)):
        if of_type is None and keys.get(name) not in (None, said):
            raise keys.wrong(name, f"contradicts {said:g} of rope_parameters")
    turned: int = options.pop("rotary_dim", head_dim)
    if kind != "proportional" and share != 1.0:
        if not partial:
            raise read.wrong("partial_rotary_factor", f"must be 1, since {keys.model_type} rotates all channels")
        turned = int(head_dim * share)
    longest = None if kind in ("default", "linear", "proportional") else keys.whole("max_position_embeddings")
    scaling = read.scaling(kind, share, longest)
    read.end(kind)
    if isinstance(scaling, YaRN):
        begin, end = map(float, scaling.ends(frequencies(turned, base)))
        if begin > end:
            raise ValueError(
                f"{read.named('original_max_position_embeddings')} must let YaRN's ramp begin before it ends, got "
                f"{scaling.original_length}: it begins at pair {begin:g} and ends at pair {end:g}, and transformers' "
                "model then divides the high frequencies and keeps the low ones"
            )
    return RoPE(head_dim, base, layout, rotary_dim=turned, scaling=scaling, **options)
