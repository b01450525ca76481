"""Checks for any implementation of positional encoding: a function, module or model."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc_check.run import Report as Report
    from posenc_check.run import check as check
    from posenc_check.subjects import Attention as Attention
    from posenc_check.subjects import Batch as Batch
    from posenc_check.subjects import Bias as Bias
    from posenc_check.subjects import Layer as Layer
    from posenc_check.subjects import Model as Model
    from posenc_check.subjects import NotApplicableError as NotApplicableError
    from posenc_check.subjects import Rotary as Rotary
    from posenc_check.subjects import Subject as Subject
    from posenc_check.suite import conformance_tests as conformance_tests
    from posenc_check.transformers_calls import hugging_face as hugging_face

# Public names and where they live. They are imported at first use, so that the command line answers before torch loads.
HOMES = {
    "Attention": "subjects",
    "Batch": "subjects",
    "Bias": "subjects",
    "Layer": "subjects",
    "Model": "subjects",
    "NotApplicableError": "subjects",
    "Report": "run",
    "Rotary": "subjects",
    "Subject": "subjects",
    "check": "run",
    "conformance_tests": "suite",
    "hugging_face": "transformers_calls",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc_check' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"posenc_check.{HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
