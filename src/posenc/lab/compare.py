"""``posenc compare``: every scheme in the same model, trained on the same batches, tested at the same places."""

import math
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, TypeAlias
from urllib.parse import quote

import torch
from torch import nn

from posenc.lab import checkpoint as checkpoints
from posenc.lab import results
from posenc.lab.config import CompareConfig
from posenc.lab.saved import from_toml, saved_identity
from posenc.lab.task import Loaded, Task
from posenc.lab.tasks import complete, configured, task_of
from posenc.lab.train import DivergedError, batch, optimizer_for, step_of, train
from posenc.scheme import Scheme
from posenc.schemes.catalog import scheme_from_names
from posenc.schemes.own import source_of
from posenc.workbench.configuration import differences, fingerprint
from posenc.workbench.files import WRITING, write_whole
from posenc.workbench.machine import clock_of, device_of, machine, versions
from posenc.workbench.memory import peak_bytes
from posenc.workbench.progress import Progress
from posenc.workbench.records import Record, Records, key

Build: TypeAlias = Callable[[CompareConfig, str, int], nn.Module]
"""(configuration, scheme, seed) -> model."""

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
OLD_SUFFIX = ".pt"  # of checkpoints that were pickles
ALL = "all"  # the name that stands for every scheme of the catalog that the task has positions for
VERSIONS = ("posenc", "torch", "numpy")  # whose versions two measurements must share to be of one comparison
PLAIN = "nope"  # what step times are relative to: the model without positions

# A scheme draws its parameters from a stream of its own, or a learned table would begin with the embedding's numbers.
SCHEME_STREAM = 2**31  # torch seeds with 32 bits, and config leaves this one free

SPEED_ROUNDS = 10
# The unit of work is a token forward. A token in training goes forward and, at twice the cost, backward; one in testing
# stands in longer texts.
TRAINING_WORK = 3.0
TESTING_WORK = 1.5


def build_model(config: CompareConfig, scheme: str, seed: int) -> nn.Module:
    """The task's model with a scheme. At a seed, all that is not the scheme begins with the same weights in each."""
    task = task_of(config.task)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + SCHEME_STREAM)
        position = scheme_from_names(scheme, task.shape(config, scheme))
        torch.default_generator.manual_seed(seed)
        return task.model(config, scheme, position)


def resolved(config: CompareConfig) -> CompareConfig:
    """The same comparison, completed, with the names of all schemes that apply in place of ``all``."""
    config = complete(config)
    every = task_of(config.task).applicable()
    names = [name for scheme in config.schemes for name in (every if scheme == ALL else (scheme,))]
    return replace(config, schemes=tuple(dict.fromkeys(names))) if ALL in config.schemes else config


def check(config: CompareConfig) -> None:
    """ValueError for a scheme that is unknown, that the task has no positions for, or that does not fit the model,
    and for a device that is not there."""
    config = resolved(config)
    for scheme in config.schemes:
        task_of(config.task).require(scheme)
        build_model(config, scheme, 0)
    device_of(config.device)


def compare(
    config: CompareConfig, out: str | Path, progress: Progress | None = None, *, build: Build = build_model
) -> list[Record]:
    """Trains and tests every scheme at every seed, and gives the records in ``out``, old and new.

    Each measurement is recorded when it is made. What ``out`` has already is not made again, and a training that was
    stopped goes on from its last checkpoint; schemes and seeds may be added to a folder, all else must be the same.
    A training whose loss stops being a number is recorded as diverged, and the others go on. The first SIGINT or
    SIGTERM saves the training under way and raises KeyboardInterrupt.

    Raises ValueError for too little text, and for a folder that holds another comparison, is in use, or has a file that
    is not as this function writes it; OSError, naming the file, where the disk does not take it. What was recorded
    stays, and the same call goes on from there.
    """
    check(config)
    out, progress = Path(out), progress or Progress()
    task, device = task_of(config.task), device_of(config.device)
    left_out = task.left_out() if ALL in config.schemes else {}
    config = resolved(config)
    loaded = task.load(config)
    made_with = {"text_digest": loaded.digest, **{name: versions()[name] for name in VERSIONS}}
    with Records(out, results.check) as records, _Stop() as stop, progress:
        made = _made(out, config)  # before the configuration is saved, which would make any folder one of compare
        _check_folder(out, config.identity(**made_with), records, made)
        records.require_sources(config.schemes)
        about = {
            "fingerprint": fingerprint(config.identity(**made_with)),
            "configuration": config.to_dict(),
            "text": {"about": loaded.about, "digest": loaded.digest},
            "versions": versions(),
            "machine": machine(device),
        }
        lab = _Lab(config, out, task, loaded, device, about, records, progress, stop, build)
        progress.begin(len(config.seeds) * len(config.schemes) * lab.work)  # from here on, what fails has kept records
        write_whole(out / CONFIG, config.to_toml(made_with).encode())
        without = (f"{name} is left out: {reason}" for name, reason in left_out.items())
        for line in filter(None, (records.notice, *_clear(out, made), loaded.about, loaded.notice, *without)):
            progress.say(line)
        for seed in config.seeds:
            for scheme in config.schemes:
                lab.train_and_test(scheme, seed)
            for scheme in config.schemes:
                lab.time_steps(scheme, seed)
        return list(records)


@dataclass
class _Lab:
    """One comparison under way."""

    config: CompareConfig
    out: Path
    task: Task
    loaded: Loaded
    device: torch.device
    about: dict[str, Any]  # what every record has
    records: Records
    progress: Progress
    stop: "_Stop"
    build: Build

    def __post_init__(self) -> None:
        self.step_work = TRAINING_WORK * self.config.batch_size * self.task.tokens(self.config)
        self.training_work = self.step_work * self.config.steps
        self.testing_work = TESTING_WORK * self.loaded.testing_tokens
        self.speed_work = self.step_work * 2 * SPEED_ROUNDS
        self.work = self.training_work + self.testing_work + self.speed_work

    def train_and_test(self, scheme: str, seed: int) -> None:
        """Everything that needs the trained model, as far as it is not there."""
        config, progress = self.config, self.progress
        checkpoint = self.out / CHECKPOINTS / f"{_name(scheme, seed)}{checkpoints.SUFFIX}"
        planned = self.task.plan(scheme, config.test_lengths, config.train_length)
        untested = [(kind, length) for kind, length in planned if not self.records.has(kind, scheme, seed, length)]
        before = next((r for r in self.records if key(r) == ("training", scheme, seed, None)), None)

        def leave_untested(why: str) -> None:
            """Of a training that diverged there is nothing to test."""
            for kind, length in untested:
                self._record(kind, scheme, seed, length, diverged=why)
            checkpoint.unlink(missing_ok=True)

        if before and (not untested or "diverged" in before):
            leave_untested(before.get("diverged", ""))
            progress.skip(self.training_work + self.testing_work)
            return
        model = self.build(config, scheme, seed).to(self.device)
        last = 0

        def after_step(step: int, bits: float) -> bool:
            nonlocal last
            progress.skip(self.step_work * (step - last - 1))  # those a checkpoint has
            last = step
            loss = "" if math.isnan(bits) else f", {bits:.2f} {self.task.unit}"
            progress.advance(self.step_work, f"{scheme}, seed {seed}: training", f"{step}/{config.steps}{loss}")
            return self.stop.asked

        of, draw, loss_of = str(self.about["fingerprint"]) + source_of(scheme), self.loaded.train, self.task.loss
        try:
            training = train(model, draw, config, seed, checkpoint, fingerprint=of, loss_of=loss_of, tick=after_step)
        except DivergedError as error:
            progress.say(f"{scheme}, seed {seed}, diverged: {error} (learning_rate {config.learning_rate:g})")
            progress.skip(self.training_work - self.step_work * last + self.testing_work)
            if not before:
                self._record("training", scheme, seed, diverged=str(error))
            leave_untested(str(error))
            return
        progress.skip(self.step_work * (config.steps - last))
        if not before:
            tokens = batch(draw, config, seed, 0).to(self.device)
            own = {id(p): p for m in model.modules() if isinstance(m, Scheme) for p in m.parameters()}
            self._record(
                "training",
                scheme,
                seed,
                parameters=sum(p.numel() for p in model.parameters()),
                position_parameters=sum(p.numel() for p in own.values()),
                tokens_per_second=round(config.steps * len(tokens) * self.task.tokens(config) / training.seconds, 1),
                peak_bytes=peak_bytes(lambda: loss_of(model, tokens).backward(), self.device),
                seconds=round(training.seconds, 3),
                curve=[[step, round(bits, 6)] for step, bits in training.curve],
                final_bits=round(training.curve[-1][1], 6),
            )
            model.zero_grad(set_to_none=True)

        def after_pass(tokens: int) -> None:
            progress.advance(TESTING_WORK * tokens, f"{scheme}, seed {seed}: testing")
            self.stop.check()

        evaluator = self.loaded.evaluator(model, self.device, after_pass)
        for kind, length in untested:
            self._record(kind, scheme, seed, length, **evaluator.measure(kind, length))
        progress.skip(self.testing_work - TESTING_WORK * evaluator.tokens)
        checkpoint.unlink()

    def time_steps(self, scheme: str, seed: int) -> None:
        """The time of a training step relative to the plain model's, taken in turns, so that a machine that is busy
        with something else for a while slows both. The plain model's own is 1, as that is the unit."""
        if self.records.has("speed", scheme, seed):
            self.progress.skip(self.speed_work)
            return
        tokens = batch(self.loaded.train, self.config, seed, 0).to(self.device)
        models = [self.build(self.config, name, seed).to(self.device) for name in dict.fromkeys((PLAIN, scheme))]
        steps = [
            partial(step_of, model, optimizer_for(model, self.config), tokens, self.config, self.task.loss)
            for model in models
        ]
        clock, times = clock_of(self.device), []
        for _ in range(SPEED_ROUNDS):
            times.append([clock(step) for step in steps])
            self.progress.advance(2 * self.step_work, f"{scheme}, seed {seed}: timing steps")
            self.stop.check()
        ratio = round(median(each[-1] / each[0] for each in times[1:]), 4)  # the first round warms up
        seconds = round(median(each[-1] for each in times[1:]), 6)
        self._record("speed", scheme, seed, relative_to=PLAIN, step_ratio=ratio, step_seconds=seconds)

    def _record(self, kind: str, scheme: str, seed: int, length: int | None = None, **result: Any) -> None:
        named = {"kind": kind, "scheme": scheme, "seed": seed} | ({} if length is None else {"length": length})
        self.records.append({**named, **result, **self.about})
        self.stop.check()


def _name(scheme: str, seed: int) -> str:
    return f"{quote(scheme, safe='+')}-{seed}"  # a scheme of the user's own has a path in its name


def _made(out: Path, config: CompareConfig) -> frozenset[str]:
    """The names of the checkpoints that the comparison in ``out`` makes, by the configuration it saved and by this one.
    Nothing else there is ever removed; where no configuration is saved, nothing at all is: no comparison made it."""
    if not (out / CONFIG).exists():
        return frozenset()
    both = (from_toml(out / CONFIG), config)
    return frozenset(_name(scheme, seed) for each in both for scheme in each.schemes for seed in each.seeds)


def _there(out: Path, made: frozenset[str], suffix: str) -> list[Path]:
    """The files among the checkpoints that have one of these names and this suffix."""
    return sorted(path for path in (out / CHECKPOINTS).glob(f"*{suffix}") if path.name.removesuffix(suffix) in made)


def _check_folder(out: Path, identity: dict[str, Any], records: Records, made: frozenset[str]) -> None:
    """ValueError, saying what differs, if another comparison has records in ``out``, and, naming the line, for a record
    that is of another. Where nothing was measured, another's checkpoints, of the names ``made``, are removed."""
    path = out / CONFIG
    if path.exists():
        differ = differences(saved_identity(path), identity)
        if differ and len(records):
            raise ValueError(f"{out} holds another comparison, with {differ}: give another folder")
        if differ:
            for checkpoint in _there(out, made, checkpoints.SUFFIX):
                checkpoint.unlink()
    elif len(records):
        raise ValueError(f"{out} holds records but no {CONFIG} to tell of what: give another folder")
    for line, record in enumerate(records, 1):
        if of_another := _of_another(record, identity):
            raise ValueError(f"{records.path}, line {line}, is not of this comparison ({of_another}): remove that line")


def _of_another(record: Record, identity: dict[str, Any]) -> str:
    """In what a record is not of the comparison of this ``identity``; empty where it is."""
    if record["kind"] not in results.results_of(identity.get("task", "text")):
        return f"its kind is {record['kind']!r}"
    made_with = {"text_digest": record["text"].get("digest"), **{k: record["versions"].get(k) for k in VERSIONS}}
    try:
        its = configured(record["configuration"]).identity(**made_with)
    except ValueError as error:
        return f"its configuration: {error}"
    here = fingerprint(identity)
    return differences({**its, "fingerprint": record["fingerprint"]}, {**identity, "fingerprint": here})


def _clear(out: Path, made: frozenset[str]) -> list[str]:
    """Removes what a write of a checkpoint that was stopped left behind. Says which are no longer read; they stay."""
    for stray in _there(out, made, checkpoints.SUFFIX + WRITING):
        stray.unlink()
    old = ", ".join(path.name for path in _there(out, made, OLD_SUFFIX))
    return [f"in {out / CHECKPOINTS}, of an older format, so not read and left as it is: {old}"] if old else []


class _Stop(ExitStack):
    """Notes the first SIGINT or SIGTERM, so that work can stop where its state is whole; a second one stops at once."""

    asked = False

    def __enter__(self) -> "_Stop":
        if threading.current_thread() is threading.main_thread():  # no other may set handlers, or gets signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """KeyboardInterrupt if a signal came."""
        if self.asked:
            raise KeyboardInterrupt
