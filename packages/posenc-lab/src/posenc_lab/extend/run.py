"""Runs ``posenc extend``: measures one model with each scaling on the same tokens."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posenc.command.progress import Progress
from posenc_lab.compare.checkpoint import Reached
from posenc_lab.compare.train import DivergedError
from posenc_lab.extend import folder, measure, results
from posenc_lab.extend import model as models
from posenc_lab.extend.card import card_of
from posenc_lab.extend.job import Bench, Job, Pass, Results, follow, load, patched
from posenc_lab.extend.resolve import check, pairs_of, scaling_of
from posenc_lab.extend.scalings import factors_of
from posenc_lab.extend.settings import CROPPED, PLAIN, PUZZLES, Extension
from posenc_lab.kit import processes, saved
from posenc_lab.kit.configuration import fingerprint
from posenc_lab.kit.files import digest_of, rounded
from posenc_lab.kit.machine import clock_of, device_of, version_of, versions
from posenc_lab.kit.processes import Lead, Stop
from posenc_lab.kit.records import Record, Records

TRAINING_WORK = 3.0  # of a fine-tuning step, in forward passes
SLOWER = 2.0  # how much longer than estimated a run may take
FEW = 1000  # tokens; more than any puzzle needs


def extend(settings: Extension, out: str | Path, progress: Progress | None = None) -> list[Record]:
    """Measures a model with every scaling, and returns all records in ``out``.

    Each forward pass is recorded at once and not repeated. Scalings, tasks, depths and lengths below the longest may be
    added to a folder; everything else must stay the same. Raises ValueError for too little text, a model that is
    missing or does not fit into memory, and a folder of another extension.

    If there are several processes (`posenc_lab.kit.processes`), all of them call this. They fine-tune every model
    together and divide the passes; the first one writes ``out`` and returns the records, and the others return none."""
    if processes.rank():
        follow()
        return []
    with Lead() as lead:
        return _extend(settings, Path(out), progress or Progress(), lead)


def _extend(settings: Extension, out: Path, progress: Progress, lead: Lead) -> list[Record]:
    by_default = not settings.lengths
    settings, source, memory = check(folder.continued(settings, out))
    several = processes.world() > 1  # then a signal must stop all of them at the same pass
    with Stop() if several else nullcontext(Stop()) as stop, progress:
        progress.say(f"reading {source.name}, and the text to test on in its tokens")
        windows = settings.windows
        bench = load(settings, source, windows)
        loaded, text = bench.loaded, bench.text
        settings = replace(settings, windows=len(text.pieces))
        if by_default:
            settings = _with_room(settings, bench, progress)
        told = {**versions(), "transformers": version_of("transformers")}
        made_with: dict[str, Any] = {name: told[name] for name in ("posenc", "torch", "transformers")}
        made_with |= {
            "longest": settings.lengths[-1],
            "weights": loaded.digest,
            "text_digest": text.digest,
            "factors": None if settings.factors is None else digest_of(Path(settings.factors).read_bytes()),
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
        with Records(out, results.check) as records:
            folder.require_same(out, identity, records)
            run = _Run(settings, windows, bench, out, records, about, progress, lead, stop)
            run.try_all()  # finds errors before hours of measuring
            progress.begin(run.work())
            saved.save(out, settings, made_with)
            for line in filter(None, (records.notice, model, text.about, f"memory: {memory}", run.pace())):
                progress.say(line)
            for name in settings.scalings:
                run.measure(name)
            run.cropped()
            if run.diverged:
                raise RuntimeError("; ".join(run.diverged))
            return list(records)


def _with_room(settings: Extension, bench: Bench, progress: Progress) -> Extension:
    """The default lengths that have room for the puzzles, or no puzzles where none has."""
    short: dict[int, str] = {}
    for kind, number, length in settings.plan(PLAIN):
        if kind in PUZZLES and length not in short:
            try:
                bench.puzzle(settings, kind, number, length)
            except measure.RoomError:
                short[length] = kind
    lengths = tuple(length for length in settings.lengths if length not in short)
    if len(lengths) == len(settings.lengths):
        return settings
    if lengths:
        progress.say(f"left out: {', '.join(map(str, short))} tokens, too few for {' and '.join(settings.puzzles)}")
        return replace(settings, lengths=lengths)
    if "text" not in settings.tasks:
        return settings  # refused later, like lengths that were given
    progress.say(f"left out: {' and '.join(settings.puzzles)}, for which {settings.lengths[-1]:,} tokens are too few")
    return replace(settings, tasks=("text",))


@dataclass
class _Run:
    """A running extension."""

    settings: Extension
    windows: int | None  # as given
    bench: Bench
    out: Path
    records: Records
    about: dict[str, Any]
    progress: Progress
    lead: Lead
    stop: Stop
    diverged: list[str] = field(default_factory=list)

    def try_all(self) -> None:
        """ValueError for a scaling that does not fit the model, and for texts and puzzles that cannot be made."""
        s = self.settings
        factors = self.factors()
        for name in s.scalings:
            with patched(self.bench.loaded.model, scaling_of(name, s, factors)):
                pass
        for kind, number, length in s.plan(PLAIN):
            # Puzzles of a kind differ by a few tokens, so only short lengths need every one tried.
            if kind in PUZZLES and (length < FEW or number == s.depths[0]):
                self.bench.puzzle(s, kind, number, length)
        if s.train and any(map(self.missing, s.scalings)):
            # Texts are drawn uniformly over all tokens, so all must be counted.
            self.progress.say(
                f"counting the tokens of all text that is not tested: {models.in_words(self.text.others)}"
            )
            self.text.draw(np.random.default_rng(0), s.train_length or 0)

    def __post_init__(self) -> None:
        self.source, self.text = self.bench.source, self.bench.text

    def missing(self, scheme: str) -> list[tuple[str, int, int]]:
        name = self.settings.name(scheme)
        return [each for each in self.settings.plan(scheme) if not self.records.has(each[0], name, *each[1:])]

    def work(self) -> float:
        """The multiplications of all missing measurements. ``by_position`` shares the pass of the final tokens."""
        s = self.settings
        plain = PLAIN in s.scalings and s.trained in s.lengths  # its passes are the baseline's
        names = s.scalings if plain else (*s.scalings, CROPPED)
        passes = [length for name in names for kind, _, length in self.missing(name) if kind != "by_position"]
        steps = sum(
            TRAINING_WORK * s.train * s.train_batch * self.source.operations(s.train_length or s.trained)
            for name in s.scalings
            if s.train and self.missing(name)
        )
        return sum(map(self.source.operations, passes)) + steps

    def pace(self) -> str:
        """The running time, estimated by one short pass."""
        work = self.work()
        if not work:
            return ""
        clock, tokens = clock_of(device_of(self.settings.device)), self.text.pieces[0].tokens[:513]
        places = torch.arange(1)

        def once() -> None:
            measure.nats(self.bench.loaded.model, tokens, places)

        once()
        seconds = clock(once) * work / self.source.operations(len(tokens) - 1) / processes.world()
        # Longer passes take longer per operation, and a busy machine may become busier: up to twice as long was seen.
        told = dict.fromkeys((_in_words(seconds), _in_words(SLOWER * seconds)))
        return f"time: about {' to '.join(told)}, told by a pass over {len(tokens) - 1} tokens"

    def measure(self, scheme: str) -> None:
        """Makes the missing measurements of one scaling."""
        s, name = self.settings, self.settings.name(scheme)
        # One pass gives the loss of the final tokens and that by position.
        once = {"by_position": "final"}
        passes = tuple(dict.fromkeys((once.get(kind, kind), n, length) for kind, n, length in self.missing(scheme)))
        if not passes:
            return
        factors = self.factors() if scheme == "longrope" else None
        scaling, length = scaling_of(scheme, s, factors), s.train_length or 0
        if scaling is not None:
            self.progress.say(f"{name}: {scaling}")
        of = fingerprint({"all": self.about["fingerprint"], "scaling": None if scaling is None else asdict(scaling)})
        checkpoint = self.out / folder.CHECKPOINTS / f"{scheme}.safetensors"
        job = Job(s, self.windows, self.bench.digests, scheme, factors, passes, checkpoint, of)

        def step(step: int, bits: float) -> None:
            work = TRAINING_WORK * s.train_batch * self.source.operations(length)
            self.progress.advance(work, f"{name}: fine-tuning", f"{step}/{s.train}, {bits:.2f} bits per token")

        def tuned(reached: Reached) -> None:
            if not self.records.has("training", name, 0, length):
                curve = [[step, rounded(bits)] for step, bits in reached.curve]
                result = {"curve": curve, "seconds": round(reached.seconds, 3), "lora": s.lora}
                self._record("training", name, 0, length, result)

        def made(each: Pass, results: Results) -> None:
            kind, number, length = each
            for each_kind, result in results.items():
                if not self.records.has(each_kind, name, number, length):
                    self._record(each_kind, name, number, length, result)
            self.progress.advance(self.source.operations(length), f"{name}: {kind} at {length:,}")

        try:
            with self.lead.together(job, agreed=DivergedError):
                self.bench.do(job, self.stop, step=step, tuned=tuned, made=made)
        except DivergedError as error:
            self.diverged.append(f"{name} diverged: {error} (learning_rate {s.learning_rate:g})")
            self.progress.say(self.diverged[-1])

    def cropped(self) -> None:
        """Measures the baseline: the unscaled model at its trained length, on the same tokens."""
        s, there = self.settings, {(r["kind"], r["scheme"], r["seed"], r["length"]): r for r in self.records}
        for kind, window, length in self.missing(CROPPED):
            plain = there.get((kind, PLAIN, window, length))
            if plain is not None:  # the same forward pass
                result = {name: plain[name] for name in ("bits", "tokens", "file", "byte")}
            else:
                measure.begin_anew(self.bench.loaded.model)
                result = self.bench.final(self.bench.loaded.model, s, window, length)
                self.progress.advance(self.source.operations(length), f"{CROPPED}: {kind} at {length:,}")
            self._record(kind, CROPPED, window, length, result)

    def factors(self) -> tuple[list[float], list[float]] | None:
        """LongRoPE's factors, if a file of them is given."""
        path = self.settings.factors
        return None if path is None else factors_of(path, pairs_of(self.source), "factors")

    def _record(self, kind: str, scheme: str, number: int, length: int, result: dict[str, Any]) -> None:
        named = {"kind": kind, "scheme": scheme, "seed": number, "length": length}
        self.records.append({**named, **result, **self.about})


def _in_words(seconds: float) -> str:
    """An estimated time, rounded to one unit."""
    for size, unit in ((3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{max(1, round(seconds))} second{'s' if round(seconds) > 1 else ''}"
