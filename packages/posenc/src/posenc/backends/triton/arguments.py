"""What the kernels take: tensors and numbers that belong together, as structures.

Triton takes a named tuple wherever it takes an argument, and passes its fields one by one, so that it costs nothing.
But whatever `do_not_specialize` says of it, the integers in it are compiled for: of 1, and of multiples of 16, there is
a kernel each (Triton 3.5 to 3.9). So what changes with the length of a text is an argument of its own, of `LENGTHS`.
Triton 3.5 takes no text in a structure, no field as a length of a tensor, and returns none that has a None; and no
field can be called ``values``, which its own tuples have.
"""

# No `from __future__ import annotations` here: the kernels make some of these, and Triton reads them.

from collections import namedtuple

LENGTHS = (
    "queries", "keys", "bias_entries", "vectors_entries", "values_entries", "factor_entries", "past", "least_r", "low",
    "lead", "count", "batch", "own", "blocks", "blocks_q", "blocks_k",
)  # fmt: skip
"""Arguments that differ from call to call, of which no kernel is compiled anew for 1, or for multiples of 16. Strides
are not among them, since rows are read in one term only if they are known to be aligned."""

TILE = (
    "start", "stop", "from_key", "to_key", "least", "most",
    "of_bias", "of_vectors", "of_values", "of_factor", "of_away", "apart",
)  # fmt: skip
"""Queries start .. stop attend to keys from_key .. to_key with least <= j - i <= most. The entry of the pair in each
table is j - i plus the next five, and the distance of its coordinates is j - i + apart."""
STEP_LENGTHS = (*LENGTHS[:6], "away_entries", "parts", "count", *TILE)  # the same of few queries

TERMS = ("bias", "vectors", "values", "factor", "slopes", "meeting", "shift", "query_clock", "key_clock")
"""The tensors of `KernelOperands` that are fields of `Terms`; the first five are tables, and fields of `Pasts`."""
PRECISIONS = ("ieee", "tf32", "exact")  # of products, by number; the last in the interpreter

# (batch, heads, tokens, channels), the channels side by side: a tensor and its strides.
Rows = namedtuple("Rows", "x batch head row")
# (heads or 1, entries, width). ``by_head`` is 1 if heads have tables of their own, else 0. Or by rows of a batch.
Table = namedtuple("Table", "x by_head")
Terms = namedtuple("Terms", "bias vectors value_vectors factor slopes meeting shift query_clock key_clock")
# The tables of one head and their numbers of entries.
Lines = namedtuple(
    "Lines",
    "bias bias_entries vectors vectors_entries value_vectors values_entries factor factor_entries slopes",
)
Heads = namedtuple("Heads", "heads groups scale")  # how many there are, and how many share keys
# The `Tasks` of one side, and what its blocks are computed with, or None: see `Kernels.counted`.
Work = namedtuple("Work", "tasks tiles counted")
# Channels, and those that kernels compute with; whether a function of the score comes before other terms (1), after
# them (2), or there is none (0). The strides of rows, if kernels are compiled for these, and the channels of a second
# part of queries and keys, and of values.
Widths = namedtuple(
    "Widths",
    "D V E BLOCK_D BLOCK_V BLOCK_E FUNCTION PRECISION Q_ROW K_ROW V_ROW MORE_D MORE_V",
    defaults=(None, None, None, 0, 0),
)
# Of each block: the greatest norm, of queries times the scale; the most that vectors add; the greatest cumulative
# feature, of keys the lowest; and the least log-sum-exp.
QueryBounds = namedtuple("QueryBounds", "norm vectors clock lse")
KeyBounds = namedtuple("KeyBounds", "norm clock")
BrokenLines = namedtuple("BrokenLines", "away share lines ends")  # of `KernelOperands`
Incoming = namedtuple("Incoming", "dout lse delta")  # the gradient of the output, and numbers of each row
# Of each row the sums over pairs beyond either end of a table, (2, rows).
Pasts = namedtuple("Pasts", "bias vectors value_vectors factor slopes")
RowGradients = namedtuple("RowGradients", "query meeting shift query_clock")
