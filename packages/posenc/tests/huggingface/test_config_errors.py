"""Every key about positions is read and changes what is said, or is an error that names it."""

import copy
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers

from posenc.huggingface import scheme_from_config
from posenc.huggingface.reading import positional
from posenc.rotation.scalings import YaRN
from tests.huggingface.configs import ALIKE, FAMILIES, OTHERS, SIZES, YARN
from tests.huggingface.tiny_models import config_of, disagreements

NEUTRAL = (
    "attention_bias attention_dropout attention_k_eq_v attn_pdrop embedding_multiplier initial_context_length key_bias "
    "layerscale_value lm_head_multiplier logit_scale logits_scaling mlp_multipliers query_bias residual_multiplier "
    "routed_scaling_factor scale_depth use_qk_norm"
)
"""Keys whose names are like those of positions, and that have nothing to do with them."""


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value or 5
    if isinstance(value, float):
        return value * 1.25
    if isinstance(value, str):
        return {"default": "linear", "full_attention": "sliding_attention"}.get(value, "default")
    if isinstance(value, (list, tuple)) and value:
        other = changed(value[0])
        return type(value)([other, *value[1:]])
    return 7


TRIED = ["gemma3_text", "deepseek_v3", "qwen2_vl_text", "bloom", "dinov3_vit", "mpt", "roberta", "swinv2", "t5"]
ROWS = [pytest.param(row, marks=[] if row in TRIED else pytest.mark.more) for row in (*FAMILIES, *OTHERS, *ALIKE)]


@pytest.mark.parametrize("name", ROWS)
def test_every_key_about_positions_changes_what_is_said_or_raises_and_no_other(name: str) -> None:
    config = config_of(name)
    before = repr(scheme_from_config(config))
    for key, value in positional(config):
        if isinstance(value, dict):
            _every_entry(config, key, before)
        elif not isinstance(value, list) and key not in ("max_source_positions", "use_sliding_window"):
            assert _says(config, key, changed(value)) != before, key
    for key in NEUTRAL.split():
        if key not in vars(config):
            setattr(config, key, 0.5)
    assert repr(scheme_from_config(config)) == before


def _says(config: Any, key: str, value: Any) -> str:
    other = copy.deepcopy(config)
    setattr(other, key, value)
    try:
        return repr(scheme_from_config(other))
    except ValueError as error:
        return str(error)


def _every_entry(config: Any, key: str, before: str) -> None:
    """The entries of rope_parameters, one by one, and of the dictionaries in it."""
    params = getattr(config, key)
    for name, value in params.items():
        inner = value if isinstance(value, dict) else {None: value}
        for entry, one in inner.items():
            if one is None or "type" in (name, entry):
                continue
            other = copy.deepcopy(params)
            if entry is None:
                other[name] = changed(one)
            else:
                other[name][entry] = changed(one)
            assert _says(config, key, other) != before, (name, entry)


LLAMA = {"model_type": "llama", "num_hidden_layers": 2}
OLMO3 = {"model_type": "olmo3", "num_hidden_layers": 4}


def rope(**given: Any) -> dict[str, Any]:
    """Llama with these rope_parameters."""
    return LLAMA | {"rope_scaling": given}


def of(model_type: str, **given: Any) -> dict[str, Any]:
    return {"model_type": model_type, **given}


def few(model_type: str, **given: Any) -> dict[str, Any]:
    """Of a family that is asked, of which four layers say what all do."""
    return of(model_type, **{"num_hidden_layers": 4} | given)


def nested(times: int) -> dict[str, Any]:
    """A dictionary in dictionaries."""
    found: dict[str, Any] = {}
    for _ in range(times):
        found = {"by_name": found}
    return found


ABOUT_POSITIONS = (
    "alibi nope_layers nope_layer_interval qk_nope_head_dim attention_multiplier attention_in_multiplier "
    "key_multiplier attn_temp_scale attention_scale query_rescale use_dynamic_ntk use_logn_attn xpos dilation "
    "interpolation_factor local_attention global_attn_every_n_layers attention_span sliding_window rope_scalling"
)
FULL = ["full_attention"] * 32
QWEN_VL, WITH_T5 = of("qwen3_vl_text"), of("blip-2", text_config=of("opt"))
SLIDES = of("qwen2", use_sliding_window=True)
BIG = 10**9

FALSE = (
    ("llama", "use_rope"),
    ("llama", "rope"),
    ("llama", "use_rotary_embedding"),
    ("bert", "use_position_embeddings"),
    ("gpt2", "learned_pos_emb"),
    ("t5", "share_relative_attention_bias"),
)
"""Keys that take away, if they are false, what the model has."""

REFUSED: list[tuple[Any, str]] = [
    *(
        (LLAMA | {key: 2}, f"llama has the key '{key}' = 2, which is about pos|the configuration has {key}, and no")
        for key in ABOUT_POSITIONS.split()
    ),
    # keys that contradict one another, or are not read
    (
        rope(rope_type="linear", factor=2.0, rope_theta=1e4) | {"rope_theta": 5e5},
        "'rope_theta' = 500000.0, which is abo",
    ),
    (rope(type="linear", factor=2.0) | {"rope_parameters": {"rope_type": "default"}}, "must be equal if both are give"),
    (rope(type="dynamic", rope_type="linear", factor=2.0), r"\['type'\] contradicts rope_type 'linear', got 'dynamic'"),
    (rope(**YARN, beta_fsat=16), "has the key 'beta_fsat' = 16, which is about positions, and ll"),
    (rope(**YARN, mscale=1.0), r"\['mscale'\] is only read if both mscale and mscale_all_dim are above 0, got 1.0"),
    (
        rope(rope_type="axial"),
        "of llama could not be read from its model's code: its model could not be built: KeyError: 'axial'",
    ),
    (
        LLAMA | {"partial_rotary_factor": 0.5},
        "llama has the key 'partial_rotary_factor' = 0.5, which is about positions",
    ),
    (
        OLMO3 | {"rope_parameters": {"full_attention": YARN, "rope_theta": 3e4}},
        "'rope_theta' = 30000.0, which is about",
    ),
    (of("qwen2", layer_types=["sliding_attention"] * 32), "could not be run: .*Could not find a `sliding_window`"),
    (of("mpt", attn_config={"alibi": False}), "mpt's attn_config's alibi must be True, since transformers' model comp"),
    (of("mpt", attn_config={"alibi_bias_max": 16}), "alibi_bias_max must be 8, since transformers'"),
    (of("bert", position_embedding_type="relative_key"), "'position_embedding_type' = 'relative_key', which is abou"),
    (
        few("qwen2_vl_text", rope_parameters={"mrope_section": [16, 24, 23]}),
        "split_with_sizes expects split_sizes to su",
    ),
    *(
        (
            few(family, **{key: False}),
            f"{family} has the key '{key}' = False, which is about positions, and {family} does",
        )
        for family, key in FALSE
    ),
    (of("gptj", rotary=False, rotary_dim=64), "gptj has the key 'rotary' = False, which is about positions"),
    (of("gptj", scale_attn_weights=2), "gptj has the key 'scale_attn_weights' = 2, which is about pos"),
    (few("cohere2", rotary_pct=0.5), "cohere2 has the key 'rotary_pct' = 0.5, which is about positions"),
    (few("gemma2", sliding_window_size=9), "gemma2 has the key 'sliding_window_size' = 9, which is about positions"),
    # parts, and models that are not read
    (of("llava", text_config=of("llama"), rope_theta=5.0), "llava has the key 'rope_theta' = 5.0, .* outside its text"),
    (WITH_T5 | {"part": "decoder"}, "part must be left out for opt, which is one model, got 'decoder'"),
    (
        of("rwkv"),
        "of rwkv could not be read from its model's code: RwkvSelfAttention neither calls transf",
    ),
    (of("lama"), r"got 'lama' \(did you mean 'llama'\?\)"),
    (of("deberta-v3"), r"got 'deberta-v3' \(did you mean 'deberta-v2'\?\)"),
    ({}, "config must have a model_type, got None"),
    (of("llama", part="text"), "part must be one that llama has, and it has no text_config, got 'text'"),
    (of("sam3_video"), "its model's code: it takes inference_session, and no input_ids"),
    (
        of("sam"),
        "its model's code: .*the configurations of its parts, such as prompt_encoder_config, are read alone",
    ),
    *((of(family, part="both"), "part must be 'encoder' or 'decoder', got 'both'") for family in ("t5", "bart")),
    (7, "config must be a configuration of transformers, its dictionary, or a path to a config.json, got 7"),
    ("nowhere", "config must be a file or a folder with a config.json, and there is no 'nowhere'"),
    # what is malformed, or too large
    (rope(**{k: v for k, v in YARN.items() if k != "factor"}), "accepts for llama, and it raises KeyError: .*factor"),
    (LLAMA | {"rope_scaling": "yarn"}, "config must be one that transformers accepts for llama, and it raises"),
    (LLAMA | {"num_attention_heads": 0}, "accepts for llama, and it raises ZeroDivisionError: integer division or mod"),
    (LLAMA | {"num_hidden_layers": 0}, r"its num_hidden_layers must be within 1\.\.512, got 0"),
    (LLAMA | {"rope_theta": -1.0}, r"\['rope_theta'\] must be a finite number above 0, got -1.0"),
    (rope(rope_type=["yarn"]), r"rope_parameters\['rope_type'\] must be a string, got \['yarn'\]"),
    (rope(rope_type="linear", factor="2"), r"rope_parameters\['factor'\] must be a finite number above 0, got '2'"),
    (rope(**YARN, truncate="no"), r"llama's rope_parameters\['truncate'\] must be true or false, got 'no'"),
    (SLIDES | {"max_window_layers": -1, "layer_types": FULL[:1]}, "must have 32 entries like num_hid|accepts for qwen"),
    (of("swinv2", depths=[2, 2]), "swinv2's depths must have as many entries as num_heads"),
    (LLAMA | {"num_hidden_layers": BIG}, "num_hidden_layers must be at most 4096, got 1000000000"),
    (of("gemma3", text_config={"num_hidden_layers": BIG}), "num_hidden_layers must be at most 4096"),
    (LLAMA | {"head_dim": 2**30}, "head_dim must be at most 1048576, got 1073741824"),
    (LLAMA | {"num_labels": BIG}, "num_labels must be at most 1048576, got 1000000000"),
    (LLAMA | {"layer_types": ["full_attention"] * (2**20 + 1)}, "layer_types must have at most 1048576 entries, got"),
    (LLAMA | {"posenc_patch": nested(3000)}, "by_name must be nested at most 32 deep, got more"),
    (of("gpt2", n_positions=2**29), r"max_position_embeddings must be within 2\.\.16777216, got 536870912"),
    (of("swinv2", depths=[4096] * 2, num_heads=[3, 6], pretrained_window_sizes=[0, 0]), "swinv2's layers must be at m"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[f"{n} {row[1][:30]}" for n, row in enumerate(REFUSED)])
def test_what_is_unknown_malformed_or_contradicts_is_named(config: Any, message: str) -> None:
    part, given = None, config
    if isinstance(config, dict):
        part, given = config.get("part"), {key: value for key, value in config.items() if key != "part"}
    before = copy.copy(given)
    with pytest.raises(ValueError, match=message) as raised:
        scheme_from_config(given, part)
    assert type(raised.value) is ValueError
    assert given == before


def test_a_path_a_folder_and_an_object_say_the_same(tmp_path: Path) -> None:
    config = config_of("olmo3")
    config.save_pretrained(tmp_path)
    said = repr(scheme_from_config(config))
    for place in (tmp_path, str(tmp_path), tmp_path / "config.json"):
        assert repr(scheme_from_config(place)) == said
    assert repr(scheme_from_config(json.loads((tmp_path / "config.json").read_text()))) == said
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config must be a JSON object, and '.*config.json' holds \[1\]"):
        scheme_from_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config must be JSON, and '.*config.json' is not: Expecting"):
        scheme_from_config(tmp_path)


MSCALE = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
PUBLISHED: list[tuple[dict[str, Any], str]] = [
    (few("t5", n_positions=512), "n_positions = 512 is not read by the model"),
    (of("bloom", offset_alibi=100, attention_softmax_in_fp32=True), "offset_alibi = 100 is not read by the model"),
    (of("gptj", rotary=True, rotary_dim=64, scale_attn_weights=True), "channels 0..63 of 256"),
    (few("modernbert", position_embedding_type="absolute", global_rope_theta=1.5e5), "base 150000"),
    (few("smollm3", max_window_layers=28, no_rope_layer_interval=4), "max_window_layers = 28 is not read by the model"),
    (few("cohere2", position_embedding_type="rope_gptj", rotary_pct=1.0, rope_theta=5e4), "base 50000"),
    (few("gemma2", sliding_window=2048, sliding_window_size=2048), "window of 2048 keys"),
    (
        few("deepseek_v3", max_position_embeddings=163_840, rope_theta=10_000)
        | {"rope_scaling": MSCALE | {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}},
        "scale 0.135234",  # 192^-0.5 (0.1 ln 40 + 1)^2
    ),
    (few("qwen2_vl", rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}), "16 time, 24 row, 24 column"),
    (of("gemma3", text_config=few("gemma3_text", sliding_window=1024)), "gemma3_text: decoder"),
    (
        few(
            "hunyuan_v1_dense",
            head_dim=128,
            rope_scaling={"type": "dynamic", "alpha": 1e3, "factor": 1.0, "mscale": 1.0},
        ),
        "NTKAware(factor=1000.0)",
    ),
    (few("minimax_m2", rotary_dim=64, head_dim=128), "channels 0..63 of 128"),
    (of("lfm2", theta=1e6, rope_theta=1e6, full_attn_idxs=[2, 5]), "layers 0, 1: RoPE, base 1000000"),
    (of("gemma3n", text_config={"rope_theta": 1e6, "rope_local_base_freq": 1e4}), "base 1000000, all 256 channels"),
    (
        of("exaone4", sliding_window_pattern="LLLG", layer_types=[*["sliding_attention"] * 3, "full_attention"] * 2)
        | {"num_hidden_layers": 8},
        "layers 3, 7: NoPE, whole text",
    ),
    (few("llama", max_sequence_length=16384), "2048 positions"),
    (few("llama", use_dynamic_ntk=False, use_sliding_window=False, rope_interleaved=False), "2048 positions"),
    (rope(**YARN, finetuned=True), "YaRN(factor=4.0, original_length=64)"),
    # Defaults that classes have beside their keys, and a window beyond the queries that are asked.
    (few("mistral", sliding_window=262_144, max_position_embeddings=1_048_576), "window of 262144 keys"),
    (of("gemma3_text", num_hidden_layers=6, sliding_window_pattern=6), "layer 5: RoPE, base 1000000"),
    (of("cohere2", num_hidden_layers=8, sliding_window_pattern=4), "layers 3, 7: NoPE"),
    (of("modernbert", global_attn_every_n_layers=3, local_attention=128), "window of 64 keys back and 64 ahead"),
    (few("qwen2", use_mrope=False), "RoPE, base 10000"),
    (few("qwen2", sliding_window=131_072, use_sliding_window=False), "sliding_window = 131072 is not read"),
]


@pytest.mark.parametrize(("config", "words"), PUBLISHED)
def test_keys_of_published_configurations_are_no_error(config: dict[str, Any], words: str) -> None:
    assert words in repr(scheme_from_config(config))


def test_a_key_is_ignored_by_name() -> None:
    config = LLAMA | {"use_dynamic_ntk": True, "rope_scaling": YARN | {"note": 1}}
    with pytest.raises(ValueError, match=r"'use_dynamic_ntk' = True, .* pass ignore=\('use_dynamic_ntk',\)"):
        scheme_from_config(config, ignore=["note"])
    with pytest.raises(ValueError, match=r"'note' = 1, which is about positions, .* pass ignore=\('note',\)"):
        scheme_from_config(config, ignore=["use_dynamic_ntk"])
    said = scheme_from_config(config, ignore=("note", "use_dynamic_ntk"))
    assert repr(said) == repr(scheme_from_config(LLAMA | {"rope_scaling": YARN}))
    with pytest.raises(ValueError, match="ignore must be a list of names of keys, got 'note'"):
        scheme_from_config(config, ignore="note")
    outer = {"model_type": "llava", "text_config": {"model_type": "llama"}, "rope_theta": 5.0}
    assert scheme_from_config(outer, ignore=["rope_theta"]).causal


class OwnConfig(transformers.PretrainedConfig):
    """The configuration of a model that transformers does not know."""

    model_type = "own_decoder"


def test_a_model_that_transformers_does_not_have_is_not_guessed() -> None:
    sizes = {"hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 2, "max_position_embeddings": 64}
    rotates = OwnConfig(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 3e4})
    with pytest.raises(ValueError, match="positions of own_decoder could not be read"):
        scheme_from_config(rotates)


VALUES = [0, -1, 2.5, float("nan"), float("inf"), True, None, "yarn", "", [], [1], [0, "x"], {}, {"a": 1}, 10**9]


def test_only_value_errors_come_out() -> None:
    """With another value of a key, or of an entry of rope_parameters, in a dictionary or in an object."""
    draw, read = random.Random(1), 0
    for number in range(120):
        row = draw.choice([*FAMILIES, *ALIKE, *OTHERS])
        given: Any = copy.deepcopy(OTHERS[row] if row in OTHERS else SIZES | (FAMILIES | ALIKE)[row])
        inner = given.get("rope_parameters") if number % 2 else None
        inner = draw.choice([inner, *(each for each in inner.values() if isinstance(each, dict))]) if inner else given
        inner[draw.choice(sorted(inner))] = draw.choice(VALUES)
        config = given | {"model_type": row.split()[0]}
        if number % 3 == 0 and row != "gemma4_text":  # an object, whose values transformers did not check
            config = config_of(row)
            vars(config).update(given)
        with suppress(ValueError):
            repr(scheme_from_config(config))
            read += 1
    assert 0 < read < 60


def test_truncate_null_is_false_as_in_transformers() -> None:
    config = config_of("llama", rope_parameters=YARN | {"truncate": None})
    said = scheme_from_config(config)
    rope: Any = said.schedule[0][0]
    assert rope.scaling == YaRN(4.0, 64, truncate=False)
    assert disagreements(config, said) == []
    nested = {"sliding_attention": YARN | {"truncate": None}, "full_attention": YARN}
    config = config_of("olmo3", rope_parameters=nested)  # transformers reads it only outside of these
    assert disagreements(config, scheme_from_config(config)) == []
