"""Bugs of the backends: a line that says something else, in layouts, tiles and folds.

Each is caught by the comparison of a backend with the reference, for a scheme at some positions, asked in some way.
"""

import inspect
from collections.abc import Callable
from functools import partial

from posenc.backends import call, chunked, request, sdpa
from posenc.positions import layout, tiles
from tests.backends import test_deferred_rotation, test_parity
from tests.mutants import Line, Mutant


def at(
    scheme: str, place: str, way: str, kv_heads: int = 2, small: bool = False, backend: str = "native"
) -> Callable[[], None]:
    """The comparison of a backend with the reference."""
    return partial(test_parity.check_run, (scheme, place, way, kv_heads, small), backends=(backend,))


# --- which pairs there are --------------------------------------------------------------------------------------------

TILES = (
    Line(
        "tiles see other documents",
        tiles,
        "tiles",
        ("if q.document == k.document:", "if True:"),
        at("nope", "packed", "both"),
    ),
    Line(
        "tokens of one order are taken for text",
        tiles,
        "_tile",
        ("if q.order_step == k.order_step == 1:", "if True:"),
        at("nope", "a prefix", "causal"),
    ),
    Line(
        "the diagonal is counted from the start of the row, not of the span",
        tiles,
        "_tile",
        ("(q.order - q.start) - (k.order - k.start)", "q.order - k.order"),
        at("nope", "packed, other keys", "causal"),
    ),
    Line(
        "causality compares coordinates in tiles",
        tiles,
        "_tile",
        ("(q.order - q.start) - (k.order - k.start)", "(q.coords[0] - q.start) - (k.coords[0] - k.start)"),
        at("nope", "other keys", "causal"),
    ),
    Line(
        "a window is one key too wide",
        tiles,
        "_tile",
        ("low, high = least + level, most", "low, high = least + level - 1, most"),
        at("nope", "text", "a window"),
    ),
    Line(
        "a window reaches a key further than asked to the right",
        tiles,
        "_tile",
        ("least + level, most + level", "least + level, most + level + 1"),
        at("nope", "text", "a window"),
    ),
    Line(
        "distances are counted from the start of the row, not of the span",
        tiles,
        "_distance",
        ("- (q.line - q.start)", "- q.line"),
        at("shaw", "packed", "both"),
    ),
    Line(
        "padding is a document like any",
        layout,
        "_spans",
        ("if documents[n] == PADDING:", "if False:"),
        at("nope", "padded left and right", "both"),
    ),
    Line(
        "a layout does not follow a shift",
        layout,
        "_shifted",
        ("tuple(factor * c + offset for c in span.coords)", "span.coords"),
        at("shaw", "other keys", "both"),
    ),
    Line(
        "a layout does not follow a scale",
        layout,
        "_shifted",
        ("tuple(factor * s for s in span.steps)", "span.steps"),
        at("shaw", "coordinates backwards", "both"),
    ),
    Line(
        "a slice has the coordinates of the whole",
        layout.Span,
        "cut",
        ("by = first - self.start", "by = 0"),
        at("alibi", "cache", "causal"),
    ),
    Line(
        "blocks of queries miss their last keys",
        chunked,
        "_spans",
        ("max(t.last for t in found)", "max(t.last for t in found) - 1"),
        at("nope", "packed", "causal", small=True, backend="chunked"),
    ),
    Line(
        "blocks of queries out of order see what the first of them may see",
        chunked,
        "_spans",
        ("order.amax(1, keepdim=True)", "order.amin(1, keepdim=True)"),
        at("nope", "permuted", "causal", small=True, backend="chunked"),
    ),
)

# --- what is folded -----------------------------------------------------------------------------

FOLDED = (
    Line(
        "a vector added to the query is not folded",
        sdpa,
        "fold",
        ("query = query + added_to_query(term, term.of_tokens, block).to(query.dtype)", "pass"),
        at("transformer_xl", "text", "a mask", backend="sdpa"),
    ),
    Line(
        "channels of a grid's columns are one off",
        inspect.getmodule(sdpa.fold),
        "_channels",
        ("(place - x[..., None] + reach - 1)", "(place - x[..., None] + reach)"),
        at("relative_2d", "grid", "both", backend="sdpa"),
    ),
)

# --- turns that are left to a backend ---------------------------------------------------------------------------------

TURNS = (
    Line(
        "a vector is added to keys before they are turned",
        request,
        "_deferred",
        ("if any(term.reads_vectors for term in encoding.score_terms):", "if False:"),
        partial(test_deferred_rotation.check_turned_first, "a vector that is added to the key"),
    ),
    Mutant(
        "what is left to be turned is turned by nobody",
        call.Call,
        "rotated",
        lambda self: self,
        partial(test_deferred_rotation.test_every_other_backend_is_given_rotated_queries_and_keys, "sdpa", []),
    ),
    Line(
        "only some of the heads are turned, and the kernel turns all",
        request,
        "_deferred",
        (" or each.heads is not None", ""),
        partial(test_deferred_rotation.check_turned_first, "some of the heads"),
    ),
)

MUTANTS = TILES + FOLDED + TURNS
