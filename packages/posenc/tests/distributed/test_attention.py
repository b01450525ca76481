"""Attention over tokens that several processes hold equals attention over all of them: output, log-sum-exp,
gradients.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from posenc import T5, Positions
from posenc.distributed import Sharding, attention
from tests.distributed import cases, decoding, horizons, models
from tests.distributed.processes import in_processes

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs torch's gloo")


@pytest.mark.parametrize(
    ("world", "every"),
    [
        (2, 4),
        pytest.param(3, 4, marks=pytest.mark.more),
        *(pytest.param(world, 1, marks=pytest.mark.survey) for world in (1, 2, 3, 4)),
    ],
)
def test_sharded_attention_is_that_of_all_tokens(world: int, every: int, tmp_path: Path) -> None:
    """Every scheme at every order, method, text and mask, in turn."""
    asked = [*cases.chosen(world, every), *(cases.OF_ROWS if world <= 2 else ())]
    for wrong in in_processes(world, tmp_path, cases.run_all, asked):
        assert not wrong, "\n".join(wrong)


@pytest.mark.more
@pytest.mark.parametrize("world", [4, pytest.param(2, marks=pytest.mark.survey)])
def test_a_ring_across_exchanges_of_heads_is_attention_to_all_tokens(world: int, tmp_path: Path) -> None:
    for wrong in in_processes(world, tmp_path, cases.run_all, cases.ON_A_MESH):
        assert not wrong, "\n".join(wrong)


@pytest.mark.more
@pytest.mark.parametrize(
    ("world", "work"),
    [
        (2, models.run_all),
        (2, decoding.decodes),
        pytest.param(3, models.empties, marks=pytest.mark.survey),
        (2, models.again),
        (2, models.wrapped),
        pytest.param(3, models.run_all, marks=pytest.mark.survey),
        pytest.param(3, decoding.decodes, marks=pytest.mark.survey),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_models_are_those_of_all_tokens(world: int, work: Callable[[None], list[str]], tmp_path: Path) -> None:
    for wrong in in_processes(world, tmp_path, work, None):
        assert not wrong, "\n".join(wrong)


@pytest.mark.more
def test_what_nobody_attends_to_is_not_sent(tmp_path: Path) -> None:
    """Bytes that the four processes of a ring send: under a window each needs the end of its neighbour's keys alone,
    and whole documents need nothing."""
    found = in_processes(4, tmp_path, models.bytes_sent, None)
    for kind in ("window", "documents", "causal"):
        sent = [of_process[kind] for of_process in found]
        expected = [of_process[f"{kind} expected"] for of_process in found]
        assert sent == expected
    assert sum(of_process["documents"] for of_process in found) == 0


@pytest.mark.parametrize(
    ("world", "on_a_mesh"),
    [(2, False), pytest.param(4, False, marks=pytest.mark.survey), pytest.param(4, True, marks=pytest.mark.survey)],
)
@pytest.mark.more
def test_heads_that_see_near_keys_alone_send_no_others(world: int, on_a_mesh: bool, tmp_path: Path) -> None:
    """By horizons of ALiBi and of learned slopes: bytes counted, numbers and gradients as without them."""
    for wrong in in_processes(world, tmp_path, horizons.run, on_a_mesh):
        assert not wrong, "\n".join(wrong)


def test_leaks_bytes_and_errors(tmp_path: Path) -> None:
    """A token changes only what may see it; what is sent is what was counted by hand; errors name the way out."""
    for wrong, messages in in_processes(2, tmp_path, models.in_short, None):
        assert wrong == []
        for message, expected in messages:
            assert expected in message


def test_a_process_without_queries_has_gradients_of_all_by_its_log_sum_exp(tmp_path: Path) -> None:
    """Of zero: otherwise the others wait for its part in the gradients of gathered keys and values."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        leaves = [torch.zeros(1, 2, 0, 8, requires_grad=True) for _ in range(3)]
        sharding, scheme = Sharding(Positions.arange(0)), T5(2, 8, 20)
        _, lse = attention(*leaves, scheme, sharding, method="gather", return_lse=True)
        torch.autograd.grad(lse.sum(), [*leaves, *scheme.parameters()])  # an error where one is not reached
    finally:
        dist.destroy_process_group()
