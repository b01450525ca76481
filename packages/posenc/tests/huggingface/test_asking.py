"""What a model says when it is asked is what is read of its configuration, and what its own code does."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING, AttentionInterface, AttentionMaskInterface
from transformers.models.rembert import modeling_rembert as rembert
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as conformer

from posenc import Chunk, Positions, RoPE, Sinusoidal
from posenc.huggingface import scheme_from_config
from posenc.huggingface.asking import _verify, _window, positions_by_asking
from posenc.huggingface.questions import NAME, Asked
from posenc.huggingface.reading import Keys
from posenc.huggingface.towers import sinusoids_of
from posenc.huggingface.variants import Frequencies
from tests.huggingface.configs import (
    BUCKETS,
    HEADS,
    LATENT,
    LLAMA3,
    LONG,
    MSCALE,
    OF_QWEN4,
    PLAIN,
    SHARED,
    SIZES,
    YARN,
    rope,
)
from tests.huggingface.tiny_models import config_of, disagreements

TWO = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 5}
LFM3 = HEADS | {"layer_types": ["conv", "full_attention", "sliding_attention", "full_attention"], "sliding_window": 5}
LATENTS = LATENT | {"q_lora_rank": 8, "num_key_value_heads": 3}
SMALL = {"hidden_size": 24, "intermediate_size": 24, "num_attention_heads": 2}
IMAGES = SMALL | {"num_hidden_layers": 2, "image_size": 28, "crop_size": 28}
SOUND = SMALL | {"num_blocks": 2, "nemo_conv_channels": 24}
SOUND |= {"ext_pw_out_channel": 24, "depthwise_separable_out_channel": 24}
NEO = {"num_layers": 2, "hidden_size": 36, "num_heads": 3, "vocab_size": 64}
NEO |= {"attention_types": [[["global", "local"], 1]]}
ROTARY = {"vocab_size": 33, "pad_token_id": None, "position_embedding_type": "rotary"}
NEW: dict[str, tuple[dict[str, Any], str]] = {
    "apertus1p5_text": (PLAIN, "RoPE, base 30000, all 12 channels, half layout"),
    "beam": (TWO | HEADS, "layers 1, 3: QueryScale('beam', length=2048, strength=0.1), whole text"),
    "cohere2_moe": (
        PLAIN | TWO | SHARED | HEADS,
        "RoPE, base 30000, all 20 channels, interleaved layout, window",
    ),
    "flint": (TWO | SHARED | HEADS, "layers 0, 2: RoPE, base 10000, all 20 channels, half layout, window of 5"),
    "gemma4_unified_text": (
        TWO | HEADS | {"global_head_dim": 28},
        "RoPE, base 1000000, all 28 channels, half",
    ),
    "granite_swa": (TWO | {"attention_multiplier": 0.3}, "window of 5 keys, scale 0.3, a sink per head"),
    "kolibri1": (TWO | SHARED | HEADS, "layers 1, 3: NoPE, whole text"),
    "lfm3": (LFM3 | SHARED, "half layout, Proportional(share=0.5), whole text"),
    "minicpm3": (LATENTS, "channels 5..16 of 17, half layout"),
    "nanochat": (PLAIN, "Frequencies(theta=[-1.0, "),
    "phi4_multimodal": (
        PLAIN | {"original_max_position_embeddings": 64, "vision_config": IMAGES, "audio_config": SOUND},
        "RoPE, base 30000, all 12 channels",
    ),
    "phimoe": (PLAIN | SHARED, "RoPE, base 30000, all 12 channels"),
    "sarvam_mla": (LATENTS | SHARED, "channels 5..16 of 17, interleaved layout"),
}
"""Families that are not in the table: keys, and words of what is said."""


STACK = {"d_model": 36, "vocab_size": 64, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 90}
STACK |= {
    "pad_token_id": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}
PATCHES = {"depth": 4, "embed_dim": 36, "hidden_size": 36, "num_heads": 3, "intermediate_size": 24}
WINDOWS = PATCHES | {"window_size": 56, "fullatt_block_indexes": [1]}
PIXELS = {"image_size": 24, "patch_size": 4, "hidden_size": 48, "num_attention_heads": 2, "num_hidden_layers": 3}
PIXELS |= {"intermediate_size": 24}
OF_SAM = {"window_size": 3, "global_attn_indexes": [1], "pretrain_image_size": 12}
OF_SOUND = STACK | {"max_source_positions": 50, "max_target_positions": 20, "max_position_embeddings": 20}
INKLING = HEADS | {"rel_extent": 20, "log_scaling_n_floor": 15, "sliding_window_size": 6, "swa_num_attention_heads": 2}
INKLING |= {"swa_head_dim": 12, "swa_num_key_value_heads": 1, "local_layer_ids": [0, 1, 2]}
CONFORMER = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3}
CONFORMER |= {"intermediate_size": 24}
PARTS: list[tuple[str, str | None, dict[str, Any], list[str]]] = [
    (
        "marian",
        "encoder",
        STACK,
        ["encoder, 2 layers, 90", "input: Sinusoidal(36, base=10000.0, layout='concatenated'"],
    ),
    ("marian", None, STACK, ["decoder, 3 layers, 90 positions", "attention of the decoder to the encoder has no pos"]),
    ("pegasus_x", "decoder", STACK, ["input: Sinusoidal(36, base=10000.0, layout='tensor2tensor'", "whole text"]),
    ("bart", "encoder", STACK, ["encoder, 2 layers, 90 positions", "OffsetLearned(92, 36, offset=2)"]),
    ("albert", None, SIZES | {"embedding_size": 20}, ["encoder, 4 layers", "input: Learned(4096, 20)", "NoPE"]),
    ("xmod", None, SIZES | {"pad_token_id": 1}, ["encoder, 4 layers", "input: OffsetLearned(4096, 36, offset=2)"]),
    ("embedding_gemma2_text", None, SIZES | TWO | HEADS, ["encoder, 4 layers", "window of 5 keys back and 5 ahead"]),
    (
        "qwen2_vl_vision",
        None,
        PATCHES,
        ["encoder, 4 layers", "all 12 channels, half layout, 2 axes, whole", "row and col"],
    ),
    (
        "qwen3_vl_vision",
        None,
        PATCHES,
        [
            "2 axes, whole text",
            "Learned(2304, 36)",
            "48 x 48 patches, for other grids resized, bilinear with aligned corn",
        ],
    ),
    (
        "qwen2_5_vl_vision",
        None,
        WINDOWS,
        ["layers 0, 2, 3: RoPE, base 10000, all 12 channels", "windows of 4 x 4 patches"],
    ),
    (
        "ctrl",
        None,
        {"n_layer": 2, "n_embd": 36, "n_head": 3},
        ["input: Sinusoidal(36, base=10000.0, layout='concatenated'"],
    ),
    (
        "pixtral",
        None,
        PIXELS,
        ["half layout, pairs by axis 6 row, 6 column, Frequencies", "of 6 x 6 patches, by row, col"],
    ),
    (
        "llama4_vision_model",
        None,
        PIXELS,
        [
            "AxialRoPE(24, convention='index', base=10000.0",
            "1 of them, turn as a patch before the first row and column",
        ],
    ),
    ("vit_mae", None, PIXELS, ["Sinusoidal(48, base=10000.0, layout='concatenated', axes=2)", "are column and row"]),
    (
        "videomae",
        None,
        PIXELS | {"num_frames": 4},
        ["axes=1)", "of 2 x 6 x 6 patches, by time, row, column", "in one line"],
    ),
    ("dinov2_with_registers", None, PIXELS, ["encoder, 3 layers, 37 positions", "input: Learned(37, 48)"]),
    ("deit", None, PIXELS, ["input: Learned(38, 48)"]),
    (
        "siglip2_vision_model",
        None,
        PIXELS | {"num_patches": 36},
        [
            "Learned(36, 48)",
            "of 3 x 4 patches",
            "6 x 6 patches, for other grids resized, bilinear with antialias: embed",
        ],
    ),
    ("sam3_vit_model", None, PIXELS | OF_SAM, ["6 column, 6 row", "windows of 3 x 3 patches", "layer 1: RoPE"]),
    ("glm4v_vision", None, PATCHES, ["2 axes, whole text", "24 x 24 patches, for other grids resized, bicubic: embed"]),
    ("gemma4_vision", None, PIXELS | SHARED | {"head_dim": 24}, ["AxialRoPE(24, convention='gemma4', base=100.0"]),
    ("vjepa2", None, PIXELS | {"crop_size": 24, "frames_per_clip": 8}, ["base=10000.0, form='vjepa2'), whole text"]),
    ("mpnet", None, SIZES, ["offset=2", "T5(3, num_buckets=32, max_distance=128, bidirectional=True), whole text\n"]),
    *(
        (name, None, CONFORMER, ["layers 0, 1: TransformerXL(3, 16, dim=48, base=10000.0, share_biases=False"])
        for name in ("parakeet_encoder", "wav2vec2-conformer")
    ),
    ("whisper", "encoder", OF_SOUND, ["encoder, 2 layers, 50", "Sinusoidal(36, base=10000.0, layout='tensor2tensor'"]),
    ("whisper", "decoder", OF_SOUND, ["decoder, 3 layers, 20", "Learned(20, 36)"]),
    (
        "voxtral_encoder",
        None,
        {"num_hidden_layers": 2, "hidden_size": 36, "num_attention_heads": 3},
        ["does not train"],
    ),
    ("speech_to_text", "encoder", STACK, ["OffsetSinusoidal(36, offset=2)", "asked of "]),
    (
        "wav2vec2",
        None,
        {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
        ["a convolution is added to them, which sees where the"],
    ),
    (
        "timesfm2_5",
        None,
        {"num_hidden_layers": 2, "hidden_size": 36},
        ["decoder, 2 layers", "all 80 channels, half layout"],
    ),
    ("switch_transformers", None, BUCKETS, ["decoder, 12 layers", "T5(3, num_buckets=32, max_distance=128, bidir"]),
    ("longt5", "decoder", BUCKETS, ["decoder, 2 layers", "bidirectional=False), whole text, scale 1"]),
    ("umt5", "encoder", BUCKETS, ["encoder, 2 layers", "bidirectional=True), whole text, scale 1"]),
    (
        "inkling_text",
        None,
        SIZES | INKLING,
        ["layers 0-2: Inkling(2, width=16, extent=6), window of 6", "extent=20, length=15), whole text, scale 0.05"],
    ),
    (
        "inkling2_text",
        None,
        SIZES | INKLING | {"layer_types": ["hybrid_sliding", "hybrid"] * 2},
        [
            "Inkling(2, width=16, extent=6, clip=8.0), window of 6",
            "extent=20, length=15, clip=8.0), whole text, a sink",
        ],
    ),
    (
        "gpt_neo",
        None,
        NEO | {"window_size": 30},
        ["input: Learned(2048, 36)", "layer 0: NoPE, whole text, scale 1", "layer 1: NoPE, window of 30 keys, scale 1"],
    ),
    (
        "gpt_neo",
        None,
        NEO | {"max_position_embeddings": 400, "window_size": 256},
        ["layer 1: NoPE, window of 256 keys"],
    ),
    (
        "esm",
        None,
        SIZES | ROTARY,
        ["RoPE, base 10000, all 12 channels"],
    ),
    ("gpt_neox_japanese", None, SIZES, ["decoder, 4 layers", "RoPE, base 10000, all 12 channels, half layout"]),
    ("roformer", None, SIZES, ["encoder, 4 layers", "RoPE, base 10000, all 12 channels, interleaved layout"]),
    ("rembert", None, SIZES | {"input_embedding_size": 20}, ["input: Learned(4096, 20)", "encoder, 4 layers"]),
    ("git", None, SIZES, ["decoder, 4 layers", "input: Learned(4096, 36)"]),
    *(
        (name, None, SIZES, ["layers 0-3: NoPE, whole text\n"])  # biases in its queries, and numbers of float32
        for name in ("deberta", "deberta-v2")
    ),
    ("squeezebert", None, SIZES | {"embedding_size": 36}, ["layers 0-3: NoPE, whole text\n"]),
    (
        "vitdet",
        None,
        {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 4}
        | {"pretrain_image_size": 32},
        ["layers 0, 1: NoPE, whole text\n"],
    ),
    ("mvp", "decoder", STACK, ["decoder, 3 layers", "OffsetLearned(92, 36, offset=2)", "to the encoder has no pos"]),
    (
        "xglm",
        None,
        {"d_model": 36, "attention_heads": 3, "num_layers": 2, "ffn_dim": 24, "vocab_size": 64},
        ["input: OffsetSinusoidal(36, offset=2)", "decoder, 2 layers"],
    ),
    ("musicgen_decoder", None, SIZES | {"ffn_dim": 24}, ["input: CosineSinusoidal(36)"]),
    (
        "hrm_text",
        None,
        SIZES | PLAIN | {"num_hidden_layers": 2, "H_cycles": 2, "L_cycles": 2},
        ["decoder, 12 layers"],
    ),
]
"""Encoders, biases, and the parts of encoder-decoders: keys, and words of what is said."""


@pytest.mark.parametrize(("name", "part", "given", "expected"), PARTS)
def test_encoders_and_decoders_are_asked(
    name: str, part: str | None, given: dict[str, Any], expected: list[str]
) -> None:
    said = repr(scheme_from_config(CONFIG_MAPPING[name](**given), part))
    assert all(words in said for words in expected), said


@pytest.mark.parametrize("name", NEW)
def test_a_family_that_is_not_in_the_table_is_asked(name: str) -> None:
    given, words = NEW[name]
    config = CONFIG_MAPPING[name](**SIZES | given)
    said = scheme_from_config(config)
    assert words in repr(said)
    assert "found by asking transformers' code" in said.remarks[0]
    assert disagreements(config, said) == []


SHORT_TEXT = {"original_max_position_embeddings": 64}
LISTS = {"short_factor": LONG, "long_factor": LONG[::-1]}
SCALED: list[tuple[str, dict[str, Any], str]] = [
    (
        "exaone",
        {"rope_parameters": YARN},
        "RoPE, base 20000, all 12 channels, half layout, YaRN(factor=4.0",
    ),
    ("exaone", rope("llama3", 5e5, **LLAMA3), "Llama3(factor=8.0, original_length=256)"),
    (
        "exaone",
        rope("linear", 7e3, factor=3.0),
        "all 12 channels, half layout, PositionInterpolation(factor=3.0)",
    ),
    ("exaone", rope("dynamic", 7e3, factor=2.0), "DynamicNTK(factor=2.0, original_length=4096)"),
    (
        "phi4_multimodal",
        SHORT_TEXT | rope("longrope", 3e4, **LISTS),
        "LongRoPE(short",
    ),
    ("minicpm3", LATENTS | {"rope_parameters": MSCALE}, "mscale=1.0, mscale_all_dim=1.0), whole text, scale 0.314442"),
]
"""Scalings that are named, those by length too, for families that are asked."""


@pytest.mark.parametrize(("name", "given", "words"), SCALED)
def test_scalings_are_named(name: str, given: dict[str, Any], words: str) -> None:
    assert words in repr(scheme_from_config(SIZES | {"num_hidden_layers": 2, "model_type": name} | given))


CASES: list[tuple[str, dict[str, Any], str]] = [
    (
        "mamba",
        {},
        "of mamba could not be read from its model's code: it has no attention modules",
    ),
    ("rwkv", {}, "RwkvSelfAttention neither calls transformers' attention functions nor takes a softmax"),
    ("layoutlmv3", {}, "in layer 0 a bias is added to its scores, which is none of T5, Inkling and Transformer-XL"),
    ("swin", {}, "each window of patches has another mask or bias, as shifted windows do, which is not read"),
    ("longformer", {}, "LongformerSelfAttention multiplies queries and keys in a way that posenc does not recognise"),
    ("deberta", SIZES | {"relative_attention": True, "pos_att_type": ["c2p"]}, "in layer 0 a bias is added to its sco"),
    (
        "xlnet",
        {"n_layer": 2},
        "XLNetRelativeAttention multiplies queries and keys in a way that posenc does not recognise",
    ),
    ("nystromformer", SIZES, "a convolution over tokens is in its attention"),
    ("big_bird", {}, "while it ran its model put BigBirdSelfAttention in place of its attention"),
    ("yolos", PIXELS | {"image_size": [24, 24]}, "positions are added to its tokens 3 times"),
    ("canary_decoder", {}, "what its model adds to its input are no sinusoids in an order that is known"),
    (
        "qwen4_exp_text",
        SIZES | {"layer_types": ["full_attention"] * 4},
        "in Qwen4ExpTextQSAIndexer.__init__: .*, and the configuration has no indexer_n_heads, indexer_kv_heads, ",
    ),
    (
        "qwen4_exp_text",
        SIZES | OF_QWEN4 | {"layer_types": ["full_attention"] * 4},
        "in layer 0 attention makes a mask of its own, and by indexer_n_heads in its configuration more keys",
    ),
    ("roberta", SIZES | {"pad_token_id": None}, "roberta needs the key 'pad_token_id', got none"),
    ("roberta", SIZES | {"pad_token_id": -5}, "roberta's pad_token_id must be a whole number of at least 0, got -5"),
    ("esm", SIZES | {"vocab_size": 33, "pad_token_id": None}, "esm needs the key 'pad_token_id', got none"),
    (
        "esm",
        SIZES | {"vocab_size": 33, "pad_token_id": 1, "position_embedding_type": "relative_key"},
        "esm has the key 'position_embedding_type' = 'relative_key', which is about positions, and esm does not",
    ),
    (
        "gpt_neo",
        NEO | {"max_position_embeddings": 8192},
        "its transformer.h.0.attn.attention.bias must have at most 2.24 numbers, got 1 x 1 x 8192 x 8192",
    ),
    ("speecht5", {}, "its masks must be of at most 2.26 pairs of tokens, got 64080 x 64080"),
    ("blt", {}, "BltCrossAttention gets 34 queries for 16 tokens: not all of its queries are tok"),
    (
        "doge",
        SIZES,
        "in layer 0 attention makes a mask of its own, and by keep_window_size in its configuration more keys",
    ),
    ("gemma4_text", SIZES | {"num_kv_shared_layers": 4}, "take keys and values of another model: num_kv_shared_l"),
    ("nanochat", {"num_hidden_layers": 600}, "its num_hidden_layers must be within 1..512, got 600"),
    (
        "nanochat",
        {"max_position_embeddings": 2**25},
        "its max_position_embeddings must be within 2..16777216, got 33554432",
    ),
    ("nanochat", {"max_position_embeddings": 1}, "its max_position_embeddings must be within 2..16777216, got 1"),
    ("nanochat", {"hidden_size": 2**20}, "its hidden_size must be within 0..32768, got 1048576"),
    (
        "nanochat",
        {"use_alibi": True},
        "nanochat has the key 'use_alibi' = True, which is about positions, and nanochat",
    ),
]


@pytest.mark.parametrize(("name", "given", "message"), CASES, ids=[f"{row[0]} {n}" for n, row in enumerate(CASES)])
def test_what_does_not_fit_is_refused_with_what_was_seen(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheme_from_config({"model_type": name} | given)


def _far(x: torch.Tensor) -> torch.Tensor:
    line = torch.arange(x.size(-1))
    return (line[:, None] - line).abs()


def _added_to_nothing(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    none = torch.full((*q.shape[1:3], k.size(2)), math.nan)  # as memory that was not written
    return torch.baddbmm(none, q[0], k[0].mT, beta=0)[None]


BIAS, UNSEEN = (
    "in layer 0 a bias is added to its scores",
    "RemBertSelfAttention multiplies queries and keys in a way that posenc",
)
PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, ""),
    "nothing, with a summand of 0 times no number": ({"product": _added_to_nothing}, ""),
    "relu of scores": ({"before": torch.relu}, BIAS),
    "their size": ({"before": torch.abs}, BIAS),
    "scores of at most 2": ({"before": lambda s: s.clamp(max=2)}, BIAS),
    "a bias in every other layer, which is not seen": (
        {"before": lambda s: s - 0.1 * _far(s), "product": lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k)},
        UNSEEN,
    ),
    "fewer weights after the softmax": ({"after": lambda p: p * 0.9 ** _far(p)}, "changes its weights after the softm"),
    "a softmax over queries": ({"dim": -2}, UNSEEN),
    "two softmaxes": ({"again": lambda p: nn.functional.softmax(p, -1)}, UNSEEN),
    "longer queries": (
        {"longer": lambda q: q * q.norm()},
        "layer 0 makes its query from its linear layers in a way that",
    ),
}
"""What attention with code of its own may do besides, and why it is refused."""


@pytest.mark.parametrize("name", PLANTED)
def test_what_own_code_does_besides_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    does, message = PLANTED[name]

    class Planted(rembert.RemBertSelfAttention):
        count = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            Planted.count += 1
            self.odd = Planted.count % 2 == 0

        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            def changed(step: str, x: torch.Tensor) -> torch.Tensor:
                return does[step](x) if step in does and (self.odd or "product" not in does) else x

            layers, shape = (self.query, self.key, self.value), (*hidden_states.shape[:2], self.num_attention_heads, -1)
            q, k, v = (layer(hidden_states).view(shape).transpose(1, 2) for layer in layers)
            q = changed("longer", q)
            scores = does["product"](q, k) if self.odd and "product" in does else torch.matmul(q, k.mT)
            scores = changed("before", scores / q.size(-1) ** 0.5)
            weights = changed("after", nn.functional.softmax(scores, dim=does.get("dim", -1)))
            given = torch.matmul(weights, v).transpose(1, 2).reshape(hidden_states.shape)
            changed("again", weights)
            return given, None

    Planted.__module__, Planted.__name__ = rembert.__name__, "RemBertSelfAttention"
    monkeypatch.setattr(rembert, "RemBertSelfAttention", Planted)
    given = {"model_type": "rembert", "input_embedding_size": 20} | SIZES
    if not message:
        assert "layers 0-3: NoPE, whole text\n" in repr(scheme_from_config(given))
        return
    with pytest.raises(ValueError, match=message):
        scheme_from_config(given)


@pytest.mark.parametrize(
    "change",
    [lambda x: x * 1.001, lambda x: x.mT, lambda x: x.roll(1, 1)],
    ids=["more", "the other way", "another head"],
)
def test_a_bias_that_is_not_transformer_xls_is_seen(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = conformer._apply_relative_position_encoding

    def wrong(*args: Any) -> Any:
        query, bias = encode(*args)
        return query, change(bias)

    monkeypatch.setattr(conformer, "_apply_relative_position_encoding", wrong)
    with pytest.raises(
        ValueError, match="a bias is added to its scores, which is none of T5, Inkling and Transformer-XL"
    ):
        scheme_from_config({"model_type": "wav2vec2-conformer"} | CONFORMER)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 11, 12, 20])
def test_all_rows_of_a_mask_without_a_rule_are_seen(size: int) -> None:
    line = torch.arange(64)
    far, blocks = line[:, None] - line, line[:, None] // size - line // size

    def seen(mask: torch.Tensor) -> Any:
        return _window(mask[None, None] & (far >= 0), SimpleNamespace(), is_causal=True)

    assert seen(far < size) == (size, True)
    assert seen(blocks == 0) == (Chunk(size), True)
    with pytest.raises(ValueError, match="which is neither a window nor a chunk"):
        seen(blocks <= 1)  # that of the query and the one before


WRONG: dict[str, RoPE] = {
    "another base": RoPE(12, 3.1e4),
    "another layout": RoPE(12, 3e4, "interleaved"),
    "fewer channels": RoPE(12, 3e4, rotary_dim=10),
    "the other way": RoPE(12, 3e4, scaling=Frequencies(tuple(-(3e4 ** (-k / 6)) for k in range(6)))),
    "a factor": RoPE(12, 3e4, scaling=Frequencies(tuple(3e4 ** (-k / 6) for k in range(6)), 1.1)),
    "turned by parts in a thousand more": RoPE(12, 3e4, scaling=lambda theta: (theta * 1.001, 1.0)),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_scheme_than_the_model_has_is_seen(name: str) -> None:
    asked = Asked(config_of("llama", head_dim=12, **rope("default", 3e4)))
    asked.reset(3)
    places = torch.tensor([0, 2, 9, 400])
    call = asked(places).calls[0]
    _verify(RoPE(12, 3e4), call, call, places)
    with pytest.raises(ValueError, match=r"at position \d+ are not those of RoPE"):
        _verify(WRONG[name], call, call, places)


def test_sinusoids_in_another_order_are_seen() -> None:
    table = Sinusoidal(8).table(Positions.arange(20), dtype=torch.float64)[0]
    assert repr(sinusoids_of("embed", table[:7], table, None)) == repr(Sinusoidal(8))
    wrong = torch.cat((table[:19], table[:1]))
    for added, rows in ((table.flip(1), None), (table[:7], wrong)):
        with pytest.raises(ValueError, match="what embed adds to its input are no sinusoids in an order that is known"):
            sinusoids_of("embed", added, rows, 0)


def test_asking_leaves_nothing_behind() -> None:
    before = torch.random.get_rng_state(), torch.get_default_dtype()
    config = config_of("llama")
    said = config.to_dict()
    positions_by_asking(Keys(config))
    assert NAME not in AttentionInterface().valid_keys() + AttentionMaskInterface().valid_keys()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.get_default_dtype() == before[1]
    assert config.to_dict() == said


def test_frequencies_are_for_as_many_pairs() -> None:
    with pytest.raises(ValueError, match="Frequencies must be of 6 pairs, got 2"):
        RoPE(12, scaling=Frequencies((1.0, 0.5))).frequencies()
