"""Runs ``posenc extend``: measures one model with each scaling on the same tokens."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.command.progress import Progress
from posenc_lab.extend import measure
from posenc_lab.extend import model as models
from posenc_lab.extend.card import card_of
from posenc_lab.extend.scalings import patched, scaling_of
from posenc_lab.extend.settings import CROPPED, PLAIN, Extension
from posenc_lab.extend.summary import check as check_record
from posenc_lab.extend.text import Tokens
from posenc_lab.kit import configuration_file, processes
from posenc_lab.kit.configuration import ConfigError, fingerprint
from posenc_lab.kit.files import rounded
from posenc_lab.kit.machine import clock_of, device_of, version_of, versions
from posenc_lab.kit.processes import Lead, Stop
from posenc_lab.kit.records import Record, Records

MAX_SLOWDOWN = 2.0  # how much longer than estimated a run may take
FIXED_BY_FIRST_RUN = ("final", "windows")  # their defaults depend on the first run in a folder


def check(settings: Extension) -> tuple[Extension, models.Source, str]:
    """The settings with the model's lengths and trained length, the model's source, and the memory needed. ValueError
    for a model that is missing or does not fit, and for an unavailable device."""
    device = device_of(settings.device)
    source = models.find(settings.model)
    trained = settings.trained_length or source.trained
    longest = int(trained * settings.factor)
    lengths = settings.lengths or tuple(
        sorted({trained // 2, *(trained * 2**n for n in range(int(math.log2(settings.factor)) + 1)), longest})
    )
    final = settings.final or min(256, *lengths, trained)
    settings = replace(settings, trained_length=trained, lengths=lengths, final=final)
    settings.require("final", settings.scored <= trained, f"at most the trained length ({trained:,})")
    memory = models.require_room(source, settings, device)
    if settings.base is not None:
        if len(bases := source.bases()) != 1:
            raise ValueError(f"base needs one base of all rotating layers, and {source.name} has {sorted(bases)}")
        (own,) = bases
        settings.require("base", settings.base > own, f"above that of {source.name} ({own:g})")
    return settings, source, memory


def extend(settings: Extension, out: str | Path, progress: Progress | None = None) -> list[Record]:
    """Measures a model with every scaling, and returns all records in ``out``.

    Each forward pass is recorded at once and not repeated. Scalings and lengths below the longest may be added to a
    folder; everything else must stay the same. Raises ValueError for too little text, a model that is missing or does
    not fit into memory, and a folder of another extension.

    If there are several processes (`posenc_lab.kit.processes`), all of them call this. They divide the passes; the
    first one writes ``out`` and returns the records, and the others return none."""
    if processes.rank():
        _follow()
        return []
    with Lead() as lead:
        return _extend(settings, Path(out), progress or Progress(), lead)


def _extend(settings: Extension, out: Path, progress: Progress, lead: Lead) -> list[Record]:
    settings, source, memory = check(_continued(settings, out))
    several = processes.world() > 1  # then a signal must stop all of them at the same pass
    with Stop() if several else nullcontext(Stop()) as stop, progress:
        progress.say(f"reading {source.name}, and the text to test on in its tokens")
        windows = settings.windows
        bench = _load(settings, source, windows)
        loaded, text = bench.loaded, bench.text
        settings = replace(settings, windows=len(text.pieces))
        told = {**versions(), "transformers": version_of("transformers")}
        made_with: dict[str, Any] = {name: told[name] for name in ("posenc", "torch", "transformers")}
        made_with |= {
            "longest": settings.lengths[-1],
            "weights": loaded.digest,
            "text_digest": text.digest,
        }
        identity = settings.identity(**made_with)
        model = f"{loaded.about}, trained at {settings.trained:,}"
        about = {
            "fingerprint": fingerprint(identity),
            "configuration": settings.to_dict(),
            "text": {"about": text.about, "digest": text.digest},
            "model": model,
            "card": card_of(source),
            "versions": told,
            "machine": processes.machine_of_all(device_of(settings.device)),
        }
        with Records(out, check_record) as records:
            _require_same(out, identity, records)
            run = _Run(settings, windows, bench, records, about, progress, lead, stop)
            for name in settings.scalings:  # finds errors before hours of measuring
                with patched(loaded.model, scaling_of(name, settings)):
                    pass
            progress.begin(run.work())
            configuration_file.save(out, settings, made_with)
            for line in filter(None, (records.notice, model, text.about, f"memory: {memory}", run.pace())):
                progress.say(line)
            for name in settings.scalings:
                run.measure(name)
            run.cropped()
            return list(records)


def _continued(settings: Extension, out: Path) -> Extension:
    """The settings, with those that the folder keeps filled in. ConfigError for lengths that are too short for its
    final tokens."""
    there = configuration_file.identity_in(out, Extension.from_mapping)
    kept = {
        name: there[name]
        for name in FIXED_BY_FIRST_RUN
        if getattr(settings, name) is None and isinstance(there.get(name), int)
    }
    final = kept.get("final", 0)
    if settings.lengths and settings.lengths[0] < final:
        raise ConfigError(
            "lengths",
            f"lengths must be at least {final} in {out}, which scores the last {final} tokens at every length, got "
            f"{settings.lengths[0]}: give another folder",
        )
    return replace(settings, **kept)


def _require_same(out: Path, identity: dict[str, Any], records: Records) -> None:
    """ValueError, saying what differs, if another extension has results in ``out``."""
    if len(records):
        measured = any(record["scheme"] == "base" for record in records)
        here = {name: value for name, value in identity.items() if measured or name != "base"}
        configuration_file.require_same(
            out, configuration_file.identity_in(out, Extension.from_mapping), here, "extension"
        )


@dataclass(frozen=True)
class _Job:
    """One scaling, of which every process makes some of the passes: (number of the piece, length)."""

    settings: Extension
    windows: int | None  # as given, since how a text is divided depends on it
    digests: str  # of the model and the text
    scheme: str
    passes: tuple[tuple[int, int], ...]


@dataclass
class _Bench:
    """A model and a text in the memory of a process."""

    source: models.Source
    loaded: models.Loaded
    text: Tokens

    @cached_property
    def begin(self) -> Tensor:
        return measure.beginning(self.loaded.tokenizer)

    @property
    def digests(self) -> str:
        return f"{self.loaded.digest} {self.text.digest}"

    def do(self, job: _Job, stop: Stop, made: Any = lambda number, length, results: None) -> None:
        """Does a job; ``made`` is called with the results of each pass, by kind."""
        with patched(self.loaded.model, scaling_of(job.scheme, job.settings)):
            for first in range(0, len(job.passes), processes.world()):
                some = job.passes[first : first + processes.world()]
                found = processes.each(lambda one: self.measured(job.settings, *one), some)
                for one, results in zip(some, found, strict=True):
                    made(*one, results)
                stop.check_all()

    def measured(self, s: Extension, number: int, length: int) -> dict[str, dict[str, Any]]:
        """The results of a pass over the last tokens of a piece, by kind."""
        model, piece, results = self.loaded.model, self.text.pieces[number], {}
        measure.begin_anew(model)
        if length < s.lengths[-1]:
            each = measure.final(model, piece.tokens, length, s.scored, self.begin)
        else:
            each, results["by_position"] = measure.by_position(model, piece.tokens, length, s.scored, self.begin)
        bits = rounded(float(each.sum()) / math.log(2) / piece.final_bytes)
        return {"final": {"bits": bits, "tokens": len(each), "file": piece.file, "byte": piece.byte}, **results}


def _load(settings: Extension, source: models.Source, windows: int | None) -> _Bench:
    loaded = models.load(source, settings.dtype, settings.attention, processes.own_device(settings.device))
    text = Tokens(settings.text, loaded.tokenizer, settings.lengths[-1], settings.scored, windows)
    return _Bench(source, loaded, text)


def _follow() -> None:
    """Does the jobs that the first process tells. ValueError for a model or a text that are not the first process's."""
    bench: _Bench | None = None
    with Stop() as stop:
        for job in processes.jobs():
            bench = bench or _load(job.settings, models.find(job.settings.model), job.windows)
            if bench.digests != job.digests:
                raise ValueError(
                    f"model and text must be the same in all processes, got {bench.digests} and {job.digests}"
                )
            bench.do(job, stop)


@dataclass
class _Run:
    """A running extension."""

    settings: Extension
    windows: int | None  # as given
    bench: _Bench
    records: Records
    about: dict[str, Any]
    progress: Progress
    lead: Lead
    stop: Stop

    def __post_init__(self) -> None:
        self.source = self.bench.source

    def missing(self, scheme: str) -> dict[tuple[int, int], None]:
        """The passes that are not recorded, in order. One gives the loss of the final tokens and that by position."""
        plan = self.settings.plan(scheme)
        return {(n, length): None for kind, n, length in plan if not self.records.has(kind, scheme, n, length)}

    def work(self) -> float:
        """The multiplications of all missing measurements."""
        s = self.settings
        plain = PLAIN in s.scalings and s.trained in s.lengths  # its passes are the baseline's
        names = s.scalings if plain else (*s.scalings, CROPPED)
        return sum(self.source.operations(length) for name in names for _, length in self.missing(name))

    def pace(self) -> str:
        """The running time, estimated by one short pass."""
        work = self.work()
        if not work:
            return ""
        clock, tokens = clock_of(device_of(self.settings.device)), self.bench.text.pieces[0].tokens[:513]
        places = torch.arange(1)

        def once() -> None:
            measure.nats(self.bench.loaded.model, tokens, places)

        once()
        seconds = clock(once) * work / self.source.operations(len(tokens) - 1) / processes.world()
        # Longer passes take longer per operation, and a busy machine may become busier: up to twice as long was seen.
        told = dict.fromkeys((_in_words(seconds), _in_words(MAX_SLOWDOWN * seconds)))
        return f"time: about {' to '.join(told)}, told by a pass over {len(tokens) - 1} tokens"

    def measure(self, scheme: str) -> None:
        """Makes the missing measurements of one scaling."""
        passes = tuple(self.missing(scheme))
        if not passes:
            return
        if (scaling := scaling_of(scheme, self.settings)) is not None:
            self.progress.say(f"{scheme}: {scaling}")
        job = _Job(self.settings, self.windows, self.bench.digests, scheme, passes)

        def made(number: int, length: int, results: dict[str, dict[str, Any]]) -> None:
            for kind, result in results.items():
                if not self.records.has(kind, scheme, number, length):
                    self._record(kind, scheme, number, length, result)
            self.progress.advance(self.source.operations(length), f"{scheme}: {length:,} tokens")

        with self.lead.together(job):
            self.bench.do(job, self.stop, made)

    def cropped(self) -> None:
        """Measures the baseline: the unscaled model at its trained length, on the same tokens."""
        there = {(r["kind"], r["scheme"], r["seed"], r["length"]): r for r in self.records}
        for number, length in self.missing(CROPPED):
            plain = there.get(("final", PLAIN, number, length))
            if plain is not None:  # the same forward pass
                result = {name: plain[name] for name in ("bits", "tokens", "file", "byte")}
            else:
                result = self.bench.measured(self.settings, number, length)["final"]
                self.progress.advance(self.source.operations(length), f"{CROPPED}: {length:,} tokens")
            self._record("final", CROPPED, number, length, result)

    def _record(self, kind: str, scheme: str, number: int, length: int, result: dict[str, Any]) -> None:
        named = {"kind": kind, "scheme": scheme, "seed": number, "length": length}
        self.records.append({**named, **result, **self.about})


def _in_words(seconds: float) -> str:
    """An estimated time, rounded to one unit."""
    for size, unit in ((3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{max(1, round(seconds))} second{'s' if round(seconds) > 1 else ''}"
