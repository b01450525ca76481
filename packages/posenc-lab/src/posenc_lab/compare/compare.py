"""Runs ``posenc compare``: trains the same model with each scheme on the same batches, and tests it on the same
windows."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias
from urllib.parse import quote

import torch
from torch import nn

from posenc.command.files import WRITING
from posenc.command.memory import peak_bytes
from posenc.command.progress import Progress
from posenc.models import position_parameters
from posenc.schemes.user_code import source_of
from posenc_lab.compare import checkpoint as checkpoints
from posenc_lab.compare.checkpoint import Reached
from posenc_lab.compare.config import CompareConfig, Rate
from posenc_lab.compare.summary import check as check_record
from posenc_lab.compare.summary import results_of
from posenc_lab.compare.task import Loaded, Measures, Task, listed, position_from
from posenc_lab.compare.tasks import complete, configured, from_toml, task_of
from posenc_lab.compare.train import TRAINING, TUNING, DivergedError, batch, optimizer_for, rate_of, step_of, train
from posenc_lab.compare.tuning import chosen, losses, trials
from posenc_lab.kit import configuration_file, processes
from posenc_lab.kit.configuration import differences, fingerprint
from posenc_lab.kit.files import digest_of, rounded
from posenc_lab.kit.interleaving import orders, ratios
from posenc_lab.kit.machine import clock_of, device_of, versions
from posenc_lab.kit.processes import Lead, Stop, jobs, own_device
from posenc_lab.kit.records import Record, Records, key
from posenc_lab.kit.titles import titled

ALL = "all"  # the name that stands for every scheme of the catalog that the task has positions for
PLAIN = "nope"  # what step times are relative to: the model without positions

# A scheme has its own random stream; otherwise a learned table would be initialised with the embedding's numbers.
SCHEME_STREAM = 2**31  # torch seeds with 32 bits, and config leaves this one free

SPEED_ROUNDS = 10
# The unit of work is the forward pass of a token. The backward pass of training costs twice as much; the longer texts
# of testing make attention more expensive.
TRAINING_WORK = 3.0
TESTING_WORK = 1.5


CHECKPOINTS = "checkpoints"
RETIRED = ("by_position",)  # kinds of measurements of earlier versions, which nothing reads
VERSIONS = ("posenc", "torch", "numpy")  # whose versions two measurements must share to be of one comparison

Build: TypeAlias = Callable[[CompareConfig, str, int], nn.Module]
"""(configuration, scheme, seed) -> model."""

TUNED_STREAM = 2**30  # trials begin with weights that no training has


def build_model(config: CompareConfig, scheme: str, seed: int) -> nn.Module:
    """The task's model with a scheme. For a given seed, all other weights are the same for every scheme."""
    task = task_of(config.task)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + SCHEME_STREAM)
        position = position_from(scheme, task.shape(config), config.layers)
        torch.default_generator.manual_seed(seed)
        return task.model(config, position)


def resolved(config: CompareConfig) -> CompareConfig:
    """The completed configuration, with ``all`` replaced by the names of all schemes that apply."""
    config = complete(config)
    every = task_of(config.task).applicable()
    names = [name for scheme in config.schemes for name in (every if scheme == ALL else (scheme,))]
    return replace(config, schemes=tuple(dict.fromkeys(names))) if ALL in config.schemes else config


def check(config: CompareConfig) -> None:
    """ValueError for a scheme that is unknown or does not fit the task or the model, for a missing plan, and for an
    unavailable device."""
    config = resolved(config)
    if config.plan and not Path(config.plan).is_file():
        raise ValueError(f"plan must be a file that is there, got {config.plan!r}")
    for scheme in config.schemes:
        task_of(config.task).require(scheme)
        build_model(config, scheme, 0)
    device_of(config.device)


def compare(
    config: CompareConfig, out: str | Path, progress: Progress | None = None, *, build: Build = build_model
) -> list[Record]:
    """Trains and tests every scheme with every seed, and returns all records in ``out``.

    Each measurement is recorded at once. Measurements already in ``out`` are not repeated, and an interrupted training
    resumes from its last checkpoint. Schemes and seeds may be added to a folder; everything else must stay the same. A
    training whose loss is no longer finite is recorded as diverged, and the others continue. The first SIGINT or
    SIGTERM saves the current training and raises KeyboardInterrupt.

    If there are several processes (`posenc_lab.kit.processes`), all of them call this. They train and test every
    model together; the first one writes ``out`` and returns the records, and the others return none.

    Raises ValueError for too little text, and for a folder that holds another comparison, is in use, or has an invalid
    file; OSError, naming the file, if the disk cannot be written. Records are kept, and the same call resumes.
    """
    check(config)
    if processes.rank():
        follow(build)
        return []
    with Lead() as lead:
        return _compare(config, Path(out), progress or Progress(), build, lead)


def _compare(config: CompareConfig, out: Path, progress: Progress, build: Build, lead: Lead) -> list[Record]:
    task, device = task_of(config.task), own_device(config.device)
    left_out = task.left_out() if ALL in config.schemes else {}
    config = resolved(config)
    loaded = task.load(config)
    made_with = {"text_digest": loaded.digest, **{name: versions()[name] for name in VERSIONS}}
    if config.plan:
        made_with["plan_digest"] = digest_of(Path(config.plan).read_bytes())
    with Records(out, check_record) as records, Stop() as stop, progress:
        made = _made_names(out, config)  # before the configuration is saved, which marks the folder as one of compare
        _check_folder(out, config.identity(**made_with), records, made)
        records.require_sources(config.schemes)
        about = {
            "fingerprint": fingerprint(config.identity(**made_with)),
            "configuration": config.to_dict(),
            "text": {"about": loaded.about, "digest": loaded.digest, "notice": loaded.notice},
            **({"plan": made_with["plan_digest"]} if config.plan else {}),
            "versions": versions(),
            "machine": processes.machine_of_all(device),
        }
        lab = _Lab(config, out, task, loaded, device, about, records, progress, stop, lead, build)
        progress.begin(lab.work)  # errors from here on leave a partial report
        configuration_file.save(out, config, made_with)
        _remove(out, made, checkpoints.SUFFIX + WRITING)  # partially written
        without = (f"left out: {listed(names)}, as {reason}" for reason, names in left_out.items())
        for line in filter(None, (records.notice, loaded.about, loaded.notice, *without)):
            progress.say(line)
        # Given rates first, so that errors come before hours of tuning.
        rates = {scheme: lab.rate(scheme) for scheme in config.schemes if not lab.tunes(scheme)}
        for scheme in config.schemes:
            if lab.tunes(scheme):
                lab.tune(scheme)
                rates[scheme] = lab.rate(scheme)
        for seed in config.seeds:
            for scheme in config.schemes:
                lab.train_and_test(scheme, seed, rates[scheme])
            for scheme in config.schemes:
                lab.time_steps(scheme, seed)
        return list(records)


@dataclass(frozen=True)
class Training:
    """One training, of which every process does its part. The other jobs are (kind, length): test the trained model."""

    config: CompareConfig
    text: str  # the digest of the data
    scheme: str
    seed: int
    rate: Rate
    stream: int
    checkpoint: Path
    fingerprint: str

    def model(self, build: Build) -> nn.Module:
        """The model to train."""
        seed = self.seed + TUNED_STREAM if self.stream == TUNING else self.seed
        return build(self.config, self.scheme, seed).to(own_device(self.config.device))

    def run(self, model: nn.Module, loaded: Loaded, tick: Callable[[int, float], bool]) -> Reached:
        """Trains the model; raises what `train` raises."""
        task = task_of(self.config.task)
        return train(
            model,
            loaded.train,
            self.config,
            self.seed,
            self.checkpoint,
            rate=self.rate,
            stream=self.stream,
            fingerprint=self.fingerprint,
            loss_of=task.loss,
            targets=task.targets,
            probe=loaded.probe if self.stream == TRAINING else None,
            tick=tick,
        )


def follow(build: Build) -> None:
    """Does the jobs that the first process tells. ValueError for a text that is not the first process's."""
    loaded: Loaded | None = None
    measures: Measures | None = None
    with Stop() as stop:
        for job in jobs():
            if not isinstance(job, Training):
                assert measures is not None
                measures.measure(*job)
                continue
            loaded = loaded or task_of(job.config.task).load(job.config)
            if loaded.digest != job.text:
                raise ValueError(f"text must be the same in all processes, got {loaded.digest} and {job.text}")
            model = job.model(build)
            with suppress(DivergedError):
                job.run(model, loaded, lambda step, bits: stop.asked)
            measures = loaded.evaluator(model, own_device(job.config.device), lambda tokens: stop.check_all())


@dataclass
class _Lab:
    """A running comparison."""

    config: CompareConfig
    out: Path
    task: Task
    loaded: Loaded
    device: torch.device
    about: dict[str, Any]  # what every record has
    records: Records
    progress: Progress
    stop: Stop
    lead: Lead
    build: Build

    def __post_init__(self) -> None:
        config = self.config
        self.step_work = TRAINING_WORK * config.batch_size * self.task.tokens(config)
        self.training_work = self.step_work * config.steps
        self.testing_work = TESTING_WORK * self.loaded.testing_tokens
        self.speed_work = self.step_work * 2 * SPEED_ROUNDS * config.timed
        tried = len(trials(config, learns=True)) * len(config.tune_seeds)
        tuned = set(config.schemes) - set(config.given_rates()) if config.tune else ()
        each = self.training_work + self.testing_work + self.speed_work
        self.work = len(tuned) * tried * self.training_work + len(config.seeds) * len(config.schemes) * each

    def tunes(self, scheme: str) -> bool:
        """Whether the scheme is tuned: not if its rate is given."""
        return self.config.tune and scheme not in self.config.given_rates()

    def tune(self, scheme: str) -> None:
        """Runs the trials of a scheme that are not recorded yet."""
        config = self.config
        learns = bool(position_parameters(self.build(config, scheme, 0)))
        for seed in config.tune_seeds:
            for trial, rate in enumerate(trials(config, learns)):
                if self.records.has("trial", scheme, seed, trial=trial):
                    # Left if interrupted after the record.
                    self._checkpoint(scheme, seed, trial).unlink(missing_ok=True)
                    self.progress.skip(self.training_work)
                    continue
                self._try(scheme, seed, trial, rate)

    def _try(self, scheme: str, seed: int, trial: int, rate: Rate) -> None:
        """Runs one trial: a separate training and its loss on tuning examples."""
        checkpoint = self._checkpoint(scheme, seed, trial)
        job = self._job(scheme, seed, rate, TUNING, checkpoint)
        model = job.model(self.build)
        about: dict[str, Any] = {"trial": trial, "learning_rate": rate.learning_rate, "multiplier": rate.multiplier}
        words = f"{titled(scheme)}, trial {trial + 1}"
        try:
            training = self._train(model, job, words)
        except DivergedError as error:
            self._record("trial", scheme, seed, **about, diverged=str(error))
        else:
            found = losses(model, self.task, self.loaded, self.config, seed, self.device)
            self._record("trial", scheme, seed, **about, **found, seconds=round(training.seconds, 3))
        checkpoint.unlink(missing_ok=True)

    def rate(self, scheme: str) -> Rate:
        """The rate of a scheme: the given one, the one that tuning chose, or the configuration's. ValueError if it has
        trainings with another rate."""
        config = self.config
        rate = rate_of(config, scheme)
        if self.tunes(scheme):
            found = chosen(scheme, self.records)
            if found is None:
                self.progress.say(f"{titled(scheme)}: every trial diverged, so it is trained at {rate}")
            rate = found or rate
        for record in self.records:
            its = Rate(record.get("learning_rate", math.nan), record.get("multiplier"))
            if (record["kind"], record["scheme"]) == ("training", scheme) and its != rate:
                raise ValueError(f"{self.out} has trainings of {scheme} at {its}, not at {rate}: give another folder")
        return rate

    def train_and_test(self, scheme: str, seed: int, rate: Rate) -> None:
        """Trains a scheme and makes the measurements that are not recorded yet."""
        config, progress = self.config, self.progress
        checkpoint = self._checkpoint(scheme, seed)
        planned = self.task.plan(config.test_lengths, config.train_length)
        untested = [(kind, length) for kind, length in planned if not self.records.has(kind, scheme, seed, length)]
        before = next((r for r in self.records if key(r)[:3] == ("training", scheme, seed)), None)

        def leave_untested(why: str) -> None:
            """Records the tests of a diverged training as diverged."""
            for kind, length in untested:
                self._record(kind, scheme, seed, length, diverged=why)
            checkpoint.unlink(missing_ok=True)

        if before and (not untested or "diverged" in before):
            leave_untested(before.get("diverged", ""))
            progress.skip(self.training_work + self.testing_work)
            return
        job = self._job(scheme, seed, rate, TRAINING, checkpoint)
        model = job.model(self.build)
        words = f"{titled(scheme)}, seed {seed}"
        about: dict[str, Any] = {"learning_rate": rate.learning_rate, "multiplier": rate.multiplier}
        about["tuned"] = scheme in config.given_rates() or (config.tune and chosen(scheme, self.records) is not None)
        try:
            training = self._train(model, job, words)
        except DivergedError as error:
            progress.skip(self.testing_work)
            if not before:
                self._record("training", scheme, seed, **about, diverged=str(error))
            leave_untested(str(error))
            return
        if not before:
            probed: dict[str, Any] = {"use": [[step, rounded(use)] for step, use in training.probed]}
            tokens = batch(self.loaded.train, config, seed, 0).to(self.device)
            if self.device.type == "cuda":  # libraries keep what they allocate in a first pass
                self.task.loss(model, tokens).backward()
                model.zero_grad(set_to_none=True)
            self._record(
                "training",
                scheme,
                seed,
                **about,
                parameters=sum(p.numel() for p in model.parameters()),
                position_parameters=sum(p.numel() for p in position_parameters(model)),
                tokens_per_second=round(config.steps * len(tokens) * self.task.tokens(config) / training.seconds, 1),
                peak_bytes=peak_bytes(lambda: self.task.loss(model, tokens).backward(), self.device),
                seconds=round(training.seconds, 3),
                curve=[[step, round(bits, 6)] for step, bits in training.curve],
                final_bits=round(training.curve[-1][1], 6),
                **(probed if training.probed else {}),
            )
            model.zero_grad(set_to_none=True)

        def after_pass(tokens: int) -> None:
            progress.advance(TESTING_WORK * tokens, f"{words}: testing")
            self.stop.check_all()

        evaluator = self.loaded.evaluator(model, self.device, after_pass)
        for kind, length in untested:
            with self.lead.together((kind, length)):
                found = evaluator.measure(kind, length)
            self._record(kind, scheme, seed, length, **found)
        progress.skip(self.testing_work - TESTING_WORK * evaluator.tokens)
        checkpoint.unlink()

    def _job(self, scheme: str, seed: int, rate: Rate, stream: int, checkpoint: Path) -> Training:
        of = f"{self.about['fingerprint']}{source_of(scheme)} {rate}"
        return Training(self.config, self.loaded.digest, scheme, seed, rate, stream, checkpoint, of)

    def _train(self, model: nn.Module, job: Training, words: str) -> Reached:
        """Trains with progress. DivergedError is reported, and its remaining work counted as done."""
        config, progress, last = self.config, self.progress, 0

        def after_step(step: int, bits: float) -> bool:
            nonlocal last
            progress.skip(self.step_work * (step - last - 1))  # steps done before the checkpoint
            last = step
            loss = "" if math.isnan(bits) else f", {bits:.2f} {self.task.unit}"
            progress.advance(self.step_work, f"{words}: training", f"{step}/{config.steps}{loss}")
            return self.stop.asked

        try:
            with self.lead.together(job, agreed=DivergedError):
                return job.run(model, self.loaded, after_step)
        except DivergedError as error:
            progress.say(f"{words}, diverged: {error} (learning rate {job.rate})")
            raise
        finally:
            progress.skip(self.step_work * (config.steps - last) * (not self.stop.asked))

    def _checkpoint(self, scheme: str, seed: int, trial: int | None = None) -> Path:
        return self.out / CHECKPOINTS / f"{_name_of(scheme, seed, trial)}{checkpoints.SUFFIX}"

    def time_steps(self, scheme: str, seed: int) -> None:
        """Measures the time of a training step relative to that of the model without positions. Steps are interleaved
        in random order, so that other load slows both."""
        if not self.config.timed or self.records.has("speed", scheme, seed):
            self.progress.skip(self.speed_work)
            return
        tokens = batch(self.loaded.train, self.config, seed, 0).to(self.device)
        names = tuple(dict.fromkeys((PLAIN, scheme)))
        models = {name: self.build(self.config, name, seed).to(self.device) for name in names}
        steps = {
            name: partial(step_of, model, optimizer_for(model, self.config), tokens, self.config, self.task.loss)
            for name, model in models.items()
        }
        clock = clock_of(self.device)
        times: dict[str, list[float]] = {name: [] for name in names}
        for order in islice(orders(names, f"{scheme}, seed {seed}"), SPEED_ROUNDS):
            for name in order:
                times[name].append(clock(steps[name]))
            self.progress.advance(2 * self.step_work, f"{titled(scheme)}, seed {seed}: timing steps")
            self.stop.check()
        ratio, low, high = (round(each, 4) for each in ratios(times[scheme][1:], times[PLAIN][1:]))  # after a warm-up
        seconds = round(median(times[scheme][1:]), 6)
        result: dict[str, Any] = {"step_ratio": ratio, "low": low, "high": high, "step_seconds": seconds}
        self._record("speed", scheme, seed, relative_to=PLAIN, **result)

    def _record(self, kind: str, scheme: str, seed: int, length: int | None = None, **result: Any) -> None:
        named = {"kind": kind, "scheme": scheme, "seed": seed} | ({} if length is None else {"length": length})
        self.records.append({**named, **result}, self.about)
        self.stop.check()


# --- the folder -------------------------------------------------------------------------------------------------------


def _name_of(scheme: str, seed: int, trial: int | None = None) -> str:
    name = f"{quote(scheme, safe='+')}-{seed}"  # a scheme of the user's own has a path in its name
    return name if trial is None else f"{name}-trial-{trial}"


def _made_names(out: Path, config: CompareConfig) -> frozenset[str]:
    """The names of the checkpoints that the comparison in ``out`` makes, by the configuration it saved and by this one.
    Nothing else is ever removed, and nothing at all without a saved configuration."""
    if not (out / configuration_file.FILE).exists():
        return frozenset()
    both = (from_toml(out / configuration_file.FILE), config)
    tried = [None, *range(max(len(each.tune_rates) * max(len(each.tune_multipliers), 1) for each in both))]
    schemes = {scheme for each in both for scheme in each.schemes}
    seeds = {seed for each in both for seed in (*each.seeds, *each.tune_seeds)}
    return frozenset(_name_of(*of) for of in product(schemes, seeds, tried))


def _remove(out: Path, made: frozenset[str], suffix: str) -> None:
    """Removes the files among the checkpoints that have one of these names and this suffix."""
    for path in (out / CHECKPOINTS).glob(f"*{suffix}"):
        if path.name.removesuffix(suffix) in made:
            path.unlink()


def _check_folder(out: Path, identity: dict[str, Any], records: Records, made: frozenset[str]) -> None:
    """ValueError, saying what differs, if another comparison has records in ``out``, and, naming the line, for a record
    that is of another. Where nothing was measured, another's checkpoints, of the names ``made``, are removed."""
    there = configuration_file.identity_in(out, configured)
    if len(records):
        configuration_file.require_same(out, there, identity, "comparison")
    elif there and differences(there, identity):
        _remove(out, made, checkpoints.SUFFIX)
    for line, record in records.numbered():
        if of_another := _of_another(record, identity):
            raise ValueError(f"{records.path}, line {line}, is not of this comparison ({of_another}): remove that line")


def _of_another(record: Record, identity: dict[str, Any]) -> str:
    """How a record differs from the comparison of this ``identity``; empty if it belongs to it."""
    if record["kind"] not in (*results_of(identity.get("task", "text")), *RETIRED):
        return f"its kind is {record['kind']!r}"
    made_with = {"text_digest": record["text"].get("digest"), **{k: record["versions"].get(k) for k in VERSIONS}}
    if "plan" in record:
        made_with["plan_digest"] = record["plan"]
    try:
        its = configured(record["configuration"]).identity(**made_with)
    except ValueError as error:
        return f"its configuration: {error}"
    here = fingerprint(identity)
    return differences({**its, "fingerprint": record["fingerprint"]}, {**identity, "fingerprint": here})
