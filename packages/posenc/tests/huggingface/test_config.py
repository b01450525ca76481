"""What is read of a configuration is what the model's own code does, layer by layer; misreadings are seen."""

import json
import math
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from posenc import Positions, schedules
from posenc.huggingface import ModelPositions, scheme_from_config
from posenc.schedule import Schedule
from tests.huggingface.configs import ALIKE, FAMILIES, IMAGE, OTHERS, SIZES
from tests.huggingface.families import (
    HOW,
    NAMES,
    PAGE,
    RECORD,
    answer,
    asked_figures,
    compare,
    described,
    of_types,
    outputs,
    page,
    windows,
    written,
)
from tests.huggingface.tiny_models import config_of, disagreements, model_of, run
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


GPT_OSS, OLMO3 = FAMILIES["gpt_oss"]["rope_parameters"], FAMILIES["olmo3"]["rope_parameters"]
OTHER_LAYERS = dict(zip(OLMO3, reversed(OLMO3.values()), strict=True))
ALL = {0, 1, 2, 3}
MISREAD: list[tuple[str, dict[str, Any], set[int], str]] = [
    ("gpt_oss", {"rope_parameters": GPT_OSS | {"truncate": True}}, ALL, "scores"),
    ("deepseek_v3", {"rope_interleave": False}, ALL, "scores"),
    ("smollm3", {"no_rope_layers": [0, 1, 0, 0]}, ALL, "scores"),
    ("olmo3", {"rope_parameters": OTHER_LAYERS}, ALL, "scores"),
    ("gemma2", {"attn_logit_softcapping": None}, ALL, "softcap"),
    ("gemma3_text", {"query_pre_attn_scalar": 20}, ALL, "scale"),
    ("llama4_text", {"floor_scale": 5}, {1, 3}, "scores"),
    ("llama4_text", {"attention_chunk_size": 6}, {0, 2}, "visibility"),
]
"""The row, the keys as they are misread, the layers that are then wrong, and in what."""


@pytest.mark.parametrize(("row", "changes", "layers", "what"), MISREAD)
def test_a_misreading_is_seen(row: str, changes: dict[str, Any], layers: set[int], what: str) -> None:
    found = disagreements(config_of(row), scheme_from_config(config_of(row, **changes)))
    assert {int(each.split(":")[0].split()[1]) for each in found if what in each} == layers


def test_the_list_of_longrope_goes_by_the_length_of_the_text() -> None:
    """Up to L0 tokens the short list, whatever the model could take; positions of the proof end far behind L0, so here
    they end before."""
    config = config_of("phi3", original_max_position_embeddings=2048)
    assert disagreements(config, scheme_from_config(config)) == []
    config.rope_parameters["short_factor"] = config.rope_parameters["long_factor"]
    assert disagreements(config_of("phi3", original_max_position_embeddings=2048), scheme_from_config(config))


SCALED = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
READY: list[tuple[str, dict[str, Any], Schedule]] = [
    ("gemma3_text", SCALED | {"num_hidden_layers": 34, "sliding_window": 1024}, schedules.gemma3()),
    ("gpt_oss", {}, schedules.gpt_oss()),
    ("smollm3", {"rope_theta": 5e6}, schedules.smollm3()),
    ("cohere2", {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}, schedules.cohere2(base=1e4)),
]


@pytest.mark.parametrize(("model_type", "given", "ready"), READY)
def test_ready_schedules_are_those_of_configurations(model_type: str, given: dict[str, Any], ready: Schedule) -> None:
    assert repr(scheme_from_config(transformers.AutoConfig.for_model(model_type, **given)).schedule) == repr(ready)


def test_parts_of_models_are_read_as_by_themselves() -> None:
    blip = {"model_type": "blip-2", "text_config": {"model_type": "t5", "num_layers": 2, "num_decoder_layers": 3}}
    for part, stack in ((None, (True, 3)), ("text", (True, 3)), ("decoder", (True, 3)), ("encoder", (False, 2))):
        said = scheme_from_config(blip, part)
        assert (said.causal, len(said.schedule)) == stack
    for model_type, images in (("gemma3", True), ("shieldgemma2", True), ("gemma3_text", False)):
        sizes = {"num_hidden_layers": 2}
        said = scheme_from_config({"model_type": model_type} | (sizes if not images else {"text_config": sizes}))
        assert said.model_type == "gemma3_text"
        assert {layer.images for layer in said.layers} == {images}
    for model_type in ("musicflamingo", "vibevoice_asr", "llava"):  # sizes of other parts have names of the same kind
        assert scheme_from_config({"model_type": model_type}).causal


PLACES = torch.tensor([[0, 1, 5, 700, 1023]])

BOUNDS = {  # of the largest number; others are equal, but for a sum in double precision
    **{name: of_sums(torch.float32, 2 * (12 + 40)) for name, how in HOW.items() if how in (outputs, windows)},
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
    for name, decodes in (
        ("bert", False),
        ("roberta", False),
        ("dinov3_vit", False),
        ("gptj", True),
        ("bloom", True),
    ):
        assert scheme_from_config(config_of(name)).causal is decodes
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


def test_dinov3_rotates_no_register_and_draws_nothing() -> None:
    _, said = made("dinov3_vit", **IMAGE | {"hidden_size": 60}, num_register_tokens=2, pos_embed_shift=0.5)
    assert not said.schedule[0][0].training  # as from_pretrained leaves a model: nothing is drawn at random
    assert "grid(height, width, prefix=3)" in repr(said)


KEPT = json.loads(RECORD.read_text(encoding="utf-8"))
AGAIN = "python -m tests.huggingface.families"


def test_the_table_is_that_of_the_kept_run_which_has_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, written(KEPT), of_types(KEPT)) == text, AGAIN
    assert set(KEPT["families"]) == NAMES, AGAIN
    assert max(row["worst"] for row in KEPT["families"].values()) < 1e-4


@pytest.mark.parametrize("name", ["flint", "kimi_linear", "mamba", "albert", "llama"])
def test_types_are_read_as_the_page_says(name: str) -> None:
    if transformers.__version__ == KEPT["transformers"]:
        assert answer(name) == KEPT["types"][name], AGAIN


COMPARED = ["albert", "bart", "beam", "flint", "hrm_text", "laguna", "marian", "nanochat"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in COMPARED else [pytest.mark.more]) for each in KEPT.get("errors", COMPARED)],
)
def test_asked_families_do_what_was_read(name: str) -> None:
    figures = asked_figures(name)
    assert figures is not None
    assert figures[0] > 0
    assert figures[1] < 1e-4


@pytest.mark.more
def test_its_words_and_keys_are_those_of_today() -> None:
    for name, row in KEPT["families"].items():
        assert row == row | described(name), AGAIN
