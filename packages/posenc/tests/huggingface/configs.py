"""Configurations of tiny models, of sizes that are no powers of two."""

from typing import Any

SIZES = {"vocab_size": 64, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1}
SIZES |= {"num_hidden_layers": 4, "intermediate_size": 24, "max_position_embeddings": 4096, "pad_token_id": 0}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 20_000.0}
FAST = {"rope_type": "default", "rope_theta": 3e3}
BY_TWO = {"rope_type": "linear", "factor": 2.0, "rope_theta": 16e4}
LONG = [1.0 + k / 4 for k in range(6)]
"""For head_dim 12: 36 channels on three heads, no power of two."""


def rope(rope_type: str, theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **more}}


HEADS = {"head_dim": 20}
EVERY_OTHER = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
MSCALE = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
OF_GEMMA = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 12, "qk_nope_head_dim": 5, "v_head_dim": 7}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 20} | rope("llama3", 5e5, **LLAMA3),
    "llama linear": rope("linear", 7e3, factor=3.0),
    "llama dynamic": {"max_position_embeddings": 1000} | rope("dynamic", 7e3, factor=2.0),
    "mistral": {"sliding_window": 5} | rope("default", 1e6),
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2, "rope_theta": 1e6},
    "qwen3": {"head_dim": 20, "rope_parameters": YARN | {"rope_theta": 1e6}},
    "gemma": {"head_dim": 20},
    "gemma2": {"head_dim": 20, "sliding_window": 4, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 30.0},
    "gemma3_text": {"sliding_window": 4, "query_pre_attn_scalar": 7, "sliding_window_pattern": 3}
    | HEADS
    | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "smollm3": {"no_rope_layers": [1, 0, 1, 1], "use_sliding_window": True, "sliding_window": 4},
    "llama4_text": EXPERTS
    | rope("default", 3e3)
    | {"head_dim": 20, "intermediate_size_mlp": 24, "attention_chunk_size": 5, "no_rope_layers": [1, 0, 1, 0]}
    | {"floor_scale": 4, "attn_scale": 0.3},
    "ministral3": HEADS | {"sliding_window": 5, "rope_parameters": MSCALE | {"llama_4_scaling_beta": 0.3}},
    "gpt_oss": EXPERTS
    | {"head_dim": 20, "sliding_window": 4, "rope_parameters": YARN | {"truncate": False, "rope_theta": 150.0}},
    "deepseek_v3": LATENT
    | {"num_key_value_heads": 3, "first_k_dense_replace": 9, "rope_parameters": MSCALE | {"mscale_all_dim": 0.7}},
    "cohere": {"rope_theta": 3e4},
    "cohere2": {"sliding_window": 4, "sliding_window_pattern": 2, "rope_theta": 3e4},
    "olmo3": EVERY_OTHER
    | {"rope_parameters": {"sliding_attention": FAST, "full_attention": YARN | {"attention_factor": 1.25}}},
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 3e4},
    "phi": {"partial_rotary_factor": 0.5, "rope_theta": 3e4},
    "glm": {"head_dim": 20, "partial_rotary_factor": 0.4},
    "phi3": {"original_max_position_embeddings": 64, "sliding_window": 5}
    | rope("longrope", 3e4, short_factor=LONG, long_factor=LONG[::-1]),
    "modernbert": {"local_attention": 6}
    | {"rope_parameters": {"full_attention": BY_TWO, "sliding_attention": FAST | {"rope_theta": 9e3}}},
    "qwen2_vl_text": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3}
    | rope("default", 1e6, mrope_section=[1, 2, 3]),
    "qwen3_vl_text": {"head_dim": 20} | rope("default", 5e5, mrope_section=[4, 3, 3]),
    "gemma4_text": HEADS | EVERY_OTHER | OF_GEMMA | {"global_head_dim": 28, "num_key_value_heads": 1},
}
"""Families whose attention goes through transformers' table of attention functions, and takes cos and sin."""

PLAIN, SHARE = rope("default", 3e4), rope("default", 3e4, partial_rotary_factor=0.5)
TYPES = HEADS | EVERY_OTHER
LINEAR = HEADS | {"layer_types": ["linear_attention", "full_attention"] * 2}
LINEAR |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA = {"mamba_n_heads": 2, "mamba_d_head": 36, "mamba_d_state": 8, "mamba_expand": 2}
CONVOLVED = {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1}
SHARED = EXPERTS | {"num_experts": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
SHARED |= {"n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
ALPHA = rope("dynamic", 3e4, alpha=50.0, factor=1.0)
MLA = FAMILIES["deepseek_v3"] | {"q_lora_rank": 8}
VISUAL = {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.6, "mrope_section": [2, 2, 2]}
NAMED_LIKE_LLAMA = (
    "aria_text arcee bitnet gte internlm3 iquestcoder jais2 jina_embeddings_v3 jetmoe nomic_bert olmo olmo2 seed_oss"
)
HYBRID = PLAIN | SHARED | MAMBA | {"layer_types": ["mamba", "attention"] * 2}
ALIKE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(NAMED_LIKE_LLAMA.split(), PLAIN),
    **{name: PLAIN | {"head_dim": 20} for name in ("apertus", "ernie4_5", "eurobert")},
    **dict.fromkeys(("ernie4_5_moe", "flex_olmo", "olmoe"), PLAIN | SHARED),
    **{name: PLAIN | {"attention_multiplier": 0.3} for name in ("granite", "granitemoeshared", "hyperclovax")},
    **dict.fromkeys(("hy_v3", "solar_open"), PLAIN | SHARED | {"head_dim": 20}),
    "afmoe": PLAIN | SHARED | TYPES | {"num_dense_layers": 1, "num_shared_experts": 1},
    "afmoe alone": PLAIN | SHARED | {"head_dim": 20, "layer_types": ["full_attention"] * 4},
    "exaone4 alone": PLAIN | {"head_dim": 20, "layer_types": ["full_attention"] * 4},
    "exaone4 rotating": PLAIN | {"head_dim": 20, "sliding_window": None, "layer_types": ["full_attention"] * 4},
    "cohere2 alone": PLAIN | {"layer_types": ["full_attention"] * 4},
    "mellum": TYPES | SHARED | {"rope_parameters": FAMILIES["olmo3"]["rope_parameters"]},
    "bamba": SHARE | {"attn_layer_indices": [1, 3], "head_dim": 12} | MAMBA,
    "granitemoehybrid": HYBRID | {"position_embedding_type": "rope", "attention_multiplier": 0.3},
    "granitemoehybrid still": HYBRID | {"position_embedding_type": "nope"},
    "minimax": PLAIN | SHARED | {"layer_types": LINEAR["layer_types"], "head_dim": 20, "sliding_window": 5},
    "olmo_hybrid": PLAIN | LINEAR | {"head_dim": 12},
    "granitemoe": PLAIN | EXPERTS | {"attention_multiplier": 0.3},
    "helium": PLAIN | {"head_dim": 12},
    **dict.fromkeys(("glm4", "persimmon", "stablelm"), SHARE),
    **{name: SHARE | SHARED | {"head_dim": 20} for name in ("glm4_moe", "minimax_m2", "nemotron")},
    **{name: PLAIN | EXPERTS | {"sliding_window": 5} for name in ("mixtral", "starcoder2")},
    "qwen3_moe": PLAIN | SHARED | {"sliding_window": 5, "use_sliding_window": True},
    "qwen2_moe": PLAIN | SHARED | {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2},
    **dict.fromkeys(("cwm", "exaone4", "ministral"), PLAIN | TYPES),
    **dict.fromkeys(("dots1", "exaone_moe"), PLAIN | SHARED | TYPES),
    "vaultgemma": TYPES | {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 30.0},
    "gemma3n_text": TYPES
    | OF_GEMMA
    | {"intermediate_size": [24] * 4, "activation_sparsity_pattern": [0.0] * 4}
    | {"num_kv_shared_layers": 0, "laurel_rank": 4, "altup_num_inputs": 2},
    "modernbert-decoder": EVERY_OTHER | {"local_attention": 8},
    "lfm2": PLAIN | CONVOLVED,
    "lfm2_moe": PLAIN | SHARED | CONVOLVED,
    "qwen3_next": SHARE | SHARED | LINEAR,
    "qwen2_5_vl_text": FAMILIES["qwen2_vl_text"],
    "qwen3_vl_moe_text": SHARED | FAMILIES["qwen3_vl_text"],
    **{name: SHARED | LINEAR | {"rope_parameters": VISUAL} for name in ("qwen3_5_text", "qwen3_5_moe_text")},
    **dict.fromkeys(("axk1", "deepseek_v2", "glm4_moe_lite", "youtu"), SHARED | MLA),
    "mistral4": SHARED
    | MLA
    | {"qk_nope_head_dim": 12}
    | {"rope_parameters": MSCALE | {"llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.5}},
    "hunyuan_v1_dense": {"head_dim": 20} | ALPHA,
    "hunyuan_v1_moe": PLAIN | EXPERTS | {"head_dim": 20},
    "hunyuan_v1_moe alpha": EXPERTS | {"head_dim": 20} | ALPHA,
}
"""More families, most of which differ from one above by their name."""

IMAGE = {"image_size": 12, "patch_size": 4, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 2}
WITH_TABLES = (
    "bert camembert data2vec-text distilbert electra ernie gpt2 megatron-bert opt roberta roberta-prelayernorm "
    "xlm-roberta xlm-roberta-xl"
)
STACKS = {"d_model": 36, "vocab_size": 64, "pad_token_id": 1, "decoder_start_token_id": 2}
STACKS |= {"encoder_layers": 2, "decoder_layers": 4, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
BUCKETS = {"num_heads": 3, "num_layers": 2, "d_model": 36, "d_kv": 12, "d_ff": 24, "vocab_size": 64}
OTHERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("m2m_100", "nllb-moe"), STACKS | {"max_position_embeddings": 90, "num_experts": 2}),
    "whisper": STACKS | {"max_source_positions": 50, "max_target_positions": 20},
    **dict.fromkeys(WITH_TABLES.split(), SIZES),
    **dict.fromkeys(("clip_vision_model", "deit", "dinov2", "siglip_vision_model", "vit"), IMAGE),
    "bloom": {"n_layer": 2, "n_head": 3, "hidden_size": 36, "vocab_size": 64},
    "dinov3_vit": IMAGE | {"hidden_size": 60},
    "distilbert": {"n_layers": 2, "n_heads": 3, "dim": 36, "hidden_dim": 24, "vocab_size": 64, "pad_token_id": 0},
    "electra": SIZES | {"embedding_size": 20},
    "esm": SIZES | {"pad_token_id": 1, "vocab_size": 64},
    "falcon": SIZES | {"alibi": True},
    "gptj": SIZES | {"rotary_dim": 8},
    "mpt": {"n_layers": 2, "n_heads": 3, "d_model": 36, "vocab_size": 64, "attn_config": {"softmax_scale": 0.5}},
    "opt": SIZES | {"word_embed_proj_dim": 36},
    "swinv2": {"image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4]}
    | {"window_size": 8, "pretrained_window_sizes": [6, 0]},
    **dict.fromkeys(("mt5", "t5", "umt5"), BUCKETS),
}
"""Families with a table, a bias, or a rotation of their own."""

SMALL = {"vocab_size": 48, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"num_hidden_layers": 2, "intermediate_size": 64, "max_position_embeddings": 64}
SMALL |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {key: size for key, size in SMALL.items() if key != "num_key_value_heads"}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
ROTATED = rope("default", 1e4)
DECODERS: dict[str, dict[str, Any]] = {
    "llama": ROTATED | {"head_dim": 12},
    "qwen2": {"max_window_layers": 1},
    "qwen3": ROTATED | {"head_dim": 16},
    "mistral": {},
    "gemma2": ALTERNATING | {"attn_logit_softcapping": 2.0},
    "gemma3": ALTERNATING | {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "llama4": ROTATED
    | {"num_experts_per_tok": 2, "head_dim": 12, "attention_chunk_size": 6, "no_rope_layers": [1, 0]}
    | {"floor_scale": 8192},
    "gpt_oss": {"num_experts_per_tok": 2, "sliding_window": 5},
    "deepseek_v3": ROTATED | {"num_key_value_heads": 4, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12},
    "cohere2": ALTERNATING,
    "gpt2": {},
    "gpt_neox": {},
    "phi": {},
}
"""Models of two layers that are run: what differs from the rows above. No expert is chosen, for rounding to choose
another."""

ADAPTED: dict[str, dict[str, Any]] = {"bloom": {}, "mpt": {}, "gptj": {}, "falcon": {"alibi": False}}
ADAPTED |= {"falcon alibi": {"hidden_size": 60, "num_attention_heads": 5}}
"""Those with an attention of their own. The slopes of a power of two heads are another formula than those of others."""

ENCODERS: dict[str, dict[str, Any]] = {"bert": {}, "roberta": {}}
ENCODERS["modernbert"] = {"global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}


TINY = (
    SIZES
    | SHARED
    | (LATENT | {"q_lora_rank": 8})
    | STACKS
    | {"sliding_window": 5, "head_dim": 20, "num_key_value_heads": 3, "num_experts": 4}
)
TINY |= {"n_layer": 4, "n_head": 3, "n_embd": 36, "n_inner": 24, "ffn_dim": 24, "embedding_size": 36, "rotary_dim": 8}
TINY |= {
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "projection_dim": 36,
}
"""Sizes of a model that is asked, of which each takes those that it knows."""

OF_QWEN4 = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256}
OF_QWEN4 |= {"indexer_budget": 2048, "indexer_compress_ratio": 4}
LACKING: dict[str, dict[str, Any]] = {
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"rope_theta": 5e5, "clip_qkv": 8.0}},
    "qwen4_exp": {"text_config": OF_QWEN4},
    "qwen4_exp_text": OF_QWEN4,
}
"""Keys without which transformers builds no model of a type: its default configuration lacks them."""

EVERY_SECOND = {"layer_types": ["linear_attention", "full_attention"] * 2}
OF_PHI4 = {"hidden_size": 24, "intermediate_size": 24, "num_attention_heads": 2, "num_blocks": 2}
OF_PHI4 |= dict.fromkeys(
    ("nemo_conv_channels", "ext_pw_out_channel", "depthwise_separable_out_channel"),
    24,
)
SMALLER: dict[str, dict[str, Any]] = {
    "bailing_hybrid": EVERY_SECOND | {"head_dim": 12, "mlp_layer_types": ["dense"] * 4},
    "dbrx": LACKING["dbrx"] | {"d_model": 36, "n_heads": 3, "n_layers": 2},
    "diffllama": {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12},
    "dots3_note_text": {"mlp_layer_types": ["dense"] * 4, "index_head_dim": 20, "index_n_heads": 3}
    | {f"swa_{name}": TINY[name] for name in ("num_attention_heads", "num_key_value_heads", *LATENT)}
    | {"swa_head_dim": 17},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": EVERY_SECOND | {"linear_num_heads": 3, "linear_head_dim": 12, "mlp_layer_types": ["dense"] * 4},
    "longcat_flash": {"head_dim": 12, "num_layers": 2, "ffn_hidden_size": 24, "expert_ffn_hidden_size": 8},
    "mimo_v2_flash": {"num_attention_heads": 8, "num_key_value_heads": 4, "v_head_dim": 20},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "openai-gpt": {"n_embd": 36, "n_layer": 2, "n_head": 3},
    "phi4_multimodal": {"vision_config": IMAGE | {"crop_size": 12}, "head_dim": 12, "audio_config": OF_PHI4},
    "xglm": {"d_model": 36, "attention_heads": 3, "num_layers": 2, "ffn_dim": 24},
    "git": {"vision_config": IMAGE},
    "gpt_neo": {"hidden_size": 36, "num_heads": 3, "num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "xlm": {"emb_dim": 36, "n_heads": 3, "n_layers": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_head_dim": 24},
}
"""Sizes of single types beside those."""
