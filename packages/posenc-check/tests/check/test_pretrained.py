"""posenc check hf:PATH: a model as transformers saved it, with what its configuration claims."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_file, save_file

from posenc.command.cli import main
from posenc_check import Model, check
from posenc_check import pretrained as rooms
from posenc_check.pretrained import build_pretrained
from posenc_check.targets import subjects_of
from tests.huggingface.configs import SIZES


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A tiny Llama in a folder."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**SIZES, bos_token_id=None, eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def only(target: str, **claims: Any) -> tuple[str, Model]:
    [(name, subject)] = subjects_of(target, **claims).items()
    assert isinstance(subject, Model)
    return name, subject


def test_a_saved_llama_is_checked_with_its_weights(saved: Path) -> None:
    name, subject = only(f"hf:{saved}")
    assert name == f"hf:{saved}"
    assert (subject.causal, subject.relative, subject.max_positions) == (True, True, None)
    assert subject.options["pad_token_id"] == 63  # it has 0, which the checks write text in
    made, kept = subject.build(**subject.options), transformers.LlamaForCausalLM.from_pretrained(saved)
    assert all(torch.equal(x, kept.state_dict()[n]) for n, x in made.state_dict().items())
    report = check(subject, checks=[6], lengths=[1, 3])
    assert {result.status for result in report.results} == {"passed"}
    assert only(f"hf:{saved}", relative=False)[1].relative is False


def test_a_folder_without_weights_gets_random_ones_and_says_so(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    name, subject = only(f"hf:{saved}")
    assert name == f"hf:{saved} (random weights: it has none)"
    one, other = subject.build(**subject.options), subject.build(**subject.options)
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(), other.parameters(), strict=True))


def test_the_command_says_what_it_checks(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "model.safetensors").unlink()
    assert main(["check", f"hf:{saved}", "--checks", "6", "--lengths", "1,3"]) == 0
    assert "(random weights: it has none): 1 passed" in " ".join(capsys.readouterr().out.split())


def test_tables_claim_where_they_end(tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model("gpt2", **SIZES | {"max_position_embeddings": 20})
    config.save_pretrained(tmp_path)
    _, subject = only(f"hf:{tmp_path}")
    assert (subject.relative, subject.max_positions) == (False, 20)


def test_what_takes_no_positions_does_not_claim_that_moving_them_changes_nothing(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 64, "pad_token_id": 63}
    transformers.BloomConfig(**sizes).save_pretrained(tmp_path)
    assert not only(f"hf:{tmp_path}")[1].can("positions")
    assert only(f"hf:{tmp_path}")[1].relative is None
    assert only(f"hf:{tmp_path}", relative=True)[1].relative is True


def config_in(folder: Path, **given: Any) -> str:
    (folder / "config.json").write_text(json.dumps(given))
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64},
            r"has \d\d,\d{3},\d{3},\d{3} parameters, \d+\.\d GiB in float32, which is too large to check",
        ),
        (
            {"model_type": "t5"},
            "must be a decoder or an encoder in floating numbers, got one that is an encoder with a",
        ),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "got one that is quantized"),
        ({"model_type": "llama", "posenc_patch": "NoPE()"}, "in floating numbers, got one that is patched"),
        ({"model_type": "clip"}, "must be one model, got clip, which holds several: save its text model to another"),
        ({"model_type": "lama"}, "could not be loaded: "),
        ({}, "could not be loaded: "),
    ],
)
def test_what_cannot_be_checked_is_named(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        subjects_of(config_in(tmp_path, **given))


class Own:
    """An object that torch.load does not read safely."""


def test_pickled_weights_are_named(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Own()}, saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"could not be loaded: its weights are pickled .* safetensors"):
        build_pretrained(str(saved), "LlamaForCausalLM")


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (str(tmp_path / "none"), "./none", ""):
        with pytest.raises(ValueError, match=r"hf:PATH_OR_NAME must be a folder or a name on the hub, and there is no"):
            subjects_of(f"hf:{place}")
    with pytest.raises(
        ValueError, match=r"must be a folder with a config.json, as save_pretrained writes it, and has none"
    ):
        subjects_of(f"hf:{tmp_path}")

    def unreachable(name: str) -> None:
        raise OSError(f"We couldn't connect to load {name}\nand more")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(
        ValueError, match=r"hf:a/b could not be loaded, and there is no folder 'a/b': We couldn't connect"
    ):
        subjects_of("hf:a/b")


def test_without_transformers_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"hf: needs transformers, which is not installed: in a clone of .*posenc\[huggin"
    ):
        rooms.pretrained(str(saved))


def test_vectors_are_not_for_it(saved: Path) -> None:
    with pytest.raises(ValueError, match="--dim is for a module that takes vectors; hf:"):
        subjects_of(f"hf:{saved}", 8)


def test_weights_that_are_lacking_are_named(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"must have all weights of LlamaForCausalLM, and lacks model.layers.0.self_at"
    ):
        only(f"hf:{saved}")


def test_claims_are_those_of_the_table_or_of_asking() -> None:
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    for config in (transformers.LlamaConfig(**sizes), transformers.DiffLlamaConfig(**sizes, num_key_value_heads=4)):
        assert rooms._claims(config) == {"causal": True, "relative": True}
    assert rooms._claims(transformers.MambaConfig(num_hidden_layers=2)) == {}
