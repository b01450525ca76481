"""The names of schemes as people write them."""

from posenc.schemes.catalog import CATALOG

WRITTEN = {
    "absolute_in_attention": "Absolute in attention",
    "axial_rope": "Axial RoPE",
    "distance_aware": "DA-Transformer",
    "exponential_decay": "Exponential decay",
    "fourier_features": "Fourier features",
    "grape_a": "GRAPE-A",
    "key_offset": "Key offset",
    "mixed_rope": "Mixed RoPE",
    "mrope": "M-RoPE",
    "query_scale": "Query scale",
    "rope@32~nope": "RoPE in windows with NoPE",  # schedules of the study
    "rope@32~rope@32~nope": "RoPE in windows with NoPE",
    "relative_1d": "Relative 1D",
    "relative_2d": "Relative 2D",
    "rope_3d": "RoPE 3D",
    "rotated_values": "Rotated values",
    "selective_rope": "Selective RoPE",
    "self_extend": "Self-Extend",
    "shaw_keys": "Shaw, keys only",
    "stick_breaking": "Stick-breaking",
    "swin_v2": "Swin V2",
    "transformer_xl": "Transformer-XL",
    "xpos": "xPos",
}
"""Where that is not the title of the entry, which is the name of a class."""

TITLES = {entry.name: entry.title for entry in CATALOG} | WRITTEN


def titled(name: str) -> str:
    """A scheme or a composition as people write it; what is none of the catalog as it is.

    >>> titled("rope+transformer_xl")
    'RoPE + Transformer-XL'
    """
    parts = name.split("+")
    return " + ".join(TITLES[part] for part in parts) if TITLES.keys() >= set(parts) else name
