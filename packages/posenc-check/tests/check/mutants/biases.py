"""What is added to scores, and what goes wrong with it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Bias
from tests.check.mutants import Mutant


def slopes(heads: int = 3) -> list[float]:
    """A slope for each head."""
    return [2.0 ** -(head + 1) for head in range(heads)]


def line(made: list[float], query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """-m_h |p_i - p_j|"""
    distance = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
    return -torch.tensor(made).double()[:, None, None] * distance


class Table(nn.Module):
    """A number for each distance up to one, and head."""

    def __init__(self, heads: int = 3, furthest: int = 40) -> None:
        super().__init__()
        self.furthest = furthest
        self.weight = nn.Parameter(torch.randn(heads, 2 * furthest + 1))


def look_up(table: Table, query_length: int, key_length: int) -> Tensor:
    """Queries are the last of the keys."""
    query = torch.arange(key_length - query_length, key_length)
    distance = query[:, None] - torch.arange(key_length)
    return table.weight[:, distance.clamp(-table.furthest, table.furthest) + table.furthest]


def look_up_and_shift(table: Table, query_length: int, key_length: int) -> Tensor:
    """Each row is that of the last query, shifted by flattening: what lies past the diagonal is of no use."""
    return shifted(table, query_length, key_length, query_length)


def shifted(table: Table, query_length: int, key_length: int, dropped: int) -> Tensor:
    distance = torch.arange(key_length - 1, -1, -1).clamp(max=table.furthest)
    row = table.weight[:, distance + table.furthest]
    rows = F.pad(row[:, None].expand(-1, query_length, -1), (1, 0))
    flat = rows.flatten(1)[:, dropped:]
    return F.pad(flat, (0, query_length * key_length - flat.size(1)))[:, : query_length * key_length].unflatten(
        1, (query_length, key_length)
    )


# -- bugs -------------------------------------------------------------------------------------------------------------


def look_up_from_the_first(table: Table, query_length: int, key_length: int) -> Tensor:
    """As if queries were the first of the keys."""
    return look_up(table, key_length, key_length)[:, :query_length]


def shift_as_in_a_square(table: Table, query_length: int, key_length: int) -> Tensor:
    """Drops as many numbers as there are keys; it should be queries."""
    return shifted(table, query_length, key_length, key_length)


def line_by_index(made: list[float], query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Positions are there, and nobody reads them."""
    keys = torch.arange(key_positions.size(1))[None]
    return line(made, keys[:, -query_positions.size(1) :], keys)


def line_within_the_shard(made: list[float], query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Every shard counts from its own first token."""
    return line(made, query_positions - query_positions[:, :1], key_positions - key_positions[:, :1])


def line_of_the_first_row(made: list[float], query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return line(made, query_positions[:1], key_positions[:1])


ALIBI = Bias(build=slopes, call=line, relative=True, slopes=(0.5, 0.25, 0.125))
TABLE = Bias(build=Table, call=look_up, causal=True)
SHIFTED = Bias(build=Table, call=look_up_and_shift, causal=True)

CORRECT = (ALIBI, TABLE, SHIFTED)
MUTANTS = (
    Mutant("queries taken for the first keys", Bias(build=Table, call=look_up_from_the_first, causal=True), 9, 5),
    Mutant("relative shift of a rectangle", Bias(build=Table, call=shift_as_in_a_square, causal=True), 9, 11),
    Mutant("ALiBi by index", Bias(build=slopes, call=line_by_index, relative=True), 10, 3),
    Mutant("ALiBi within the shard", Bias(build=slopes, call=line_within_the_shard, relative=True), 12, 16),
    Mutant("ALiBi of the first row", Bias(build=slopes, call=line_of_the_first_row, relative=True), 7, 3),
)
