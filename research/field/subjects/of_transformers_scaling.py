"""transformers: every kind of rope_parameters, by its function of ROPE_INIT_FUNCTIONS and in a whole Llama.

Past the trained length "dynamic" and "longrope" use other frequencies for all positions, by the length of what they are
given: a whole model claims that as its threshold, and the functions are asked for one length.
"""

import math

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from posenc_check import Rotary, hugging_face

SIZE = 16  # channels of a head
TRAINED, SHORT = 256, 16  # positions that a rotation, and a whole model, was trained on
BASE = 10000.0
SLOWER = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]  # longrope divides each frequency of a long text by one of these


def config(trained, attn_implementation="sdpa", **rope_parameters):
    return transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=48,
        max_position_embeddings=trained,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters=rope_parameters,
        attn_implementation=attn_implementation,
    )


def build_model(trained, attn_implementation="sdpa", **rope_parameters):
    return transformers.LlamaForCausalLM(config(trained, attn_implementation, **rope_parameters))


def build_rotation(rope_type, trained, seq_len=None, **rope_parameters):
    made = config(trained, rope_type=rope_type, **rope_parameters)
    return ROPE_INIT_FUNCTIONS[rope_type](made, torch.device("cpu"), seq_len=seq_len)


def rotate(made, query, key, positions):
    """As LlamaRotaryEmbedding and LlamaAttention do: phases in float32."""
    inv_freq, factor = made
    phases = positions[..., None].float() * inv_freq
    phases = torch.cat((phases, phases), -1)
    return apply_rotary_pos_emb(query, key, (phases.cos() * factor).to(query), (phases.sin() * factor).to(query))


def plain(base=BASE):
    return [base ** (-2 * c / SIZE) for c in range(SIZE // 2)]


def of_llama3(factor, low, high):
    """Waves longer than trained/low are slowed by the factor, shorter than trained/high are not; between, a blend."""
    found = []
    for f in plain():
        blend = min(max((TRAINED * f / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
        found.append((1 - blend) * f / factor + blend * f)
    return found


def of_yarn(factor, fast=32, slow=1):
    """A ramp over the channels, between those that turn ``fast`` and ``slow`` times in the trained length."""
    low, high = (SIZE * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (fast, slow))
    low, high = max(math.floor(low), 0), min(math.ceil(high), SIZE - 1)
    found = []
    for c, f in enumerate(plain()):
        ramp = min(max((c - low) / (high - low), 0.0), 1.0)
        found.append(ramp * f / factor + (1 - ramp) * f)
    return found


def of_dynamic(factor, length):
    """The base grows with the length, so that the slowest channel is slowed by as much as the text is too long."""
    grown = factor * length / TRAINED - (factor - 1)
    return plain(BASE * grown ** (SIZE / (SIZE - 2)))


def rotation(frequencies, scale=1.0, varied=(), trained=4 * TRAINED, **options):
    return Rotary(
        build=build_rotation,
        call=rotate,
        options={"trained": trained, "rope_theta": BASE, **options},
        causal=True,
        relative=True,
        layout="half",
        frequencies=frequencies,
        scale=scale,
        varied={"rope_theta": 500.0, **dict(varied)},
    )


def model(rope_type, trained, **parameters):
    options = {"trained": trained, "rope_type": rope_type, "rope_theta": BASE, **parameters}
    going_by_length = rope_type in ("dynamic", "longrope")
    return hugging_face(
        build_model,
        options=options,
        documents=True,
        relative=None if going_by_length else True,
        threshold=SHORT if going_by_length else None,
    )


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ATTENTION = math.sqrt(1 + math.log(4.0) / math.log(TRAINED))  # by which longrope makes vectors longer

rotate_linear = rotation([f / 4 for f in plain()], varied={"factor": 2.0}, rope_type="linear", factor=4.0)
rotate_dynamic = rotation(
    of_dynamic(4.0, 1024),
    varied={"factor": 2.0, "seq_len": 512},
    trained=TRAINED,
    rope_type="dynamic",
    factor=4.0,
    seq_len=1024,
)
rotate_yarn = rotation(
    of_yarn(4.0),
    scale=0.1 * math.log(4.0) + 1,
    varied={"factor": 2.0, "original_max_position_embeddings": 128, "beta_fast": 4.0, "beta_slow": 0.25},
    rope_type="yarn",
    factor=4.0,
    original_max_position_embeddings=TRAINED,
    beta_fast=32.0,
    beta_slow=1.0,
)
rotate_longrope = rotation(
    plain(),
    scale=ATTENTION,
    varied={"factor": 2.0, "short_factor": SLOWER, "original_max_position_embeddings": 128},
    rope_type="longrope",
    factor=4.0,
    original_max_position_embeddings=TRAINED,
    short_factor=[1.0] * 8,
    long_factor=SLOWER,
)
rotate_longrope_long = rotation(
    [f / by for f, by in zip(plain(), SLOWER, strict=True)],
    scale=ATTENTION,
    varied={"long_factor": [1.0] * 8},
    rope_type="longrope",
    factor=4.0,
    original_max_position_embeddings=TRAINED,
    short_factor=[1.0] * 8,
    long_factor=SLOWER,
    seq_len=TRAINED + 1,
)
rotate_llama3 = rotation(
    of_llama3(8.0, 1.0, 4.0),
    varied={"factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 8.0, "original_max_position_embeddings": 128},
    trained=8 * TRAINED,
    rope_type="llama3",
    original_max_position_embeddings=TRAINED,
    **LLAMA3,
)
linear = model("linear", 1024, factor=4.0)
dynamic = model("dynamic", SHORT, factor=4.0)
yarn = model("yarn", 4 * SHORT, factor=4.0, original_max_position_embeddings=SHORT)
longrope = model(
    "longrope",
    4 * SHORT,
    factor=4.0,
    original_max_position_embeddings=SHORT,
    short_factor=[1.0] * 8,
    long_factor=SLOWER,
)
llama3 = model("llama3", 8 * SHORT, original_max_position_embeddings=SHORT, **LLAMA3)

SUBJECTS = (
    ("linear", rotate_linear),
    ("dynamic, of 1024 tokens", rotate_dynamic),
    ("yarn", rotate_yarn),
    ("longrope, of a short text", rotate_longrope),
    ("longrope, of a long text", rotate_longrope_long),
    ("llama3", rotate_llama3),
    ("Llama, linear", linear),
    ("Llama, dynamic", dynamic),
    ("Llama, yarn", yarn),
    ("Llama, longrope", longrope),
    ("Llama, llama3", llama3),
)
