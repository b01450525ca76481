"""Models of the transformers library: configurations in, weights converted, models patched and put back.

transformers itself is imported inside the functions that need it: it is the extra ``posenc[huggingface]``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.huggingface.attention import register as register
    from posenc.huggingface.config import Layer as Layer
    from posenc.huggingface.config import ModelPositions as ModelPositions
    from posenc.huggingface.config import scheme_from_config as scheme_from_config

# Public names and where they live. They are imported at first use, so that nothing is paid for what is not used.
HOMES = {
    "register": "attention",
    "Layer": "config",
    "ModelPositions": "config",
    "scheme_from_config": "config",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc.huggingface' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"posenc.huggingface.{HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
