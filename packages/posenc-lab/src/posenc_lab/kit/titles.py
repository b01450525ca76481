"""The names of schemes as people write them. They are here in full, so that what prints them need not load PyTorch."""

from itertools import groupby

from posenc.schemes.user_code import LAYER_SEPARATOR

TITLES = {
    "absolute_in_attention": "Absolute in attention",
    "alibi": "ALiBi",
    "axial_rope": "Axial RoPE",
    "cameras": "Cameras",
    "carope": "CARoPE",
    "cope": "CoPE",
    "deberta": "DeBERTa",
    "distance_aware": "DA-Transformer",
    "dual_chunk": "Dual chunk",
    "exponential_decay": "Exponential decay",
    "fire": "FIRE",
    "fope": "FoPE",
    "fourier_features": "Fourier features",
    "fox": "FoX",
    "grape_a": "GRAPE-A",
    "inkling": "Inkling",
    "kerple": "KERPLE",
    "key_offset": "Key offset",
    "le_rope": "LeRoPE",
    "learned": "Learned",
    "lie_re": "LieRE",
    "mixed_rope": "Mixed RoPE",
    "mla": "MLA",
    "mrope": "M-RoPE",
    "nope": "NoPE",
    "p_rope": "p-RoPE",
    "partial_rope": "Partial RoPE",
    "pope": "PoPE",
    "query_scale": "Query scale",
    "re_po": "RePo",
    "re_rope": "ReRoPE",
    "relative_1d": "Relative 1D",
    "relative_2d": "Relative 2D",
    "rope": "RoPE",
    "rope@32~nope": "RoPE in windows with NoPE",  # schedules of the study
    "rope@32~rope@32~nope": "RoPE in windows with NoPE",
    "rope_3d": "RoPE 3D",
    "rotated_values": "Rotated values",
    "sandwich": "Sandwich",
    "segment": "Segment",
    "selective_rope": "Selective RoPE",
    "self_extend": "Self-Extend",
    "shaw": "Shaw",
    "shaw_keys": "Shaw, keys only",
    "sinusoidal": "Sinusoidal",
    "softcap": "Softcap",
    "stick_breaking": "Stick-breaking",
    "string": "STRING",
    "swin": "Swin",
    "swin_v2": "Swin V2",
    "t5": "T5",
    "tapa": "TAPA",
    "transformer_xl": "Transformer-XL",
    "tupe": "TUPE",
    "wall": "Wall",
    "xpos": "xPos",
}


def titled(name: str) -> str:
    """A scheme, a composition or a schedule as people write it; what is none of the catalog as it is.

    >>> titled("my.py:Slope+transformer_xl")
    'my.py:Slope + Transformer-XL'
    >>> titled("rope@64~rope@64~nope")
    '2 × RoPE in windows of 64 with NoPE'
    """
    if name in TITLES:
        return TITLES[name]
    made = []
    for layer, same in groupby(LAYER_SEPARATOR.split(name)):
        scheme, _, window = layer.partition("@")
        words = " + ".join(TITLES.get(part, part) for part in scheme.split("+"))
        count = len(list(same))
        made.append(f"{f'{count} × ' if count > 1 else ''}{words}{f' in windows of {window}' if window else ''}")
    return " with ".join(made)
