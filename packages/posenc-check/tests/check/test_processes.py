"""`posenc check --world`: subjects in several processes."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from posenc import Positions
from posenc.command.cli import main
from posenc.distributed import Sharding, attention
from posenc.schemes.catalog import scheme_from_names
from posenc.schemes.entry import Shape
from posenc_check import Attention, Bias, Subject, check
from posenc_check.checks import processes
from posenc_check.prepare import prepared
from posenc_check.run import NOT_APPLICABLE, PASSED
from posenc_check.subjects import Batch
from posenc_check.world import LOOKS, ORDERS, ProcessError, holdings_of, in_processes
from tests.check.mutants import processes as mutants
from tests.check.mutants.processes import RIGHT, divided

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs torch's gloo")
TEXT = Batch([[5, 9, 2, 40, 17, 30, 1, 22], [7, 7, 3, 12, 41, 8, 19, 4]])
PACKED = replace(TEXT, document=[[0, 0, 0, 1, 1, 1, 1, 1]] * 2)


def build(name: str, method: str) -> Any:
    return scheme_from_names(name, Shape(64, 4, 16, 64)), method


def call(made: Any, query: Tensor, key: Tensor, value: Tensor, shard: Any) -> Any:
    scheme, method = made
    line = torch.arange(shard.positions.size(1)).expand_as(shard.positions)
    whole = Positions(shard.positions, document=shard.document, order=line)
    sharding = Sharding(whole, order=shard.tokens)
    return attention(query, key, value, scheme.to(query.dtype), sharding, is_causal=True, method=method)


def posencs(name: str, method: str) -> Attention:
    options = {"name": name, "method": method}
    return Attention(build=build, call=call, options=options, causal=True, heads=4, orders=ORDERS[:-1])


def found(subject: Subject, order: str, batch: Batch = TEXT, trial: Any = processes.parts_equal_the_whole) -> list[str]:
    """What a trial says of what did not hold."""
    tolerance = {} if trial is processes.documents_of_shards_do_not_leak else {"tolerance": 1e-5}
    outcomes = trial(subject, batch, world=2, order=order, **tolerance)
    return [f"{name}: {outcome.came}" for name, outcome in outcomes if not outcome.ok]


# -- what each process holds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("contiguous", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("zigzag", [[0, 1, 6, 7], [2, 3, 4, 5]]),
        ("documents", [[2, 3, 6, 7], [0, 1, 4, 5]]),
        ("striped", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("heads", [list(range(8))] * 2),
    ],
)
def test_orders_are_those_of_the_field(order: str, expected: list[list[int]]) -> None:
    held = holdings_of(PACKED, 2, order, 4)
    assert [h.tokens for h in held] == expected
    assert sorted({n for h in held for n in h.tokens}) == list(range(8))
    if order == "heads":
        assert [h.heads for h in held] == [slice(0, 2), slice(2, 4)]


# -- in processes ------------------------------------------------------------------------------------------------------


def test_what_is_right_is_found_right_and_mistakes_are_named() -> None:
    """One case of each, in as few processes as may be; `make check-mutants` runs them whole."""
    assert found(RIGHT, "zigzag", PACKED) == []
    assert found(posencs("rope+alibi", "ring"), "zigzag", PACKED) == []
    (restarted,) = found(divided("restart"), "contiguous")
    assert restarted.startswith("contiguous, rank 1 of 2, which holds 4 of 8 tokens: ")
    assert restarted.endswith("It is as if positions began again at 0 in every process")
    first, second = found(divided("slopes"), "heads")
    assert "rank 1 of 2" in second
    assert first.endswith("It is as if the 2 heads of a process were heads 0 to 1 of 2")
    (empty,) = found(divided("empty"), "contiguous", TEXT.pick([0]))
    assert "nan, off by inf" in empty


def test_one_process_that_fails_is_named() -> None:
    with pytest.raises(ProcessError, match=r"^rank 1 of 2 ended without an answer, with exit code 3$"):
        found(divided("crash"), "contiguous")
    with pytest.raises(ProcessError, match=r"^rank 1 of 2 raises KeyError: 'rank 1 alone' \(processes.py, line "):
        found(divided("raises"), "contiguous")


def receive(rank: int) -> int:
    if rank == 0:
        dist.recv(torch.zeros(1), src=1)  # never sent
    return rank


def test_processes_that_wait_for_one_another_are_ended() -> None:
    with pytest.raises(ProcessError) as error:
        in_processes(2, receive, limit=0.1 * LOOKS)
    assert str(error.value).startswith("nothing was computed for 0.4 s, and not all have answered: rank 0 of 2 waits")
    assert str(error.value).endswith("# never sent); rank 1 of 2 has answered")


# -- whole checks ------------------------------------------------------------------------------------------------------


@pytest.mark.survey
@pytest.mark.parametrize(
    ("subject", "world"),
    [
        pytest.param(RIGHT, 2, id="plain torch"),
        *(
            pytest.param(subject, world, id=name)
            for name, subject, world in (
                ("ring", posencs("t5", "ring"), 2),
                ("gather", posencs("rope+alibi", "gather"), 2),
                ("ulysses", posencs("kerple", "ulysses"), 2),
                ("three", posencs("rope+alibi", "ring"), 3),
            )
        ),
    ],
)
def test_nobody_is_accused_who_is_right(subject: Subject, world: int) -> None:
    (result,) = check(subject, world=world, seconds=600).results
    assert result.status == PASSED, [trial for trial in result.trials if trial.status not in (PASSED, NOT_APPLICABLE)]


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (divided(orders=()), "must be an Attention, Layer or Model that claims orders=, such as"),
        (Bias(build=mutants.nothing, call=mutants.slopes), "must be an Attention, Layer or Model that claims orders="),
        (divided(orders=("head-tail",)), "orders must be 'contiguous', 'zigzag'"),
        (divided(shard_multiple=0), "shard_multiple must be a whole number of at least 1"),
        (Attention(build=mutants.nothing, call=lambda made, q, k, v, visible: q, orders=("zigzag",)), "top level"),
    ],
    ids=["no orders", "a bias", "unknown order", "multiple", "lambda"],
)
def test_subjects_that_cannot_be_divided_are_refused(subject: Subject, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        prepared(subject, world=2)


def test_other_checks_are_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="checks must be 22 with world=2, for the others are of one process"):
        check(RIGHT, checks=[7, 22], world=2)
    for number in (0, 99):
        with pytest.raises(ValueError, match=f"world must be a whole number within 1..16, got {number}"):
            check(RIGHT, world=number)
    assert main(["check", "tests.check.mutants.processes:RIGHT", "--world", "1"]) == 2
    assert "world must be 2 or more, got 1: leave --world out for one process" in capsys.readouterr().err
    assert main(["check", "tests.check.mutants.processes:RIGHT", "--world", "2", "--checks", "7"]) == 2
    assert "checks must be 22 with world=2" in capsys.readouterr().err
