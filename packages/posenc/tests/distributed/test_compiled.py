"""Compiled models are what they are without compiler, while their text or their parameters are divided."""

from pathlib import Path

import pytest
import torch

from tests.distributed import compiled_models
from tests.distributed.processes import in_processes

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs torch's gloo"
)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(compiled_models.SOME, marks=pytest.mark.more),
        *(
            pytest.param((case,), marks=pytest.mark.survey, id="-".join(case).replace(" ", "_"))
            for case in compiled_models.MORE
        ),
    ],
)
def test_compiled_models_are_those_on_one_process(cases: tuple[compiled_models.Case, ...], tmp_path: Path) -> None:
    for wrong in in_processes(2, tmp_path, compiled_models.run, cases):
        assert not wrong, "\n".join(wrong)
