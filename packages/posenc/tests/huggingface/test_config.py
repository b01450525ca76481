"""What is read of a configuration is what the model's own code does, layer by layer; misreadings are seen."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers

import posenc
from posenc import Positions, RoPE, logits, schedules
from posenc.huggingface import ModelPositions, scheme_from_config
from posenc.huggingface.families import READERS
from posenc.rotation.scalings import LongRoPE, PositionInterpolation
from posenc.schedule import Schedule
from tests.huggingface.configs import ALIKE, FAMILIES, IMAGE, OTHERS, PLAIN, SIZES, YARN
from tests.huggingface.families import HOW, PAGE, RECORD, compare, described, outputs, page, written
from tests.huggingface.tiny import config_of, disagreements, model_of, run
from tests.rounding import of_angles, of_sums

SPECIAL = {"deepseek_v2", "exaone4", "gemma3n_text", "hunyuan_v1_dense", "qwen3_5_text"}
"""Those with a rotation, or layers, that no family of FAMILIES has."""


def also(name: str) -> Any:
    """A row of ALIKE, most of which are read as one of FAMILIES."""
    return pytest.param(name, marks=[] if name in SPECIAL else pytest.mark.more)


@pytest.mark.parametrize("name", [*FAMILIES, *map(also, ALIKE)])
def test_the_model_does_what_was_read(name: str) -> None:
    config = config_of(name)
    assert disagreements(config, scheme_from_config(config)) == []


# -- planted misreadings ----------------------------------------------------------------------------------------------


def nested(kind: str, **changes: Any) -> dict[str, Any]:
    """OLMo 3's rope_parameters, those of one kind of layers changed."""
    params = copy.deepcopy(FAMILIES["olmo3"]["rope_parameters"])
    params[kind] |= changes
    return params


GPT_OSS = FAMILIES["gpt_oss"]["rope_parameters"]
DEEPSEEK = FAMILIES["deepseek_v3"]["rope_parameters"]
OLMO3 = FAMILIES["olmo3"]["rope_parameters"]
OTHER_LAYERS = dict(zip(OLMO3, reversed(OLMO3.values()), strict=True))

MISREAD: dict[str, tuple[str, dict[str, Any], set[int], str]] = {
    "truncate": ("gpt_oss", {"rope_parameters": GPT_OSS | {"truncate": True}}, {0, 1, 2, 3}, "scores"),
    "attention_factor": (
        "olmo3",
        {"rope_parameters": nested("full_attention", attention_factor=None)},
        {1, 3},
        "scores",
    ),
    "mscale in cos and sin": (
        "deepseek_v3",
        {"rope_parameters": {k: v for k, v in DEEPSEEK.items() if k != "mscale"} | {"mscale": 0.7}},
        {0, 1, 2, 3},
        "scores",
    ),
    "mscale in the scale": (
        "deepseek_v3",
        {
            "rope_parameters": YARN
            | {"attention_factor": (0.1 * 1.3862943611198906 + 1) / (0.07 * 1.3862943611198906 + 1)}
        },
        {0, 1, 2, 3},
        "scale",
    ),
    "interleaved": ("deepseek_v3", {"rope_interleave": False}, {0, 1, 2, 3}, "scores"),
    "NoPE flag inverted": ("smollm3", {"no_rope_layers": [0, 1, 0, 0]}, {0, 1, 2, 3}, "scores"),
    "theta lost": ("qwen2", {"rope_theta": 10_000.0}, {0, 1, 2, 3}, "scores"),
    "theta of the other layers": ("olmo3", {"rope_parameters": OTHER_LAYERS}, {0, 1, 2, 3}, "scores"),
    "rotary share": ("phi", {"partial_rotary_factor": 1.0}, {0, 1, 2, 3}, "scores"),
    "sections of M-RoPE": (
        "qwen2_vl_text",
        {"rope_parameters": FAMILIES["qwen2_vl_text"]["rope_parameters"] | {"mrope_section": [3, 2, 1]}},
        {0, 1, 2, 3},
        "scores",
    ),
    "window of the other layers": (
        "gemma2",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        {0, 1, 2, 3},
        "visibility",
    ),
    "width of the window": ("mistral", {"sliding_window": 6}, {0, 1, 2, 3}, "visibility"),
    "softcap": ("gemma2", {"attn_logit_softcapping": None}, {0, 1, 2, 3}, "softcap"),
    "scale": ("gemma3_text", {"query_pre_attn_scalar": 20}, {0, 1, 2, 3}, "scale"),
    "NoPE flag of Llama 4": ("llama4_text", {"no_rope_layers": [0, 1, 0, 1]}, {0, 1, 2, 3}, "scores"),
    "query scale": ("llama4_text", {"floor_scale": 5}, {1, 3}, "scores"),
    "query scale of all layers": (
        "ministral3",
        {"rope_parameters": FAMILIES["ministral3"]["rope_parameters"] | {"llama_4_scaling_beta": 0.1}},
        {0, 1, 2, 3},
        "scores",
    ),
    "blocks": ("llama4_text", {"attention_chunk_size": 6}, {0, 2}, "visibility"),
    "linear scaling": ("gemma3_text", {"rope_scaling": None}, {2}, "scores"),
    "alpha lost": ("hunyuan_v1_dense", {"rope_parameters": PLAIN["rope_parameters"]}, {0, 1, 2, 3}, "scores"),
    "multiplier lost": ("granite", {"attention_multiplier": 12**-0.5}, {0, 1, 2, 3}, "scale"),
    "all layers rotate": ("exaone4", {"layer_types": ["sliding_attention"] * 4}, {1, 3}, "scores"),
    "dims of full layers": ("gemma4_text", {"global_head_dim": 20}, {1, 3}, "scores"),
}
"""The row, the keys as they are misread, the layers that are then wrong, and in what."""


@pytest.mark.parametrize("name", MISREAD)
def test_a_misreading_is_seen(name: str) -> None:
    row, changes, layers, what = MISREAD[name]
    said = scheme_from_config(config_of(row, **changes))
    if name == "dims of full layers":
        with pytest.raises(ValueError, match="made for head_dim 20, got q or k of head_dim 28"):
            disagreements(config_of(row), said)
        return
    found = disagreements(config_of(row), said)
    assert {int(each.split(":")[0].split()[1]) for each in found if what in each} == layers


def with_rope(said: ModelPositions, change: Callable[[RoPE], RoPE]) -> ModelPositions:
    """The same with other rotations."""
    layers = [(change(scheme) if isinstance(scheme, RoPE) else scheme, window) for scheme, window in said.schedule]
    return replace(said, schedule=Schedule(layers))


def by_capacity(rope: RoPE) -> RoPE:
    """The long list whatever the length, since the model could take long texts: llama.cpp's and vLLM's bug."""
    assert isinstance(rope.scaling, LongRoPE)
    always = replace(rope.scaling, short_factor=rope.scaling.long_factor)
    return RoPE(rope.head_dim, rope.base, scaling=always)


def partial(rope: RoPE) -> RoPE:
    """A share of the channels in the place of p-RoPE."""
    return rope if rope.head_dim == 20 else RoPE(28, rope.base, rotary_dim=6)


def transposed(rope: RoPE) -> RoPE:
    """Height and width swapped."""
    assert rope.allocation is not None
    return RoPE(rope.head_dim, rope.base, axes=3, allocation=[(0, 2, 1)[axis] for axis in rope.allocation])


def in_sections(rope: RoPE) -> RoPE:
    """Sections where the model interleaves."""
    assert rope.allocation is not None
    return RoPE(rope.head_dim, rope.base, axes=3, allocation=sorted(rope.allocation))


def interpolated(rope: RoPE) -> RoPE:
    """The other of two scalings with one factor."""
    return RoPE(rope.head_dim, rope.base, scaling=PositionInterpolation(2.0))


def other_layout(rope: RoPE) -> RoPE:
    return RoPE(rope.head_dim, rope.base, {"half": "interleaved", "interleaved": "half"}[rope.layout], rope.rotary_dim)


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ("gemma4_text", partial),
        ("qwen2_vl_text", transposed),
        ("qwen3_vl_text", in_sections),
        ("llama dynamic", interpolated),
        ("glm", other_layout),
        ("phi", other_layout),
        ("cohere2", other_layout),
    ],
)
def test_a_wrong_rotation_is_seen(row: str, change: Callable[[RoPE], RoPE]) -> None:
    config = config_of(row)
    said = with_rope(scheme_from_config(config), change)
    assert any("scores" in each for each in disagreements(config, said))


def test_the_list_of_longrope_goes_by_the_length_of_the_text() -> None:
    """Up to L0 tokens the short list: positions of the proof end far behind it, so here they end before."""
    config = config_of("phi3", original_max_position_embeddings=2048)
    said = scheme_from_config(config)
    assert disagreements(config, said) == []
    assert any("scores" in each for each in disagreements(config, with_rope(said, by_capacity)))


@pytest.mark.parametrize(
    ("model_type", "given", "ready"),
    [
        (
            "gemma3_text",
            {"num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            schedules.gemma3(),
        ),
        ("gpt_oss", {}, schedules.gpt_oss()),
        ("smollm3", {"rope_theta": 5e6}, schedules.smollm3()),
        (
            "cohere2",
            {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32},
            schedules.cohere2(base=1e4),
        ),
    ],
)
def test_ready_schedules_are_those_of_the_configurations(
    model_type: str, given: dict[str, Any], ready: Schedule
) -> None:
    config = transformers.AutoConfig.for_model(model_type, **given)
    assert repr(scheme_from_config(config).schedule) == repr(ready)


def test_a_model_of_two_stacks_inside_another_is_read_as_by_itself() -> None:
    blip = {"model_type": "blip-2", "text_config": {"model_type": "t5", "num_layers": 2, "num_decoder_layers": 3}}
    for part in (None, "text", "decoder"):
        said = scheme_from_config(blip, part)
        assert (said.causal, len(said.schedule)) == (True, 3)
    said = scheme_from_config(blip, "encoder")
    assert (said.causal, len(said.schedule)) == (False, 2)


def test_gemma_3_inside_of_shieldgemma_2_lets_images_see_themselves() -> None:
    for model_type in ("gemma3", "shieldgemma2"):
        said = scheme_from_config({"model_type": model_type, "text_config": {"num_hidden_layers": 2}})
        assert all(layer.images for layer in said.layers)


def test_what_a_model_of_several_has_by_default_is_its_own() -> None:
    """Sizes and windows of its other parts have names of the same kind."""
    for model_type in ("musicflamingo", "vibevoice_asr", "llava"):
        assert scheme_from_config({"model_type": model_type}).causal


def test_where_llama_4_counts_otherwise_is_remarked() -> None:
    assert scheme_from_config(config_of("llama4_text")).remarks == (
        "transformers scales queries by the slot in the cache, not by position_ids",
        "transformers counts chunks by slots less left padding, not by position_ids",
    )


PLACES = torch.tensor([[0, 1, 5, 700, 1023]])

BOUNDS = {  # of the largest number; others are equal, but for a sum in double precision
    **{name: of_sums(torch.float32, 2 * (12 + 40)) for name, how in HOW.items() if how is outputs},
    **dict.fromkeys(("m2m_100", "nllb-moe", "whisper"), of_angles(torch.float32, 90.0)),
    "dinov3_vit": of_angles(torch.float32, 2 * math.pi),
    "esm": of_angles(torch.float32, 2000.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_model_adds_or_rotates_what_was_read(name: str) -> None:
    count, worst = compare(name)
    assert count > 300
    assert worst <= BOUNDS.get(name, 2**-46)


def made(model_type: str, **given: Any) -> tuple[Any, ModelPositions]:
    config = transformers.AutoConfig.for_model(model_type, **given)
    return config, scheme_from_config(config)


def test_gpt2_scales_by_layer() -> None:
    config, said = made("gpt2", **SIZES, scale_attn_by_inverse_layer_idx=True)
    calls, _ = run(model_of(config), torch.arange(5)[None] + 1, PLACES)
    assert [call.scaling for call in calls] == [layer.scale or 12**-0.5 for layer in said.layers]
    _, plain = made("gpt2", **SIZES, scale_attn_weights=False)
    assert {layer.scale for layer in plain.layers} == {1.0}


def test_tables_end_and_begin_where_the_models_do() -> None:
    _, said = made("opt", **SIZES, word_embed_proj_dim=36)
    assert said.input is not None
    with pytest.raises(posenc.PositionError, match="OffsetLearned encodes positions 0 to 4095, got 4096"):
        said.input.table(Positions(torch.tensor([[4096]])))
    config, said = made("roberta", **SIZES | {"pad_token_id": 3})
    embeddings = transformers.AutoModel.from_config(config).embeddings
    said.input.weight.data = embeddings.position_embeddings.weight.data  # type: ignore[operator, union-attr]
    rows = embeddings.create_position_ids_from_input_ids(torch.tensor([[5, 6, 7, 8]]), 3)
    assert torch.equal(said.input.table(Positions.arange(4)), embeddings.position_embeddings(rows))  # type: ignore[union-attr]


def test_which_are_encoders() -> None:
    for name, causal in (("bert", False), ("roberta", False), ("dinov3_vit", False), ("gptj", True), ("bloom", True)):
        assert scheme_from_config(config_of(name)).causal is causal
    assert made("bert", **SIZES, is_decoder=True)[1].causal
    for name, layers, lengths in (
        ("m2m_100", [2, 4], [90, 90]),
        ("whisper", [2, 4], [50, 20]),
        ("t5", [2, 2], [None, None]),
    ):
        said = [scheme_from_config(config_of(name), part) for part in ("encoder", "decoder")]
        assert [each.causal for each in said] == [False, True]
        assert [len(each.layers) for each in said] == layers
        assert [each.length for each in said] == lengths


def test_scales_and_shifts_beside_the_scheme() -> None:
    assert {layer.scale for layer in scheme_from_config(config_of("t5")).layers} == {1.0}
    assert [layer.scale for layer in scheme_from_config(config_of("mpt")).layers] == [0.5, 0.5]
    said = scheme_from_config(config_of("swinv2"))
    model = transformers.AutoModel.from_config(config_of("swinv2"))
    blocks = [block for stage in model.encoder.layers for block in stage.blocks]
    assert [(b.window_size, b.shift_size) for b in blocks] == [(each.patches, each.shift) for each in said.layers]
    assert [layer.shift for layer in said.layers] == [0, 4, 0, 0]
    for block, (scheme, _) in zip(blocks, said.schedule, strict=True):
        theirs, net = block.attention.self, block.attention.self.continuous_position_bias_mlp
        torch.nn.init.normal_(net[0].bias)
        names = {"tau": theirs.logit_scale.flatten(), "inner.weight": net[0].weight, "inner.bias": net[0].bias}
        scheme.load_state_dict(names | {"outer.weight": net[2].weight})
        x = torch.randn(1, block.window_size**2, theirs.num_attention_heads * theirs.attention_head_size)
        _, weights = theirs.eval()(x, output_attentions=True)
        heads = (theirs.num_attention_heads, -1)
        q, k = (each(x).unflatten(-1, heads).transpose(1, 2) for each in (theirs.query, theirs.key))
        torch.testing.assert_close(logits(q, k, scheme(Positions.grid(*2 * (block.window_size,)))).softmax(-1), weights)


def test_dinov3_rotates_no_register_and_draws_nothing() -> None:
    _, said = made("dinov3_vit", **IMAGE | {"hidden_size": 60}, num_register_tokens=2, pos_embed_shift=0.5)
    assert not said.schedule[0][0].training  # as from_pretrained leaves a model: nothing is drawn at random
    assert "grid(height, width, prefix=3)" in repr(said)


def test_alibi_of_twelve_heads_is_that_of_falcon_bloom_and_mpt() -> None:
    """Slopes of other numbers of heads than powers of two are another formula."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    falcon = made("falcon", num_hidden_layers=2, hidden_size=72, num_attention_heads=12, vocab_size=64, alibi=True)[1]
    theirs = build_alibi_tensor(torch.ones(1, 40), 12, torch.float64).view(12, 1, 40)
    # Theirs has slopes in float32, and rounds their products with places up to 40, of which biases are differences.
    for said, bias in (
        (made("bloom", n_layer=2, n_head=12, hidden_size=72)[1], theirs),
        (made("mpt", n_layers=2, n_heads=12, d_model=72)[1], build_mpt_alibi_tensor(12, 40).double()),
        (falcon, theirs / 6**0.5),  # in the model rounded to bfloat16: see test_adapters.py
    ):
        q = torch.zeros(1, 12, 40, 6, dtype=torch.float64)
        ours = logits(q, q, said.schedule[0][0](Positions.arange(40)))[0].tril()
        torch.testing.assert_close(ours, since_diagonal(bias.expand(12, 40, 40)), rtol=4 * 2.0**-24, atol=40 * 2.0**-24)


def since_diagonal(bias: Tensor) -> Tensor:
    """A bias less what its row has at the query itself, which softmax does not see; keys ahead left out."""
    return (bias - bias.diagonal(dim1=-2, dim2=-1)[..., None]).tril()


KEPT = json.loads(RECORD.read_text(encoding="utf-8"))
AGAIN = "python -m tests.huggingface.families"


def test_the_table_is_that_of_the_kept_run_which_has_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, written(KEPT)) == text, AGAIN
    assert set(KEPT["families"]) == set(READERS), AGAIN
    assert max(row["worst"] for row in KEPT["families"].values()) < 1e-4


@pytest.mark.more
def test_its_words_and_keys_are_those_of_today() -> None:
    for name, row in KEPT["families"].items():
        assert row == row | described(name), AGAIN
