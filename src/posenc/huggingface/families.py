"""Reads the configuration of each family: a table of model_types, whose readers read every key about positions.

Each reader follows the family's code in transformers 5.23: `configuration_X.py` for the meaning of keys and
`modeling_X.py` for their use. Where these differ, the model's code decides, and a key that it ignores is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from posenc.arguments import whole
from posenc.huggingface import rotating_families as rotating
from posenc.huggingface.described import Layer, ModelPositions
from posenc.huggingface.keys import Keys, check_sizes, check_table
from posenc.huggingface.reading import FULL, RECURRENT, SLIDING, described, head_dim_of, scaled, silent
from posenc.huggingface.rope_parameters import rotary
from posenc.huggingface.rotating_families import NOT_BOTH_WAYS, Rotating
from posenc.huggingface.variants import DividedALiBi, OffsetLearned, OffsetSinusoidal
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE
from posenc.schemes.sinusoidal import Sinusoidal
from posenc.schemes.swin_v2 import SwinV2
from posenc.schemes.t5 import T5

Reader = Callable[[Keys], ModelPositions]


# -- learned tables ---------------------------------------------------------------------------------------------------


def _table(keys: Keys, rows: int, dim: int, before: int = 0) -> Learned:
    """A learned table, of which the rows ``before`` are not of positions."""
    check_table(keys.model_type, rows * dim)
    return OffsetLearned(rows, dim, before) if before else Learned(rows, dim)


def gpt2(keys: Keys) -> ModelPositions:
    table = _table(keys, keys.whole("max_position_embeddings"), keys.whole("hidden_size"))
    head_dim, count = head_dim_of(keys), keys.whole("num_hidden_layers")
    scale = head_dim**-0.5 if keys.flag("scale_attn_weights") else 1.0
    by_layer = keys.flag("scale_attn_by_inverse_layer_idx")
    scales = [scale / (layer + 1) if by_layer else scale for layer in range(count)]
    layers = [Layer(scale=scaled(scale, head_dim)) for scale in scales]
    return described(keys, NoPE(), None, layers, input=table)


def opt(keys: Keys) -> ModelPositions:
    table = _table(keys, keys.whole("max_position_embeddings") + 2, keys.whole("hidden_size"), 2)
    return described(keys, NoPE(), input=table)


def bert(keys: Keys, dim: str = "hidden_size", inert: tuple[str, ...] = ()) -> ModelPositions:
    for name in inert:
        keys.get(name)
    return _encoder(keys, _table(keys, keys.whole("max_position_embeddings"), keys.whole(dim)))


def roberta(keys: Keys) -> ModelPositions:
    return _encoder(keys, _after_padding(keys))


def _after_padding(keys: Keys) -> Learned:
    """A table whose first position has the row after that of the padding token."""
    rows, padding = keys.whole("max_position_embeddings"), keys.whole("pad_token_id", 0)
    return _table(keys, rows, keys.whole("hidden_size"), padding + 1)


def _encoder(keys: Keys, table: Scheme) -> ModelPositions:
    keys.refuse("position_embedding_type", "absolute", why="must be 'absolute', which is all that transformers 5 has")
    return described(keys, NoPE(), input=table, causal=keys.flag("is_decoder"))


def esm(keys: Keys) -> ModelPositions:
    base = keys.number("rope_theta")  # present by default
    if keys.get("position_embedding_type") != "rotary":
        return roberta(keys)
    return described(keys, RoPE(head_dim_of(keys), base), causal=keys.flag("is_decoder"))


def vit(keys: Keys, prefix: int = 1) -> ModelPositions:
    """A table for the patches of an image, after ``prefix`` tokens that are none."""
    side = [keys.whole(name) for name in ("image_size", "patch_size")]
    table = _table(keys, prefix + (side[0] // side[1]) ** 2, keys.whole("hidden_size"))
    return described(keys, NoPE(), input=table, causal=False, length=table.max_positions)


# -- sinusoids --------------------------------------------------------------------------------------------------------


def whisper(keys: Keys) -> ModelPositions:
    """Sinusoids in the encoder, and a learned table in the decoder."""
    sides = {"encoder": "source", "decoder": "target"}
    lengths = {stack: keys.whole(f"max_{side}_positions") for stack, side in sides.items()}
    dim, stack = keys.whole("hidden_size"), keys.inside or "encoder"
    table = _table(keys, lengths[stack], dim) if stack == "decoder" else Sinusoidal(dim, layout="tensor2tensor")
    return _of_stack(keys, table, lengths[stack])


def m2m_100(keys: Keys) -> ModelPositions:
    """The same sinusoids in both stacks, of which the first position is the one after that of padding."""
    table = OffsetSinusoidal(keys.whole("hidden_size"), keys.whole("pad_token_id", 0) + 1)
    return _of_stack(keys, table, keys.whole("max_position_embeddings"))


def _of_stack(keys: Keys, table: Scheme, length: int) -> ModelPositions:
    """The encoder or the decoder of a model of two, which adds a table to its input."""
    decodes = keys.inside == "decoder"
    layers = [Layer()] * keys.whole("decoder_layers" if decodes else "encoder_layers")
    remarks = ("attention of the decoder to the encoder has no positions",) if decodes else ()
    return described(keys, NoPE(), None, layers, input=table, causal=decodes, length=length, remarks=remarks)


# -- biases -----------------------------------------------------------------------------------------------------------


def t5(keys: Keys) -> ModelPositions:
    heads, buckets = keys.whole("num_attention_heads"), keys.whole("relative_attention_num_buckets")
    decodes = keys.inside == "decoder"
    bias = T5(heads, buckets, keys.whole("relative_attention_max_distance"), bidirectional=not decodes)
    count = keys.whole("num_decoder_layers" if decodes else "num_hidden_layers")
    remarks: tuple[str, ...] = ("attention of the decoder to the encoder has no positions",) if decodes else ()
    remarks += silent(keys, "n_positions")
    return described(keys, bias, None, [Layer(scale=1.0)] * count, causal=decodes, length=None, remarks=remarks)


def bloom(keys: Keys) -> ModelPositions:
    remark = "transformers counts positions by attention_mask, and takes no position_ids"
    return described(keys, ALiBi(keys.whole("num_attention_heads")), remarks=(remark, *silent(keys, "offset_alibi")))


def mpt(keys: Keys) -> ModelPositions:
    if not hasattr(keys("attn_config"), "to_dict"):
        raise keys.wrong("attn_config", "must be a configuration")
    own = Keys(_Named(keys("attn_config"), "mpt's attn_config"))
    own.refuse("alibi", True, why="must be true, since transformers' model always has ALiBi")
    own.refuse("alibi_bias_max", 8, why="must be 8, since transformers' model ignores it")
    for name in ("prefix_lm", "attn_uses_sequence_id"):
        own.refuse(name, False, why="must be false, since transformers' model ignores it")
    scale = own.optional("softmax_scale")
    keys.get("learned_pos_emb")  # true by default, but the model has no table
    own.end()
    head_dim = keys.whole("hidden_size") // keys.whole("num_attention_heads")
    layer = Layer(scale=None if scale is None else scaled(scale, head_dim))
    remark = "transformers counts positions from the last key, and takes no position_ids"
    scheme, length = ALiBi(keys.whole("num_attention_heads")), keys.get("max_seq_len")
    return described(keys, scheme, None, layer, length=length, remarks=(remark,))


class _Named:
    """A nested configuration, with its location as its name in errors."""

    def __init__(self, config: Any, name: str) -> None:
        self.__dict__.update({k: v for k, v in vars(config).items() if not k.startswith("_")})
        self.model_type = name


def falcon(keys: Keys) -> ModelPositions:
    head_dim = keys.whole("hidden_size") // keys.whole("num_attention_heads")
    if keys.flag("alibi"):
        keys.get("rope_parameters")  # present by default, and not used
        remarks = (
            "transformers rounds the bias to bfloat16, and counts positions by attention_mask",
            "rope_parameters are not used",
        )
        return described(keys, DividedALiBi(keys.whole("num_attention_heads"), head_dim), remarks=remarks)
    return described(keys, rotary(keys, head_dim))


def swinv2(keys: Keys) -> ModelPositions:
    keys.refuse("use_absolute_embeddings", False, why="must be false: tables for the whole image are not read")
    image, patch, widest = (keys.whole(name) for name in ("image_size", "patch_size", "window_size"))
    depths, heads, trained = (keys.list(name) for name in ("depths", "num_heads", "pretrained_window_sizes"))
    if not len(depths) == len(heads) == len(trained):
        raise keys.wrong("depths", "must have as many entries as num_heads and pretrained_window_sizes")
    for name, least, values in (
        ("depths", 1, depths),
        ("num_heads", 1, heads),
        ("pretrained_window_sizes", 0, trained),
    ):
        for value in values:
            whole(f"each of {keys.model_type}'s {name}", value, least)
    check_sizes(f"{keys.model_type}'s layers", sum(depths))
    schemes: list[Scheme] = []
    layers: list[Layer] = []
    for stage, depth in enumerate(depths):
        side = image // patch // 2**stage
        window, before = min(side, widest), trained[stage]
        for layer in range(depth):
            schemes.append(SwinV2((window, window), heads[stage], (before, before) if before > 0 else None))
            layers.append(Layer(patches=window, shift=widest // 2 if side > window and layer % 2 else 0))
    remark = f"of {image // patch} x {image // patch} patches, halved by every stage; each layer has its own weights"
    return described(keys, schemes, None, layers, causal=False, length=None, remarks=(remark,))


TYPES = (FULL, SLIDING)
MIXED = (FULL, *RECURRENT)

FAMILIES: tuple[tuple[str, Reader], ...] = (
    # a learned table
    ("bert ernie megatron-bert", bert),
    ("camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl", roberta),
    ("distilbert", partial(bert, inert=("sinusoidal_pos_embds",))),  # of the initial weights
    ("electra", partial(bert, dim="embedding_size")),
    ("esm", esm),
    ("gpt2", gpt2),
    ("opt", opt),
    ("clip_vision_model dinov2 vit", vit),
    ("deit", partial(vit, prefix=2)),
    ("siglip_vision_model", partial(vit, prefix=0)),
    # sinusoids
    ("whisper", whisper),
    ("m2m_100 nllb-moe", m2m_100),
    # a bias
    ("bloom", bloom),
    ("falcon", falcon),
    ("mpt", mpt),
    ("swinv2", swinv2),
    ("t5", t5),
    # a rotation, the same in all layers
    ("apertus arcee aria_text bitnet flex_olmo hy_v3 internlm3 iquestcoder jais2 jetmoe llama", Rotating()),
    ("olmo olmo2 olmoe seed_oss solar_open", Rotating()),
    ("gemma", Rotating(only=NOT_BOTH_WAYS)),
    ("eurobert gte jina_embeddings_v3 nomic_bert", Rotating(is_causal=False)),
    ("hunyuan_v1_dense hunyuan_v1_moe", Rotating(rope=rotating.of_hunyuan)),
    ("cohere ernie4_5 ernie4_5_moe helium", Rotating(layout="interleaved")),
    ("glm glm4", Rotating(layout="interleaved", partial=True)),
    ("glm4_moe gpt_neox minimax_m2 nemotron persimmon phi stablelm", Rotating(partial=True)),
    ("granite granitemoe granitemoeshared hyperclovax", Rotating(layer=rotating.multiplied)),
    ("mistral mixtral starcoder2", Rotating(windowed=True)),
    ("qwen3_moe", Rotating(windowed=True, check=rotating.uses_window)),
    ("qwen3_vl_moe_text qwen3_vl_text", Rotating(rope=rotating.interleaved([24, 20, 20]))),
    ("axk1 deepseek_v2 deepseek_v3 glm4_moe_lite mistral4 youtu", rotating.deepseek),
    ("dinov3_vit", rotating.dinov3),
    ("gptj", rotating.gptj),
    ("ministral3", Rotating(windowed=True, rope=rotating.with_scaled_queries)),
    ("phi3", rotating.phi3),
    # layers of several types
    ("cwm ministral", Rotating(kinds=TYPES)),
    ("dots1 qwen2 qwen3", Rotating(kinds=TYPES, check=rotating.later_slide)),
    ("qwen2_moe", Rotating(kinds=TYPES, check=rotating.every_other)),
    ("qwen2_5_vl_text qwen2_vl_text", Rotating(kinds=TYPES, rope=rotating.in_sections, check=rotating.later_slide)),
    ("gpt_oss", Rotating(kinds=TYPES, layer=rotating.with_sinks)),
    ("gemma2", Rotating(kinds=TYPES, layer=rotating.of_gemma, check=rotating.other_size, only=NOT_BOTH_WAYS)),
    ("vaultgemma", Rotating(kinds=TYPES, layer=rotating.of_gemma, only=NOT_BOTH_WAYS)),
    ("gemma3_text", rotating.gemma3),
    ("gemma3n_text", Rotating(kinds=TYPES, by_kind=True, layer=rotating.unscaled)),
    ("gemma4_text", rotating.gemma4),
    ("mellum olmo3", Rotating(kinds=TYPES, by_kind=True)),
    ("modernbert", rotating.modernbert),
    (
        "modernbert-decoder",
        Rotating(kinds=TYPES, by_kind=True, check=rotating.first_is_full, inert=("local_attention",)),
    ),
    ("afmoe", Rotating(kinds=TYPES, rests=lambda keys: True, check=rotating.global_is_full)),
    (
        "exaone4 exaone_moe",
        Rotating(kinds=TYPES, rests=lambda keys: keys.get("sliding_window") is not None, check=rotating.last_is_full),
    ),
    (
        "cohere2",
        Rotating(
            kinds=TYPES,
            rests=lambda keys: True,
            check=rotating.last_is_full,
            layout="interleaved",
            only={
                "position_embedding_type": ("rope_gptj", "must be 'rope_gptj', the only one that the model has"),
                "rotary_pct": (1.0, "must be 1, since cohere2 rotates all channels"),
            },
        ),
    ),
    ("llama4_text", rotating.llama4),
    ("smollm3", rotating.smollm3),
    ("lfm2 lfm2_moe", Rotating(kinds=MIXED, check=rotating.same_base)),
    ("olmo_hybrid", Rotating(kinds=MIXED)),
    ("minimax", Rotating(kinds=MIXED, windowed=True)),
    ("bamba qwen3_next", Rotating(kinds=MIXED, partial=True)),
    ("granitemoehybrid", Rotating(kinds=MIXED, rope=rotating.of_granite_hybrid, layer=rotating.multiplied)),
    ("qwen3_5_moe_text qwen3_5_text", Rotating(kinds=MIXED, rope=rotating.interleaved([11, 11, 10], partial=True))),
)

READERS: dict[str, Reader] = {name: reader for names, reader in FAMILIES for name in names.split()}
"""The reader of each model_type."""
