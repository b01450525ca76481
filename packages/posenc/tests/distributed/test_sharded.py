"""Models whose heads or parameters are divided among processes are those on one: outputs, gradients, checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import checkpoints, sharded_models
from tests.distributed.processes import in_processes

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs torch's gloo"
)


def test_divided_heads_have_their_own_parameters_and_errors_name_the_way_out(tmp_path: Path) -> None:
    for wrong, messages in in_processes(2, tmp_path, sharded_models.quick_and_messages, None):
        assert not wrong, "\n".join(wrong)
        for message, expected in messages:
            assert expected in message


@pytest.mark.parametrize(
    ("world", "work", "given"),
    [
        pytest.param(2, sharded_models.by_parameters, None, marks=pytest.mark.more),
        pytest.param(2, sharded_models.by_hand, None, marks=pytest.mark.more),
        pytest.param(3, sharded_models.by_hand, None, marks=pytest.mark.survey),
        pytest.param(4, sharded_models.on_two_axes, None, marks=pytest.mark.survey),
        pytest.param(2, sharded_models.by_heads, sharded_models.NAMES, marks=pytest.mark.survey),
        pytest.param(4, sharded_models.by_heads, sharded_models.NAMES[::5], marks=pytest.mark.survey),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_models_are_those_on_one_process(
    world: int, work: Callable[[Any], list[str]], given: Any, tmp_path: Path
) -> None:
    for wrong in in_processes(world, tmp_path, work, given):
        assert not wrong, "\n".join(wrong)


@pytest.mark.survey
def test_checkpoints_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """Four processes save every scheme, two and one load it, bit for bit."""
    in_processes(4, tmp_path, checkpoints.save, tmp_path)
    for world in (2, 1):
        for wrong in in_processes(world, tmp_path, checkpoints.load, tmp_path):
            assert not wrong, "\n".join(wrong)


@pytest.mark.more
def test_a_checkpoint_of_another_scheme_is_an_error(tmp_path: Path) -> None:
    for said in in_processes(2, tmp_path, checkpoints.of_another, tmp_path / "saved"):
        assert "Missing key in checkpoint state_dict: model.trunk.position.p" in said
