"""Reads the configuration of each family: a table of model_types, whose readers read every key about positions.
`Rotating` says how a family that rotates differs from Llama; a function reads one that differs in more.

Each reader follows the family's code in transformers 5.23: `configuration_X.py` for the meaning of keys and
`modeling_X.py` for their use. Where these differ, the model's code decides, and a key that it ignores is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from posenc.arguments import shown, whole
from posenc.huggingface.reading import (
    CHUNKED,
    FULL,
    NUMBERS,
    PLAIN,
    RECURRENT,
    SLIDING,
    Keys,
    Layer,
    ModelPositions,
    check_pattern,
    check_sizes,
    head_dim_of,
    kinds_of,
    rotary,
    scaled,
    silent,
    summarize_model,
    windows_of,
)
from posenc.huggingface.variants import DividedALiBi, OffsetLearned, OffsetSinusoidal
from posenc.positions.tiles import Chunk, Window
from posenc.rotation import scalings
from posenc.rotation.phases import PairLayout
from posenc.rotation.scalings import NTKAware
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.axial_rope import AxialRoPE
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.query_scale import QueryScale
from posenc.schemes.rope import RoPE
from posenc.schemes.sinusoidal import Sinusoidal
from posenc.schemes.swin_v2 import SwinV2
from posenc.schemes.t5 import T5

Rope = Callable[[Keys, int], Scheme]
"""A rotation read in its own way, from the configuration and head_dim."""

NOT_BOTH_WAYS: Mapping[str, tuple[Any, str]] = {
    "use_bidirectional_attention": (False, "must be false: only causal attention is read")
}


@dataclass(frozen=True)
class Rotating:
    """How a family differs from Llama, whose layers all rotate all channels, in pairs k and k + d/2, and attend to the
    whole text before.

    - ``layout``: the pairs; ``partial``: partial_rotary_factor is read; ``rope`` reads the rotation instead;
    - ``windowed``: all layers have the window sliding_window; ``kinds``: the values of layer_types, of which those of
      sliding attention have it, and those without attention are left out of the schedule;
    - ``by_kind``: rope_parameters are keyed by layer type; ``rests``: whether only layers with a window rotate;
    - ``layer``: what else a layer has; ``is_causal``;
    - ``check``: raises ValueError for keys that contradict layer_types; ``only``: keys of which one value is read, with
      the reason; ``inert``: keys from which transformers has made others.
    """

    layout: PairLayout = "half"
    partial: bool = False
    rope: Rope | None = None
    windowed: bool = False
    kinds: tuple[str, ...] = ()
    by_kind: bool = False
    rests: Callable[[Keys], bool] = lambda keys: False
    layer: Callable[[Keys, int], Layer] = lambda keys, head_dim: PLAIN
    is_causal: bool = True
    check: Callable[[Keys, list[str]], None] = lambda keys, kinds: None
    only: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    inert: tuple[str, ...] = ()

    def __call__(self, keys: Keys) -> ModelPositions:
        """The positions of a configuration."""
        for name, (value, why) in self.only.items():
            keys.refuse(name, value, why=why)
        head_dim = head_dim_of(keys)
        kinds = kinds_of(keys, *self.kinds) if self.kinds else [FULL] * keys.whole("num_hidden_layers")
        self.check(keys, kinds)
        for name in self.inert:
            keys.get(name)
        remarks: tuple[str, ...] = ()
        if bare := [n for n, kind in enumerate(kinds) if kind in RECURRENT]:
            remarks = (f"layers {ranges(bare)} of {len(kinds)} have no attention, and are not counted above",)
        kinds = [kind for kind in kinds if kind not in RECURRENT]
        slide = [SLIDING if self.windowed and keys.get("sliding_window") is not None else kind for kind in kinds]
        windows = windows_of(keys, slide) if self.windowed or SLIDING in self.kinds else None
        schemes = self._schemes(keys, kinds, head_dim)
        return summarize_model(
            keys, schemes, windows, self.layer(keys, head_dim), causal=self.is_causal, remarks=remarks
        )

    def _schemes(self, keys: Keys, kinds: list[str], head_dim: int) -> list[Scheme]:
        if self.by_kind:
            return by_kind(keys, kinds, lambda kind: self._read(keys, head_dim, kind))
        rope, nope, rests = self._read(keys, head_dim, None), NoPE(), self.rests(keys)
        return [nope if rests and kind == FULL else rope for kind in kinds]

    def _read(self, keys: Keys, head_dim: int, kind: str | None) -> Scheme:
        if self.rope is not None:
            return self.rope(keys, head_dim)
        rope = rotary(keys, head_dim, of_type=kind, partial=self.partial, layout=self.layout)
        if self.partial:  # an older name of the share
            keys.refuse("rotary_dim", rope.rotary_dim, why=f"contradicts partial_rotary_factor, {rope.rotary_dim}")
        return rope


def by_kind(keys: Keys, kinds: list[str], read: Callable[[str], Scheme]) -> list[Scheme]:
    """The scheme of each layer, from rope_parameters that are keyed by layer type."""
    unknown = [name for name in keys.parameters().params if name not in (FULL, SLIDING)]
    if unknown:
        raise ValueError(
            f"{keys.model_type}'s rope_parameters must be keyed by {FULL} and {SLIDING}, got the key {unknown[0]!r}"
        )
    made = {kind: read(kind) for kind in sorted(set(kinds))}
    return [made[kind] for kind in kinds]


# -- what layers have -------------------------------------------------------------------------------------------------


def multiplied(keys: Keys, head_dim: int) -> Layer:
    """Granite's attention_multiplier, instead of 1/sqrt(head_dim)."""
    return Layer(scale=scaled(keys.number("attention_multiplier"), head_dim))


def of_gemma(keys: Keys, head_dim: int) -> Layer:
    """A scale and a softcap. In a model with images, tokens of one image attend to each other in both directions."""
    scale = scaled(keys.number("query_pre_attn_scalar") ** -0.5, head_dim)
    cap = keys.optional("attn_logit_softcapping")
    return Layer(scale=scale, softcap=cap, images=keys.inside in ("gemma3", "shieldgemma2"))


# -- keys from which transformers derives layer_types -----------------------------------------------------------------


def every(name: str, first: bool = False, is_word: bool = False) -> Callable[[Keys, list[str]], None]:
    """Of every so many layers the last, or the first, attends to the whole text. ``is_word``: EXAONE has words such as
    LLLG too, of local and global layers, beside layer_types."""

    def check(keys: Keys, kinds: list[str]) -> None:
        if not is_word or (SLIDING in kinds and not isinstance(keys.get(name), str)):
            check_pattern(keys, name, kinds, lambda layer, n: SLIDING if (layer + (not first)) % n else FULL)
        keys.get(name)

    return check


last_is_full = every("sliding_window_pattern", is_word=True)
global_is_full = every("global_attn_every_n_layers")
first_is_full = every("global_attn_every_n_layers", first=True)


def if_used(expected: Callable[[int, int], str]) -> Callable[[Keys, list[str]], None]:
    """Qwen's max_window_layers, which says which layers have a window if use_sliding_window."""

    def check(keys: Keys, kinds: list[str]) -> None:
        if keys.flag("use_sliding_window"):
            check_pattern(keys, "max_window_layers", kinds, expected, least=0)
        keys.get("max_window_layers")  # inert, if nothing slides

    return check


later_slide = if_used(lambda layer, n: SLIDING if layer >= n else FULL)
every_other = if_used(lambda layer, n: FULL if layer % 2 or layer >= n else SLIDING)


def uses_window(keys: Keys, kinds: list[str]) -> None:
    """transformers has taken the window away where use_sliding_window is false."""
    if not keys.flag("use_sliding_window"):
        keys.refuse("sliding_window", why="must be none, since use_sliding_window is false")
    keys.get("max_window_layers")  # of published configurations: all layers have the window


def same_base(keys: Keys, kinds: list[str]) -> None:
    """An older name of rope_theta."""
    keys.refuse("theta", keys.parameters().get("rope_theta"), why="contradicts rope_theta")


def other_size(keys: Keys, kinds: list[str]) -> None:
    """An older name of sliding_window."""
    window = keys.get("sliding_window")
    keys.refuse("sliding_window_size", window, why=f"contradicts sliding_window {window}")


# -- rotations --------------------------------------------------------------------------------------------------------


def of_hunyuan(keys: Keys, head_dim: int) -> RoPE:
    """With ``alpha``, "dynamic" is NTK-aware by alpha at every length, and its other entries are not read."""
    read = keys.parameters()
    if read.get("alpha") is None or read.kind({}) != "dynamic":
        return rotary(keys, head_dim)
    unread = ("alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    rope = rotary(keys, head_dim, also=unread, aliases={"dynamic": "default"})
    rope.scaling = NTKAware(read.number("alpha"))
    return rope


def of_granite_hybrid(keys: Keys, head_dim: int) -> Scheme:
    """No rotation unless position_embedding_type is "rope"."""
    keys.refuse("position_embedding_type", "rope", "nope", why="must be 'rope' or 'nope'")
    keys.get("rope_parameters")  # present by default
    return rotary(keys, head_dim) if keys.get("position_embedding_type") == "rope" else NoPE()


def in_sections(keys: Keys, head_dim: int) -> RoPE:
    """Qwen2-VL: the first pairs by time, then by height, then by width."""
    sections = _sections(keys, [16, 24, 24], head_dim // 2)
    allocation = [axis % 3 for axis, pairs in enumerate(sections) for _ in range(pairs)]
    return rotary(keys, head_dim, allocation=allocation, axes=3, also=("mrope_section",), aliases={"mrope": "default"})


def interleaved(default: list[int], partial: bool = False) -> Rope:
    """Qwen3-VL: pairs by time, height and width in turn."""

    def read(keys: Keys, head_dim: int) -> RoPE:
        params = keys.parameters()
        pairs = int(head_dim * params.number("partial_rotary_factor", 1.0) if partial else head_dim) // 2
        sections = _sections(keys, default, pairs)
        if params.get("mrope_interleaved") not in (None, True):
            raise params.wrong("mrope_interleaved", "must be true, since the model always interleaves")
        allocation = [0] * pairs
        for axis in (1, 2):
            for pair in range(axis, min(3 * sections[axis], pairs), 3):
                allocation[pair] = axis
        return rotary(
            keys,
            head_dim,
            partial=partial,
            allocation=allocation,
            axes=3,
            also=("mrope_section", "mrope_interleaved"),
            aliases={"mrope": "default"},
        )

    return read


def _sections(keys: Keys, default: list[int], pairs: int) -> list[int]:
    """The numbers of pairs that are rotated by time, height and width."""
    params = keys.parameters()
    found = params.get("mrope_section", default)
    is_list = isinstance(found, list | tuple) and all(type(each) is int and each >= 0 for each in found)
    if not is_list or len(found) != 3 or sum(found) != pairs:
        raise params.wrong("mrope_section", f"must be three numbers that add up to head_dim / 2 = {pairs}")
    return list(found)


# -- families with readers of their own -------------------------------------------------------------------------------


def phi3(keys: Keys) -> ModelPositions:
    # If this key is also outside rope_parameters, transformers uses the outer one.
    length, params = keys.get("original_max_position_embeddings"), keys.parameters()
    if params.get("rope_type") == "longrope" and length != params.get("original_max_position_embeddings"):
        raise keys.wrong("original_max_position_embeddings", "contradicts that of rope_parameters")
    rope = rotary(keys, head_dim_of(keys), partial=True, aliases={"su": "longrope", "yarn": "longrope"})
    remark = "transformers takes the long list for the whole batch as soon as one of its rows is long"
    remarks = () if rope.scaling is None else (remark,)
    window = None if keys.get("sliding_window") is None else keys.whole("sliding_window")
    return summarize_model(keys, rope, window, remarks=remarks)


def gptj(keys: Keys) -> ModelPositions:
    # Base and layout are in the code, not in the configuration.
    for name in ("rotary", "scale_attn_weights"):
        keys.refuse(name, True, why="must be true, since transformers' model ignores it")
    return summarize_model(keys, RoPE(head_dim_of(keys), 10_000.0, "interleaved", rotary_dim=keys.whole("rotary_dim")))


def deepseek(keys: Keys) -> ModelPositions:
    """V2 and V3, and models like them: MLA, with YaRN's mscale^2 in the scale of the scores. Mistral 4 also scales
    queries by position."""
    content, turned = keys.whole("qk_nope_head_dim"), keys.whole("qk_rope_head_dim")
    whole_head, is_mistral = content + turned, keys.model_type == "mistral4"
    keys.refuse("head_dim", whole_head if is_mistral else turned, why="contradicts qk_rope_head_dim")
    has_key = keys.model_type != "deepseek_v2"
    layout: PairLayout = "half" if has_key and not keys.flag("rope_interleave") else "interleaved"
    also = ("mscale_all_dim", *(BY_POSITION if is_mistral else ()))
    rope = rotary(
        keys, whole_head, layout=layout, rotary_dim=turned, first_channel=content, also=also, partial=is_mistral
    )
    if rope.rotary_dim != turned:
        raise keys.wrong("qk_rope_head_dim", f"must be {rope.rotary_dim} by partial_rotary_factor")
    scale, params = whole_head**-0.5, keys.parameters()
    if params.get("mscale_all_dim") and params.get("rope_type", "default") != "default":
        of_all, factor = params.number("mscale_all_dim"), params.number("factor")
        scale *= scalings.mscale(math.log(max(factor, 1.0)), of_all) ** 2
    scheme = rope + _by_position(keys) if is_mistral else rope
    return summarize_model(keys, scheme, None, Layer(scale=scaled(scale, whole_head)))


BY_POSITION = ("llama_4_scaling_beta", "max_position_embeddings")


def _by_position(keys: Keys) -> QueryScale:
    """The scale of queries by position in rope_parameters."""
    params, outer = keys.parameters(), keys("max_position_embeddings")
    missing = [name for name in (BY_POSITION[0], "original_max_position_embeddings") if params.get(name) is None]
    if missing:
        raise ValueError(
            f"{keys.model_type}'s rope_parameters must have {missing[0]!r}, by which queries are scaled, got "
            f"{sorted(map(str, params.params))}"
        )
    if params.get("max_position_embeddings") not in (None, outer):
        raise params.wrong("max_position_embeddings", f"contradicts max_position_embeddings {outer}")
    length, beta = params.whole("original_max_position_embeddings"), params.number("llama_4_scaling_beta")
    return QueryScale("ministral3", length=length, strength=beta)


def with_scaled_queries(keys: Keys, head_dim: int) -> Scheme:
    scale = _by_position(keys)
    return rotary(keys, head_dim, also=BY_POSITION) + scale


def llama4(keys: Keys) -> ModelPositions:
    kinds, turns = kinds_of(keys, FULL, CHUNKED), _turns(keys)
    rope = rotary(keys, head_dim_of(keys), layout="interleaved")
    still: Scheme = NoPE()
    strength, length = keys.number("attn_scale"), keys.whole("floor_scale")
    remarks: tuple[str, ...] = ()
    if keys.flag("attn_temperature_tuning"):
        still = QueryScale("llama4", length=length, strength=strength)
        remarks = ("transformers scales queries by the slot in the cache, not by position_ids",)
    if CHUNKED in kinds:
        remarks += ("transformers counts chunks by slots less left padding, not by position_ids",)
        if keys.get("attention_chunk_size") is None:
            raise keys.wrong("attention_chunk_size", f"must be a number of tokens, since layer_types has {CHUNKED!r}")
    keys.get("attention_chunk_size")
    windows: list[Window] = [Chunk(keys.whole("attention_chunk_size")) if kind == CHUNKED else None for kind in kinds]
    schemes: list[Scheme] = [rope if turn else still for turn in turns]
    return summarize_model(keys, schemes, windows, remarks=remarks)


def smollm3(keys: Keys) -> ModelPositions:
    kinds, rope, nope = kinds_of(keys, FULL, SLIDING), rotary(keys, head_dim_of(keys)), NoPE()
    schemes: list[Scheme] = [rope if turn else nope for turn in _turns(keys)]
    keys.flag("use_sliding_window")
    return summarize_model(keys, schemes, windows_of(keys, kinds), remarks=silent(keys, "max_window_layers"))


def _turns(keys: Keys) -> list[bool]:
    """no_rope_layers, where 1 means that the layer rotates."""
    marks, count = keys.list("no_rope_layers"), keys.whole("num_hidden_layers")
    if len(marks) != count or any(mark not in (0, 1) for mark in marks):
        raise keys.wrong("no_rope_layers", f"must be {count} numbers, 1 for layers that rotate")
    check_pattern(keys, "no_rope_layer_interval", marks, lambda layer, n: int((layer + 1) % n != 0))
    return [bool(mark) for mark in marks]


def gemma3(keys: Keys) -> ModelPositions:
    said = Rotating(kinds=(FULL, SLIDING), by_kind=True, layer=of_gemma, check=last_is_full)(keys)
    if not keys.flag("use_bidirectional_attention"):
        return said
    # transformers has halved the window: |i - j| < n
    both = [(scheme, (n - 1, n - 1) if isinstance(n, int) else None) for scheme, n in said.schedule]
    return replace(said, schedule=Schedule(both), causal=False)


def gemma4(keys: Keys) -> ModelPositions:
    kinds, config = kinds_of(keys, FULL, SLIDING), keys.config
    keys.refuse("use_bidirectional_attention", "vision", why="must be none or 'vision': only causal text is read")
    blocks = keys.inside == "gemma4" and keys.get("use_bidirectional_attention") == "vision"
    dims = {kind: int(config.per_layer_config[kind].head_dim) for kind in set(kinds)}
    schemes = by_kind(keys, kinds, lambda kind: rotary(keys, dims[kind], of_type=kind))
    layers = [Layer(scale=1.0, images=blocks and kind == SLIDING) for kind in kinds]
    return summarize_model(keys, schemes, windows_of(keys, kinds), layers)


def modernbert(keys: Keys) -> ModelPositions:
    kinds, head_dim = kinds_of(keys, FULL, SLIDING), head_dim_of(keys)
    first_is_full(keys, kinds)
    schemes = by_kind(keys, kinds, lambda kind: rotary(keys, head_dim, of_type=kind))
    side = keys.whole("local_attention") // 2  # tokens on each side
    windows: list[Window] = [(side, side) if kind == SLIDING else None for kind in kinds]
    return summarize_model(keys, schemes, windows, causal=False, remarks=silent(keys, "position_embedding_type"))


def dinov3(keys: Keys) -> ModelPositions:
    augmented = {name: keys.get(f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    rope = AxialRoPE(head_dim_of(keys), "dinov3", keys.number("rope_theta"), **augmented)
    prefix = 1 + (keys.whole("num_register_tokens", 0) if keys.get("num_register_tokens") is not None else 0)
    remark = f"the first {prefix} tokens are not rotated: positions are scheme.grid(height, width, prefix={prefix})"
    return summarize_model(keys, rope, causal=False, remarks=(remark,))


Reader = Callable[[Keys], ModelPositions]


# -- learned tables ---------------------------------------------------------------------------------------------------


def _table(keys: Keys, rows: int, dim: int, before: int = 0) -> Learned:
    """A learned table, of which the rows ``before`` are not of positions."""
    if rows * dim > NUMBERS:
        raise ValueError(
            f"the positions of {keys.model_type} must have at most {NUMBERS} learned numbers, got {shown(rows * dim)}"
        )
    return OffsetLearned(rows, dim, before) if before else Learned(rows, dim)


def gpt2(keys: Keys) -> ModelPositions:
    table = _table(keys, keys.whole("max_position_embeddings"), keys.whole("hidden_size"))
    head_dim, count = head_dim_of(keys), keys.whole("num_hidden_layers")
    scale = head_dim**-0.5 if keys.flag("scale_attn_weights") else 1.0
    by_layer = keys.flag("scale_attn_by_inverse_layer_idx")
    scales = [scale / (layer + 1) if by_layer else scale for layer in range(count)]
    layers = [Layer(scale=scaled(scale, head_dim)) for scale in scales]
    return summarize_model(keys, NoPE(), None, layers, input=table)


def opt(keys: Keys) -> ModelPositions:
    table = _table(keys, keys.whole("max_position_embeddings") + 2, keys.whole("hidden_size"), 2)
    return summarize_model(keys, NoPE(), input=table)


def bert(keys: Keys, dim: str = "hidden_size", inert: tuple[str, ...] = ()) -> ModelPositions:
    for name in inert:
        keys.get(name)
    return _encoder(keys, _table(keys, keys.whole("max_position_embeddings"), keys.whole(dim)))


def roberta(keys: Keys) -> ModelPositions:
    """The first position has the row after that of the padding token."""
    rows, padding = keys.whole("max_position_embeddings"), keys.whole("pad_token_id", 0)
    return _encoder(keys, _table(keys, rows, keys.whole("hidden_size"), padding + 1))


def _encoder(keys: Keys, table: Scheme) -> ModelPositions:
    keys.refuse("position_embedding_type", "absolute", why="must be 'absolute', which is all that transformers 5 has")
    return summarize_model(keys, NoPE(), input=table, causal=keys.flag("is_decoder"))


def esm(keys: Keys) -> ModelPositions:
    base = keys.number("rope_theta")  # present by default
    if keys.get("position_embedding_type") != "rotary":
        return roberta(keys)
    return summarize_model(keys, RoPE(head_dim_of(keys), base), causal=keys.flag("is_decoder"))


def vit(keys: Keys, prefix: int = 1) -> ModelPositions:
    """A table for the patches of an image, after ``prefix`` tokens that are none."""
    side = [keys.whole(name) for name in ("image_size", "patch_size")]
    table = _table(keys, prefix + (side[0] // side[1]) ** 2, keys.whole("hidden_size"))
    return summarize_model(keys, NoPE(), input=table, causal=False, length=table.max_positions)


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
    remarks = (ACROSS,) * decodes
    return summarize_model(keys, NoPE(), None, layers, input=table, causal=decodes, length=length, remarks=remarks)


ACROSS = "attention of the decoder to the encoder has no positions"


# -- biases -----------------------------------------------------------------------------------------------------------


def t5(keys: Keys, own: bool = False) -> ModelPositions:
    """A table of the first layer, which the others share, or each layer's ``own``."""
    heads, buckets = keys.whole("num_attention_heads"), keys.whole("relative_attention_num_buckets")
    decodes = keys.inside == "decoder"
    count, furthest = (
        keys.whole("num_decoder_layers" if decodes else "num_hidden_layers"),
        "relative_attention_max_distance",
    )
    tables = [T5(heads, buckets, keys.whole(furthest), bidirectional=not decodes) for _ in range(count if own else 1)]
    remarks = (ACROSS,) * decodes + silent(keys, "n_positions")
    biases: list[Scheme] = [*tables] if own else [*tables] * count
    return summarize_model(keys, biases, None, Layer(scale=1.0), causal=decodes, length=None, remarks=remarks)


def bloom(keys: Keys) -> ModelPositions:
    remark = "transformers counts positions by attention_mask, and takes no position_ids"
    return summarize_model(
        keys, ALiBi(keys.whole("num_attention_heads")), remarks=(remark, *silent(keys, "offset_alibi"))
    )


def mpt(keys: Keys) -> ModelPositions:
    if not hasattr(keys("attn_config"), "to_dict"):
        raise keys.wrong("attn_config", "must be a configuration")
    inner = {name: value for name, value in vars(keys("attn_config")).items() if not name.startswith("_")}
    own = Keys(SimpleNamespace(**inner | {"model_type": "mpt's attn_config"}))
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
    return summarize_model(keys, scheme, None, layer, length=length, remarks=(remark,))


def falcon(keys: Keys) -> ModelPositions:
    head_dim = keys.whole("hidden_size") // keys.whole("num_attention_heads")
    if keys.flag("alibi"):
        keys.get("rope_parameters")  # present by default, and not used
        remarks = (
            "transformers rounds the bias to bfloat16, and counts positions by attention_mask",
            "rope_parameters are not used",
        )
        return summarize_model(keys, DividedALiBi(keys.whole("num_attention_heads"), head_dim), remarks=remarks)
    return summarize_model(keys, rotary(keys, head_dim))


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
    return summarize_model(keys, schemes, None, layers, causal=False, length=None, remarks=(remark,))


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
    ("mt5 t5", t5),
    ("umt5", partial(t5, own=True)),
    # a rotation, the same in all layers
    ("apertus arcee aria_text bitnet flex_olmo hy_v3 internlm3 iquestcoder jais2 jetmoe llama", Rotating()),
    ("olmo olmo2 olmoe seed_oss solar_open", Rotating()),
    ("gemma", Rotating(only=NOT_BOTH_WAYS)),
    ("eurobert gte jina_embeddings_v3 nomic_bert", Rotating(is_causal=False)),
    ("hunyuan_v1_dense hunyuan_v1_moe", Rotating(rope=of_hunyuan)),
    ("cohere ernie4_5 ernie4_5_moe helium", Rotating(layout="interleaved")),
    ("glm glm4", Rotating(layout="interleaved", partial=True)),
    ("glm4_moe gpt_neox minimax_m2 nemotron persimmon phi stablelm", Rotating(partial=True)),
    ("granite granitemoe granitemoeshared hyperclovax", Rotating(layer=multiplied)),
    ("mistral mixtral starcoder2", Rotating(windowed=True)),
    ("qwen3_moe", Rotating(windowed=True, check=uses_window)),
    ("qwen3_vl_moe_text qwen3_vl_text", Rotating(rope=interleaved([24, 20, 20]))),
    ("axk1 deepseek_v2 deepseek_v3 glm4_moe_lite mistral4 youtu", deepseek),
    ("dinov3_vit", dinov3),
    ("gptj", gptj),
    ("ministral3", Rotating(windowed=True, rope=with_scaled_queries)),
    ("phi3", phi3),
    # layers of several types
    ("cwm ministral", Rotating(kinds=TYPES)),
    ("dots1 qwen2 qwen3", Rotating(kinds=TYPES, check=later_slide)),
    ("qwen2_moe", Rotating(kinds=TYPES, check=every_other)),
    ("qwen2_5_vl_text qwen2_vl_text", Rotating(kinds=TYPES, rope=in_sections, check=later_slide)),
    ("gpt_oss", Rotating(kinds=TYPES, layer=lambda keys, head_dim: Layer(sinks=True))),
    ("gemma2", Rotating(kinds=TYPES, layer=of_gemma, check=other_size, only=NOT_BOTH_WAYS)),
    ("vaultgemma", Rotating(kinds=TYPES, layer=of_gemma, only=NOT_BOTH_WAYS)),
    ("gemma3_text", gemma3),
    ("gemma3n_text", Rotating(kinds=TYPES, by_kind=True, layer=lambda keys, head_dim: Layer(scale=1.0))),
    ("gemma4_text", gemma4),
    ("mellum olmo3", Rotating(kinds=TYPES, by_kind=True)),
    ("modernbert", modernbert),
    (
        "modernbert-decoder",
        Rotating(kinds=TYPES, by_kind=True, check=first_is_full, inert=("local_attention",)),
    ),
    ("afmoe", Rotating(kinds=TYPES, rests=lambda keys: True, check=global_is_full)),
    (
        "exaone4 exaone_moe",
        Rotating(kinds=TYPES, rests=lambda keys: keys.get("sliding_window") is not None, check=last_is_full),
    ),
    (
        "cohere2",
        Rotating(
            kinds=TYPES,
            rests=lambda keys: True,
            check=last_is_full,
            layout="interleaved",
            only={
                "position_embedding_type": ("rope_gptj", "must be 'rope_gptj', the only one that the model has"),
                "rotary_pct": (1.0, "must be 1, since cohere2 rotates all channels"),
            },
        ),
    ),
    ("llama4_text", llama4),
    ("smollm3", smollm3),
    ("lfm2 lfm2_moe", Rotating(kinds=MIXED, check=same_base)),
    ("olmo_hybrid", Rotating(kinds=MIXED)),
    ("minimax", Rotating(kinds=MIXED, windowed=True)),
    ("bamba qwen3_next", Rotating(kinds=MIXED, partial=True)),
    ("granitemoehybrid", Rotating(kinds=MIXED, rope=of_granite_hybrid, layer=multiplied)),
    ("qwen3_5_moe_text qwen3_5_text", Rotating(kinds=MIXED, rope=interleaved([11, 11, 10], partial=True))),
)

READERS: dict[str, Reader] = {name: reader for names, reader in FAMILIES for name in names.split()}
"""The reader of each model_type."""
