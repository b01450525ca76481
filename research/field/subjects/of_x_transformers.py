"""x-transformers: whole decoders and encoders, and the modules that make their biases and rotations.

Called as its own AutoregressiveWrapper does: with a cache it is given the whole sequence again, cache_age says how many
tokens are new, and left padding is told by seq_start_pos. Positions, where they may be told, are `pos`.
"""

import torch
from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    DynamicPositionBias,
    RelativePositionBias,
    RotaryEmbedding,
    apply_rotary_pos_emb,
)

from posenc_check import Bias, Model, NotApplicableError, Rotary

# Attention masks with the least number of its dtype and computes its softmax in float32, where that of float64 is -∞.


def build_decoder(use_abs_pos_emb=False, scaled_sinu_pos_emb=False, **layers):
    return TransformerWrapper(
        num_tokens=48,
        max_seq_len=2048,
        use_abs_pos_emb=use_abs_pos_emb,
        scaled_sinu_pos_emb=scaled_sinu_pos_emb,
        attn_layers=Decoder(dim=32, depth=2, heads=3, attn_dim_head=16, verbose=False, **layers),
    )


def build_encoder(**layers):
    return TransformerWrapper(
        num_tokens=48,
        max_seq_len=2048,
        use_abs_pos_emb=False,
        attn_layers=Encoder(dim=32, depth=2, heads=3, attn_dim_head=16, verbose=False, **layers),
    )


def decode(model, ids, positions=None, padding=None, cache=None):
    seen, seen_positions, kept = cache or (ids[:, :0], None, None)
    new, ids = ids.size(1), torch.cat((seen, ids), 1)
    if positions is not None:  # of all tokens, those before by their index if they were told none
        before = torch.arange(seen.size(1)).expand(len(ids), -1) if seen_positions is None else seen_positions
        positions = torch.cat((before, positions), 1)
    out, kept_next = model(
        ids, cache=kept, cache_age=new, return_intermediates=True, pos=positions, **padding_facts(padding, positions)
    )
    return out[:, -new:], (ids, positions, kept_next)


def decode_by_index(model, ids, padding=None, cache=None):
    return decode(model, ids, None, padding, cache)


def encode(model, ids, positions=None, padding=None):
    return model(ids, mask=padding, pos=positions)


def encode_by_index(model, ids, padding=None):
    return model(ids, mask=padding)


def padding_facts(padding, positions):
    """Left padding by seq_start_pos, from which positions count too, unless they are told; all other by a mask, which
    beside seq_start_pos is that of the keys."""
    if padding is None or padding.all():
        return {}
    left = padding.long().cumsum(-1) == 0
    if positions is not None or not left.any():
        return {"mask": padding}
    facts = {"seq_start_pos": left.sum(-1)}
    return facts if (padding | left).all() else {**facts, "self_attn_kv_mask": padding}


def rotate(module, x, positions):
    freqs, scale = module(positions)
    return apply_rotary_pos_emb(x, freqs, scale)


def bias_by_length(module, query_length, key_length):
    return module(query_length, key_length)


def bias_by_position(module, query_positions, key_positions):
    """As Attention makes it from `pos`: the positions of queries that are the keys."""
    if not torch.equal(query_positions, key_positions):
        raise NotApplicableError("forward_custom_pos is called for all queries and keys at once")
    return module.forward_custom_pos(query_positions, key_positions)


rotary = Rotary(
    build=RotaryEmbedding,
    call=rotate,
    options={"dim": 16, "base": 10000},
    relative=True,
    base=10000.0,
    layout="interleaved",
    varied={"base": 500, "dim": 8, "interpolation_factor": 2.0, "base_rescale_factor": 2.0},
    causal=True,
)
rotary_partial = Rotary(
    build=RotaryEmbedding,
    call=rotate,
    options={"dim": 8},
    relative=True,
    base=10000.0,
    layout="interleaved",
    rotary_dim=8,
)
alibi = Bias(
    build=AlibiPositionalBias,
    call=bias_by_length,
    options={"heads": 3},
    causal=True,
    relative=True,
    heads_option="heads",
)
alibi_positions = Bias(
    build=AlibiPositionalBias,
    call=bias_by_position,
    options={"heads": 3},
    causal=True,
    relative=True,
    heads_option="heads",
)
t5 = Bias(
    build=RelativePositionBias,
    call=bias_by_length,
    options={"scale": 4.0, "causal": True, "heads": 3},
    causal=True,
    relative=True,
    varied={"num_buckets": 8, "scale": 2.0},
)
dynamic = Bias(
    build=DynamicPositionBias,
    call=bias_by_length,
    options={"dim": 8, "heads": 3, "depth": 2},
    causal=True,
    relative=True,
)
decoder_rotary = Model(
    build=build_decoder,
    call=decode,
    options={"rotary_pos_emb": True},
    causal=True,
    relative=True,
    jitter=0.2,
    dtype=torch.float32,
)
decoder_xpos = Model(
    build=build_decoder,
    call=decode,
    options={"rotary_xpos": True},
    causal=True,
    relative=True,
    jitter=0.2,
    dtype=torch.float32,
)
decoder_alibi = Model(
    build=build_decoder,
    call=decode_by_index,
    options={"alibi_pos_bias": True},
    causal=True,
    relative=True,
    jitter=0.2,
    dtype=torch.float32,
)
decoder_t5 = Model(
    build=build_decoder,
    call=decode_by_index,
    options={"rel_pos_bias": True},
    causal=True,
    relative=True,
    jitter=0.2,
    dtype=torch.float32,
)
decoder_dynamic = Model(
    build=build_decoder,
    call=decode_by_index,
    options={"dynamic_pos_bias": True},
    causal=True,
    relative=True,
    jitter=0.2,
    dtype=torch.float32,
)
decoder_learned = Model(
    build=build_decoder,
    call=decode,
    options={"use_abs_pos_emb": True},
    causal=True,
    max_positions=2048,
    jitter=0.2,
    dtype=torch.float32,
)
decoder_sinusoidal = Model(
    build=build_decoder,
    call=decode_by_index,
    options={"use_abs_pos_emb": True, "scaled_sinu_pos_emb": True},
    causal=True,
    jitter=0.2,
    dtype=torch.float32,
)
encoder_rotary = Model(
    build=build_encoder, call=encode, options={"rotary_pos_emb": True}, relative=True, jitter=0.2, dtype=torch.float32
)
encoder_alibi = Model(
    build=build_encoder, call=encode, options={"alibi_pos_bias": True}, relative=True, jitter=0.2, dtype=torch.float32
)
encoder_t5 = Model(
    build=build_encoder,
    call=encode_by_index,
    options={"rel_pos_bias": True},
    relative=True,
    jitter=0.2,
    dtype=torch.float32,
)

SUBJECTS = (
    ("RotaryEmbedding", rotary),
    ("RotaryEmbedding, half of the channels", rotary_partial),
    ("AlibiPositionalBias", alibi),
    ("AlibiPositionalBias, told positions", alibi_positions),
    ("RelativePositionBias (T5)", t5),
    ("DynamicPositionBias", dynamic),
    ("Decoder, rotary", decoder_rotary),
    ("Decoder, xPos", decoder_xpos),
    ("Decoder, ALiBi", decoder_alibi),
    ("Decoder, T5", decoder_t5),
    ("Decoder, dynamic", decoder_dynamic),
    ("Decoder, learned", decoder_learned),
    ("Decoder, sinusoidal", decoder_sinusoidal),
    ("Encoder, rotary", encoder_rotary),
    ("Encoder, ALiBi", encoder_alibi),
    ("Encoder, T5", encoder_t5),
)
