"""diffusers: rotations of text, audio, images and video, and sinusoids of patches, as its models call them."""

import torch
from diffusers.models import embeddings
from diffusers.models.transformers import transformer_stable_audio3 as stable_audio
from diffusers.models.transformers.transformer_cogview4 import CogView4RotaryPosEmbed
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed
from diffusers.models.transformers.transformer_kandinsky import Kandinsky5RoPE1D
from diffusers.models.transformers.transformer_omnigen import OmniGenSuScaledRotaryEmbedding
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

from posenc_check import Layer, NotApplicableError, Rotary
from posenc_check.subjects import attend


def build(dim, theta=10000.0, **options):
    return {"dim": dim, "theta": theta, "use_real": True, **options}


def rotate(made, x, offset):
    """Flux, CogVideoX and Hunyuan-DiT: interleaved."""
    places = torch.arange(offset, offset + x.size(2))
    return embeddings.apply_rotary_emb(x, embeddings.get_1d_rotary_pos_embed(pos=places, **made))


def rotate_half(made, x, offset):
    """Stable Audio: the channels of a pair half a head apart."""
    places = torch.arange(offset, offset + x.size(2))
    cos_and_sin = embeddings.get_1d_rotary_pos_embed(pos=places, repeat_interleave_real=False, **made)
    return embeddings.apply_rotary_emb(x, cos_and_sin, use_real_unbind_dim=-2)


def rotate_ids(module, x, positions):
    """Flux: the ids of one row, for all rows."""
    if (positions != positions[:1]).any():
        raise NotApplicableError("the ids of all rows are the same")
    return embeddings.apply_rotary_emb(x, module(positions[0]))


def build_omnigen(dim):
    return OmniGenSuScaledRotaryEmbedding(dim, rope_scaling={name: [1.0] * (dim // 2) for name in FACTORS})


def rotate_omnigen(module, x, positions):
    return embeddings.apply_rotary_emb(x, module(x, positions), use_real_unbind_dim=-2)


def rotate_audio(module, x):
    """It takes (rows, tokens, heads, channels)."""
    return stable_audio._apply_rotary_partial(x.transpose(1, 2), module(x.size(2), x.device)).transpose(1, 2)


def rotate_text(module, x, offset):
    """Kandinsky: matrices of each pair, applied as its attention does."""
    matrices = module(torch.arange(offset, offset + x.size(2)))
    pairs = x.transpose(1, 2).unflatten(-1, (-1, 1, 2)).float()
    return (matrices * pairs).sum(-1).flatten(-2).to(x).transpose(1, 2)


def attend_rotated(x, cos_and_sin, padding, unbind=-1):
    """Attention of three heads: queries and keys are the rotated halves of x, values the second as it is."""
    query, value = (t.unflatten(2, (3, -1)).transpose(1, 2) for t in x.chunk(2, 2))
    query, key = (embeddings.apply_rotary_emb(t, cos_and_sin, use_real_unbind_dim=unbind) for t in (query, value))
    seen = torch.ones(*x.shape[:2], dtype=torch.bool, device=x.device) if padding is None else padding
    out = attend(query, key, value, seen[:, None, :].expand(-1, x.size(1), -1))[0]
    return out.transpose(1, 2).flatten(2)


def wan(module, x, grid=None, padding=None):
    """One frame; without a grid, one row."""
    cos, sin = module(x.new_zeros(1, 1, 1, *(grid or (1, x.size(1)))))
    return attend_rotated(x, (cos[0, :, 0], sin[0, :, 0]), padding)


def hunyuan(module, x, grid=None, padding=None):
    return attend_rotated(x, module(x.new_zeros(1, 1, 1, *(grid or (1, x.size(1))))), padding)


def cogview(module, x, grid=None, padding=None):
    return attend_rotated(x, module(x.new_zeros(1, 1, *(grid or (1, x.size(1))))), padding, unbind=-2)


def nothing():
    return None


def add_sinusoids(made, x, grid=None):
    """PatchEmbed: places of any grid, as far apart as those of 16 rows and 16 columns."""
    return x + embeddings.get_2d_sincos_pos_embed(x.size(2), grid or (1, x.size(1)), output_type="pt").to(x)


def add(module, x):
    return module(x)


FACTORS = ("short_factor", "long_factor")
interleaved = Rotary(
    build=build,
    call=rotate,
    options={"dim": 16},
    relative=True,
    causal=True,
    base=10000.0,
    layout="interleaved",
    direction="forward",
    varied={"theta": 500.0, "linear_factor": 2.0, "ntk_factor": 2.0},
)
half = Rotary(
    build=build,
    call=rotate_half,
    options={"dim": 16},
    relative=True,
    causal=True,
    base=10000.0,
    layout="half",
    direction="forward",
)
flux = Rotary(
    build=FluxPosEmbed,
    call=rotate_ids,
    options={"theta": 10000, "axes_dim": [4, 6, 6]},
    axes=3,
    relative=True,
    layout="interleaved",
)
omnigen = Rotary(
    build=build_omnigen,
    call=rotate_omnigen,
    options={"dim": 16},
    relative=True,
    causal=True,
    base=10000.0,
    layout="half",
    scale=(1 + 5 / 12) ** 0.5,
)
audio = Rotary(
    build=stable_audio.StableAudio3RotaryEmbedding,
    call=rotate_audio,
    options={"dim": 16},
    relative=True,
    base=10000.0,
    layout="half",
    varied={"base": 500},
)
text = Rotary(
    build=Kandinsky5RoPE1D,
    call=rotate_text,
    options={"dim": 16},
    relative=True,
    base=10000.0,
    layout="interleaved",
    max_positions=1024,
    varied={"max_period": 500.0},
)
video = {"patch_size": 1, "patch_size_t": 1, "rope_dim": [4, 6, 6]}
one_frame = Layer(
    build=WanRotaryPosEmbed,
    call=wan,
    options={"attention_head_dim": 24, "patch_size": (1, 1, 1), "max_seq_len": 1024},
    dim=144,
    axes=2,
    relative=True,
    max_positions=1024,
)
frames = Layer(build=HunyuanVideoRotaryPosEmbed, call=hunyuan, options=video, dim=96, axes=2, relative=True)
cogview_4 = Layer(
    build=CogView4RotaryPosEmbed,
    call=cogview,
    options={"dim": 16, "patch_size": 1, "rope_axes_dim": (64, 64)},
    dim=96,
    axes=2,
    relative=True,
)
patches = Layer(build=nothing, call=add_sinusoids, axes=2)
line = Layer(
    build=embeddings.SinusoidalPositionalEmbedding,
    call=add,
    options={"embed_dim": 32, "max_seq_length": 64},
    relative=False,
    max_positions=64,
)

SUBJECTS = (
    ("get_1d_rotary_pos_embed", interleaved),
    ("get_1d_rotary_pos_embed, halves", half),
    ("Flux", flux),
    ("OmniGen", omnigen),
    ("Stable Audio 3", audio),
    ("Kandinsky 5, text", text),
    ("Wan, one frame", one_frame),
    ("HunyuanVideo, one frame", frames),
    ("CogView 4", cogview_4),
    ("get_2d_sincos_pos_embed", patches),
    ("SinusoidalPositionalEmbedding", line),
)
