"""Known-answer tests that a library of the kernel must pass before it is used.

A compiler can generate wrong code from correct C++ without anyone noticing. So a library computes the `questions`, and
its output, log-sum-exp and gradients are compared with those of the reference in float64. `known.json` stores three
numbers for each tensor x: its norm |x|, and the complex projection sum_n x_n e^(i a_n) with non-repeating angles a_n.
An error e in a single entry changes the projection by |e|, and errors in many entries do not cancel: for independent
errors the change is about their norm.

The tolerance is stored in units of rounding: ``off`` is the error of the reference in float32 against float64, which
includes the cancellation in this question, and ``least`` is the minimum error of a kernel that stores log-sum-exps.
Sums in another order may differ by `MARGIN` times the larger of both. In half precision, weights, outputs and gradients
of scores are rounded separately: the tolerance is `MARGIN` times that rounding of |x|, or ``off`` roundings if sums
cancel more.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.arguments import check_choice
from posenc.backends.native.questions import FIXED, P, Question, questions, scattered
from posenc.backends.operands import IN_DOUBLE, POSSIBLE, Form
from posenc.encoding.horizon import skipped_by_default
from posenc.positions.tiles import Tiling

KNOWN = Path(__file__).with_name("known.json")
MARGIN = 8.0
BLIND = -100.0  # replaces the log-sum-exp of a fully masked query


@dataclass(frozen=True)
class Precision:
    """The dtypes of tokens and tables, the unit roundoff of sums and, if larger, of products, and the inputs that a
    library of this precision does not support."""

    of_tokens: torch.dtype
    of_tables: torch.dtype
    unit: float
    rounding: float = 0.0
    untaken: tuple[str, ...] = ()


PRECISIONS = {
    "float": Precision(torch.float32, torch.float32, 2.0**-24),
    "double": Precision(torch.float64, torch.float64, 2.0**-53),
    "bfloat16": Precision(torch.bfloat16, torch.float32, 2.0**-24, 2.0**-8, ("key_vectors",)),
}
_trial = threading.local()


def on_trial() -> ctypes.CDLL | None:
    """The library that this thread is testing, to call instead of the loaded one."""
    return getattr(_trial, "kernel", None)


def failures(kernel: ctypes.CDLL, precision: str) -> tuple[str, ...]:
    """The questions that a library answers wrongly, with the names of the wrong tensors.

    ``precision`` is that of the library, a name in `PRECISIONS`. Runs in a new thread, so that modes set by the caller
    do not apply.
    """
    check_choice("precision", precision, tuple(PRECISIONS))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_failures, kernel, PRECISIONS[precision]).result()


def _failures(kernel: ctypes.CDLL, precision: Precision) -> tuple[str, ...]:
    torch.get_num_threads()  # PyTorch initializes it per thread on first use
    setting = compat.openmp("omp_set_num_threads")
    _trial.kernel = kernel
    found = []
    with torch.no_grad():
        for question in questions():
            if any(name in question.given[0] for name in precision.untaken):
                continue
            if setting is not None:
                setting(question.place.threads)  # for parallel loops started by this thread
            known = _known()[question.name]
            wrong = [name for name, x in answers(question, precision).items() if is_off(x, known[name], precision)]
            if wrong:
                found.append(f"{question.name}: {', '.join(wrong)}")
    return tuple(found)


@functools.cache
def _known() -> dict[str, dict[str, list[float]]]:
    """For every question and answer: projection (2), norm, ``off`` and ``least``."""
    return dict(json.loads(KNOWN.read_text()))


def answers(question: Question, precision: Precision) -> dict[str, Tensor]:
    """The operator's answers to a question, by name."""
    dtypes = dict.fromkeys(IN_DOUBLE, torch.float64) | dict.fromkeys(FIXED[:3], torch.int64)
    query, key, value, dout, dlse = (x.to(precision.of_tokens) for x in question.tensors.values())
    tensors, lows, function = question.given
    given = [x.to(dtypes.get(name, precision.of_tables)).contiguous() for name, x in tensors.items()]
    learned = [name for name in tensors if name not in FIXED]
    rest = (
        given,
        " ".join(tensors),
        " ".join(learned),
        Tiling(*question.layouts, question.place.visibility).flat(),
        Form(function, [lows.get(name, 0) for name in POSSIBLE], question.turn).flat(),
        question.place.scale,
        skipped_by_default(precision.of_tokens) if question.skips else 0.0,
    )
    out, lse = torch.ops.posenc.native(query, key, value, *rest)
    found = torch.ops.posenc.native_backward(dout, dlse.to(lse.dtype), query, key, value, out, lse, *rest)
    return named(out, lse, dict(zip(("query", "key", "value", *learned), found, strict=True)))


def named(out: Tensor, lse: Tensor, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The answers by their names in reports."""
    words = {name: f"gradient of the {name.replace('_', ' ')}" for name in gradients}
    of = {words[name]: x for name, x in gradients.items()}
    return {"output": out, "log-sum-exp": lse.masked_fill(lse == -torch.inf, BLIND), **of}


@functools.cache
def _wave() -> Tensor:
    """cos and sin of P angles, (2, P)."""
    angles = scattered() * (2 * math.pi)
    return torch.stack((angles.cos(), angles.sin()))


def measured(x: Tensor) -> list[float]:
    """The projection of x, two numbers, and its norm."""
    line = x.detach().double().flatten()
    once = line if len(line) <= P else F.pad(line, (0, -len(line) % P)).view(-1, P).sum(0)
    # Not a matrix product, whose summation order depends on the processor and whose error for thousands of numbers
    # exceeds the tolerance in float64. `sum` uses pairwise summation.
    return [*(_wave()[:, : len(once)] * once).sum(1).tolist(), torch.linalg.vector_norm(line).item()]


def is_off(x: Tensor, known: list[float], precision: Precision) -> bool:
    """Whether an answer differs from the known one by more than rounding explains, or is NaN."""
    c, s, length = (a - b for a, b in zip(measured(x), known, strict=False))
    *_, size, off, least = known
    of_sums, of_products = MARGIN * max(off, least), max(MARGIN * size, off)
    return not max(math.hypot(c, s), abs(length)) <= precision.unit * of_sums + precision.rounding * of_products
