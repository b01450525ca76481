"""attn_implementation="posenc" in models and layers that would not run it is an error by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from posenc.huggingface import adapt, masks, patch
from tests.huggingface.configs import ENCODER
from tests.huggingface.test_attention import IDS, built, output
from tests.rounding import of_angles

EXPERTS = {"q_lora_rank": 8, "qk_rope_head_dim": 4, "moe_intermediate_size": 16, "n_routed_experts": 4}
OWN_ATTENTION: dict[str, dict[str, Any]] = {
    "mpt": {"d_model": 48, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2},
    "falcon": {},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4},
    "roformer": {"is_decoder": True},
    "trocr": {"d_model": 48, "decoder_ffn_dim": 64, "decoder_layers": 2, "decoder_attention_heads": 4},
    "git": {"vision_config": {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}},
    "deepseek_v4": EXPERTS | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4},
}


def made(family: str, attention: str) -> Any:
    config = transformers.CONFIG_MAPPING[family](**ENCODER | OWN_ATTENTION[family])
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


@pytest.mark.parametrize("family", OWN_ATTENTION)
def test_a_model_with_an_attention_of_its_own_is_refused_when_it_is_made(family: str) -> None:
    with pytest.raises(ValueError, match=rf"is not supported by \w+ \({family}\), which has its own attention .*adapt"):
        made(family, "posenc")


@pytest.mark.parametrize("name", ["bloom", "git", "deberta-v2"])
def test_a_model_that_would_keep_its_own_attention_is_refused_where_it_is_set(name: str) -> None:
    if name == "deberta-v2":
        model: Any = transformers.DebertaV2Model(transformers.DebertaV2Config(**ENCODER))
    else:
        model = built(name) if name == "bloom" else made(name, "eager")
    before = model.config._attn_implementation
    for given in ("posenc", {"": "posenc"}):
        with pytest.raises(
            ValueError, match=rf"is not supported by \w+ \({name}\), which has its own .*adapt\(model\)"
        ):
            model.set_attn_implementation(given)
    assert model.config._attn_implementation == before
    if name != "git":
        with adapt(model):
            model.set_attn_implementation("posenc")  # it is


def test_adapt_does_not_send_on_to_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(gpt_neo\) is not among bloom, .*: it has its own attention, which cannot"):
        adapt(made("gpt_neo", "eager"))
    with pytest.raises(ValueError, match=r"\(llama\) is not among .*: use model.set_attn_implementation\('posenc'\)"):
        adapt(built("llama"))


class Mine(transformers.LlamaForCausalLM):
    """A class of one's own, which goes through the table as what it is derived from does."""


def test_a_class_of_ones_own_is_taken_for_what_it_is_derived_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "__module__", "typed at a prompt")  # transformers cannot read its source
    model = Mine._from_config(built("llama").config, attn_implementation="posenc")
    assert model.config._attn_implementation == "posenc"


# -- layers with a configuration of their own -------------------------------------------------------------------------

OWN = posenc.LongRoPE([1.0] * 6, [1.0] * 6, 64, 4.0, attention_factor=1.0)


def deeper(attention: str) -> Any:
    """A model with a copy of its last layer, which holds a copy of the configuration."""
    model = built("llama")
    model.set_attn_implementation(attention)
    layers = model.model.layers
    layers.append(copy.deepcopy(layers[-1]))
    layers[-1].self_attn.layer_idx = 2
    model.config.num_hidden_layers = 3
    return model


@pytest.mark.parametrize(("what", "attention"), [(OWN, "eager"), (posenc.RoPE(12), "sdpa")], ids=["length", "RoPE"])
def test_a_copied_layer_runs_through_posenc(what: Any, attention: str) -> None:
    model = deeper(attention)
    plain = output(model, input_ids=IDS)
    with patch(model, what):
        # the same angles, in double precision where transformers has float32, through three layers
        torch.testing.assert_close(
            output(model, input_ids=IDS), plain, rtol=0, atol=3 * of_angles(torch.float32, 13, plain)
        )
    assert torch.equal(output(model, input_ids=IDS), plain)
    assert model.model.layers[-1].self_attn.config._attn_implementation == attention


def test_a_copied_layer_that_adds_the_mask_to_its_scores_is_refused() -> None:
    model = deeper("eager")
    model.set_attn_implementation("posenc")
    with pytest.raises(ValueError, match=r"gives a boolean mask, and this layer adds it to its scores .* if it has a"):
        output(model, input_ids=IDS)


def test_the_mask_is_a_boolean_one_to_who_reads_it() -> None:
    mask = masks.mask(1, 5, 5)
    assert mask is not None
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    scores = torch.randn(1, 1, 5, 5)
    assert torch.equal(scores.masked_fill(~mask, -1.0), scores.masked_fill(~causal, -1.0))
    assert torch.equal(mask * mask, causal)
    assert torch.equal(mask.float(), causal.float())
    for join in (lambda: scores + mask, lambda: mask + scores, lambda: scores * mask):
        with pytest.raises(ValueError, match="gives a boolean mask"):
            join()
    with pytest.raises(ValueError, match="gives a boolean mask"):
        torch.cat((scores, mask))


def test_weights_of_a_patched_model_are_refused_with_the_way_out() -> None:
    model = built("llama")
    with (
        patch(model, posenc.ALiBi(4)),
        pytest.raises(ValueError, match=r"; undo\(\) the patch and set attn_impl"),
    ):
        model(input_ids=IDS, output_attentions=True)
