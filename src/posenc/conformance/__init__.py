"""What an implementation of positions must survive: twenty checks, for anyone's function, module or model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.conformance.heads import Attention as Attention
    from posenc.conformance.heads import Bias as Bias
    from posenc.conformance.heads import Rotary as Rotary
    from posenc.conformance.hugging_face import hugging_face as hugging_face
    from posenc.conformance.layers import Layer as Layer
    from posenc.conformance.layers import Model as Model
    from posenc.conformance.run import Report as Report
    from posenc.conformance.run import check as check
    from posenc.conformance.subjects import Batch as Batch
    from posenc.conformance.subjects import NotApplicableError as NotApplicableError
    from posenc.conformance.subjects import Subject as Subject
    from posenc.conformance.suite import conformance_tests as conformance_tests

# Public names and where they live. They are imported at first use, so that the command line answers before torch loads.
HOMES = {
    "Attention": "heads",
    "Batch": "subjects",
    "Bias": "heads",
    "Layer": "layers",
    "Model": "layers",
    "NotApplicableError": "subjects",
    "Report": "run",
    "Rotary": "heads",
    "Subject": "subjects",
    "check": "run",
    "conformance_tests": "suite",
    "hugging_face": "hugging_face",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc.conformance' has no attribute {name!r}")
    for each, home in HOMES.items():  # at once, or a module imported before its function of the same name would stay
        globals()[each] = getattr(importlib.import_module(f"posenc.conformance.{home}"), each)
    return globals()[name]
