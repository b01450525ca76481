"""What the kernels take: tensors and numbers that belong together, as structures.

Triton takes a named tuple wherever it takes an argument, and passes its fields one by one, so that it costs nothing.
But whatever `do_not_specialize` says of it, the integers in it are compiled for: of 1, and of multiples of 16, there is
a kernel each (Triton 3.5 to 3.9). So what changes with the length of a text is an argument of its own, of `LENGTHS`.
"""

# No `from __future__ import annotations` here: the kernels make some of these, and Triton reads them.

from typing import Any, NamedTuple

LENGTHS = (
    "queries", "keys", "bias_entries", "vectors_entries", "values_entries", "factor_entries", "past", "least_r", "low",
    "lead", "count", "batch", "own", "blocks", "blocks_q", "blocks_k",
)  # fmt: skip
"""Arguments that differ from call to call, of which no kernel is compiled anew for 1, or for multiples of 16. Strides
are not among them, since rows are read in one piece only if they are known to be aligned."""


class Rows(NamedTuple):
    """(batch, heads, tokens, channels), the channels side by side: a tensor and its strides."""

    x: Any
    batch: int
    head: int
    row: int


class Table(NamedTuple):
    """(heads or 1, entries, width). ``by_head`` is 1 if heads have tables of their own, else 0. Or what is by row of a
    batch in place of heads."""

    x: Any
    by_head: int


TERMS = ("bias", "vectors", "values", "factor", "slopes", "meeting", "shift", "query_clock", "key_clock")
"""The names in `KernelOperands` of the fields of `Terms`; the first five are tables, and the fields of `Pasts`."""


class Terms(NamedTuple):
    """The tensors of `KernelOperands`, each or None. A field cannot be ``values``, which Triton's tuples have."""

    bias: Any
    vectors: Any
    value_vectors: Any
    factor: Any
    slopes: Any
    meeting: Any
    shift: Any
    query_clock: Any
    key_clock: Any


class Lines(NamedTuple):
    """The tables of one head, or None, and the number of entries of each."""

    bias: Any
    bias_entries: Any
    vectors: Any
    vectors_entries: Any
    value_vectors: Any
    values_entries: Any
    factor: Any
    factor_entries: Any
    slopes: Any


class Heads(NamedTuple):
    """How many heads there are, how many share keys, and the scale of the scores."""

    heads: int
    groups: int
    scale: float


class Work(NamedTuple):
    """The `Tasks` of one side, and what its blocks are computed with, or None: see `counted`."""

    tasks: Any
    tiles: Any
    counted: Any


PRECISIONS = ("ieee", "tf32", "exact")  # of products; the last in the interpreter


class Widths(NamedTuple):
    """The channels of queries and keys, values and vectors, and those that kernels compute with; whether a function of
    the score comes before other terms (1), after them (2), or there is none (0); and the number of a precision, since
    Triton 3.5 takes no text in a structure."""

    D: int
    V: int
    E: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_E: int
    FUNCTION: int
    PRECISION: int


class Incoming(NamedTuple):
    """The gradient of the output, and of each row the log-sum-exp and `backward_deltas`."""

    dout: Any
    lse: Any
    delta: Any


class QueryBounds(NamedTuple):
    """Of each block of queries: the greatest norm, times the scale; the most that vectors add, and the greatest
    cumulative feature, or None; and the least log-sum-exp."""

    norm: Any
    vectors: Any
    clock: Any
    lse: Any


class KeyBounds(NamedTuple):
    """Of each block of keys: the greatest norm, and the lowest cumulative feature, or None."""

    norm: Any
    clock: Any


class BrokenLines(NamedTuple):
    """A `BrokenLine`: see `KernelOperands`. Each is None without one."""

    away: Any
    share: Any
    lines: Any
    ends: Any


class Pasts(NamedTuple):
    """Of each row the sums over pairs beyond either end of a table, (2, rows) each, or None."""

    bias: Any
    vectors: Any
    value_vectors: Any
    factor: Any
    slopes: Any


class RowGradients(NamedTuple):
    """What a kernel of queries writes besides `Pasts`: gradients, each or None."""

    query: Any
    meeting: Any
    shift: Any
    query_clock: Any
