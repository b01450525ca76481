"""Bugs of what all schemes stand on: positions, what may be seen, composition, and the backends."""

from functools import partial

import torch
from torch import Tensor

from posenc import Encoding, Positions, compat
from posenc.backends import call, choose, sdpa
from posenc.encoding.encoding import Context
from posenc.positions import layout, positions
from posenc.positions.layout import Layout
from posenc.positions.positions import PADDING
from posenc.positions.tiles import Visibility
from posenc.scheme import Composition
from tests import test_encoding, test_layout, test_positions
from tests.backends import test_attention, test_operators
from tests.mutants import Mutant, oracles

# --- what may be seen -----------------------------------------------------------------------------------------------


def seen(query: Positions, key: Positions, visibility: Visibility, *, wrong: str) -> Tensor:
    """What may be seen, but for one thing."""
    x, y = (query.coords, key.coords) if wrong == "coords" else (query.order, key.order)
    same = (query.document[:, :, None] == key.document[:, None, :]) | (wrong == "documents")
    same = same & ((key.document != PADDING)[:, None, :] | (wrong == "padding"))
    not_later = y[:, None, :] < x[:, :, None] if wrong == "itself" else y[:, None, :] <= x[:, :, None]
    return same & (not_later | (not visibility.is_causal))


def layout_kept_by_any_index(self: Positions, index: slice | Tensor) -> Positions:
    chosen = Positions(self.coords[:, index], order=self.order[:, index], document=self.document[:, index])
    return chosen._of(self.layout)


def layout_kept_by_a_shift(self: Positions, offset: int) -> Positions:
    return self._like(coords=self.coords + offset)


def from_the_bounds(self: Positions, n: int = 1) -> Positions:
    assert self.layout.bounds is not None
    return Positions.arange(n, start=int(self.layout.bounds[1]) + 1)


# --- layouts ----------------------------------------------------------------------------------------------------------


def spans_of_padding(coords: Tensor, order: Tensor, document: Tensor) -> Layout:
    """Padding is a document like any other."""
    return layout.read(coords, order, document.masked_fill(document == PADDING, 7))


# --- encodings ------------------------------------------------------------------------------------------------------


def rounded_every_time(self: Encoding, x: Tensor) -> Tensor:
    for table in self.tables:
        x = (x + table).to(x.dtype)
    return x


def additions_alone(self: Encoding, door: str) -> None:
    if door == "add":
        self._opened.add(door)


def first_part_alone(
    self: Composition, queries: Positions, keys: Positions, dtype: torch.dtype, context: Context, doors: tuple[str, ...]
) -> Encoding:
    return self.parts[0](queries, keys, dtype=dtype, context=context, doors=doors)


# --- backends -------------------------------------------------------------------------------------------------------


MUTANTS = (
    Mutant(
        "causality compares coordinates",
        call,
        "visible",
        partial(seen, wrong="coords"),
        partial(test_attention.test_causality_compares_order_and_nothing_else, "reference"),
    ),
    Mutant(
        "causality compares indices",
        sdpa,
        "same_run",
        lambda query, key: len(query) == len(key),
        partial(test_attention.test_causality_compares_order_and_nothing_else, "sdpa"),
    ),
    Mutant("a token does not see itself", call, "visible", partial(seen, wrong="itself"), oracles("nope")),
    Mutant(
        "a permutation is taken for the text in order",
        Positions,
        "__getitem__",
        layout_kept_by_any_index,
        test_positions.test_visibility_of_permuted_shuffled_and_stitched_text,
    ),
    Mutant(
        "a shift is not noticed by the check of a table's end",
        Positions,
        "shift",
        layout_kept_by_a_shift,
        test_layout.test_the_layout_of_runs_is_so,
    ),
    Mutant("padding is a span", positions, "read", spans_of_padding, test_layout.test_padding_stands_in_no_span),
    Mutant(
        "an encoding forgets that it was rotated",
        Encoding,
        "_note",
        additions_alone,
        test_encoding.test_attention_takes_an_encoding_whose_token_doors_are_opened_once,
    ),
    Mutant(
        "decoding goes on from the highest position that is known of",
        Positions,
        "following",
        from_the_bounds,
        partial(test_positions.test_following_continues_each_rows_last_token, "coordinates that are not the order"),
    ),
    Mutant(
        "vectors are rounded one after the other",
        Encoding,
        "add",
        rounded_every_time,
        partial(test_encoding.test_half_precision_is_rounded_once_however_many_vectors_are_added, torch.bfloat16),
    ),
    Mutant("a composition forgets its second part", Composition, "bind", first_part_alone, oracles("alibi")),
    Mutant(
        "autocast rounds the bias",
        compat,
        "without_autocast",
        lambda x: torch.autocast("cpu", torch.bfloat16),
        partial(test_attention.test_autocast_does_not_round_the_bias, "sdpa"),
    ),
    Mutant(
        "the kernel always goes through its operator",
        compat,
        "can_bypass_dispatch",
        lambda tensors: False,
        partial(test_operators.test_the_kernel_gives_the_same_directly_and_by_its_operator, "linear"),
    ),
    Mutant(
        "short texts of a large batch go in blocks",
        choose,
        "PAIRS_PER_KERNEL_TILE",
        choose.PAIRS_PER_TILE,
        partial(test_operators.test_large_batches_of_short_texts_do_not_go_in_blocks, (1100, 4, 31)),
    ),
)
