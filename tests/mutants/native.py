"""Bugs of the native kernel: a line of its C++ that says something else, built anew for each."""

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from posenc.backends.native import library
from tests.backends import test_parity
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
            for path in library.SOURCES.iterdir():
                if path.suffix in (".cpp", ".h"):
                    text = path.read_text()
                    if path.name == self.name:
                        if text.count(self.wrong[0]) != 1:
                            raise ValueError(f"{self.name} must have this once, to be mutated: {self.wrong[0]}")
                        text = text.replace(*self.wrong)
                    (Path(folder) / path.name).write_text(text)
            built = Path(folder) / "mutant.so"
            flags = [flag for flag in library.FLAGS if flag != "-O3"]
            source = [str(Path(folder) / "attention.cpp"), "-DREAL=double", "-O1", "-shared", "-o", str(built)]
            subprocess.run([*library._compiler(), *flags, *source], check=True)
            kernel = ctypes.CDLL(str(built))
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
    source(
        "the kernel sees a key past its window",
        "scores.h",
        "std::min(last, i + tile->high + 1)",
        "std::min(last, i + tile->high + 2)",
        *("alibi", "text", "causal"),
    ),
    source(
        "the kernel forgets the far keys of a clipped table",
        "scores.h",
        "for (int64_t j = left; j < inside; j++) s[j] += low;",
        "",
        *("shaw keys", "text", "causal"),
    ),
    Source(
        "the kernel's weights of a block before are not brought down",
        library,
        "forward.h",
        ("l[at + r] = l[at + r] * fade + sum(total);", "l[at + r] = l[at + r] + sum(total);"),
        partial(test_parity.test_so_it_is_over_blocks_of_their_real_size, *LONG, torch.device("cpu")),
    ),
    source(
        "the kernel's gradient of a table past its end goes nowhere",
        "backward.h",
        "if (!past || !t.gradient) return;",
        "return;",
        *("shaw", "text", "both"),
    ),
    source(
        "the kernel gives the gradient of a function to negative scores",
        "backward.h",
        "d_s[j] = bare[j] <= 0 ? Real(0) : d_s[j] * c;",
        "d_s[j] = d_s[j] * c;",
        *("distance_aware", "text", "causal"),
    ),
    source(
        "the kernel's gradient of a clock is one side's alone",
        "backward.h",
        "total += row[j], d_clock[j] += row[j];",
        "total += row[j];",
        *("clocked", "text", "both"),
    ),
)
