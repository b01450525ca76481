"""Shaw that reads another row of its tables, or adds it in the wrong place."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn

from posenc import Positions, Shaw
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Distance, Meeting, Value
from tests.cases import HEAD_DIM
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles
from tests.schemes import test_life_cycle

Rows = Callable[[Shaw, Tensor], Callable[[Tensor], Tensor]]


def clipped(distance: Tensor, k: int) -> Tensor:
    return distance.clamp(-k, k) + k


def rows(row: Callable[[Tensor, int], Tensor]) -> Rows:
    """The method with another rule for the row of a distance."""

    def wrong(self: Shaw, table: Tensor) -> Callable[[Tensor], Tensor]:
        by_head = table if table.dim() == 3 else table[None]
        return lambda r: by_head[:, row(r, self.max_distance)]

    return wrong


ENDLESS = Distance("Shaw", integral=True)  # what lies past the window is not said to be all the same
RIGHT = rows(clipped)


def score(
    table: Callable[[Shaw], Tensor | None] = lambda self: self.key_table,
    rows: Rows = RIGHT,
    factor: float = 1.0,
    side: Literal["query", "key"] = "query",
) -> Callable[..., tuple[Meeting, ...]]:
    """The method as it is, but for one thing."""

    def wrong(
        self: Shaw, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Meeting, ...]:
        if self.key_table is None:
            return ()
        found = table(self)
        assert found is not None
        return (Meeting(rows(self, factor * found), ENDLESS, side=side),)

    return wrong


def value(
    table: Callable[[Shaw], Tensor | None] = lambda self: self.value_table, rows: Rows = RIGHT
) -> Callable[..., tuple[Value, ...]]:
    """The method as it is, but for one thing."""

    def wrong(
        self: Shaw, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Value, ...]:
        if self.value_table is None:
            return ()
        found = table(self)
        assert found is not None
        return (Value(rows(self, found), ENDLESS),)

    return wrong


def nothing(self: Shaw, queries: Positions, keys: Positions, context: Context | None = None) -> tuple[Value, ...]:
    return ()


def values_alone(self: Shaw) -> None:
    if self.value_table is not None:
        nn.init.uniform_(self.value_table)


WRAPPED = rows(lambda r, k: (r + k) % (2 * k + 1))
MIRRORED = rows(lambda r, k: clipped(-r, k))
NEXT = rows(lambda r, k: (clipped(r, k) + 1).clamp(max=2 * k))
BY_INDEX = elsewhere(Shaw, index, index)
COMPARED = oracles("shaw")
MUTANTS = (
    Mutant("wraps at the end of its window", Shaw, "score", score(rows=WRAPPED), COMPARED),
    Mutant("takes query minus key", Shaw, "_rows", rows(lambda r, k: clipped(-r, k)), COMPARED),
    Mutant("is blind to direction", Shaw, "_rows", rows(lambda r, k: clipped(r.abs(), k)), COMPARED),
    Mutant("clips one too early", Shaw, "_rows", rows(lambda r, k: r.clamp(1 - k, k - 1) + k), COMPARED),
    Mutant("takes distances between indices", Shaw, "score", elsewhere(Shaw, index, index), oracles("shaw")),
    Mutant("does not divide by the root of head_dim", Shaw, "score", score(factor=HEAD_DIM**0.5), COMPARED),
    Mutant("lets keys meet the distance, not queries", Shaw, "score", score(side="key"), COMPARED),
    Mutant(
        "adds the values' table to the keys",
        Shaw,
        "score",
        score(lambda self: self.key_table if self.value_table is None else self.value_table),
        COMPARED,
    ),
    Mutant(
        "adds the keys' table to the values",
        Shaw,
        "value",
        value(lambda self: self.value_table if self.key_table is None else self.key_table),
        COMPARED,
    ),
    Mutant("looks values up the other way round", Shaw, "value", value(rows=MIRRORED), COMPARED),
    Mutant("looks values up one row too far", Shaw, "value", value(rows=NEXT), COMPARED),
    Mutant("leaves the values out", Shaw, "value", nothing, COMPARED),
    Mutant(
        "does not draw the keys' table",
        Shaw,
        "reset_parameters",
        values_alone,
        partial(test_life_cycle.check_meta, "shaw"),
    ),
)


class AbsoluteShaw(Shaw):
    """Clips distances from where the keys begin, in both doors."""

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Meeting, ...]:
        return score(rows=_counted_on(key_positions))(self, query_positions, key_positions)

    def value(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Value, ...]:
        return value(rows=_counted_on(key_positions))(self, query_positions, key_positions)


def _counted_on(positions: Positions) -> Rows:
    return rows(lambda r, k: clipped(r + positions.coords[0, 0], k))


class UnsignedShaw(Shaw):
    _rows = rows(lambda r, k: clipped(r.abs(), k))


class MirroredShaw(Shaw):
    """Query minus key: every law holds."""

    _rows = MIRRORED


LAWLESS = (
    Lawless("shaw", lambda shape: AbsoluteShaw(shape.head_dim, 16), "relative"),
    Lawless("shaw", lambda shape: AbsoluteShaw(shape.head_dim, 16, keys=False), "relative"),
    Lawless("shaw", lambda shape: UnsignedShaw(shape.head_dim, 16), "directed"),
)
UNTRUE = (Untrue("shaw", lambda: drawn(MirroredShaw(HEAD_DIM, 2))),)
