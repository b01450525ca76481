"""Positions in training that are drawn, moved or counted wrongly."""

from functools import partial

import torch
from torch import Tensor

from posenc import Positions
from posenc.positions import training
from tests import test_training
from tests.mutants import Mutant

RIGHT_NUMBERS, RIGHT_BEFORE, RIGHT_SEQUENCE = training._numbered, training._before, training._as_written


def one_for_each_row(positions: Positions) -> tuple[Tensor, int]:
    row = torch.arange(positions.rows)[:, None].expand(positions.order.shape)
    return row, positions.rows


def one_for_all(positions: Positions) -> tuple[Tensor, int]:
    return torch.zeros_like(positions.document), 1


def nothing_before(x: Tensor, first: int | bool) -> Tensor:
    return torch.full_like(x, first)


def one_text(positions: Positions, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    index, marks, document = RIGHT_SEQUENCE(positions, marks)
    return index, marks, document * 0


def as_they_lie(positions: Positions, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    index = torch.arange(marks.size(1)).expand(marks.shape)
    return index, marks & (positions.document != -1), positions.document


CASES = test_training.CASES
MOVED = partial(test_training.test_a_text_moves_as_one, "packed")
COUNTED = partial(test_training.test_abacus_is_the_oracles, "permuted")
SPLIT = partial(test_training.test_bilevel_is_the_oracles, "packed", None)
MUTANTS = (
    Mutant("moves the documents of a row together", training, "_numbered", one_for_each_row, MOVED),
    Mutant(
        "moves all rows together",
        training,
        "_numbered",
        one_for_all,
        partial(test_training.test_a_text_moves_as_one, "plain"),
    ),
    Mutant(
        "stretches the documents of a row alike",
        training,
        "_numbered",
        one_for_each_row,
        partial(test_training.test_each_part_of_cape_is_its_formula, "packed"),
    ),
    Mutant("begins a number at every digit", training, "_before", nothing_before, COUNTED),
    Mutant("counts tokens as they lie", training, "_as_written", as_they_lie, COUNTED),
    Mutant(
        "lets a number run on into the next document",
        training,
        "_as_written",
        one_text,
        partial(test_training.test_abacus_is_the_oracles, "packed"),
    ),
    Mutant("lets a segment run on into the next document", training, "_as_written", one_text, SPLIT),
)
