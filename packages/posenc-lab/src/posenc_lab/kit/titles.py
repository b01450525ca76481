"""The names of schemes as people write them. They are here in full, so that what prints them need not load PyTorch."""

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
    """A scheme or a composition as people write it; what is none of the catalog as it is.

    >>> titled("rope+transformer_xl")
    'RoPE + Transformer-XL'
    """
    parts = name.split("+")
    return " + ".join(TITLES[part] for part in parts) if TITLES.keys() >= set(parts) else name
