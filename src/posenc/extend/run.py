"""``posenc extend``: one model, every scaling, on the same tokens."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.extend import measure, results
from posenc.extend import model as models
from posenc.extend.settings import CROPPED, PLAIN, Extension
from posenc.extend.text import Tokens
from posenc.extend.tune import prepared, tune
from posenc.lab.search import Trial, search
from posenc.lab.train import DivergedError
from posenc.scalings import DynamicNTK, Llama3, LongRoPE, NTKAware, PositionInterpolation, YaRN
from posenc.workbench.configuration import differences, fingerprint
from posenc.workbench.files import parse, write_whole
from posenc.workbench.machine import clock_of, device_of, machine, versions
from posenc.workbench.progress import Progress
from posenc.workbench.records import Record, Records

CONFIG = "extend.json"
CHECKPOINTS = "checkpoints"
SEARCH = "search.jsonl"
TRAINING_WORK = 3.0  # passes forward that a step of fine-tuning is worth


def resolved(settings: Extension, source: models.Source) -> Extension:
    """The same, with the lengths and the trained length that the model has."""
    trained = settings.trained_length or source.trained
    longest = int(trained * settings.factor)
    lengths = settings.lengths or tuple(
        sorted({trained // 2, *(trained * 2**n for n in range(int(math.log2(settings.factor)) + 1)), longest})
    )
    return replace(
        settings, trained_length=trained, lengths=lengths, train_length=settings.train_length or trained
    )


def check(settings: Extension) -> tuple[Extension, models.Source, str]:
    """The settings, completed, where the model is, and how much memory it takes. ValueError for a model that is not
    there or does not fit, and for a device that is not there."""
    device = device_of(settings.device)
    source = models.find(settings.model)
    settings = resolved(settings, source)
    longest = max(settings.lengths[-1], settings.train_length or 0 if settings.train else 0)
    training = bool(settings.train) and not settings.lora
    memory = models.require_room(source, longest, settings.final, settings.dtype, training, device)
    return settings, source, memory


def scaling_of(name: str, settings: Extension, factors: tuple[list[float], list[float]] | None = None) -> Any:
    """The scaling of a name, for a factor and a trained length; None for none."""
    factor, trained = settings.factor, settings.trained_length
    assert trained is not None
    if name == PLAIN:
        return None
    if name == "longrope":
        assert factors is not None
        short, long = factors
        return LongRoPE(tuple(short), tuple(long), trained, factor=factor)
    made: dict[str, Callable[[], Any]] = {
        "linear": lambda: PositionInterpolation(factor),
        "ntk": lambda: NTKAware(factor),
        "dynamic": lambda: DynamicNTK(1.0, trained),  # by n/L for a text of n tokens, and no more
        "yarn": lambda: YaRN(factor, trained),
        "llama3": lambda: Llama3(factor, trained),
    }
    return made[name]()


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
        text = Tokens(settings.text, loaded.tokenizer, settings.lengths[-1], settings.final, settings.windows)
        told = {**versions(), "transformers": _transformers_version()}
        made_with = {name: told[name] for name in ("posenc", "torch", "transformers")}
        identity = settings.identity() | made_with | {
            "longest": settings.lengths[-1],
            "weights": loaded.digest,
            "text_digest": text.digest,
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
        progress.begin(run.work())
        write_whole(out / CONFIG, results.to_json(identity))
        for line in filter(None, (records.notice, loaded.about, text.about, f"memory: {memory}", run.pace())):
            progress.say(line)
        for name in settings.scalings:
            run.measure(name)
        run.cropped()
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

    @cached_property
    def begin(self) -> Tensor:
        return measure.beginning(self.loaded.tokenizer)

    def plan(self, scheme: str) -> Iterator[tuple[str, int, int]]:
        """(kind, number of the piece or puzzle, length) of everything there is to measure for a scaling."""
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
        return [each for each in self.plan(scheme) if not self.records.has(each[0], name, each[1], each[2])]

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
        return sum(map(self.source.operations, passes)) + steps + s.search * self.source.operations(s.lengths[-1])

    def pace(self) -> str:
        """How long it will take, told by one short pass."""
        work = self.work()
        if not work:
            return ""
        clock, tokens = clock_of(device_of(self.settings.device)), self.text.pieces[0].tokens[: 513]
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
        loaded = self.loaded
        if settings.train:
            loaded = models.load(self.source, settings.dtype, settings.attention, device_of(settings.device))
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
                each, places = measure.by_position(model, piece.tokens, length, s.final, begin)
                made = {"final": self._bits(each, number), "by_position": places}
            else:
                made = {"final": self._bits(measure.final(model, piece.tokens, length, s.final, begin), number)}
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
        """The baseline: the plain model at the length that it was trained at, on the same tokens."""
        s, length = self.settings, self.settings.trained_length or 0
        if "text" not in s.tasks or length > s.lengths[-1]:
            return
        for window, piece in enumerate(self.text.pieces):
            if self.records.has("final", CROPPED, window, length):
                continue
            plain = next(
                (r for r in self.records if (r["kind"], r["scheme"], r["seed"], r["length"]) == ("final", PLAIN, window, length)),
                None,
            )
            if plain is not None:  # it is the same pass
                result = {"bits": plain["bits"], "tokens": plain["tokens"]}
            else:
                result = self._bits(measure.final(self.loaded.model, piece.tokens, length, s.final, self.begin), window)
                self.progress.advance(self.source.operations(length), f"{CROPPED}: final at {length:,}")
            self._record("final", CROPPED, window, length, result)

    def factors(self) -> tuple[list[float], list[float]]:
        """LongRoPE's factors: of a file, or searched."""
        pairs = self._pairs()
        if self.settings.factors is not None:
            return models.factors_of(self.settings.factors, pairs)
        return self._searched(pairs)

    def _pairs(self) -> int:
        text = self.source.text
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        share = (getattr(text, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
        return int(head_dim * share) // 2

    def _searched(self, pairs: int) -> tuple[list[float], list[float]]:
        """Factors that predict the end of a text best that the model is not tested on."""
        s, length, trained = self.settings, self.settings.lengths[-1], self.settings.trained_length or 0
        if length <= trained:
            raise ValueError(f"lengths must go past the trained length ({trained:,}) for a search, got {length:,}")
        model = self.loaded.model
        text = self.text.draw(np.random.default_rng(s.seed), length + 1)

        def loss(scaling: LongRoPE) -> float:
            with _patched(model, scaling):
                return float(measure.final(model, text, length, s.final, self.begin).mean()) / math.log(2)

        def tick(done: int, trial: Trial, best: Trial) -> None:
            words = f"{done}/{s.search}, {trial.loss:.3f} bits per token ({trial.origin}), best {best.loss:.3f}"
            self.progress.advance(self.source.operations(length), "longrope: searching", words)

        found = search(
            loss,
            pairs=pairs,
            base=float(self.source.text.rope_parameters["rope_theta"]),
            factor=s.factor,
            original_length=trained,
            evaluations=s.search,
            seed=s.seed,
            record=self.out / SEARCH,
            progress=tick,
        )
        self.progress.say(f"longrope: of {len(found.trials)} lists the best is a {found.best.origin}")
        return list(found.scaling.short_factor), list(found.scaling.long_factor)

    def _tuned(self, model: Any, scheme: str, scaling: Any) -> Any:
        """The model, fine-tuned where that is asked for; None where the training diverged."""
        s, name = self.settings, self.settings.name(scheme)
        if not s.train:
            return model
        of = fingerprint({"all": self.about["fingerprint"], "scaling": repr(scaling)})
        model = prepared(model, s)
        length = s.train_length or 0

        def tick(step: int, bits: float) -> None:
            work = TRAINING_WORK * self.source.operations(length)
            self.progress.advance(work, f"{name}: fine-tuning", f"{step}/{s.train}, {bits:.2f} bits per token")

        path = self.out / CHECKPOINTS / f"{scheme}.safetensors"
        try:
            reached = tune(model, self.text.draw, s, length, path, of, tick)
        except DivergedError as error:
            self.progress.say(f"{name} diverged: {error} (learning_rate {s.learning_rate:g})")
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
    if not len(records):
        return
    if not path.exists():
        raise ValueError(f"{out} holds records but no {CONFIG} to tell of what: give another folder")
    try:
        there = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not as this command writes it ({error}): give another folder") from None
    if differ := differences(there, results.plain(identity)):
        raise ValueError(f"{out} holds another extension, with {differ}: give another folder")


def _transformers_version() -> str:
    import transformers

    return str(transformers.__version__)
