"""Searches for LongRoPE's factors, by which each frequency is divided, with an evolutionary algorithm.

Candidates are lists lambda_0 <= lambda_1 <= ... within 1 .. 1.25 s, in steps of 0.01. The initial lists are those of
position interpolation, NTK and YaRN. In every generation the best are parents. A mutation redraws each number with
probability 0.3, between its neighbours; a crossover takes each number of a second parent with that probability, and is
kept if the list is still non-decreasing. No list is tried twice.

Every list tried is a line of ``record``, after a first line that identifies the search. The sequence depends only on
the seed and the losses, so an interrupted search replays its record and continues. Source: Ding et al. 2024, "LongRoPE"
(arXiv 2402.13753), section 3.3 and algorithm 1; the rules of mutation and crossover were read in microsoft/LongRoPE
(evolution/algorithms). There the first population is mutations of one list."""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from posenc.arguments import check_type, number, shown, whole
from posenc.rotation.phases import frequencies
from posenc.rotation.scalings import LongRoPE, NTKAware, PositionInterpolation, Scaling, YaRN
from posenc.tools.kit.files import naming_line, parse, put, require, whole_lines, write_whole

STEP, ROOM, CHANCE = 0.01, 1.25, 0.3
LINE = "a line of a search"
TRIES = 100  # of one mutation or crossover, until it is a list that was not tried

Factors: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """A list that was tried, its origin, and its loss, infinite if it was not finite."""

    factors: Factors
    loss: float
    origin: str


@dataclass(frozen=True)
class Found:
    """The best list as a scaling, and all trials in order."""

    scaling: LongRoPE
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the lowest loss, the first of equals."""
        return min(self.trials, key=lambda trial: trial.loss)


def search(
    loss: Callable[[LongRoPE], float],
    *,
    pairs: int,
    base: float,
    factor: float,
    original_length: int,
    evaluations: int,
    population: int = 16,
    seed: int = 0,
    record: str | Path | None = None,
    of: Mapping[str, Any] | None = None,
    progress: Callable[[int, Trial, Trial], None] = lambda done, trial, best: None,
) -> Found:
    """Tries lists of ``pairs`` numbers and returns the one with the lowest ``loss``.

    ``loss`` is called with LongRoPE(ones, list, original_length, factor) and should measure texts about ``factor``
    times as long as ``original_length``. A loss that is not finite counts as the worst. ``population`` is the size of
    each generation; after the first, half of it are mutations and half crossovers of the best half so far. ``of``
    identifies in JSON values what the loss is measured on (a model, a text, a length); a record is continued only if it
    is the same. ``progress`` is called with the number of lists tried, the last one and the best one. Errors:
    ValueError for a record of another search or a damaged one, which is not changed."""
    pairs, evaluations = whole("pairs", pairs, least=2), whole("evaluations", evaluations)
    population, seed = whole("population", population, least=4), whole("seed", seed, least=0)
    original_length = whole("original_length", original_length, least=2)
    base, factor = number("base", base, above=1), number("factor", factor)
    check_type("record", record, str, Path, None)
    record = None if record is None else Path(record)
    ones = [1.0] * pairs

    def scaling(factors: Factors) -> LongRoPE:
        return LongRoPE(ones, factors, original_length, factor)

    scaling(tuple(ones))  # refuses a wrong factor or length before anything is tried
    asked = {
        "pairs": pairs, "base": base, "factor": factor, "original_length": original_length,
        "population": population, "seed": seed, "of": _in_json(of),
    }  # fmt: skip
    known = _read(record, asked) if record is not None else []
    trials: list[Trial] = []
    for factors, origin in _bred(trials, asked):
        if len(trials) == evaluations:
            break
        if len(trials) < len(known):
            trial = known[len(trials)]
            if (trial.factors, trial.origin) != (factors, origin):
                raise ValueError(f"{record}, line {len(trials) + 2}, must hold the list that this search tries next")
        else:
            value = loss(scaling(factors))
            trial = Trial(factors, float(value) if math.isfinite(value) else math.inf, origin)
            if record is not None:
                _append(record, trial)
        trials.append(trial)
        progress(len(trials), trial, min(trials, key=lambda each: each.loss))
    return Found(scaling(min(trials, key=lambda each: each.loss).factors), tuple(trials))


def starts(pairs: int, base: float, factor: float, original_length: int) -> dict[str, Factors]:
    """The factors of position interpolation, NTK and YaRN, in steps of 0.01."""
    theta = frequencies(2 * pairs, base)
    formulas: dict[str, Scaling] = {
        "PI": PositionInterpolation(factor),
        "NTK": NTKAware(factor),
        "YaRN": YaRN(factor, original_length),
    }
    return {name: _stepped((theta / formula(theta)[0]).tolist(), factor) for name, formula in formulas.items()}


def _stepped(factors: list[float], factor: float) -> Factors:
    """Rounds to the search grid; a non-decreasing list stays non-decreasing."""
    return tuple(round(min(max(round(each / STEP) * STEP, 1.0), ROOM * factor), 10) for each in factors)


def _bred(trials: list[Trial], asked: dict[str, Any]) -> Iterator[tuple[Factors, str]]:
    """Yields the lists to try, with their origin. ``trials`` grows as they are tried."""
    draw = random.Random(asked["seed"])
    factor, size = asked["factor"], asked["population"]
    first = starts(asked["pairs"], asked["base"], factor, asked["original_length"])
    seen: set[Factors] = set()

    def new(factors: Factors) -> bool:
        if factors in seen or any(a > b for a, b in pairwise(factors)):
            return False
        seen.add(factors)
        return True

    def mutated(parent: Factors) -> Factors | None:
        for _ in range(TRIES):
            child = list(parent)
            for k in range(len(child)):
                if draw.random() < CHANCE:
                    low = child[k - 1] if k else 1.0
                    high = child[k + 1] if k + 1 < len(child) else ROOM * factor
                    child[k] = low + draw.random() * (high - low)
            stepped = _stepped(child, factor)
            if new(stepped):
                return stepped
        return None

    def crossed(one: Factors, other: Factors) -> Factors | None:
        for _ in range(TRIES):
            child = tuple(b if draw.random() < CHANCE else a for a, b in zip(one, other, strict=True))
            if new(child):
                return child
        return None

    for name, factors in first.items():
        if new(factors):
            yield factors, name
    names = list(first)
    for n in range(size - len(first)):
        name = names[n % len(names)]
        made = mutated(first[name])
        if made is not None:
            yield made, f"mutation of {name}"
    while True:
        ranked = sorted(range(len(trials)), key=lambda n: (trials[n].loss, n))[: max(2, size // 2)]
        parents = [trials[n].factors for n in ranked]
        bred = False
        for n in range(size):
            one, other = (int(draw.random() * len(parents)) for _ in range(2))
            made, origin = None, "crossover"
            if n % 2 and one != other:
                made = crossed(parents[one], parents[other])
            if made is None:
                made, origin = mutated(parents[one]), "mutation"
            if made is not None:
                bred = True
                yield made, origin
        if not bred:  # every list that can be reached was tried
            return


def _in_json(of: Mapping[str, Any] | None) -> Any:
    """The values as they are read back from JSON. ValueError for values that are not JSON."""
    check_type("of", of, Mapping, None)
    try:
        return json.loads(json.dumps({} if of is None else dict(of), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"of must hold JSON values, got {shown(of)}: {error}") from None


def _append(record: Path, trial: Trial) -> None:
    told = None if math.isinf(trial.loss) else trial.loss
    line = json.dumps({"factors": trial.factors, "loss": told, "origin": trial.origin}) + "\n"
    with record.open("ab", buffering=0) as file:
        put(file.fileno(), line.encode())


def _read(record: Path, asked: dict[str, Any]) -> list[Trial]:
    """The trials of the record, which is created if missing. An incomplete last line is removed, once the file is known
    to be the record of this search."""
    header = (json.dumps({"search": asked}) + "\n").encode()
    data = record.read_bytes() if record.exists() else b""
    if header.startswith(data):  # none, or one that was cut off before the first list
        write_whole(record, header)
        return []
    lines, size = whole_lines(data)
    with naming_line(record, 1, LINE):
        of = parse((lines or [data])[0].decode())
        require(of, {"search": dict})
    for name, value in asked.items():
        if (before := of["search"].get(name)) != value:
            raise ValueError(
                f"record must be of this search, but {record} has {name} {shown(before)}, not {shown(value)}"
            )
    found = []
    for i, line in enumerate(lines[1:], 2):
        with naming_line(record, i, LINE):
            told = parse(line.decode())
            require(told, {"factors": list[float], "loss": float | None, "origin": str})
        loss = math.inf if told["loss"] is None else float(told["loss"])
        found.append(Trial(tuple(map(float, told["factors"])), loss, told["origin"]))
    if size < len(data):
        write_whole(record, data[:size])
    return found
