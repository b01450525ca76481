"""Models of the transformers library: reads their configurations, converts weights, and patches models.

Importing this package makes "posenc" an attention implementation of transformers, if it is installed (the extra
``posenc[huggingface]``).
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.huggingface.caches import bounded_cache as bounded_cache
    from posenc.huggingface.config import scheme_from_config as scheme_from_config
    from posenc.huggingface.patching import patch as patch
    from posenc.huggingface.reading import Layer as Layer
    from posenc.huggingface.reading import ModelPositions as ModelPositions
    from posenc.huggingface.seams import Patched as Patched
    from posenc.huggingface.weights import convert_layout as convert_layout
    from posenc.huggingface.weights import half_to_interleaved as half_to_interleaved
    from posenc.huggingface.weights import interleaved_to_half as interleaved_to_half
    from posenc.huggingface.weights import resize_grid as resize_grid
    from posenc.huggingface.weights import resize_line as resize_line

# Public names and their modules, which are imported when a name is first used.
HOMES = {
    "register": "loading",
    "Patched": "seams",
    "patch": "patching",
    "bounded_cache": "caches",
    "Layer": "reading",
    "ModelPositions": "reading",
    "scheme_from_config": "config",
    "convert_layout": "weights",
    "half_to_interleaved": "weights",
    "interleaved_to_half": "weights",
    "resize_grid": "weights",
    "resize_line": "weights",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc.huggingface' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"posenc.huggingface.{HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)


if importlib.util.find_spec("transformers") is not None:
    from posenc.huggingface.loading import register

    register()
