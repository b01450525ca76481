"""keras-hub on torch: its layers of positions, and models with random weights.

Layers that hold no weights are made anew for each call, in the dtype of what they are given, as a policy would. Models
compute in float32. A cache has room for the tokens so far, and is fed as `generate` feeds it; models with one are
called without padding, which their `call_with_cache` does not take.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import functools

import keras
import keras_hub
import torch
from keras_hub.src.models.llama.llama_rotary_embedding import LlamaRotaryEmbedding
from keras_hub.src.models.roformer_v2.roformer_v2_attention import RoformrPositionalEmbedding

from posenc_check import Bias, Layer, Model, Rotary

SMALL = {"vocabulary_size": 64, "hidden_dim": 32, "intermediate_dim": 48, "num_layers": 1}
GROUPED = {"num_query_heads": 2, "num_key_value_heads": 1}
NAMES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def build_rotary(**options):
    return functools.partial(keras_hub.layers.RotaryEmbedding, **options)


def build_llama_rotary(**options):
    return functools.partial(LlamaRotaryEmbedding, **options)


def build_roformer_rotary(output_dim):
    return functools.partial(RoformrPositionalEmbedding, output_dim)


def build_sine(**options):
    return functools.partial(keras_hub.layers.SinePositionEncoding, **options)


def build_alibi(heads):
    return heads


def build_learned(sequence_length):
    keras.utils.set_random_seed(0)
    layer = keras_hub.layers.PositionEmbedding(sequence_length, name="positions")
    layer.build((None, sequence_length, 32))
    return layer


def build(backbone, **options):
    """A backbone of keras_hub.models. The weights that Keras draws are too small for positions to matter."""
    keras.utils.clear_session()  # else it names weights by how many were built before
    keras.utils.set_random_seed(0)
    model = getattr(keras_hub.models, backbone)(**options)
    for weight in model.weights:
        with torch.no_grad():
            weight.value.add_(0.2 * torch.randn_like(weight.value))
    return model


def build_causal(family, **options):
    backbone = build(f"{family}Backbone", **SMALL, **options)
    return getattr(keras_hub.models, f"{family}CausalLM")(backbone=backbone, preprocessor=None)


def room(model, rows, tokens):
    """What a cache has for so many tokens: for each layer its keys and values."""
    queries = getattr(model.backbone, "num_query_heads", None) or model.backbone.num_heads
    heads = getattr(model.backbone, "num_key_value_heads", queries)
    return torch.zeros(rows, SMALL["num_layers"], 2, tokens, heads, SMALL["hidden_dim"] // queries)


def rotate(layer, x, positions):
    """The layer has heads after tokens, and positions (rows, tokens)."""
    return layer(dtype=NAMES[x.dtype])(x.transpose(1, 2), positions=positions).transpose(1, 2)


def rotate_roformer(layer, x):
    return layer(dtype=NAMES[x.dtype])([x.transpose(1, 2)]).transpose(1, 2)


def add_sines(layer, x, positions=None):
    layer = layer(dtype=NAMES[x.dtype])
    return x + (layer(x) if positions is None else layer(x, positions=positions.to(x.dtype)))


def add_learned(layer, x, positions=None):
    return x + (layer(x) if positions is None else layer(x, positions=positions))


def bias(heads, query_length, key_length):
    return keras_hub.layers.AlibiBias()(torch.zeros(1, heads, query_length, key_length))[0]


def encode(model, ids, padding=None):
    padding = torch.ones_like(ids) if padding is None else padding.int()
    return hidden(model({"token_ids": ids, "padding_mask": padding}))


def encode_segments(model, ids, padding=None):
    padding = torch.ones_like(ids) if padding is None else padding.int()
    return hidden(model({"token_ids": ids, "padding_mask": padding, "segment_ids": torch.zeros_like(ids)}))


def hidden(out):
    return out["sequence_output"] if isinstance(out, dict) else out


def decode(model, ids, cache=None):
    kept, used = cache or (room(model, ids.size(0), 0), 0)
    kept = torch.cat((kept, room(model, *ids.shape)), 3)
    logits, _, kept = model.call_with_cache(ids, kept, used)
    return logits, (kept, used + ids.size(1))


rotary = Rotary(
    build=build_rotary,
    call=rotate,
    relative=True,
    causal=True,
    base=10000.0,
    layout="half",
    varied={"max_wavelength": 500, "scaling_factor": 2.0},
    refused=({"rope_type": "nonsense"},),
)
rotary_dynamic = Rotary(
    build=build_rotary,
    call=rotate,
    options={"rope_type": "dynamic", "scaling_factor": 4.0},
    relative=True,
    causal=True,
    base=10000.0 * 4.0 ** (16 / 14),
    layout="half",
)
rotary_yarn = Rotary(
    build=build_rotary,
    call=rotate,
    options={"rope_type": "yarn", "scaling_factor": 4.0, "original_max_position_embeddings": 256},
    relative=True,
    causal=True,
    layout="half",
    scale=1.1386294361119891,
    varied={"beta_fast": 8.0, "beta_slow": 4.0},
)
rotary_llama = Rotary(
    build=build_llama_rotary,
    call=rotate,
    relative=True,
    causal=True,
    base=10000.0,
    layout="half",
    varied={"position_scaling_factor": 4.0, "max_wavelength": 500},
)
rotary_roformer = Rotary(
    build=build_roformer_rotary,
    call=rotate_roformer,
    options={"output_dim": 16},
    relative=True,
    base=10000.0,
    layout="interleaved",
)
sines = Layer(build=build_sine, call=add_sines, relative=False, varied={"max_wavelength": 500})
learned = Layer(
    build=build_learned,
    call=add_learned,
    options={"sequence_length": 128},
    relative=False,
    max_positions=128,
    dtype=torch.float32,
)
alibi = Bias(build=build_alibi, call=bias, options={"heads": 3}, causal=True, relative=True, heads_option="heads")
gpt_neo_x = Model(
    build=build_causal,
    call=decode,
    options={"family": "GPTNeoX", "num_heads": 2},
    causal=True,
    relative=True,
    dtype=torch.float32,
)
mistral = Model(
    build=build_causal,
    call=decode,
    options={"family": "Mistral", "sliding_window": 6, **GROUPED},
    causal=True,
    relative=True,
    window=6,
    dtype=torch.float32,
)
xlnet = Model(
    build=build,
    call=encode_segments,
    options={"backbone": "XLNetBackbone", "num_heads": 2, **SMALL},
    relative=True,
    dtype=torch.float32,
)
deberta = Model(
    build=build,
    call=encode,
    options={"backbone": "DebertaV3Backbone", "num_heads": 2, "bucket_size": 8, "max_sequence_length": 2048, **SMALL},
    relative=True,
    dtype=torch.float32,
)

SUBJECTS = (
    ("RotaryEmbedding", rotary),
    ("RotaryEmbedding, dynamic", rotary_dynamic),
    ("RotaryEmbedding, yarn", rotary_yarn),
    ("LlamaRotaryEmbedding", rotary_llama),
    ("RoformrPositionalEmbedding", rotary_roformer),
    ("SinePositionEncoding", sines),
    ("PositionEmbedding", learned),
    ("AlibiBias", alibi),
    ("GPT-NeoX", gpt_neo_x),
    ("Mistral, sliding window", mistral),
    ("XLNet", xlnet),
    ("DeBERTa-v3", deberta),
)
