"""Known answers: what a library of the kernel must compute before attention is given to it.

A compiler may make wrong code of right C++, which its user would never see. So a library is asked `questions`, and what
it answers, output, log-sum-exp and every gradient, is compared with what the reference says in double precision. Of
each tensor x three numbers are kept in `known.json`: its length |x|, and the projection sum_n x_n e^(i a_n) at angles
that no order of n repeats. An error e of one entry moves the projection by |e|, whichever entry it is, and errors of
many do not cancel: of independent ones it is about the length of their vector.

How far it may be off is known too, in roundings: ``off`` is how far the reference in single precision is from that in
double precision, so it holds what the sums of this very question cancel, and ``least`` is the least that a kernel that
keeps log-sum-exps is off by. It sums in another order, and may be off by `MARGIN` times the greater. Where numbers of
half the width are multiplied, weights, outputs and gradients of scores are rounded to them, each by itself: `MARGIN`
times that rounding of |x|, or ``off`` roundings of it where sums cancel more.
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

from posenc.arguments import check_choice
from posenc.backends.native.questions import FIXED, P, Question, questions, scattered
from posenc.backends.operands import TABLES
from posenc.encoding.horizon import skipped_by_default
from posenc.positions.layout import flat

KNOWN = Path(__file__).with_name("known.json")
MARGIN = 8.0
BLIND = -100.0  # in the place of the log-sum-exp of a query that sees nothing
IN_DOUBLE = ("query_clock", "key_clock", "lines", "share")


@dataclass(frozen=True)
class Precision:
    """Dtypes of tokens and of tables, the unit roundoff of sums and, where it is greater, of products, and the inputs
    that a library of this precision does not take."""

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
    """The library that this thread is trying, and calls in the place of the one that is kept."""
    return getattr(_trial, "kernel", None)


def failures(kernel: ctypes.CDLL, precision: str) -> tuple[str, ...]:
    """What a library gets wrong: for every question of which an answer is wrong its name, and which answers.

    ``precision``: a name of `PRECISIONS`, that of the library; ValueError for another. It is tried in a thread of its
    own, where none of the modes holds that the caller may have set.
    """
    check_choice("precision", precision, tuple(PRECISIONS))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_failures, kernel, PRECISIONS[precision]).result()


def _failures(kernel: ctypes.CDLL, precision: Precision) -> tuple[str, ...]:
    torch.get_num_threads()  # PyTorch sets the number of a thread when it is first asked
    setting = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    _trial.kernel = kernel
    found = []
    with torch.no_grad():
        for question in questions():
            if any(name in question.given[0] for name in precision.untaken):
                continue
            if setting is not None:
                setting(question.place.threads)  # of loops that this thread begins
            known = _known()[question.name]
            wrong = [name for name, x in answers(question, precision).items() if is_off(x, known[name], precision)]
            if wrong:
                found.append(f"{question.name}: {', '.join(wrong)}")
    return tuple(found)


@functools.cache
def _known() -> dict[str, dict[str, list[float]]]:
    """Of every question and answer: projection (2), length, ``off`` and ``least``."""
    return dict(json.loads(KNOWN.read_text()))


def answers(question: Question, precision: Precision) -> dict[str, Tensor]:
    """What the operator makes of a question, by name."""
    dtypes = dict.fromkeys(IN_DOUBLE, torch.float64) | dict.fromkeys(FIXED[:3], torch.int64)
    query, key, value, dout, dlse = (x.to(precision.of_tokens) for x in question.tensors.values())
    tensors, lows, function = question.given
    given = [x.to(dtypes.get(name, precision.of_tables)).contiguous() for name, x in tensors.items()]
    learned = [name for name in tensors if name not in FIXED]
    rest = (
        given,
        " ".join(tensors),
        " ".join(learned),
        [lows.get(name, 0) for name in (*TABLES, "plane")],
        *(flat(layout) for layout in question.layouts),
        question.place.visibility.flat(),
        function,
        question.place.scale,
        skipped_by_default(precision.of_tokens) if question.skips else 0.0,
        question.turn,
    )
    out, lse = torch.ops.posenc.native(query, key, value, *rest)
    found = torch.ops.posenc.native_backward(dout, dlse.to(lse.dtype), query, key, value, out, lse, *rest)
    return named(out, lse, dict(zip(("query", "key", "value", *learned), found, strict=True)))


def named(out: Tensor, lse: Tensor, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Answers by the names that a report has."""
    words = {name: f"gradient of the {name.replace('_', ' ')}" for name in gradients}
    of = {words[name]: x for name, x in gradients.items()}
    return {"output": out, "log-sum-exp": lse.masked_fill(lse == -torch.inf, BLIND), **of}


@functools.cache
def _wave() -> Tensor:
    """cos and sin of P angles, (2, P)."""
    angles = scattered() * (2 * math.pi)
    return torch.stack((angles.cos(), angles.sin()))


def measured(x: Tensor) -> list[float]:
    """The projection of x, two numbers, and its length."""
    line = x.detach().double().flatten()
    once = line if len(line) <= P else F.pad(line, (0, -len(line) % P)).view(-1, P).sum(0)
    # Not a product of matrices: that adds one by one, in an order that each processor has of its own, and of thousands
    # of numbers it would be off by more than a library in double precision may be. `sum` adds pairs of pairs.
    return [*(_wave()[:, : len(once)] * once).sum(1).tolist(), torch.linalg.vector_norm(line).item()]


def is_off(x: Tensor, known: list[float], precision: Precision) -> bool:
    """Whether an answer is further from what is known than rounding explains. One that is no number is."""
    c, s, length = (a - b for a, b in zip(measured(x), known, strict=False))
    *_, size, off, least = known
    of_sums, of_products = MARGIN * max(off, least), max(MARGIN * size, off)
    return not max(math.hypot(c, s), abs(length)) <= precision.unit * of_sums + precision.rounding * of_products
