"""Models of transformers whose tokens are divided among processes: outputs, gradients, errors."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from tests.distributed.processes import in_processes

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs torch's gloo"
)


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.more), pytest.param(3, marks=pytest.mark.survey)])
def test_patched_models_are_those_of_the_whole_text(world: int, tmp_path: Path) -> None:
    from tests.distributed import patched

    for wrong, messages in in_processes(world, tmp_path, patched.everything, ()):
        assert not wrong, "\n".join(wrong)
        for message, expected in messages:
            assert expected in message
