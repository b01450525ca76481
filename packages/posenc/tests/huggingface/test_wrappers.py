"""A model within PEFT's wrappers, on meta, or offloaded by accelerate: what trains, is saved, loaded and refused."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
from safetensors.torch import load_model, save_model

import posenc
from posenc.huggingface import patch, scheme_from_config
from tests.huggingface.test_attention import IDS, built, output

pytestmark = [  # what PEFT warns of
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning"),  # which PEFT passes
    pytest.mark.filterwarnings("ignore:You have passed exclude_modules:UserWarning"),  # where there is none to exclude
]


def lora(model: Any, **options: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj"]} | options))


def trained(model: Any, scheme: posenc.Scheme) -> Tensor:
    """What it gives after a step of what trains in it, of which the scheme must be."""
    before = [parameter.clone() for parameter in scheme.parameters()]
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 5.0)
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimiser.step()
    assert any(not torch.equal(x, y) for x, y in zip(before, scheme.parameters(), strict=True))
    return output(model.eval(), input_ids=IDS)


@pytest.mark.parametrize(("first", "made"), [("PEFT", lambda: posenc.T5(4)), ("patch", lambda: posenc.FIRE(4))])
def test_a_scheme_trains_beside_adapters_and_is_saved_beside_them(made: Any, first: str, tmp_path: Path) -> None:
    scheme, base = made(), built("llama")
    if first == "PEFT":
        model = lora(base, target_modules="all-linear")
        patched = patch(model, scheme)
        assert (
            f"PEFT does not save the parameters of {type(scheme).__name__}: save the scheme separately"
            in patched.changes
        )
    else:
        patch(base, scheme)
        model = lora(base, target_modules="all-linear", exclude_modules=".*posenc_plan.*")
        assert not any(parameter.requires_grad for parameter in scheme.parameters())
        scheme.requires_grad_()
    out = trained(model, scheme)
    model.save_pretrained(tmp_path)
    save_model(scheme, tmp_path / "scheme.safetensors")

    again, other = peft.PeftModel.from_pretrained(built("llama"), tmp_path).eval(), made()
    patch(again, other)
    assert not torch.equal(output(again, input_ids=IDS), out)
    load_model(other, tmp_path / "scheme.safetensors")
    assert torch.equal(output(again, input_ids=IDS), out)


def test_a_network_of_a_scheme_that_peft_wraps_is_refused_by_name() -> None:
    model = built("llama")
    patch(model, posenc.FIRE(4))
    wrapped = lora(model, target_modules="all-linear")
    with pytest.raises(ValueError, match=r"inner of FIRE is wrapped by PEFT.* exclude_modules='\.\*posenc_plan\.\*'"):
        wrapped(input_ids=IDS)


def tuned(kind: Any) -> Any:
    torch.manual_seed(0)
    return peft.get_peft_model(built("llama"), kind(task_type="CAUSAL_LM", num_virtual_tokens=5)).eval()


OWN = posenc.LongRoPE([1.0] * 6, [1.0] * 6, 64, 4.0, attention_factor=1.0)


def test_prefix_tuning_is_refused_where_posenc_turns_keys() -> None:
    model = tuned(peft.PrefixTuningConfig)
    with pytest.raises(ValueError, match=r"RoPE in attention rotates all keys of the cache, .* or prompt tuning"):
        patch(model, OWN)


CASES = (
    ("llama", posenc.DynamicNTK(2.0, 8)),
    ("deepseek_v3", posenc.YaRN(2.0, 8)),
    ("llama4", None),
    ("gpt2", posenc.ALiBi(4)),
)


def cases() -> Iterator[tuple[Any, Any, Any]]:
    """Models, what is put into them (None is their own schedule), and the outputs."""
    for name, what in CASES:
        model = built(name)
        put = scheme_from_config(model.config).schedule if what is None else what
        with patch(model, put):
            out = output(model, input_ids=IDS)
        yield model, put, out


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


def test_an_offloaded_model_is_patched() -> None:
    hooks = pytest.importorskip("accelerate")
    for model, what, expected in cases():
        if model.config.model_type == "llama4_text":
            continue  # offloaded, its experts raise in transformers without posenc too
        hooks.cpu_offload(model, execution_device=torch.device("cpu"))
        assert any(parameter.is_meta for parameter in model.parameters())
        with patch(model, what):
            assert torch.equal(output(model, input_ids=IDS), expected), repr(what)
