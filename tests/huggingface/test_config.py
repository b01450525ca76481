"""What is read of a configuration is what the model's own code does, layer by layer; misreadings are seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import transformers

from posenc import RoPE, schedules
from posenc.huggingface import ModelPositions, scheme_from_config
from posenc.rotation.scalings import LongRoPE, PositionInterpolation
from posenc.schedule import Schedule
from tests.huggingface.configs import ALIKE, FAMILIES, PLAIN, YARN
from tests.huggingface.tiny import config_of, disagreements

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
