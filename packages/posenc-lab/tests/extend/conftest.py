"""What the tests of posenc extend share: a folder with a model and a text, and an extension of them."""

from pathlib import Path

import pytest

from posenc_lab.extend.settings import Extension
from tests.extend.tiny_checkpoint import checkpoint, texts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extend")
    (folder / "text").mkdir()
    checkpoint(folder / "model")
    texts(folder / "text")
    return folder


@pytest.fixture
def settings(place: Path) -> Extension:
    return Extension(
        model=str(place / "model"),
        text=(str(place / "text"),),
        scalings=("none", "linear", "dynamic"),
        lengths=(16, 32, 128),
        factor=4.0,
        windows=2,
        final=8,
    )
