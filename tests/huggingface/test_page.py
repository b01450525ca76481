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
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_every_family_has_a_row_and_every_row_a_family() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row))}
    assert named == set(READERS)


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
