"""Shaw that reads another row of its tables, or adds it in the wrong place."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from posenc import Shaw
from posenc.encoding import Score, Value
from posenc.forms import Block, ScoreFunction
from tests.mutants import Mutant, oracles
from tests.schemes import test_life_cycle

Bucket = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def clipped(distance: Tensor, k: int) -> Tensor:
    return distance.clamp(-k, k) + k


def bucket(
    row: Callable[[Tensor, int], Tensor] = clipped, of_index: bool = False
) -> Callable[[Shaw, Block], Callable[..., Tensor]]:
    """The method as it is, but for one thing."""

    def wrong(self: Shaw, block: Block) -> Bucket:
        x, y = block.query_positions.coords, block.key_positions.coords
        return lambda b, h, i, j: row(j - i if of_index else y[b, j] - x[b, i], self.max_distance)

    return wrong


def bind(
    table: Callable[[Shaw], Tensor | None] = lambda self: self.key_table,
    factor: Callable[[Block], float] = lambda block: block.scale,
    side: str = "query",
) -> Callable[[Shaw, Block], ScoreFunction]:
    """The method as it is, but for one thing."""

    def wrong(self: Shaw, block: Block) -> ScoreFunction:
        rows = table(self)
        assert rows is not None
        key = block.key.repeat_interleave(block.query.size(1) // block.key.size(1), 1)
        met = factor(block) * ((block.query if side == "query" else key) @ rows.to(block.query.dtype).mT)
        where = self._bucket(block)
        return lambda score, b, h, i, j: score + met[b, h, i if side == "query" else j, where(b, h, i, j)]

    return wrong


def value(
    table: Callable[[Shaw], Tensor] = lambda self: self.value_table,  # type: ignore[assignment,return-value]
    row: Callable[[Tensor, int], Tensor] = lambda bucket, k: bucket,
) -> Callable[[Shaw], Value | None]:
    """The method as it is, but for one thing."""

    def wrong(self: Shaw) -> Value | None:
        def by(block: Block) -> Bucket:
            right = self._bucket(block)
            return lambda b, h, i, j: row(right(b, h, i, j), self.max_distance)

        return None if self.value_table is None else Value(table(self), by)

    return wrong


def unscaled(self: Shaw) -> Score | None:
    return None if self.key_table is None else Score(bind(factor=lambda block: 1.0).__get__(self))


def values_alone(self: Shaw) -> None:
    if self.value_table is not None:
        nn.init.uniform_(self.value_table)


COMPARED = oracles("shaw")
MUTANTS = (
    Mutant("wraps at the end of its window", Shaw, "_bucket", bucket(lambda r, k: (r + k) % (2 * k + 1)), COMPARED),
    Mutant("takes query minus key", Shaw, "_bucket", bucket(lambda r, k: clipped(-r, k)), COMPARED),
    Mutant("is blind to direction", Shaw, "_bucket", bucket(lambda r, k: clipped(r.abs(), k)), COMPARED),
    Mutant("clips one too early", Shaw, "_bucket", bucket(lambda r, k: r.clamp(1 - k, k - 1) + k), COMPARED),
    Mutant("takes distances between indices", Shaw, "_bucket", bucket(of_index=True), oracles("shaw", "permuted")),
    Mutant("does not divide by the root of head_dim", Shaw, "score", unscaled, COMPARED),
    Mutant("lets keys meet the distance, not queries", Shaw, "_bind", bind(side="key"), COMPARED),
    Mutant(
        "adds the values' table to the keys",
        Shaw,
        "_bind",
        bind(lambda self: self.key_table if self.value_table is None else self.value_table),
        COMPARED,
    ),
    Mutant(
        "adds the keys' table to the values",
        Shaw,
        "value",
        value(lambda self: self.value_table if self.key_table is None else self.key_table),  # type: ignore[arg-type,return-value]
        COMPARED,
    ),
    Mutant("looks values up the other way round", Shaw, "value", value(row=lambda c, k: 2 * k - c), COMPARED),
    Mutant(
        "looks values up one row too far", Shaw, "value", value(row=lambda c, k: (c + 1).clamp(max=2 * k)), COMPARED
    ),
    Mutant("leaves the values out", Shaw, "value", lambda self: None, COMPARED),
    Mutant(
        "does not draw the keys' table",
        Shaw,
        "reset_parameters",
        values_alone,
        partial(test_life_cycle.check_meta, "shaw"),
    ),
)
