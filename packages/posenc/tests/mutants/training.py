"""Positions in training that are drawn, moved or counted wrongly."""

from functools import partial

import torch
from torch import Tensor

from posenc import Positions
from posenc.positions import training
from tests import test_training
from tests.mutants import Mutant, lines


def one_for_each_row(positions: Positions) -> tuple[Tensor, int]:
    row = torch.arange(positions.rows)[:, None].expand(positions.order.shape)
    return row, positions.rows


def nothing_before(x: Tensor, first: int | bool) -> Tensor:
    return torch.full_like(x, first)


def as_they_lie(positions: Positions, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    index = torch.arange(marks.size(1)).expand(marks.shape)
    return index, marks & (positions.document != -1), positions.document


MOVED = partial(test_training.test_a_text_moves_as_one, "packed")
COUNTED = partial(test_training.test_abacus_is_the_oracles, "permuted")
MUTANTS = (
    Mutant("moves the documents of a row together", training, "_document_indices", one_for_each_row, MOVED),
    *lines(
        test_training.test_random_floats_are_uniform_in_training_and_midpoints_in_evaluation,
        ("spaces short texts over the whole range", test_training, "random_floats", "max(count, trained)", "count"),
        (
            "has places at the ends of steps",
            test_training,
            "random_floats",
            "dtype=torch.float64) + 1)",
            "dtype=torch.float64))",
        ),
    ),
    Mutant("begins a number at every digit", training, "_shift_right", nothing_before, COUNTED),
    Mutant("counts tokens as they lie", training, "_sort_by_document", as_they_lie, COUNTED),
)
