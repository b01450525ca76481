"""Where transformers 5.23 is at fault, by the scripts of field/reproductions: each fails here when the fault is mended.

They say why a test elsewhere compares with something else, or leaves a model out.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from field.faults import SCRIPTS
from tests.huggingface.test_attention import IDS, built, output


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("transformers-*.py")), ids=lambda script: script.stem)
def test_the_fault_is_there(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 1
    assert "came:" in capsys.readouterr().out


def test_dynamic_scaling_turns_a_row_by_the_longest_of_its_batch() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = built("llama", max_position_embeddings=8, rope_parameters=scaling)
    model.set_attn_implementation("eager")
    short = (torch.arange(13) < torch.tensor([[7], [13]])).long()
    beside = output(model, input_ids=IDS, attention_mask=short)[0, :7]
    alone = output(model, input_ids=IDS[:1, :7])[0]
    assert (beside - alone).abs().max() > 1e-2
