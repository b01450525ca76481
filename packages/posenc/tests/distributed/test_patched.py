"""Models of transformers whose tokens are divided among processes: outputs, gradients, errors."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from tests.distributed.processes import in_processes

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs torch's gloo"
)


SOME = ("llama, t5", "gemma3, windows", "gpt2, sinusoidal")


def test_patched_models_in_one_process(tmp_path: Path) -> None:
    from tests.distributed import patched_models

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrong = patched_models.run_all(("llama, t5", "bert, t5"))
    finally:
        torch.distributed.destroy_process_group()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("world", "names"),
    [
        pytest.param(2, SOME, marks=pytest.mark.more),
        pytest.param(2, (), marks=pytest.mark.survey),
        pytest.param(3, (), marks=pytest.mark.survey),
    ],
)
def test_patched_models_are_those_of_the_whole_text(world: int, names: tuple[str, ...], tmp_path: Path) -> None:
    from tests.distributed import patched_models

    for wrong, messages in in_processes(world, tmp_path, patched_models.everything, names):
        assert not wrong, "\n".join(wrong)
        for message, expected in messages:
            assert expected in message
