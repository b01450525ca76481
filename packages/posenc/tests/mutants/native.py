"""Bugs of the native kernel: a line of its C++ that says something else, built anew for each."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from posenc.backends.native import library
from tests.backends import test_native, test_parity, test_skipping
from tests.backends.planted_bugs import KernelBug, built
from tests.mutants import Mutant
from tests.mutants.backends import at


@dataclass(frozen=True)
class Source(Mutant):
    """The file ``name`` with ``wrong``, a pair (this, that): that in the place of this, which is there once."""

    wrong: tuple[str, str]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the kernel, in double precision, for as long as this is open."""
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            kernel = built(Path(folder), [KernelBug(self.name, *self.wrong)])
            patch.setattr(library, "_load", lambda real: kernel)
            yield


def source(bug: str, file: str, this: str, that: str, scheme: str, place: str, way: str, kv_heads: int = 2) -> Source:
    return Source(bug, library, file, (this, that), at(scheme, place, way, kv_heads, backend="native"))


LONG = ("alibi bidirectional", "cache", "both")  # more keys than one block has
MUTANTS = (
    source(
        "the kernel's rows of vectors by distance are not shifted",
        "scores.h",
        "s + p.column(i, from, t), ld + 1)",
        "s + p.column(i, from, t), ld)",
        *("relative_1d", "text", "causal"),
    ),
    Source(
        "the kernel's weights of a block before are not brought down",
        library,
        "forward.h",
        ("l_i[at] = l_i[at] * alpha + sum(total);", "l_i[at] = l_i[at] + sum(total);"),
        partial(test_parity.test_so_it_is_over_blocks_of_their_real_size, *LONG, torch.device("cpu")),
    ),
    Source(
        "the kernel leaves out all that is fainter than what a row has",
        library,
        "bounds.h",
        ("return !(most < floor + call.skip_threshold);", "return !(most < floor);"),
        partial(test_skipping.test_what_is_left_out_weighs_no_more_than_is_said, "alibi", 600),
    ),
    Source(
        "the kernel's cap loses the digits of small scores",
        library,
        "numbers.h",
        ("y > all(Real(-0.35)) ? near * y : exponential(y) - Real(1)", "exponential(y) - Real(1)"),
        partial(test_native.test_a_cap_is_right_to_the_last_digits, torch.float64),
    ),
)
