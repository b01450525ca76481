"""The shapes written in the annotations are true: tests against the oracles run again, with beartype."""

import os
import subprocess
import sys

import jaxtyping
import pytest
import torch

import posenc

CHECKED = os.environ.get("POSENC_SHAPES") == "1"


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(CHECKED, reason="runs itself in a process where shapes are checked")
def test_annotated_shapes_are_true() -> None:
    without = ("cacheprovider", "xdist", "hypothesispytest")  # what is not used takes seconds to load
    command = [sys.executable, "-m", "pytest", "-q", *(f"-pno:{plugin}" for plugin in without)]
    chosen = [
        "packages/posenc/tests/test_shapes.py",
        "packages/posenc/tests/schemes/test_against_oracles.py",
        "-k",
        "wrong or output",
    ]
    run = subprocess.run(
        [*command, *chosen], env={**os.environ, "POSENC_SHAPES": "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


@pytest.mark.skipif(not CHECKED, reason="needs POSENC_SHAPES=1; test_annotated_shapes_are_true sets it")
def test_a_wrong_shape_is_noticed() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        posenc.logits(torch.randn(2, 3, 4), torch.randn(2, 1, 3, 4))
