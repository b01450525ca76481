"""Malformed configurations are a ValueError, whatever transformers' own code or ours would trip over."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from posenc.huggingface import scheme_from_config
from posenc.rotation.scalings import YaRN
from posenc.schemes.rope import RoPE
from posenc.tools.check.pretrained import build_pretrained
from posenc.tools.cli import main
from tests.huggingface.configs import ALIKE, FAMILIES, OTHERS, SIZES, YARN
from tests.huggingface.tiny import config_of, disagreements

LLAMA = {"model_type": "llama", "num_hidden_layers": 2}
YARN_WITHOUT = {name: value for name, value in YARN.items() if name != "factor"}


def nested(times: int) -> dict[str, Any]:
    """A dictionary in dictionaries."""
    found: dict[str, Any] = {}
    for _ in range(times):
        found = {"by_name": found}
    return found


MALFORMED: list[tuple[dict[str, Any], str]] = [
    (LLAMA | {"rope_parameters": YARN_WITHOUT}, "accepts for llama, and it raises KeyError: .* required keys .*factor"),
    (LLAMA | {"rope_scaling": "yarn"}, "config must be one that transformers accepts for llama, and it raises"),
    (LLAMA | {"num_attention_heads": 0}, "accepts for llama, and it raises ZeroDivisionError"),
    (LLAMA | {"num_hidden_layers": "2"}, "accepts for llama, and it raises StrictDataclassFieldValidationError"),
    (LLAMA | {"num_hidden_layers": 0}, "llama's num_hidden_layers must be a whole number of at least 1, got 0"),
    (LLAMA | {"hidden_size": -4096}, "must be a whole number of at least 1, got -"),
    (
        LLAMA | {"rope_theta": -1.0},
        r"llama's rope_parameters\['rope_theta'\] must be a finite number above 0, got -1.0",
    ),
    (
        LLAMA | {"rope_scaling": {"rope_type": ["yarn"]}},
        r"rope_parameters\['rope_type'\] must be a string, got \['yarn'\]",
    ),
    (
        LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
        r"rope_parameters\['factor'\] must be a finite number above 0, got '2'",
    ),
    (
        LLAMA | {"rope_scaling": YARN | {"truncate": "no"}},
        r"llama's rope_parameters\['truncate'\] must be true or false, got 'no'",
    ),
    (
        {"model_type": "qwen2_vl_text", "rope_parameters": {"mrope_section": 3}},
        r"\['mrope_section'\] must be three numbers that add up to head_dim / 2 = 64, got 3",
    ),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1, "layer_types": ["full_attention"]},
        "qwen2's layer_types must have 32 entries like num_hidden_layers|accepts for qwen2",
    ),
    ({"model_type": "swinv2", "depths": [2, 2]}, "swinv2's depths must have as many entries as num_heads"),
    (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 4096, got 1000000000"),
    ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers must be at most 4096"),
    (LLAMA | {"head_dim": 2**30}, "head_dim must be at most 1048576, got 1073741824"),
    (LLAMA | {"num_labels": 10**9}, "num_labels must be at most 1048576, got 1000000000"),
    (LLAMA | {"layer_types": ["full_attention"] * (2**20 + 1)}, "layer_types must have at most 1048576 entries, got"),
    (LLAMA | {"posenc_patch": nested(3000)}, "by_name must be nested at most 32 deep, got more"),
    (
        {"model_type": "gpt2", "n_positions": 2**29},
        "the positions of gpt2 must have at most 2147483648 learned numbers, got 412316860416",
    ),
    (
        {"model_type": "swinv2", "depths": [4096] * 2, "num_heads": [3, 6], "pretrained_window_sizes": [0, 0]},
        "swinv2's layers must be at most 4096, got 8192",
    ),
]


@pytest.mark.parametrize(("config", "message"), MALFORMED)
def test_what_is_malformed_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        scheme_from_config(config)
    assert type(raised.value) is ValueError


# -- at random --------------------------------------------------------------------------------------------------------

VALUES = [0, -1, 1, 3, 2.5, 0.0, float("nan"), float("inf"), True, False, None, "yarn", "", [], [1], [0, "x"], {}]
VALUES += [{"rope_type": "yarn"}, {"a": 1}, 10**6, 10**9]
KINDS = [
    "default",
    "linear",
    "dynamic",
    "yarn",
    "llama3",
    "longrope",
    "proportional",
    "mrope",
    "axial",
    "nope",
    None,
    3,
]
ENTRIES = [
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "type",
    "alpha",
]
ENTRIES += ["mscale_all_dim", "truncate", "attention_factor", "short_factor", "long_factor", "low_freq_factor"]
ENTRIES += ["high_freq_factor", "partial_rotary_factor", "mrope_section", "llama_4_scaling_beta"]


def spoil(draw: random.Random, given: dict[str, Any]) -> None:
    """Other values for a key, for rope_parameters, or for an entry of them."""
    where = draw.choice(["rope_parameters", "rope_scaling"])
    params = given.get("rope_parameters")
    way = draw.randrange(4)
    if way == 0:
        given[draw.choice(sorted(given))] = copy.deepcopy(draw.choice(VALUES))
    elif way == 1:
        given[where] = copy.deepcopy(draw.choice(VALUES))
    elif way == 2 or not isinstance(params, dict) or not params:
        entries = draw.sample(ENTRIES, draw.randrange(5))
        given[where] = {name: copy.deepcopy(draw.choice(VALUES)) for name in entries} | {
            "rope_type": draw.choice(KINDS)
        }
        if draw.random() < 0.2:
            given[where] = {"full_attention": given[where], "sliding_attention": draw.choice([None, 3, {}])}
    else:
        entry = draw.choice(sorted(params))
        inner = params[entry] if isinstance(params[entry], dict) and params[entry] else params
        inner[draw.choice(sorted(inner))] = copy.deepcopy(draw.choice(VALUES))


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=pytest.mark.more)])
def test_only_value_errors_come_out(examples: int) -> None:
    draw = random.Random(examples)
    rows = [*FAMILIES, *ALIKE, *OTHERS]
    read = 0
    for _ in range(examples):
        row = draw.choice(rows)
        given: Any = copy.deepcopy(OTHERS[row] if row in OTHERS else SIZES | (FAMILIES | ALIKE)[row])
        spoil(draw, given)
        config = given | {"model_type": row.split()[0]}
        if draw.random() < 0.4 and row != "gemma4_text":  # an object, whose values transformers did not check
            config = config_of(row)
            vars(config).update(given)
        raised: type[Exception] | None = None
        try:
            repr(scheme_from_config(config))
        except Exception as error:
            raised = type(error)
        assert raised in (None, ValueError), (row, given)
        read += raised is None
    assert 0 < read < examples / 2


# -- YaRN as transformers reads it ------------------------------------------------------------------------------------


def test_truncate_null_is_false_as_in_transformers() -> None:
    config = config_of("llama", rope_parameters=YARN | {"truncate": None})
    said = scheme_from_config(config)
    rope: Any = said.schedule[0][0]
    assert rope.scaling == YaRN(4.0, 64, truncate=False)
    assert disagreements(config, said) == []
    nested = {"sliding_attention": YARN | {"truncate": None}, "full_attention": YARN}
    config = config_of("olmo3", rope_parameters=nested)  # transformers reads it only outside of these
    assert disagreements(config, scheme_from_config(config)) == []


def test_a_ramp_that_transformers_turns_round_is_refused() -> None:
    config = config_of("llama", rope_parameters=YARN | {"factor": 2.0, "original_max_position_embeddings": 2})
    message = (
        r"must let YaRN's ramp begin before it ends, got 2: it begins at pair 0 and ends at pair -\d, and transform"
    )
    with pytest.raises(ValueError, match=message):
        scheme_from_config(config)
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    ours, _ = YaRN(2.0, 2)(RoPE(20, 20_000.0).frequencies()[0].flatten())
    assert not torch.allclose(theirs.double(), ours, rtol=1e-3)
    same = config_of("llama", rope_parameters=YARN | {"original_max_position_embeddings": 4})
    assert disagreements(same, scheme_from_config(same)) == []


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "extend"])
def test_a_command_ends_without_a_traceback(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 0}')
    assert main([command, f"hf:{tmp_path}" if command == "check" else str(tmp_path)]) == 2
    assert "ZeroDivisionError: integer division or modulo by zero" in capsys.readouterr().err


class Own:
    """An object that torch.load does not read safely."""


def test_pickled_weights_are_named(tmp_path: Path) -> None:
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).config.save_pretrained(tmp_path)
    torch.save({"model.norm.weight": Own()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"could not be loaded: its weights are pickled .* safetensors"):
        build_pretrained(str(tmp_path), "LlamaForCausalLM")
