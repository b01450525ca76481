"""What posenc extend refuses, and what it says of it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers needs Python 3.11")

from posenc.command.cli import main
from posenc_lab.extend import run
from posenc_lab.extend.settings import Extension
from tests.extend.tiny_checkpoint import checkpoint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scalings": ("yarns",)}, r"scalings must be .*, got 'yarns'"),
        ({"final": 17}, r"final must be at most the shortest length \(16\), got 17"),
        ({"factor": 1.0}, "factor must be"),
        ({"scalings": ("base",)}, "base needs the number: add --base N, such as --base 1000000"),
        ({"base": 1e6}, "base must be omitted unless scalings have base, got 1000000"),
        ({"base": 1.0, "scalings": ("base",)}, "base must be a finite number above 1, got 1.0"),
        ({"scalings": ("yarm",)}, r"scalings must be .*, got 'yarm' \(did you mean 'yarn'\?\)"),
    ],
)
def test_a_wrong_setting_is_named(settings: Extension, change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(settings, **change)  # type: ignore[arg-type]


def test_what_is_not_there_is_named(settings: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"model must be smollm2, a checkpoint folder, .*got '.*nowhere'"):
        run.extend(replace(settings, model=str(tmp_path / "nowhere")), tmp_path)
    with pytest.raises(ValueError, match="too little text: 900 pieces of 129 tokens are needed"):
        run.extend(replace(settings, windows=900), tmp_path / "a")
    monkeypatch.setattr("posenc_lab.extend.model.available_bytes", lambda device: 1000)
    with pytest.raises(ValueError, match=r"needs about .* KiB for 128 tokens in float32, and 1.0 KiB are free"):
        run.extend(settings, tmp_path / "b")


def test_another_extension_in_the_folder_is_refused(settings: Extension, tmp_path: Path) -> None:
    small = replace(settings, scalings=("none",), lengths=(32,))
    run.extend(small, tmp_path)
    with pytest.raises(ValueError, match=r"holds another extension, with factor 4\.0 there and 8\.0 here"):
        run.extend(replace(small, factor=8.0), tmp_path)


def test_wrong_use_is_told_before_anything_is_written(
    place: Path, settings: Extension, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(place / "model", bare, ignore=shutil.ignore_patterns("token*"))
    out = tmp_path / "out"
    for command, said in (
        (
            [settings.model, "--text", "/nowhere"],
            "text must be of files, folders or globs that match some, got '/nowhere'",
        ),
        ([str(bare)], f"model {bare} must come with a tokenizer, and {bare} has none that transformers can read"),
    ):
        assert main(["extend", *command, "--out", str(out)]) == 2
        assert said in capsys.readouterr().err
        assert not out.exists()


def test_a_model_without_all_of_its_weights_is_refused(place: Path, settings: Extension, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(place / "model", folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"must have all its weights, and 1 are missing, .*: model\.norm\.weight"):
        run.extend(replace(settings, model=str(folder)), tmp_path / "out")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model .* cannot be loaded: "):
        run.extend(replace(settings, model=str(folder)), tmp_path / "out")
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": settings}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model .* cannot be loaded: its weights are pickled Python objects"):
        run.extend(replace(settings, model=str(folder)), tmp_path / "out")


def test_the_trained_length_is_read_or_asked_for(settings: Extension, tmp_path: Path) -> None:
    from transformers import LlamaConfig, Olmo3Config

    from posenc_lab.extend.model import Source

    def source(config: object) -> Source:
        return Source("m", "m", None, config, 1)

    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    by_layers = {"full_attention": yarn, "sliding_attention": plain}
    assert source(Olmo3Config(max_position_embeddings=128, rope_parameters=by_layers)).trained == 32
    assert source(LlamaConfig(max_position_embeddings=64)).trained == 64
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    with pytest.raises(ValueError, match=r"trained_length must be given, .* has a linear scaling .* 128 tokens"):
        _ = source(LlamaConfig(max_position_embeddings=128, rope_parameters=linear)).trained
    folder = checkpoint(tmp_path / "model", max_position_embeddings=128, rope_parameters=linear)
    given = replace(settings, model=str(folder), trained_length=32, scalings=("none",))
    assert run.extend(given, tmp_path / "out")[-1]["model"].endswith("trained at 32")


def test_a_model_that_computes_its_own_attention_is_refused(settings: Extension, tmp_path: Path) -> None:
    from transformers import FalconConfig, FalconForCausalLM

    folder = checkpoint(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    config = FalconConfig(vocab_size=256, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, bos_token_id=0)
    FalconForCausalLM(config).save_pretrained(folder)
    with pytest.raises(
        ValueError, match=r"attention posenc needs .*, and falcon of .* computes its own: give --attention"
    ):
        run.extend(replace(settings, model=str(folder)), tmp_path / "out")
