"""Bugs of what all schemes stand on: positions, what may be seen, composition, and the backends."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from posenc import Encoding, Positions, compat
from posenc.backends import call, choice, plan, reference, request, sdpa
from posenc.backends.backend import Backend
from posenc.backends.call import Call
from posenc.encoding.encoding import Context
from posenc.positions import layout, positions, tiles
from posenc.positions.layout import Layout, Span
from posenc.positions.positions import PADDING
from posenc.positions.tiles import Tile, Visibility
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


def first_of_the_keys(
    query: Tensor, key: Tensor, query_positions: Positions | None, key_positions: Positions | None, align: object
) -> tuple[Positions, Positions]:
    key_positions = Positions.arange(key.size(2)) if key_positions is None else key_positions
    return key_positions[: query.size(2)] if query_positions is None else query_positions, key_positions


def queries_are_the_last_of_the_keys() -> None:
    """Without positions that an earlier call has left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "bound", lambda request: None)
        test_attention.check_queries_are_the_last_of_the_keys("reference")


def layout_kept_by_any_index(self: Positions, index: slice | Tensor) -> Positions:
    chosen = Positions(self.coords[:, index], order=self.order[:, index], document=self.document[:, index])
    return chosen._of(self.layout)


def one_text_of_any_parts(parts: list[Positions], *, documents: str | None = None) -> Positions:
    coords, order, document = (
        torch.cat([getattr(p, name) for p in parts], 1) for name in ("coords", "order", "document")
    )
    text = Positions.arange(coords.size(1)).layout
    return Positions(coords, order=order, document=document)._of(text)


def layout_kept_by_a_shift(self: Positions, offset: int) -> Positions:
    return self._like(coords=self.coords + offset)


def from_the_last_column(self: Positions, n: int = 1) -> Positions:
    ahead = torch.arange(1, n + 1)
    document = self.document[:, -1:].expand(-1, n)
    return Positions(self.coords[:, -1:] + ahead, order=self.order[:, -1:] + ahead, document=document)


def from_the_bounds(self: Positions, n: int = 1) -> Positions:
    assert self.layout.bounds is not None
    return Positions.arange(n, start=int(self.layout.bounds[1]) + 1)


# --- layouts ----------------------------------------------------------------------------------------------------------


def spans_of_padding(coords: Tensor, order: Tensor, document: Tensor) -> Layout:
    """Padding is a document like any other."""
    return layout.read(coords, order, document.masked_fill(document == PADDING, 7))


def order_of_the_index(row: slice, q: Span, k: Span, visibility: Visibility) -> Tile | None:
    """Spans whose order stays are taken for spans whose order rises."""
    return TILE(row, replace(q, order_step=1), replace(k, order_step=1), visibility)


def one_key_too_few(row: slice, q: Span, k: Span, visibility: Visibility) -> Tile | None:
    """A window of one key less."""
    left = visibility.left
    return TILE(row, q, k, replace(visibility, left=None if left is None else max(left - 1, 0)))


TILE = tiles._tile


# --- encodings ------------------------------------------------------------------------------------------------------


def rounded_every_time(self: Encoding, x: Tensor) -> Tensor:
    for table in self.tables:
        x = (x + table).to(x.dtype)
    return x


def additions_alone(self: Encoding, door: str) -> None:
    if door == "add":
        self._opened.add(door)


def first_part_alone(
    self: Composition,
    queries: Positions,
    keys: Positions,
    dtype: torch.dtype,
    context: Context,
    doors: tuple[str, ...],
) -> Encoding:
    return self.parts[0](queries, keys, dtype=dtype, context=context, doors=doors)


# --- backends -------------------------------------------------------------------------------------------------------


def heads_in_turn(run: Call) -> Tensor:
    """Query head h reads key head h modulo their number, and not h divided by the size of a group."""
    block = run.block()
    key = block.key.repeat(1, block.query.size(1) // block.key.size(1), 1, 1)
    return block.query @ key.mT * run.scale


def careless(run: Call) -> tuple[Tensor, None]:
    """Softmax over nothing is 0/0."""
    scores = reference.dense_logits(run)
    hidden = run.visible()
    scores = scores if hidden is None else scores.masked_fill(~hidden, -torch.inf)
    return scores.softmax(-1) @ run.value.repeat_interleave(scores.size(1) // run.value.size(1), 1), None


def kept(run: Call) -> tuple[Tensor, Tensor | None]:
    """Zeroed after the softmax and not before it: the output is right, and the gradient is not a number."""
    out, _ = careless(run)
    return out.nan_to_num(), None


def with_reference(run: object) -> tuple[Backend, ...]:
    return (sdpa.SDPA, Backend("reference", run))  # type: ignore[arg-type]


MUTANTS = (
    Mutant(
        "causality compares coordinates",
        call,
        "visible",
        partial(seen, wrong="coords"),
        partial(test_attention.check_causality_compares_order, "reference"),
    ),
    Mutant(
        "causality compares indices",
        sdpa,
        "same_run",
        lambda query, key: len(query) == len(key),
        partial(test_attention.check_causality_compares_order, "sdpa"),
    ),
    Mutant("a token does not see itself", call, "visible", partial(seen, wrong="itself"), oracles("nope")),
    Mutant(
        "packed documents leak",
        call,
        "visible",
        partial(seen, wrong="documents"),
        partial(test_attention.check_packing, "reference", None),
    ),
    Mutant(
        "padding sees padding",
        call,
        "visible",
        partial(seen, wrong="padding"),
        partial(test_attention.check_padding, "sdpa"),
    ),
    Mutant(
        "queries are the first of the keys",
        request,
        "default_positions",
        first_of_the_keys,
        queries_are_the_last_of_the_keys,
    ),
    Mutant(
        "a permutation is taken for the text in order",
        Positions,
        "__getitem__",
        layout_kept_by_any_index,
        test_positions.test_visibility_of_permuted_shuffled_and_stitched_text,
    ),
    Mutant(
        "parts in any order are taken for the text in order",
        Positions,
        "cat",
        staticmethod(one_text_of_any_parts),
        test_positions.test_visibility_of_permuted_shuffled_and_stitched_text,
    ),
    Mutant(
        "a shift is not noticed by the check of a table's end",
        Positions,
        "shift",
        layout_kept_by_a_shift,
        test_positions.test_what_a_layout_says_is_so,
    ),
    Mutant(
        "padding is a span",
        positions,
        "read",
        spans_of_padding,
        test_layout.test_padding_stands_in_no_span,
    ),
    Mutant(
        "tokens of equal order are tiled as if it rose",
        tiles,
        "_tile",
        order_of_the_index,
        test_layout.test_tiles_are_the_pairs_that_are_seen_each_once,
    ),
    Mutant(
        "a window is a key too narrow",
        tiles,
        "_tile",
        one_key_too_few,
        test_layout.test_tiles_are_the_pairs_that_are_seen_each_once,
    ),
    Mutant(
        "an encoding forgets that it was rotated",
        Encoding,
        "_note",
        additions_alone,
        test_encoding.test_attention_takes_an_encoding_whose_token_doors_are_opened_once,
    ),
    Mutant(
        "decoding goes on from the last column, be it padding",
        Positions,
        "following",
        from_the_last_column,
        partial(test_positions.test_following_continues_each_rows_last_token, "right padded rows"),
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
        "grouped queries read the wrong keys",
        reference,
        "dense_logits",
        heads_in_turn,
        partial(test_attention.test_without_an_encoding_it_is_pytorchs, "square", 4, "reference"),
    ),
    Mutant(
        "a query that sees nothing gives NaN",
        choice,
        "BACKENDS",
        with_reference(careless),
        partial(test_attention.check_blind_queries, "padding", "reference", None),
    ),
    Mutant(
        "a query that sees nothing gives zeros, and NaN for a gradient",
        choice,
        "BACKENDS",
        with_reference(kept),
        partial(test_attention.check_blind_queries, "padding", "reference", None),
    ),
    Mutant(
        "autocast rounds the bias",
        compat,
        "without_autocast",
        lambda x: torch.autocast("cpu", torch.bfloat16),
        partial(test_attention.check_bias_is_not_rounded_under_autocast, "sdpa"),
    ),
    Mutant(
        "the kernel always goes through its operator",
        compat,
        "is_direct",
        lambda tensors: False,
        partial(test_operators.check_directly_and_by_operator, "linear"),
    ),
    Mutant(
        "short texts of a large batch go in blocks",
        choice,
        "PAIRS_PER_KERNEL_TILE",
        choice.PAIRS_PER_TILE,
        partial(test_operators.test_large_batches_of_short_texts_do_not_go_in_blocks, (1100, 4, 31)),
    ),
)
