"""docs/huggingface.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import posenc
from posenc.huggingface.families import READERS

PAGE = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_readmes_lines_generate_past_the_trained_length(tmp_path: Path) -> None:
    (lines,) = [text for text in re.findall(r"```python\n(.*?)```", README, re.S) if "AutoModelForCausalLM" in text]
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=2, num_hidden_layers=2, vocab_size=64,
        max_position_embeddings=16, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    given: dict[str, Any] = {"ids": torch.arange(20)[None]}
    exec(lines.replace("path/to/checkpoint", str(tmp_path)).replace("8192", "16"), given)
    assert given["text"].shape == (1, 20 + 100)
    assert "YaRN(factor=4.0, original_length=16)" in repr(given["patched"])


def test_every_family_has_a_row_and_every_row_a_family() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row))}
    assert named == set(READERS)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
def test_the_examples_run_and_print_what_stands_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    transformers.Gemma3TextConfig(num_hidden_layers=6, rope_scaling=scaling).save_pretrained(tmp_path)
    config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, vocab_size=8)
    table, patches = torch.randn(2 + 1024, 8), torch.randn(1 + 14 * 14, 8)
    given: dict[str, Any] = {"posenc": posenc, "table": table, "patches": patches}
    given["model"] = transformers.LlamaModel(config)
    for example in EXAMPLES:
        text = example.replace("path/to/model", str(tmp_path))
        if "# ValueError: " in text:
            with pytest.raises(ValueError, match=re.escape(text.partition("# ValueError: ")[2].strip())):
                exec(text, given)
        else:
            exec(text, given)
        assert capsys.readouterr().out in PAGE
    assert all(torch.equal(given["back"][name], x) for name, x in given["model"].state_dict().items())
    assert given["line"].shape == (2 + 2048, 8)
    assert given["grid"].shape == (1 + 16 * 24, 8)
    assert given["cos"].shape == (1, 16, 128)
