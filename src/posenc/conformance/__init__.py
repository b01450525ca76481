"""Checks for any implementation of positional encoding: a function, module or model."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.conformance.heads import Attention as Attention
    from posenc.conformance.heads import Bias as Bias
    from posenc.conformance.heads import Rotary as Rotary
    from posenc.conformance.layers import Layer as Layer
    from posenc.conformance.layers import Model as Model
    from posenc.conformance.run import Report as Report
    from posenc.conformance.run import check as check
    from posenc.conformance.subjects import Batch as Batch
    from posenc.conformance.subjects import NotApplicableError as NotApplicableError
    from posenc.conformance.subjects import Subject as Subject
    from posenc.conformance.suite import conformance_tests as conformance_tests
    from posenc.conformance.transformers_models import hugging_face as hugging_face

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
    "hugging_face": "transformers_models",  # no file has the name of what is looked up late, or it would hide it
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc.conformance' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"posenc.conformance.{HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
