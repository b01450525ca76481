"""``posenc bench --regret``: how much longer ``auto`` takes than the fastest backend that can run the call."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import posenc
from posenc.backends.choice import BACKENDS
from posenc.command.files import write_whole
from posenc.command.progress import Progress
from posenc_lab.bench import cases
from posenc_lab.bench.measure import Inputs, Work
from posenc_lab.bench.settings import AUTO, Settings
from posenc_lab.kit.machine import machine, versions

SCHEMES = ("nope", "rope", "alibi", "t5", "shaw", "transformer_xl", "fire", "fox")
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
ROUNDS = 7
SHORTEST = 2e-3  # seconds of a timing
HOPELESS = 3.0  # a backend whose first call takes so many times the fastest one's is not timed
WANTED, WORST = 1.05, 1.25


@dataclass(frozen=True)
class Cell:
    """One kind of call: what auto took, the fastest backend, and the time of the former over that of the latter."""

    scheme: str
    dtype: str
    length: int
    head_dim: int
    is_causal: bool
    phase: str
    auto: str
    fastest: str
    seconds: float
    regret: float

    def __str__(self) -> str:
        seen = "causal" if self.is_causal else "both directions"
        what = f"{self.scheme}, {self.dtype}, {seen}, {self.phase}, {self.length:,} tokens, heads of {self.head_dim}"
        return f"{self.regret:5.2f}  {what}: {self.auto}, {self.fastest} {self.seconds * 1e3:.3g} ms"


def regrets(settings: Settings, dtypes: Sequence[str], widths: Sequence[int], progress: Progress) -> Iterator[Cell]:
    """The cells of schemes, dtypes, lengths and widths, causal and not, forward and training, short calls first."""
    schemes, lengths = settings.schemes or SCHEMES, settings.lengths
    every = list(itertools.product(lengths, cases.PHASES, (True, False), dtypes, widths, schemes))
    progress.begin(sum(length for length, *_ in every))
    for length, phase, is_causal, dtype, width, scheme in every:
        cell = replace(settings, dtype=dtype, head_dim=width)
        found = _measured(cell, scheme, length, phase == "training", is_causal)
        progress.advance(length, f"{scheme}, {dtype}, {phase}, {length:,}")
        if found is not None:
            auto, times = found
            fastest = min(times, key=lambda name: times[name])
            least = times[fastest]
            yield Cell(
                scheme, dtype, length, width, is_causal, phase, auto, fastest if fastest != AUTO else auto, least,
                times[AUTO] / least,
            )  # fmt: skip


def _measured(
    settings: Settings, name: str, length: int, is_training: bool, is_causal: bool
) -> tuple[str, Mapping[str, float]] | None:
    """What auto took, and the seconds of each backend; None for a scheme that has no such call."""
    inputs = Inputs.draw(settings, length, length, is_training)
    scheme = cases.build_scheme(name, settings, length)
    projected = cases.projected_by_a_layer(scheme, inputs.query)
    works: dict[str, Work] = {}
    with torch.set_grad_enabled(is_training):
        query, encoding = cases.bound(scheme, name, inputs.query, projected)
        try:
            explained = posenc.explain(query, inputs.key, inputs.value, encoding, is_causal=is_causal)
        except ValueError:  # of a scheme for keys up to the query
            return None

    def work(backend: str) -> Work:
        def attend() -> torch.Tensor:
            out = posenc.attention(query, inputs.key, inputs.value, encoding, is_causal=is_causal, backend=backend)
            assert isinstance(out, torch.Tensor)
            return out

        return inputs.work(attend, tuple(scheme.parameters()))

    names = [AUTO, *(backend.name for backend in BACKENDS if backend.name not in explained.refusals)]
    first: dict[str, float] = {}
    for backend in names:
        works[backend] = work(backend)
        try:
            works[backend]()  # what is made at the first call
        except RuntimeError:  # FlexAttention has no backward pass on the CPU
            del works[backend]
            continue
        first[backend] = _seconds(works[backend], 1)
        if first[backend] > HOPELESS * min(first.values()) and backend != AUTO:
            del works[backend]
    counts = {backend: max(1, math.ceil(SHORTEST / first[backend])) for backend in works}
    rounds = [{backend: _seconds(works[backend], counts[backend]) for backend in works} for _ in range(ROUNDS)]
    times = {backend: min(each[backend] for each in rounds) for backend in works}
    # Auto runs the same code as the backend that it takes, so their better time is of both.
    if explained.backend in times:
        times[AUTO] = times[explained.backend] = min(times[AUTO], times[explained.backend])
    return explained.backend, times


def _seconds(work: Work, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - start) / count


def summary(cells: Sequence[Cell]) -> str:
    """The geometric mean and the worst, as text: of all, by each property, and the worst cells."""
    lines = [f"{'all':24} {_words(cells)}"]
    for field in ("scheme", "dtype", "length", "head_dim", "is_causal", "phase"):
        for value in dict.fromkeys(getattr(cell, field) for cell in cells):
            lines.append(f"{f'{field} {value}':24} {_words([cell for cell in cells if getattr(cell, field) == value])}")
    worst = sorted(cells, key=lambda cell: -cell.regret)[:20]
    return "\n".join([*lines, "", "the largest", *(str(cell) for cell in worst if cell.regret > 1)])


def _words(cells: Sequence[Cell]) -> str:
    mean = statistics.geometric_mean(cell.regret for cell in cells)
    over = sum(cell.regret > WORST for cell in cells)
    return f"mean {mean:.3f}, worst {max(c.regret for c in cells):.2f}, {over} of {len(cells)} above {WORST}"


def run(settings: Settings, dtypes: Sequence[str], widths: Sequence[int], folder: Path) -> str:
    """Measures all cells, writes ``regret.json`` into the folder, and returns the summary."""
    with Progress() as progress:
        cells = list(regrets(settings, dtypes, widths, progress))
    folder.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(torch.device(settings.device)), "versions": versions()}
    record = about | {"cells": [asdict(cell) for cell in cells]}
    write_whole(folder / "regret.json", json.dumps(record, indent=1).encode())
    return summary(cells)
