"""Shapes are checked where POSENC_SHAPES=1 asks for it: beartype then guards every jaxtyping annotation of posenc.

Not always, since the tests of error messages hand over wrong shapes on purpose, and torch.compile cannot see through
the guards.
"""

import os

import pytest
import torch
from jaxtyping import install_import_hook

if os.environ.get("POSENC_SHAPES") == "1":
    install_import_hook("posenc", "beartype.beartype")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
