"""transformers: decoders with random weights, called by input_ids, attention_mask, position_ids and past_key_values.

Claims: rotary and ALiBi models look at distances alone. A vocabulary of 64 leaves room for a padding token. Decoders
that hand position_ids to their causal mask keep packed documents apart (masking_utils.find_packed_sequence_indices).
"""

import transformers

from posenc_check import hugging_face

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def build(family, attn_implementation="sdpa", **options):
    """The causal language model of a family, with random weights."""
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **options}, attn_implementation=attn_implementation)
    return transformers.AutoModelForCausalLM.from_config(config)


def build_eager(family, **options):
    """The same for a family that has only the eager implementation."""
    return build(family, "eager", **options)


def rotary(family, documents=True, build=build, max_positions=None, **options):
    """Its claims: distances alone matter, and packed documents are kept apart."""
    options = {"family": family, **options}
    return hugging_face(build, options=options, relative=True, documents=documents, max_positions=max_positions)


llama = rotary("llama", num_key_value_heads=2)
mistral_window = rotary("mistral", num_key_value_heads=2, sliding_window=6)
qwen2 = rotary("qwen2", num_key_value_heads=2)
qwen3 = rotary("qwen3", num_key_value_heads=2, head_dim=16)
gemma2 = rotary("gemma2", build=build_eager, num_key_value_heads=2, head_dim=16, sliding_window=6)
gemma3 = rotary("gemma3_text", num_key_value_heads=2, head_dim=16, sliding_window=6)
gpt_neox = rotary("gpt_neox")
gptj = rotary("gptj", build=build_eager, rotary_dim=4, max_positions=2048)
phi = rotary("phi")
falcon = rotary("falcon", documents=False)
falcon_alibi = hugging_face(build, options={"family": "falcon", "alibi": True}, relative=True)
bloom = hugging_face(build_eager, options={"family": "bloom"}, relative=True)
mpt = hugging_face(build_eager, options={"family": "mpt"}, relative=True)
gpt2 = hugging_face(build, options={"family": "gpt2"}, documents=True, relative=False, max_positions=2048)
opt = hugging_face(build, options={"family": "opt", "ffn_dim": 48}, relative=False, max_positions=2048)

SUBJECTS = (
    ("Llama", llama),
    ("Mistral, sliding window", mistral_window),
    ("Qwen2", qwen2),
    ("Qwen3", qwen3),
    ("Gemma 2, sliding window", gemma2),
    ("Gemma 3, sliding window", gemma3),
    ("GPT-NeoX", gpt_neox),
    ("GPT-J", gptj),
    ("Phi", phi),
    ("Falcon, rotary", falcon),
    ("Falcon, ALiBi", falcon_alibi),
    ("BLOOM", bloom),
    ("MPT", mpt),
    ("GPT-2", gpt2),
    ("OPT", opt),
)
