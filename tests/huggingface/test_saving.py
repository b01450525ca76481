"""A patched model is saved, loaded, copied and pickled, and never runs without the positions that it was given."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_model

import posenc
from posenc.huggingface import adapt, patch
from posenc.huggingface.adapters import is_adapted
from tests.huggingface.test_attention import IDS, TERMS, built, output
from tests.huggingface.test_patching import same, state
from tests.huggingface.tiny import config_of
from tests.rounding import of_sums


def le_rope() -> posenc.LeRoPE:
    return posenc.LeRoPE(12, layout="half")


LEARNED: dict[str, tuple[str, Callable[[], Any], int]] = {  # and how many tensors it has
    "llama": ("llama", lambda: posenc.Shaw(12, 8), 2),
    "in one layer": ("llama", lambda: posenc.Schedule([(posenc.NoPE(), None), (posenc.KERPLE(4), None)]), 2),
    "in each layer": ("llama", lambda: posenc.Schedule([(le_rope(), None), (le_rope(), 4)]), 2),
    "gpt2": ("gpt2", lambda: posenc.Learned(64, 48) + posenc.T5(4), 2),
    "bert": ("bert", lambda: posenc.T5(4, bidirectional=True), 1),
    "bloom": ("bloom", lambda: posenc.Shaw(12, 8), 2),
    "nothing learned": ("gpt2", lambda: posenc.ALiBi(4), 0),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_trained_patched_model_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    family, made, tensors = LEARNED[name]
    model = built(family)
    plain = output(model, input_ids=IDS)
    with patch(model, trained := made()):
        for number, parameter in enumerate(trained.parameters()):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
        out = output(model, input_ids=IDS)
        model.save_pretrained(tmp_path)
    assert float((out - plain).abs().max()) > 1e-3

    again, said = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not said["missing_keys"]
    assert len(said["unexpected_keys"]) == tensors
    assert all(".posenc_plan.scheme." in key or ".wpe.scheme." in key for key in said["unexpected_keys"])
    assert torch.equal(output(again.eval(), input_ids=IDS), plain)

    patch(again, made())
    load_model(again, tmp_path / "model.safetensors")
    assert torch.equal(output(again, input_ids=IDS), out)


@pytest.mark.parametrize("assign", [False, True])
def test_a_learned_table_that_is_not_used_keeps_its_name(assign: bool) -> None:
    model, other = built("gpt2"), built("gpt2")
    with torch.no_grad():
        other.transformer.wpe.weight.mul_(2.0)
    with patch(model, posenc.ALiBi(4)):
        assert model.state_dict().keys() == other.state_dict().keys()
        model.load_state_dict(other.state_dict(), assign=assign)
    assert torch.equal(output(model, input_ids=IDS), output(other, input_ids=IDS))


OTHERS = {
    "rotation": ("llama", posenc.ALiBi(4)),
    "scaling by length": ("llama", posenc.DynamicNTK(2.0, 4)),
    "table": ("gpt2", posenc.ALiBi(4)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_attention_in_a_patched_model_is_refused(name: str) -> None:
    family, what = OTHERS[name]
    model = built(family)
    with patch(model, what):
        out = output(model, input_ids=IDS)
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match=r"attn_implementation must be 'posenc' while .* patched, got 'eager'"):
            output(model, input_ids=IDS)
        model.set_attn_implementation("posenc")
        assert torch.equal(output(model, input_ids=IDS), out)


def test_a_scaling_runs_under_any_attention() -> None:
    model = built("llama")
    with patch(model, posenc.YaRN(4.0, 4)):
        out = output(model, input_ids=IDS)
        model.set_attn_implementation("eager")
        torch.testing.assert_close(output(model, input_ids=IDS), out, rtol=0, atol=of_sums(torch.float32, TERMS, out))


def test_models_of_one_configuration_do_not_undo_one_another_silently() -> None:
    config = built("llama").config
    first, second = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    undone, patched = patch(first, posenc.ALiBi(4)), patch(second, posenc.ALiBi(4))
    out = output(second, input_ids=IDS)
    undone.undo()
    with pytest.raises(ValueError, match=r"attn_implementation must be 'posenc' while .* got 'sdpa'"):
        output(second, input_ids=IDS)
    second.set_attn_implementation("posenc")
    assert torch.equal(output(second, input_ids=IDS), out)
    patched.undo()


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_weights_that_a_model_would_keep_by_itself_are_refused(family: str) -> None:
    model = built(family) if family == "gpt2" else opt()
    model.set_attn_implementation("posenc")
    output(model, input_ids=IDS, output_hidden_states=True)
    with pytest.raises(ValueError, match=r"output_attentions is not supported .* set attn_implementation='eager'"):
        model(input_ids=IDS, output_attentions=True)


def opt() -> Any:
    sizes = {"hidden_size": 48, "word_embed_proj_dim": 48, "ffn_dim": 24, "num_hidden_layers": 1}
    return transformers.OPTForCausalLM(transformers.OPTConfig(vocab_size=64, num_attention_heads=4, **sizes)).eval()


@pytest.mark.parametrize("family", ["bloom", "gptj", "llama"])
def test_a_patched_model_is_pickled(family: str) -> None:
    model = built(family)
    with adapt(model) if family != "llama" else patch(model, posenc.ALiBi(4)):
        out = output(model, input_ids=IDS)
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert torch.equal(output(other, input_ids=IDS), out)
            assert [type(m).__name__ for m in other.modules()] == [type(m).__name__ for m in model.modules()]


def small(family: str) -> Any:
    if family == "swinv2":
        config: Any = transformers.Swinv2Config(image_size=16, patch_size=2, embed_dim=12, depths=[1], num_heads=[2])
    else:
        config = config_of("ministral3")
    return transformers.AutoModel.from_config(config).eval()


@pytest.mark.parametrize("family", ["ministral3", "swinv2"])
def test_an_attention_may_have_a_class_that_is_derived_from_its_own(family: str) -> None:
    """As fully_shard and parametrizations derive one of a module that is there."""
    model = small(family)
    inputs = {"pixel_values": torch.ones(1, 3, 16, 16)} if family == "swinv2" else {"input_ids": IDS}
    before = state(model)
    patched = adapt(model) if family == "swinv2" else patch(model, posenc.NoPE())
    out = output(model, **inputs)
    layer = next(module for module in model.modules() if is_adapted(module))
    kind = type(layer)
    layer.__class__ = type(f"FSDP{kind.__name__}", (kind,), {})
    assert torch.equal(output(model, **inputs), out)
    other = copy.deepcopy(model)
    assert torch.equal(output(other, **inputs), out)
    assert type(layer) in map(type, other.modules())
    assert is_adapted(layer)
    with pytest.raises(ValueError, match=rf"{kind.__name__} was made FSDP{kind.__name__} since .* remove it, then"):
        patched.undo()
    assert torch.equal(output(model, **inputs), out)
    layer.__class__ = kind
    patched.undo()
    assert same(state(model), before)
