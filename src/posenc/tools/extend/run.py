"""Runs ``posenc extend``: measures one model with each scaling on the same tokens."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.rotation.scalings import LongRoPE
from posenc.tools.compare.search import Trial, search
from posenc.tools.compare.train import DivergedError
from posenc.tools.extend import folder, measure, results
from posenc.tools.extend import model as models
from posenc.tools.extend.card import card_of
from posenc.tools.extend.resolve import check, pairs_of, scaling_of
from posenc.tools.extend.settings import CROPPED, PLAIN, PUZZLES, Extension
from posenc.tools.extend.text import Tokens
from posenc.tools.extend.tune import prepared, tune
from posenc.tools.kit import saved
from posenc.tools.kit.configuration import fingerprint
from posenc.tools.kit.files import digest_of, rounded
from posenc.tools.kit.machine import clock_of, device_of, machine, version_of, versions
from posenc.tools.kit.progress import Progress
from posenc.tools.kit.records import Record, Records
from posenc.tools.kit.scalings import factors_of

TRAINING_WORK = 3.0  # of a fine-tuning step, in forward passes
FEW = 1000  # tokens; more than any puzzle needs


def extend(settings: Extension, out: str | Path, progress: Progress | None = None) -> list[Record]:
    """Measures a model with every scaling, and returns all records in ``out``.

    Each forward pass is recorded at once and not repeated. Scalings, tasks, depths and lengths below the longest may be
    added to a folder; everything else must stay the same. Raises ValueError for too little text, a model that is
    missing or does not fit into memory, and a folder of another extension."""
    out, progress, by_default = Path(out), progress or Progress(), not settings.lengths
    settings, source, memory = check(folder.continued(settings, out))
    with progress:
        progress.say(f"reading {source.name}, and the text to test on in its tokens")
        loaded = models.load(source, settings.dtype, settings.attention, device_of(settings.device))
        text = Tokens(settings.text, loaded.tokenizer, settings.lengths[-1], settings.scored, settings.windows)
        settings = replace(settings, windows=len(text.pieces))
        if by_default:
            settings = _with_room(settings, loaded, text, progress)
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
            "machine": machine(device_of(settings.device)),
        }
        with Records(out, results.check) as records:
            folder.require_same(out, identity, records)
            run = _Run(settings, source, loaded, text, out, records, about, progress)
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


def _with_room(settings: Extension, loaded: models.Loaded, text: Tokens, progress: Progress) -> Extension:
    """The default lengths that have room for the puzzles, or no puzzles where none has."""
    short: dict[int, str] = {}
    for kind, number, length in settings.plan(PLAIN):
        if kind in PUZZLES and length not in short:
            try:
                _puzzle(settings, loaded.tokenizer, text, kind, number, length)
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


def _puzzle(s: Extension, tokenizer: Any, text: Tokens, kind: str, number: int, length: int) -> measure.Puzzle:
    """A puzzle, which is the same for every scaling."""
    begin, rng = measure.beginning(tokenizer), np.random.default_rng((s.seed, number, length))
    if kind == "item":
        return measure.item(tokenizer, length, number % 1000, begin, rng)
    filler = text.pieces[number // 1000 % len(text.pieces)].tokens
    return measure.passkey(tokenizer, filler, length, number % 1000, begin, rng)


@dataclass
class _Run:
    """A running extension."""

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
        """ValueError for a scaling that does not fit the model, and for texts and puzzles that cannot be made."""
        s = self.settings
        ones = [1.0] * pairs_of(self.source)
        lists = (ones, ones) if s.factors is None else self.factors()
        for name in s.scalings:
            with _patched(self.loaded.model, scaling_of(name, s, lists)):
                pass
        for kind, number, length in s.plan(PLAIN):
            # Puzzles of a kind differ by a few tokens, so only short lengths need every one tried.
            if kind in PUZZLES and (length < FEW or number == s.depths[0]):
                _puzzle(s, self.loaded.tokenizer, self.text, kind, number, length)
        drawn = [s.train_length or 0] if s.train and any(map(self.missing, s.scalings)) else []
        if s.search and "longrope" in s.scalings and self.missing("longrope"):
            drawn.append(s.lengths[-1] + 1)
        if drawn:
            # Texts are drawn uniformly over all tokens, so all must be counted.
            self.progress.say(
                f"counting the tokens of all text that is not tested: {models.in_words(self.text.others)}"
            )
        for size in drawn:
            self.text.draw(np.random.default_rng(0), size)

    @cached_property
    def begin(self) -> Tensor:
        return measure.beginning(self.loaded.tokenizer)

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
            TRAINING_WORK * s.train * self.source.operations(s.train_length or s.trained)
            for name in s.scalings
            if s.train and self.missing(name)
        )
        lines = (
            len((self.out / folder.SEARCH).read_text().splitlines()) - 1 if (self.out / folder.SEARCH).exists() else 0
        )
        longrope = "longrope" in s.scalings and self.missing("longrope")
        searched = max(0, s.search - max(lines, 0)) if longrope else 0
        return sum(map(self.source.operations, passes)) + steps + searched * self.source.operations(s.lengths[-1])

    def pace(self) -> str:
        """The running time, estimated by one short pass."""
        work = self.work()
        if not work:
            return ""
        clock, tokens = clock_of(device_of(self.settings.device)), self.text.pieces[0].tokens[:513]
        places = torch.arange(1)

        def once() -> None:
            measure.nats(self.loaded.model, tokens, places)

        once()
        seconds = clock(once) * work / self.source.operations(len(tokens) - 1)
        return f"time: about {_in_words(seconds)}, told by a pass over {len(tokens) - 1} tokens"

    def measure(self, scheme: str) -> None:
        """Makes the missing measurements of one scaling."""
        missing = self.missing(scheme)
        if not missing:
            return
        settings, name = self.settings, self.settings.name(scheme)
        if settings.train:  # from the original weights, without holding two models in memory
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
        """Makes one forward pass and records its measurements."""
        s, begin = self.settings, self.begin
        made: dict[str, dict[str, Any]]
        measure.begin_anew(model)
        if kind in ("final", "by_position"):
            piece = self.text.pieces[number]
            if length == s.lengths[-1]:
                each, places = measure.by_position(model, piece.tokens, length, s.scored, begin)
                made = {"final": self._bits(each, number), "by_position": places}
            else:
                made = {"final": self._bits(measure.final(model, piece.tokens, length, s.scored, begin), number)}
        else:
            puzzle = _puzzle(s, self.loaded.tokenizer, self.text, kind, number, length)
            made = {kind: {**measure.solved(model, puzzle), "depth": number % 1000}}
        for each_kind, result in made.items():
            if not self.records.has(each_kind, name, number, length):
                self._record(each_kind, name, number, length, result)
        self.progress.advance(self.source.operations(length), f"{name}: {kind} at {length:,}")
        return {(each_kind, number, length) for each_kind in made}

    def cropped(self) -> None:
        """Measures the baseline: the unscaled model at its trained length, on the same tokens."""
        s, there = self.settings, {(r["kind"], r["scheme"], r["seed"], r["length"]): r for r in self.records}
        for kind, window, length in self.missing(CROPPED):
            plain = there.get((kind, PLAIN, window, length))
            if plain is not None:  # the same forward pass
                result = {name: plain[name] for name in ("bits", "tokens", "file", "byte")}
            else:
                measure.begin_anew(self.loaded.model)
                each = measure.final(self.loaded.model, self.text.pieces[window].tokens, length, s.scored, self.begin)
                result = self._bits(each, window)
                self.progress.advance(self.source.operations(length), f"{CROPPED}: {kind} at {length:,}")
            self._record(kind, CROPPED, window, length, result)

    def factors(self) -> tuple[list[float], list[float]]:
        """LongRoPE's factors, from a file or a search."""
        pairs = pairs_of(self.source)
        if self.settings.factors is not None:
            return factors_of(self.settings.factors, pairs, "factors")
        return self._searched(pairs)

    def _searched(self, pairs: int) -> tuple[list[float], list[float]]:
        """The factors with the lowest loss on the final tokens of held-out text."""
        s, length = self.settings, self.settings.lengths[-1]
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
            original_length=s.trained,
            evaluations=s.search,
            seed=s.seed,
            record=self.out / folder.SEARCH,
            of={"fingerprint": self.about["fingerprint"]},
            progress=tick,
        )
        self.progress.say(f"longrope: of {len(found.trials)} lists the best is a {found.best.origin}")
        return list(found.scaling.short_factor), list(found.scaling.long_factor)

    def _tuned(self, model: Any, scheme: str, scaling: Any) -> Any:
        """The model, fine-tuned if requested; None if the training diverged."""
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

        path = self.out / folder.CHECKPOINTS / f"{scheme}.safetensors"
        try:
            reached = tune(model, draw, s, path, of, tick)
        except DivergedError as error:
            self.diverged.append(f"{name} diverged: {error} (learning_rate {s.learning_rate:g})")
            self.progress.say(self.diverged[-1])
            return None
        if not self.records.has("training", name, 0, length):
            curve = [[step, rounded(bits)] for step, bits in reached.curve]
            result = {"curve": curve, "seconds": round(reached.seconds, 3), "lora": s.lora}
            self._record("training", name, 0, length, result)
        return model.requires_grad_(False)

    def _bits(self, each: Tensor, window: int) -> dict[str, Any]:
        piece = self.text.pieces[window]
        bits = float(each.sum()) / math.log(2) / piece.final_bytes
        return {"bits": rounded(bits), "tokens": len(each), "file": piece.file, "byte": piece.byte}

    def _record(self, kind: str, scheme: str, number: int, length: int, result: dict[str, Any]) -> None:
        named = {"kind": kind, "scheme": scheme, "seed": number, "length": length}
        self.records.append({**named, **result, **self.about})


def _patched(model: Any, scaling: Any) -> AbstractContextManager[Any]:
    if scaling is None:
        return nullcontext()
    from posenc.huggingface import patch

    made: AbstractContextManager[Any] = patch(model, scaling)
    return made


def _in_words(seconds: float) -> str:
    """An estimated time, rounded to one unit."""
    for size, unit in ((3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{max(1, round(seconds))} second{'s' if round(seconds) > 1 else ''}"
