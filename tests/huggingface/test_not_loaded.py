"""patch() needs no weights: a model on meta is patched before they are loaded, as is one that accelerate offloads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import posenc
from posenc.huggingface import patch, scheme_from_config
from tests.huggingface.test_attention import IDS, built, output

CASES: list[tuple[str, Any]] = [
    ("llama", posenc.DynamicNTK(2.0, 8)),
    ("deepseek_v3", posenc.YaRN(2.0, 8)),
    ("llama4", None),
    ("gpt2", posenc.ALiBi(4)),
]


def cases() -> list[tuple[Any, Any, Any]]:
    """Models, what is put into them (None is their own schedule), and the outputs."""
    found = []
    for name, what in CASES:
        model = built(name)
        what = scheme_from_config(model.config).schedule if what is None else what
        with patch(model, what):
            out = output(model, input_ids=IDS)
        found.append((model, what, out))
    return found


def test_a_model_on_meta_is_patched_and_loaded() -> None:
    accelerate = pytest.importorskip("accelerate")
    for model, what, expected in cases():
        with accelerate.init_empty_weights():
            empty = type(model)(copy.deepcopy(model.config)).eval()
        if hasattr(model.config, "num_experts_per_tok"):
            empty.set_experts_implementation("eager")
        with patch(empty, what):
            empty.load_state_dict(model.state_dict(), assign=True)
            assert torch.equal(output(empty, input_ids=IDS), expected), repr(what)


def test_a_rotary_module_on_meta_is_read_from_its_configuration() -> None:
    for name in ("llama", "gemma3", "llama4"):
        model = built(name)
        with torch.device("meta"):
            empty = type(model)(copy.deepcopy(model.config))
        with patch(empty, posenc.YaRN(4.0, 16)) as patched, patch(model, posenc.YaRN(4.0, 16)) as loaded:
            assert patched.changes == loaded.changes


def test_an_offloaded_model_is_patched() -> None:
    hooks = pytest.importorskip("accelerate")
    for model, what, expected in cases():
        if model.config.model_type == "llama4_text":
            continue  # offloaded, its experts raise in transformers without posenc too
        hooks.cpu_offload(model, execution_device=torch.device("cpu"))
        assert any(parameter.is_meta for parameter in model.parameters())
        with patch(model, what):
            assert torch.equal(output(model, input_ids=IDS), expected), repr(what)


def test_a_layer_that_cannot_be_made_again_is_refused_by_name() -> None:
    model = built("llama")
    attention = model.model.layers[0].self_attn

    class AttentionOfTwo(type(attention)):  # type: ignore[misc]
        def __init__(self, config: Any, layer_idx: int, more: int) -> None:
            super().__init__(config, layer_idx)

    attention.__class__ = AttentionOfTwo
    with pytest.raises(
        ValueError, match=r"AttentionOfTwo of layer 0 is on meta, and another one could not .*: load the weights"
    ):
        patch(model.to("meta"), posenc.DynamicNTK(2.0, 8))
