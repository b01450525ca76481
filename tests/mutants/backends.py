"""Bugs of the backends: a line that says something else, in layouts, tiles, near blocks and sections.

Each is caught by the comparison of a backend with the reference, for a scheme at some positions, asked in some way.
"""

import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from posenc.backends import call, choice, chunked, request, sdpa
from posenc.backends.backend import Backend
from posenc.backends.tiled import backend as tiled
from posenc.backends.tiled import far, far_passes, fused, near, pairwise, plan
from posenc.backends.tiled import operator as tile_operator
from posenc.positions import layout, tiles
from posenc.schemes import distance_aware
from tests.backends import test_parity, test_turns
from tests.mutants import Mutant


def at(
    scheme: str, place: str, way: str, kv_heads: int = 2, small: bool = False, backend: str = "tiled"
) -> Callable[[], None]:
    """The comparison of a backend with the reference."""
    return partial(test_parity.check_run, (scheme, place, way, kv_heads, small), backends=(backend,))


@dataclass(frozen=True)
class Line(Mutant):
    """A function in which ``wrong``, a pair (this, that), has that in the place of this, which is there once."""

    wrong: tuple[str, str]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in posenc for as long as this is open."""
        wrong = edited(self.owner, self.name, *self.wrong)
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(self.owner, Backend):  # which is frozen
                among = (replace(b, **{self.name: wrong}) if b is self.owner else b for b in choice.BACKENDS)
                patch.setattr(choice, "BACKENDS", tuple(among))
            else:
                patch.setattr(self.owner, self.name, wrong)
            plan._tiles.cache_clear()  # those of the check without the bug
            yield
        plan._tiles.cache_clear()


def edited(owner: Any, name: str, this: str, that: str) -> Any:
    """The function or property of that name with that in the place of this."""
    right = inspect.getattr_static(owner, name)
    function: Any = right.fget if isinstance(right, property) else right
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(this) != 1:
        raise ValueError(f"{name} must have this once, to be mutated, got it {source.count(this)} times: {this}")
    code = compile(source.replace(this, that), "<mutant>", "exec", __future__.annotations.compiler_flag, True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made[function.__name__]


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

# --- near pairs -------------------------------------------------------------------------------------------------------

NEAR = (
    Line(
        "near and far leave a distance out",
        tile_operator,
        "near_blocks",
        ("plan.width - 1 - distance", "plan.width - 2 - distance"),
        at("shaw keys", "text", "both"),
    ),
    Line(
        "lines are read one distance off",
        tile_operator,
        "near_blocks",
        ("distance - plan.lowest, inputs", "distance - plan.lowest - 1, inputs"),
        at("shaw keys", "text", "both"),
    ),
    Line(
        "a near block reads the line as if it began at the tile's first key",
        near.NearBlock,
        "entry",
        ("self.zero + self.low", "self.zero + self.tile.first - (self.stop - 1)"),
        at("relative_1d", "text", "causal", small=True),
    ),
    Line(
        "what the last block left is taken for zeros",
        near.Work,
        "zeros",
        ("if self.shapes.get(name) != (*shape, columns):", "if name not in self.shapes:"),
        at("relative_1d", "text", "both", small=True),
    ),
    Line(
        "a near block sees the first key after the last that is seen",
        near.NearBlock,
        "hide",
        ("past = max(seen[1] + 1, 0)", "past = max(seen[1] + 2, 0)"),
        at("relative_1d", "text", "causal", small=True),
    ),
    Line(
        "a near block sees past its window to the left",
        near.NearBlock,
        "hide",
        ("if seen[0] > 0:", "if seen[0] > rows:"),
        at("relative_1d", "text", "causal, a window", small=True),
    ),
    Line(
        "the queries of a near block stay in reverse order",
        near.NearBlock,
        "unfold",
        ("x.flatten(1, 2).flip(2)", "x.flatten(1, 2)"),
        at("relative_1d", "text", "causal", small=True),
    ),
    Line(
        "the gradient of a coefficient goes to the first heads",
        near.NearBlock,
        "give_of_line",
        (
            "slice(first + kv_heads.start, first + kv_heads.stop)",
            "slice(first, first + kv_heads.stop - kv_heads.start)",
        ),
        at("distance_aware", "text", "causal", kv_heads=6, small=True),
    ),
    Line(
        "keys meet the vectors in the order of distances, not against it",
        pairwise,
        "_key_meets",
        ("products.size(-1) + 1)", "products.size(-1))"),
        at("disentangled", "text", "both"),
    ),
    Line(
        "the key's clock is added",
        pairwise,
        "_scores",
        ("scores -= block.of_keys", "scores += block.of_keys"),
        at("clocked", "text", "both"),
    ),
    Line(
        "a function's gradient is overwritten before its coefficients read it",
        pairwise,
        "_pull",
        ("        for n, d in", "        d_scores[some] = d_bare\n        for n, d in"),
        at("squeezing", "decoding", "causal, a window", kv_heads=6),
    ),
    Line(
        "the derivative of a function sees a negative score",
        distance_aware,
        "rescaled_derivative",
        (" * positive.sign()", ""),
        at("distance_aware", "text", "causal"),
    ),
    Line(
        "the derivative of a function forgets what a coefficient is multiplied by",
        distance_aware,
        "rescaled_derivative",
        ("positive = score.relu()", "positive = torch.ones_like(score)"),
        at("distance_aware", "text", "causal"),
    ),
    Line(
        "the gradient of a bias is lost",
        pairwise,
        "_by_distance_backward",
        ("block.give_line(d_lines.bias, by_distance.sum((0, 3)).flatten(0, 1))", "pass"),
        at("t5 bidirectional", "text", "both"),
    ),
    Line(
        "the gradient of a value's vectors is lost",
        pairwise,
        "backward",
        ("block.give_vectors(d_lines.values, block.by_distance(work, weights), do)", "pass"),
        at("shaw values", "text", "both"),
    ),
    Mutant(
        "faint weights are no longer faint", pairwise, "LOWEST_LOG_WEIGHT", -8.0, at("learned slope", "text", "both")
    ),
)

# --- far pairs --------------------------------------------------------------------------------------------------------

FAR = (
    Line(
        "grouped queries are in turn",
        far_passes,
        "regions",
        ("slice(kv.start * groups + g, ", "slice(kv.start * groups, "),
        at("nope", "text", "both"),
    ),
    Line(
        "the horizon is too near",
        far,
        "_horizons",
        ("(2 * abs(inputs.scale) * longest_q * longest_k + below) / -slopes", "1 / -slopes"),
        at("alibi", "text", "causal", small=True),
    ),
    Line(
        "what a slope gives a whole row is dropped",
        far._Far,
        "__call__",
        ("row = row if more is None else more if row is None else row + more", "pass"),
        at("alibi", "text", "causal", small=True),
    ),
    Line(
        "a slope counts from a corner one off",
        far._Far,
        "_sloped",
        (
            "section.start - (section.last - 1) - self.tile.distance",
            "section.start - section.last - self.tile.distance",
        ),
        at("alibi", "text", "causal", small=True),
    ),
    Line(
        "to the right a slope counts from a corner one off",
        far._Far,
        "_sloped",
        (
            "section.first - (section.stop - 1) + self.tile.distance",
            "section.first - section.stop + self.tile.distance",
        ),
        at("alibi bidirectional", "text", "both", small=True),
    ),
    Line(
        "a clock is not counted from the corner",
        far._Far,
        "__call__",
        ("(here - corner).to(dtype)", "here.to(dtype)"),
        at("clocked", "text", "both"),
    ),
    Line(
        "the gradient of the keys' clock is lost",
        far_passes,
        "_sections_backward",
        (".sub_(here / inputs.scale)", ".sub_(0 * here)"),
        at("clocked", "text", "both"),
    ),
    Line(
        "the gradient of the log-sum-exp is lost",
        far_passes,
        "_sections_backward",
        ("        if grads.dlse is not None:\n            do[", "        if False:\n            do["),
        at("nope", "text", "both"),
    ),
    Line(
        "the constant far to the right is lost",
        far_passes,
        "constant_of",
        ("constant += lines.bias[:, -1:]", "pass"),
        at("t5 bidirectional", "text", "both", small=True),
    ),
    Line(
        "the gradient of the constant far to the right is lost",
        far_passes,
        "right_backward",
        ("d_lines.bias[:, -1] += d_constant.sum((0, 2))", "pass"),
        at("t5 bidirectional", "text", "both", small=True),
    ),
    Line(
        "weights far to the right do not carry the value's vector",
        far_passes,
        "_output_to_the_right",
        ("(out.to(inputs.dtype) - values[:, -1:]).to(out.dtype)", "out"),
        at("shaw values", "text", "both"),
    ),
    Line(
        "a token counts itself twice",
        plan.Plan,
        "straight_from",
        ("max(self.width, 1)", "self.width"),
        at("alibi bidirectional", "text", "both"),
    ),
    Line(
        "a bent line is counted from a distance before it is straight",
        tiled,
        "_straightened",
        ("first = first - slopes[0][:, None] * width", "pass"),
        at("bent line", "text", "both"),
    ),
    Line(
        "what all keys far to the left have is left out of the log-sum-exp",
        tiled._Offset,
        "put_back",
        ("lse = lse + self.bias", "pass"),
        at("t5 bidirectional", "text", "both", small=True),
    ),
    Line(
        "a vector added to the query is lost on far keys",
        tiled,
        "_shifted",
        ("return (call.query + shift[:, None]).to(call.query.dtype)", "return call.query"),
        at("of each key", "text", "both"),
    ),
    Mutant(
        "keys to the right are taken for keys to the left",
        tiled,
        "_looks_right",
        lambda call: False,
        at("shaw values", "text", "both"),
    ),
)

# --- the fused kernel, and what is folded -----------------------------------------------------------------------------

SECTIONS = (
    Line(
        "triangles to the left of a window lose their diagonal",
        fused,
        "_mask",
        (".tril_(-1)", ".tril_()"),
        at("nope", "text", "a window", small=True),
    ),
    Line(
        "halves of a triangle leave the square between them out",
        fused,
        "_triangle",
        ("        yield Section(middle, b, a + apart, middle + apart)", "        yield from ()"),
        at("nope", "text", "causal", small=True),
    ),
    Line(
        "merging weighs the other section",
        fused,
        "merge",
        ("share = (more_lse - both).exp()", "share = (lse - both).exp()"),
        at("nope", "text", "causal", small=True),
    ),
    Line(
        "a number of the whole row is taken off",
        fused,
        "forward",
        ("more_lse = more_lse + row", "more_lse = more_lse - row"),
        at("alibi", "text", "causal", small=True),
    ),
    Line(
        "the backward pass forgets a number of the whole row",
        fused,
        "backward",
        ("lse[:, :, queries] - row", "lse[:, :, queries]"),
        at("alibi", "text", "causal", small=True),
    ),
    Line(
        "a vector added to the query is not folded",
        sdpa,
        "fold",
        ("query = query + added_to_query(piece, piece.query, block).to(query.dtype)", "pass"),
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
        "_turn_left",
        ("if any(piece.reads_vectors for piece in encoding.pieces):", "if False:"),
        partial(test_turns.check_turned_first, "a vector that is added to the key"),
    ),
    Mutant(
        "what is left to be turned is turned by nobody",
        call.Call,
        "turned",
        lambda self: self,
        partial(test_turns.test_every_other_backend_is_given_rotated_queries_and_keys, "sdpa", []),
    ),
    Line(
        "only some of the heads are turned, and the kernel turns all",
        request,
        "_turn_left",
        (" or turn.heads is not None", ""),
        partial(test_turns.check_turned_first, "some of the heads"),
    ),
)

MUTANTS = TILES + NEAR + FAR + SECTIONS + TURNS
