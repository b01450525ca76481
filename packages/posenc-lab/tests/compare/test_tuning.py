"""Learning rates of single schemes: given, tuned, and recorded with what they were used for."""

import argparse
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posenc.schemes.catalog import catalog
from posenc_lab.compare.command import _configuration, add_parser
from posenc_lab.compare.compare import build_model, check, compare
from posenc_lab.compare.config import CompareConfig, Rate
from posenc_lab.compare.report import command
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.task import Loaded
from posenc_lab.compare.tasks import configured, task_of
from posenc_lab.compare.train import optimizer_for
from posenc_lab.compare.tuning import chosen, losses, trials
from posenc_lab.kit.configuration import ConfigError
from posenc_lab.kit.records import Record, key
from tests.compare.test_compare import Interrupting
from tests.compare.tiny_comparison import small_config, untimed, write_text

TUNED: dict[str, Any] = {"tune": True, "tune_rates": (0.01, 0.001), "tune_multipliers": (1.0, 10.0), "steps": 3}


def rates(model: nn.Module, config: CompareConfig, rate: Rate | None = None) -> dict[str, tuple[float, float]]:
    """By name: the highest learning rate and the weight decay that a parameter has."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = optimizer_for(model, config, rate).param_groups
    return {names[p]: (group["highest"], group["weight_decay"]) for group in groups for p in group["params"]}


def test_what_a_scheme_learns_is_a_group_of_its_own(tmp_path: Path) -> None:
    config = small_config(tmp_path, learning_rate=0.5, weight_decay=0.25)
    found = rates(build_model(config, "learned", 0), config, Rate(0.125, 8.0))
    assert found["trunk.position.weight"] == (1.0, 0.0)  # a matrix, and it does not decay
    assert found["head.weight"] == (0.125, 0.25)
    assert found["trunk.norm.weight"] == (0.125, 0.0)
    assert len(found) == len(list(build_model(config, "learned", 0).parameters()))
    assert rates(build_model(config, "nope", 0), config)["head.weight"] == (0.5, 0.25)


@pytest.mark.parametrize("names", ["t5", "rope+t5", "t5~nope"])
def test_an_entry_says_how_fast_its_scheme_learns(tmp_path: Path, names: str) -> None:
    entry = next(entry for entry in catalog() if entry.name == "t5")
    config = small_config(tmp_path, layers=2, learning_rate=0.5)
    found = rates(build_model(config, names, 0), config)
    assert {value for name, value in found.items() if "position" in name} == {(0.5 * entry.rate, 0.0)}
    assert entry.rate > 1


def test_an_entry_with_a_rate_of_its_own_says_why() -> None:
    for entry in catalog():
        assert entry.rate > 0
        assert (entry.rate != 1) == bool(entry.why_rate), entry.name


def test_trials_are_equally_many_for_schemes_that_learn_and_that_do_not() -> None:
    config = CompareConfig(tune_rates=(0.02, 0.00125), tune_multipliers=(1.0, 30.0))
    assert trials(config, learns=True) == [Rate(0.00125, 1.0), Rate(0.00125, 30.0), Rate(0.02, 1.0), Rate(0.02, 30.0)]
    assert trials(config, learns=False) == [Rate(r) for r in (0.00125, 0.00315, 0.007937, 0.02)]
    entries = replace(config, tune_multipliers=())
    assert trials(entries, learns=True) == trials(entries, learns=False) == [Rate(0.00125), Rate(0.02)]
    one = replace(config, tune_rates=(0.01,))
    assert trials(one, learns=False) == [Rate(0.01)]  # there is nothing else to try


def trial(scheme: str, number: int, bits: float | None, seed: int = 0, **more: Any) -> Record:
    named = {"kind": "trial", "scheme": scheme, "seed": seed, "trial": number}
    return {**named, "learning_rate": 0.001 * (number + 1), "multiplier": 10.0, "bits": bits, **more}


def test_the_lowest_mean_loss_is_chosen_and_no_trial_that_diverged() -> None:
    records = [trial("t5", 0, 2.0), trial("t5", 0, 3.0, 1), trial("t5", 1, 2.4), trial("t5", 1, 2.4, 1)]
    assert chosen("t5", records) == Rate(0.002, 10.0)
    diverged = {name: value for name, value in trial("t5", 2, None).items() if name != "bits"} | {"diverged": "at 3"}
    records += [diverged, trial("t5", 2, 0.1, 1), trial("t5", 3, None), trial("rope", 0, 0.1)]
    assert chosen("t5", records) == Rate(0.002, 10.0)
    assert chosen("alibi", records) is None
    assert chosen("t5", [trial("t5", 4, 2.0), trial("t5", 1, 2.0)]) == Rate(0.002, 10.0)  # the first of equals
    longer = [trial("t5", 0, 2.0, twice=4.8), trial("t5", 1, 2.1, twice=2.1), trial("t5", 2, 1.9, twice=None)]
    assert chosen("t5", longer) == Rate(0.002, 10.0)  # low at both lengths
    assert [trial.loss for trial in Summary(longer).trials("t5")] == [3.4, 2.1, None]


def test_a_comparison_that_tunes_records_every_trial_and_trains_at_the_best(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"), schemes=("t5", "alibi"), **TUNED)
    records = compare(config, tmp_path / "out")
    tried = [record for record in records if record["kind"] == "trial"]
    assert [(r["scheme"], r["trial"]) for r in tried] == [(s, n) for s in ("t5", "alibi") for n in range(4)]
    assert {r["multiplier"] for r in tried if r["scheme"] == "alibi"} == {None}
    assert all(all(0 < r[name] < 10 for name in ("bits", "twice", "longest")) for r in tried)
    for scheme in ("t5", "alibi"):
        (training,) = (r for r in records if key(r)[:2] == ("training", scheme))
        assert Rate(training["learning_rate"], training["multiplier"]) == chosen(scheme, records)
        assert training["tuned"] is True
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == []


def test_tuning_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"), schemes=("t5",), **TUNED)
    whole = compare(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "out", Interrupting(8))
    assert untimed(compare(config, tmp_path / "out")) == untimed(whole)


def test_rates_that_are_given_are_trained_at_and_not_tuned(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    config = small_config(text, schemes=("t5", "alibi"), rates=("t5=0.002x30", "alibi=0.004"), **TUNED)
    records = compare(config, tmp_path / "out")
    found = {r["scheme"]: (r["learning_rate"], r["multiplier"], r["tuned"]) for r in records if r["kind"] == "training"}
    assert found == {"t5": (0.002, 30.0, True), "alibi": (0.004, None, True)}
    assert not any(r["kind"] == "trial" for r in records)
    with pytest.raises(ValueError, match=r"has trainings of t5 at 0\.002x30, not at 0\.005: give another folder"):
        compare(replace(config, rates=("t5=0.005",), seeds=(0, 1)), tmp_path / "out")


@pytest.mark.parametrize("words", ["t5", "t5=fast", "t5=0.1x", "=0.1", "t5=-1", "t5=1x0", "t5=nan"])
def test_a_rate_that_is_none_is_an_error_that_shows_the_form(words: str) -> None:
    with pytest.raises(ConfigError, match="rates must be SCHEME=RATE or SCHEME=RATExMULTIPLIER, once a scheme, got '"):
        CompareConfig(rates=(words,))
    with pytest.raises(ConfigError, match="once a scheme, got 't5=2'"):
        CompareConfig(rates=("t5=1", "t5=2"))


def test_where_every_trial_diverges_the_configured_rate_is_taken_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    class Saying(Interrupting):
        def say(self, line: str) -> None:
            said.append(line)

    def nan(config: CompareConfig, scheme: str, seed: int) -> nn.Module:
        model = build_model(config, scheme, seed)
        with torch.no_grad():
            next(model.parameters()).fill_(math.nan)
        return model

    config = small_config(write_text(tmp_path / "text"), schemes=("nope",), **TUNED)
    records = compare(config, tmp_path / "out", Saying(-1), build=nan)
    assert all(r["diverged"] == "the loss is nan at step 1" for r in records if r["kind"] == "trial")
    assert "NoPE: every trial diverged, so it is trained at 0.005" in said
    assert not any(r["tuned"] for r in records if r["kind"] == "training")


def test_the_loss_of_a_trial_is_that_of_tuning_examples(tmp_path: Path) -> None:
    """Of a model that says every byte is as likely as any other: 8 bits a byte, at both lengths, and of no others."""

    class Even(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*tokens.shape, 256)

    config = small_config(write_text(tmp_path / "text"))
    task = task_of("text")
    loaded = task.load(config)
    device = torch.device("cpu")
    # ln 256 is rounded to 24 bits in the mean of each batch.
    assert losses(Even(), task, loaded, config, 0, device) == pytest.approx(
        {"bits": 8.0, "twice": 8.0, "longest": 8.0}, rel=2**-20
    )

    def refuse(rng: np.random.Generator, count: int, size: int) -> np.ndarray[Any, Any]:
        raise AssertionError("training text was asked for")

    of_tuning = Loaded(refuse, loaded.tuning, loaded.evaluator, 0, "", "")
    assert losses(Even(), task, of_tuning, config, 0, device)["bits"] == pytest.approx(8.0, rel=2**-20)
    undefined = losses(build_model(config, "learned", 0), task, loaded, config, 0, device)
    assert undefined.keys() == {"bits"}  # a table has no positions at longer ones


def test_a_plan_enters_every_record(tmp_path: Path) -> None:
    plan = tmp_path / "plan.md"
    config = small_config(write_text(tmp_path / "text"), schemes=("nope",), steps=1, plan=str(plan))
    with pytest.raises(ValueError, match="plan must be a file that is there, got '"):
        check(config)
    plan.write_text("What is asked.")
    records = compare(config, tmp_path / "out")
    assert len({record["plan"] for record in records}) == 1
    plan.write_text("What is asked now.")
    with pytest.raises(ValueError, match="holds another comparison, with plan_digest '"):
        compare(replace(config, seeds=(0, 1)), tmp_path / "out")


def test_the_command_of_a_report_makes_the_same_comparison_again() -> None:
    """Also where a list is empty that is not so by default."""
    given = {"task": "recall", "tune": True, "tune_multipliers": (), "seeds": (), "tune_rates": (0.001, 0.01)}
    config = configured({**given, "schemes": ("rope@4~nope",), "rates": ("rope=0.1x3",), "batch_seed": 2})
    made = {"kind": "trial", "scheme": "rope@4~nope", "seed": 0, "trial": 0, "fingerprint": "f", "text": {}}
    words = shlex.split(command(Summary([{**made, "configuration": config.to_dict()}])))
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    assert _configuration(parser.parse_args(words[1:])) == config
