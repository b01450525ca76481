"""``posenc extend``: one model, every scaling, on the same tokens."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.extend import measure, results
from posenc.extend import model as models
from posenc.extend.resolve import check, pairs_of, scaling_of
from posenc.extend.settings import CROPPED, PLAIN, Extension
from posenc.extend.text import Tokens
from posenc.extend.tune import prepared, tune
from posenc.lab.search import Trial, search
from posenc.lab.train import DivergedError
from posenc.scalings import LongRoPE
from posenc.workbench.configuration import differences, fingerprint
from posenc.workbench.files import parse, write_whole
from posenc.workbench.machine import clock_of, device_of, machine, versions
from posenc.workbench.progress import Progress
from posenc.workbench.records import Record, Records
from posenc.workbench.scalings import factors_of

CONFIG = "extend.json"
CHECKPOINTS = "checkpoints"
SEARCH = "search.jsonl"
TRAINING_WORK = 3.0  # passes forward that a step of fine-tuning is worth


def extend(settings: Extension, out: str | Path, progress: Progress | None = None) -> list[Record]:
    """Measures a model under every scaling, and gives the records in ``out``, old and new.

    Each pass over a text is recorded when it is made, and not made again; scalings, tasks, depths and lengths below the
    longest may be added to a folder, all else must be the same. Raises ValueError for too little text, a model that is
    not there or does not fit, and a folder of another extension.
    """
    settings, source, memory = check(settings)
    out, progress = Path(out), progress or Progress()
    with Records(out, results.check) as records, progress:
        loaded = models.load(source, settings.dtype, settings.attention, device_of(settings.device))
        text = Tokens(settings.text, loaded.tokenizer, settings.lengths[-1], settings.scored, settings.windows)
        told = {**versions(), "transformers": _transformers_version()}
        made_with = {name: told[name] for name in ("posenc", "torch", "transformers")}
        identity = {
            **settings.identity(),
            **made_with,
            "longest": settings.lengths[-1],
            "weights": loaded.digest,
            "text_digest": text.digest,
            "factors": _factors_digest(settings.factors),
        }
        _check_folder(out, identity, records)
        about = {
            "fingerprint": fingerprint(identity),
            "configuration": settings.to_dict(),
            "text": {"about": text.about, "digest": text.digest},
            "model": loaded.about,
            "versions": told,
            "machine": machine(device_of(settings.device)),
        }
        run = _Run(settings, source, loaded, text, out, records, about, progress)
        run.try_all()  # before hours of passes: whatever will be refused
        progress.begin(run.work())
        write_whole(out / CONFIG, results.to_json(identity))
        for line in filter(None, (records.notice, loaded.about, text.about, f"memory: {memory}", run.pace())):
            progress.say(line)
        for name in settings.scalings:
            run.measure(name)
        run.cropped()
        if run.diverged:
            raise RuntimeError("; ".join(run.diverged))
        return list(records)


@dataclass
class _Run:
    """One extension under way."""

    settings: Extension
    source: models.Source
    loaded: models.Loaded
    text: Tokens
    out: Path
    records: Records
    about: dict[str, Any]
    progress: Progress
    diverged: list[str] = field(default_factory=list)

    def try_all(self) -> None:
        """ValueError for a scaling that the model does not take, and for texts and puzzles that cannot be made."""
        s, rng = self.settings, np.random.default_rng(0)
        for name in s.scalings:
            lists = [1.0] * pairs_of(self.source)
            with _patched(self.loaded.model, scaling_of(name, s, (lists, lists))):
                pass
        for length in s.lengths:
            if "passkey" in s.tasks:
                measure.passkey(self.loaded.tokenizer, self.text.pieces[0].tokens, length, 0, self.begin, rng)
            if "item" in s.tasks:
                measure.item(self.loaded.tokenizer, length, 0, self.begin, rng)
        if s.train:
            self.text.draw(rng, s.train_length or 0)
        if s.search and "longrope" in s.scalings:
            self.text.draw(rng, s.lengths[-1] + 1)

    @cached_property
    def begin(self) -> Tensor:
        return measure.beginning(self.loaded.tokenizer)

    def plan(self) -> Iterator[tuple[str, int, int]]:
        """(kind, number of the piece or puzzle, length) of everything there is to measure for a scaling. A puzzle's
        number is 1000 times the trial, plus the depth in percent."""
        s = self.settings
        for length in s.lengths:
            if "text" in s.tasks:
                for window in range(s.windows):
                    yield "final", window, length
                    if length == s.lengths[-1]:
                        yield "by_position", window, length
            for kind in ("passkey", "item"):
                if kind in s.tasks:
                    yield from ((kind, trial * 1000 + depth, length) for depth in s.depths for trial in range(s.trials))

    def missing(self, scheme: str) -> list[tuple[str, int, int]]:
        name = self.settings.name(scheme)
        return [each for each in self.plan() if not self.records.has(each[0], name, each[1], each[2])]

    def work(self) -> float:
        """Multiplications of all that is missing. Places by position come with the pass of the final tokens."""
        passes = [
            length for name in self.settings.scalings for kind, _, length in self.missing(name) if kind != "by_position"
        ]
        trained, s = self.settings.trained_length or 0, self.settings
        steps = sum(
            TRAINING_WORK * s.train * self.source.operations(s.train_length or trained)
            for name in s.scalings
            if s.train and self.missing(name)
        )
        lines = len((self.out / SEARCH).read_text().splitlines()) - 1 if (self.out / SEARCH).exists() else 0
        longrope = "longrope" in s.scalings and self.missing("longrope")
        searched = max(0, s.search - max(lines, 0)) if longrope else 0
        return sum(map(self.source.operations, passes)) + steps + searched * self.source.operations(s.lengths[-1])

    def pace(self) -> str:
        """How long it will take, told by one short pass."""
        work = self.work()
        if not work:
            return ""
        clock, tokens = clock_of(device_of(self.settings.device)), self.text.pieces[0].tokens[:513]
        places = torch.arange(1)

        def once() -> None:
            measure.nats(self.loaded.model, tokens, places)

        once()
        seconds = clock(once) * work / self.source.operations(len(tokens) - 1)
        return f"time: about {max(1, round(seconds / 60)):,} minutes, told by a pass over {len(tokens) - 1} tokens"

    def measure(self, scheme: str) -> None:
        """All that is missing of one scaling."""
        missing = self.missing(scheme)
        if not missing:
            return
        settings, name = self.settings, self.settings.name(scheme)
        if settings.train:  # from the same weights, and no second model beside this one
            device = device_of(settings.device)
            self.loaded = replace(self.loaded, model=None)
            self.loaded = models.load(self.source, settings.dtype, settings.attention, device)
        loaded = self.loaded
        scaling = scaling_of(scheme, settings, self.factors() if scheme == "longrope" else None)
        if scaling is not None:
            self.progress.say(f"{name}: {scaling}")
        with _patched(loaded.model, scaling):
            model = self._tuned(loaded.model, scheme, scaling)
            if model is None:
                return
            done: set[tuple[str, int, int]] = set()
            for kind, number, length in missing:
                if (kind, number, length) in done:
                    continue
                done |= self._measure(model, name, kind, number, length)

    def _measure(self, model: Any, name: str, kind: str, number: int, length: int) -> set[tuple[str, int, int]]:
        """One pass, and what of the plan it has measured."""
        s, tokenizer, begin = self.settings, self.loaded.tokenizer, self.begin
        made: dict[str, dict[str, Any]]
        if kind in ("final", "by_position"):
            piece = self.text.pieces[number]
            if length == s.lengths[-1]:
                each, places = measure.by_position(model, piece.tokens, length, s.scored, begin)
                made = {"final": self._bits(each, number), "by_position": places}
            else:
                made = {"final": self._bits(measure.final(model, piece.tokens, length, s.scored, begin), number)}
        else:
            depth = number % 1000
            rng = np.random.default_rng((s.seed, number, length))  # the same puzzle for every scaling
            if kind == "passkey":
                filler = self.text.pieces[number // 1000 % s.windows].tokens
                puzzle = measure.passkey(tokenizer, filler, length, depth, begin, rng)
            else:
                puzzle = measure.item(tokenizer, length, depth, begin, rng)
            made = {kind: {**measure.solved(model, puzzle), "depth": depth}}
        for each_kind, result in made.items():
            if not self.records.has(each_kind, name, number, length):
                self._record(each_kind, name, number, length, result)
        self.progress.advance(self.source.operations(length), f"{name}: {kind} at {length:,}")
        return {(each_kind, number, length) for each_kind in made}

    def cropped(self) -> None:
        """The baseline: the plain model at the length that it was trained at, on the same tokens. A model that was
        fine-tuned is compared with itself there, since it has learned more than a length."""
        s, length = self.settings, self.settings.trained_length or 0
        if s.train or "text" not in s.tasks or length > s.lengths[-1]:
            return
        for window, piece in enumerate(self.text.pieces):
            if self.records.has("final", CROPPED, window, length):
                continue
            plain = next(
                (
                    r
                    for r in self.records
                    if (r["kind"], r["scheme"], r["seed"], r["length"]) == ("final", PLAIN, window, length)
                ),
                None,
            )
            if plain is not None:  # it is the same pass
                result = {"bits": plain["bits"], "tokens": plain["tokens"]}
            else:
                result = self._bits(
                    measure.final(self.loaded.model, piece.tokens, length, s.scored, self.begin), window
                )
                self.progress.advance(self.source.operations(length), f"{CROPPED}: final at {length:,}")
            self._record("final", CROPPED, window, length, result)

    def factors(self) -> tuple[list[float], list[float]]:
        """LongRoPE's factors: of a file, or searched."""
        pairs = pairs_of(self.source)
        if self.settings.factors is not None:
            return factors_of(self.settings.factors, pairs, "factors")
        return self._searched(pairs)

    def _searched(self, pairs: int) -> tuple[list[float], list[float]]:
        """Factors that predict the end of a text best that the model is not tested on."""
        s, length, trained = self.settings, self.settings.lengths[-1], self.settings.trained_length or 0
        model = self.loaded.model
        text = self.text.draw(np.random.default_rng(s.seed), length + 1)

        def loss(scaling: LongRoPE) -> float:
            with _patched(model, scaling):
                return float(measure.final(model, text, length, s.scored, self.begin).mean()) / math.log(2)

        def tick(done: int, trial: Trial, best: Trial) -> None:
            words = f"{done}/{s.search}, {trial.loss:.3f} bits per token ({trial.origin}), best {best.loss:.3f}"
            self.progress.advance(self.source.operations(length), "longrope: searching", words)

        found = search(
            loss,
            pairs=pairs,
            base=self.source.bases().pop(),
            factor=s.factor,
            original_length=trained,
            evaluations=s.search,
            seed=s.seed,
            record=self.out / SEARCH,
            of={"fingerprint": self.about["fingerprint"]},
            progress=tick,
        )
        self.progress.say(f"longrope: of {len(found.trials)} lists the best is a {found.best.origin}")
        return list(found.scaling.short_factor), list(found.scaling.long_factor)

    def _tuned(self, model: Any, scheme: str, scaling: Any) -> Any:
        """The model, fine-tuned where that is asked for; None where the training diverged."""
        s, name = self.settings, self.settings.name(scheme)
        if not s.train:
            return model
        of = fingerprint({"all": self.about["fingerprint"], "scaling": None if scaling is None else asdict(scaling)})
        model = prepared(model, s)
        length = s.train_length or 0

        def tick(step: int, bits: float) -> None:
            work = TRAINING_WORK * self.source.operations(length)
            self.progress.advance(work, f"{name}: fine-tuning", f"{step}/{s.train}, {bits:.2f} bits per token")

        def draw(rng: np.random.Generator) -> Tensor:
            return torch.cat((self.begin, self.text.draw(rng, length)[len(self.begin) :]))

        path = self.out / CHECKPOINTS / f"{scheme}.safetensors"
        try:
            reached = tune(model, draw, s, path, of, tick)
        except DivergedError as error:
            self.diverged.append(f"{name} diverged: {error} (learning_rate {s.learning_rate:g})")
            self.progress.say(self.diverged[-1])
            return None
        if not self.records.has("training", name, 0, length):
            curve = [[step, measure.rounded(bits)] for step, bits in reached.curve]
            result = {"curve": curve, "seconds": round(reached.seconds, 3), "lora": s.lora}
            self._record("training", name, 0, length, result)
        return model.requires_grad_(False)

    def _bits(self, each: Tensor, window: int) -> dict[str, Any]:
        piece = self.text.pieces[window]
        bits = float(each.sum()) / math.log(2) / piece.final_bytes
        return {"bits": measure.rounded(bits), "tokens": len(each)}

    def _record(self, kind: str, scheme: str, number: int, length: int, result: dict[str, Any]) -> None:
        named = {"kind": kind, "scheme": scheme, "seed": number, "length": length}
        self.records.append({**named, **result, **self.about})


def _patched(model: Any, scaling: Any) -> AbstractContextManager[Any]:
    if scaling is None:
        return nullcontext()
    from posenc.huggingface import patch

    made: AbstractContextManager[Any] = patch(model, scaling)
    return made


def _check_folder(out: Path, identity: dict[str, Any], records: Records) -> None:
    """ValueError, saying what differs, if another extension has records in ``out``."""
    path = out / CONFIG
    if not path.exists() and not len(records):
        return
    if not path.exists():
        raise ValueError(f"{out} holds records but no {CONFIG} to tell of what: give another folder")
    try:
        there = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not as this command writes it ({error}): give another folder") from None
    measured = len(records) or (out / SEARCH).exists() or (out / CHECKPOINTS).exists()
    if (differ := differences(there, results.plain(identity))) and measured:
        raise ValueError(f"{out} holds another extension, with {differ}: give another folder")


def _transformers_version() -> str:
    import transformers

    return str(transformers.__version__)


def _factors_digest(path: str | None) -> str | None:
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
