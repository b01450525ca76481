"""patch() takes transformers' dictionary of a scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("transformers")

import transformers

from posenc import NoPE
from posenc.huggingface import patch
from posenc.rotation.scalings import DynamicNTK, PositionInterpolation, YaRN
from tests.huggingface.tiny import config_of

IDS = torch.arange(3, 20)[None]
YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 7_000.0}
TOLD: dict[str, tuple[dict[str, Any], Any]] = {
    "linear": ({"rope_type": "linear", "factor": 3.0}, PositionInterpolation(3.0)),
    "yarn": (YARN, YaRN(4.0, 16)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 5}, DynamicNTK(2.0, 5)),
}


def built(name: str) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config_of(name)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("name", ["llama linear", "gptj", "gemma3_text"])
@torch.no_grad()
def test_a_dictionary_is_the_scaling_that_it_says(name: str, told: str) -> None:
    model, (given, scaling) = built(name), TOLD[told]
    plain = model(IDS).last_hidden_state
    with patch(model, {"full_attention": given} if name == "gemma3_text" else given) as patched:
        ours = model(IDS).last_hidden_state
    assert repr(scaling) in str(patched.changes)
    with patch(model, {"full_attention": scaling} if name == "gemma3_text" else scaling):
        assert_close(model(IDS).last_hidden_state, ours, rtol=0, atol=0)
    assert not torch.equal(ours, plain)


@torch.no_grad()
def test_default_takes_a_scaling_off() -> None:
    scaled = built("llama linear")
    plain = transformers.AutoModel.from_config(config_of("llama", head_dim=12, rope_parameters=PLAIN)).eval()
    plain.load_state_dict(scaled.state_dict())
    with patch(scaled, PLAIN) as patched:
        assert "without a scaling, instead of linear by 3" in str(patched.changes)
        assert_close(scaled(IDS).last_hidden_state, plain(IDS).last_hidden_state)
    with patch(built("gptj"), {"rope_type": "default"}) as patched:
        assert "every rotating layer: without a scaling" in patched.changes


def refused(what: Any, model: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        patch(model, what)


def test_what_is_no_scaling_of_this_model_is_named() -> None:
    llama = built("llama linear")
    refused(
        {"rope_type": "yarn", "factor": 4.0},
        llama,
        r"scaling\['original_max_position_embeddings'\] must be a whole number of at least 1, got None",
    )
    refused({"rope_type": "su"}, llama, r"scaling\['rope_type'\] must be one of default, linear, .* got 'su'")
    refused(YARN | {"fastor": 2}, llama, "scaling has the key 'fastor' = 2, which rope_type 'yarn' does not read")
    has = r"and LlamaModel \(llama\) has {}: only the scaling is replaced, so leave {} out, or change it in the conf"
    refused(YARN | {"rope_theta": 5e5}, llama, "what has rope_theta = 500000.0, " + has.format(7000, "rope_theta"))
    share = "partial_rotary_factor"
    refused(YARN | {share: 0.5}, llama, f"what has {share} = 0.5, " + has.format(1, share))
    refused({"local": YaRN(4.0, 16)}, built("gptj"), r"\(gptj\) has no layer types, got .*: give the scaling alone")


def test_a_model_is_refused_without_a_way_that_ends_in_another_refusal() -> None:
    unknown = "has neither rotary modules nor a learned table or bias"
    refused(NoPE(), built("whisper"), rf"WhisperModel \(whisper\) {unknown}")
    gte = built("gte")
    refused(NoPE(), gte, r"GteModel \(gte\) takes scalings only: its attention layers have no layer_idx")
    with patch(gte, YARN) as patched:
        assert "scaled by YaRN" in str(patched.changes)


@torch.no_grad()
def test_a_scaling_reads_the_share_that_a_module_without_one_ignores() -> None:
    """Mistral 4's: its frequencies are those of half of the channels only where they are scaled."""
    model = built("mistral4")
    given = {name: value for name, value in model.config.rope_parameters.items() if name != "llama_4_scaling_beta"}
    own = model(IDS).last_hidden_state
    with patch(model, given):
        assert_close(model(IDS).last_hidden_state, own)
