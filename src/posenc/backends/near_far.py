"""Near and far: what a bias that runs straight past some distance costs when only its near band is computed by hand.

Let the terms of a call be constant from distance W on, to either side. The pairs with |p_j - p_i| < W form a band along
the diagonal, W wide (2W - 1 without causality), and there the scores get their bias one by one. All other pairs, the
far ones, get a constant of their row: they go through the fused kernel as they are, the constant is added to their
log-sum-exp, and near and far are merged by theirs. The backward pass runs the fused backward over the same parts with
the output and the log-sum-exp of the whole.

A bias linear in the distance from 0 on (ALiBi) has no band at all: over a part whose queries all lie to one side of
its keys it is a number for the key plus a number for the query, and the former is a mask of one row. Both are counted
from the part's corner, where the distance is least, so they are no larger than the bias itself and lose no digits.

It takes two unbroken runs of tokens whose coordinates follow their order, where distance is an index.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends import fused
from posenc.backends.call import Backend, Call
from posenc.encoding import Block, RowScore, Score

# Elements of the band's scores that are worked on at once: enough to keep the cores busy, few enough for their cache.
GROUP = 2**20


def _refuses(call: Call) -> str | None:
    if call.query.device.type != "cpu":
        return "it is made of the CPU's fused kernel, and the tensors are elsewhere"
    if call.attn_mask is not None or call.dropout_p:
        return "it takes no attn_mask and no dropout"
    if call.is_forward_mode:
        return "it has no forward-mode derivative"
    if call.scale <= 0:
        return "the fused kernel hides keys before it scales, so the scale must be positive"
    if call.value.size(-1) != call.query.size(-1):
        return "the fused kernel gives its log-sum-exp only where value is as wide as query"
    if 0 in (*call.query.shape, call.key.size(2)):
        return "there is nothing to attend to"
    if call.ahead is None:
        return "it needs two unbroken runs of tokens whose coordinates follow their order"
    if call.is_causal and call.ahead < 0:
        return "some queries see no key"
    terms = call.scores
    for term in terms:
        if isinstance(term, RowScore) or not term.additive or term.by_distance is None or term.fold is not None:
            return "a score term is not just one that adds a function of the distance"
        if term.constant_past is None and term.linear_past != 0:
            return "a score term does not run straight past some distance"
    straight = [isinstance(term, Score) and term.linear_past == 0 for term in terms]
    if any(straight) and not (all(straight) and len(call.values) == 0):
        return "one term is linear in the distance and another is not"
    if any(value.by_distance is None or value.constant_past is None for value in call.values):
        return "the value door is not constant past a distance"
    if call.wants_gradient_of_lse:
        return "its log-sum-exp has no gradient: ask for it under torch.no_grad()"
    return None


def band_width(call: Call) -> int:
    """W, the distance from which on every term of the call is straight."""
    terms = [term for term in call.scores if isinstance(term, Score)]
    return max((1, *(term.constant_past or 0 for term in terms), *(door.constant_past or 0 for door in call.values)))


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    groups = call.query.size(1) // call.key.size(1)
    key, value = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (call.key, call.value))
    # The kernel takes the channels of a token to lie side by side, and does not look.
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (call.query, key, value))
    # What terms give by distance does not depend on the block's contents, so it is not cast for them.
    block = Block(call.query, call.key, call.query_positions, call.key_positions, call.scale)
    terms = [term for term in call.scores if isinstance(term, Score)]
    if len(call.values) == 0 and all(term.linear_past == 0 for term in terms):
        return _run_linear(call, block, query, key, value, terms)
    return _run_banded(call, block, query, key, value, terms)


# -- a bias linear in the distance ------------------------------------------------------------------------------------


def _run_linear(
    call: Call, block: Block, query: Tensor, key: Tensor, value: Tensor, terms: list[Score]
) -> tuple[Tensor, Tensor | None]:
    assert call.ahead is not None
    steps = torch.arange(-1, 2, device=key.device)
    bias = torch.zeros((call.query.size(1), 3), dtype=call.dtype, device=key.device)
    for term in terms:
        assert term.by_distance is not None
        given = term.by_distance(block, steps).bias
        assert given is not None
        bias = bias + given
    if bias.requires_grad:
        raise ValueError("a term that is linear past 0 must not learn its bias: leave linear_past out")
    slopes = torch.stack((bias[:, 0] - bias[:, 1], bias[:, 2] - bias[:, 1]))
    out, lse = torch.ops.posenc.linear(query, key, value, slopes, call.ahead, call.is_causal, call.scale)
    return out, lse + bias[:, 1, None] if call.return_lse else None


def _linear_masks(slopes: Tensor, ahead: int) -> fused.Mask:
    """The bias of a part, slope times distance, split over its keys and its queries as counted from its corner."""

    triangles: dict[tuple[int, bool], Tensor] = {}  # all of a size are alike

    def masks(part: fused.Part) -> tuple[Tensor | None, Tensor | None]:
        slope = slopes[0 if part.is_left else 1][:, None]
        kind = (part.stop - part.start, part.is_left)
        if part.is_triangle and kind in triangles:
            return triangles[kind], None
        queries = torch.arange(part.start, part.stop, device=slopes.device) + ahead  # the key each is level with
        keys = torch.arange(part.first, part.last, device=slopes.device)
        if part.is_triangle:
            away = (queries[:, None] - keys).abs()
            triangles[kind] = (slope[..., None] * away)[None]
            return triangles[kind], None
        corner = part.start + ahead if part.is_left else part.stop - 1 + ahead
        return (slope * (keys - corner).abs())[None, :, None], (slope * (queries - corner).abs())[None]

    return masks


def _both_sides(query: Tensor, key: Tensor, ahead: int, is_causal: bool) -> Iterator[fused.Part]:
    yield from fused.left(query.size(2), key.size(2), ahead)
    if not is_causal:
        yield from fused.right(query.size(2), key.size(2), ahead + 1)


# custom_op reads annotations as types: no `from __future__ import annotations` here, which makes them strings.
@torch.library.custom_op("posenc::linear", mutates_args=())
def _linear(
    query: Tensor, key: Tensor, value: Tensor, slopes: Tensor, ahead: int, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse = _nothing(query)
    parts = _both_sides(query, key, ahead, is_causal)
    fused.forward(query, key, value, parts, _linear_masks(slopes, ahead), scale, out, lse, anew=True)
    return out.to(query.dtype), lse


@torch.library.custom_op("posenc::linear_backward", mutates_args=())
def _linear_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slopes: Tensor,
    out: Tensor,
    lse: Tensor,
    ahead: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _zeros(query, key, value)
    parts = _both_sides(query, key, ahead, is_causal)
    masks = _linear_masks(slopes, ahead)
    fused.backward(grad, query, key, value, out, lse, parts, masks, scale, grads)
    return _rounded(grads, query.dtype)


@_linear.register_fake
def _(query, key, value, slopes, ahead, is_causal, scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(query, memory_format=torch.contiguous_format), _rows(query)


@_linear_backward.register_fake
def _(grad, query, key, value, slopes, out, lse, ahead, is_causal, scale):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))


def _linear_save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.rest = inputs[4:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _linear_grads(ctx, grad, _):  # type: ignore[no-untyped-def]
    if grad is None:
        return (None,) * 7
    three = torch.ops.posenc.linear_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.rest)
    return *three, None, None, None, None


_linear.register_autograd(_linear_grads, setup_context=_linear_save)


# -- a band, and a constant past it -----------------------------------------------------------------------------------


def _run_banded(
    call: Call, block: Block, query: Tensor, key: Tensor, value: Tensor, terms: list[Score]
) -> tuple[Tensor, Tensor | None]:
    width = band_width(call)
    # Every distance with a bias of its own, and one beyond on each side to stand for all that are further.
    distances = torch.arange(-width, 1 if call.is_causal else width + 1, device=query.device)
    heads = query.size(1)
    bias: Tensor | None = None
    vectors: Tensor | None = None
    for term in terms:
        assert term.by_distance is not None
        given = term.by_distance(block, distances)
        if given.bias is not None:
            bias = given.bias if bias is None else bias + given.bias
        if given.vectors is not None:
            vectors = given.vectors if vectors is None else vectors + given.vectors
    values: Tensor | None = None
    for door in call.values:
        assert door.by_distance is not None
        rows = door.table.to(call.dtype)[..., door.by_distance(distances), :]
        rows = rows if rows.dim() == 3 else rows[None]
        values = rows if values is None else values + rows
    # A softmax does not see what is added to a whole row, and its weights add up to 1: everything is counted from what
    # it is far to the left, so those pairs get nothing.
    near_bias = None if bias is None else (bias[:, 1:] - bias[:, :1]).expand(heads, -1)
    near_vectors = None if vectors is None else (vectors[:, 1:] - vectors[:, :1]).expand(heads, -1, -1)
    near_values = None if values is None else (values[:, 1:] - values[:, :1]).expand(heads, -1, -1)
    out, lse, _, _ = torch.ops.posenc.near_far(
        query, key, value, near_bias, near_vectors, near_values, width, call.ahead, call.is_causal, call.scale
    )
    if values is not None:
        out = (out.to(call.dtype) + values[:, :1]).to(query.dtype)
    if not call.return_lse:
        return out, None
    if bias is not None:
        lse = lse + bias[:, :1]
    if vectors is not None:
        lse = lse + (query.to(call.dtype) @ vectors[:, :1].mT)[..., 0]
    return out, lse


class _Band:
    """The near pairs of a call, in blocks of ``rows`` queries, each against a window of the keys around it."""

    def __init__(self, query: Tensor, key: Tensor, width: int, ahead: int, is_causal: bool) -> None:
        self.width, self.ahead = width, ahead
        self.distances = width if is_causal else 2 * width - 1
        # A window overlaps its successor by all distances but one, and must not reach past it; a lone one may.
        rows = max(64, 1 << (self.distances - 2).bit_length() if self.distances > 1 else 1)
        self.rows = min(rows, query.size(2))
        self.window = self.rows + self.distances - 1
        self.queries, self.keys = query.size(2), key.size(2)
        self.dtype = torch.promote_types(query.dtype, torch.float32)
        blocks = -(-self.queries // self.rows)
        self.at_once = max(1, GROUP // (query.size(0) * query.size(1) * self.rows * self.window))
        self.groups = [(a, min(a + self.at_once, blocks)) for a in range(0, blocks, self.at_once)]

    def blocks(self, x: Tensor, group: tuple[int, int]) -> Tensor:
        """Rows of queries, (batch, heads, blocks, rows, ...), zeros past the last."""
        a, b = (block * self.rows for block in group)
        part = x[:, :, a : min(b, self.queries)].to(self.dtype)
        missing = b - a - part.size(2)
        if missing:
            part = F.pad(part, (0,) * (2 * (x.dim() - 3)) + (0, missing))
        return part.unflatten(2, (group[1] - group[0], self.rows))

    def span(self, group: tuple[int, int]) -> tuple[int, int]:
        """The keys that a group's windows reach over, which may lie before the first and past the last."""
        first = group[0] * self.rows + self.ahead - self.width + 1
        return first, first + (group[1] - group[0]) * self.rows + self.distances - 1

    def windows(self, x: Tensor, group: tuple[int, int]) -> Tensor:
        """The keys of each block, (batch, heads, blocks, window, dim), zeros where there are none."""
        first, last = self.span(group)
        inside = x[:, :, max(first, 0) : max(last, 0)].to(self.dtype)
        front = min(max(-first, 0), last - first)
        inside = F.pad(inside, (0, 0, front, last - first - front - inside.size(2)))
        return inside.unfold(2, self.window, self.rows).mT

    def add_windows(self, total: Tensor, grads: Tensor, group: tuple[int, int]) -> None:
        """Adds the gradients of a group's windows to those of the keys."""
        first, last = self.span(group)
        blocks = group[1] - group[0]
        if blocks == 1:
            over = grads[:, :, 0]
        else:
            over = grads.new_zeros((*grads.shape[:2], (blocks + 1) * self.rows, grads.size(-1)))
            per_block = over.unflatten(2, (blocks + 1, self.rows))
            per_block[:, :, :-1] += grads[..., : self.rows, :]
            per_block[:, :, 1:, : self.window - self.rows] += grads[..., self.rows :, :]
        low, high = max(first, 0), min(last, self.keys)
        if low < high:
            total[:, :, low:high] += over[:, :, low - first : high - first]

    def diagonals(self, full: Tensor) -> Tensor:
        """The band of scores (..., rows, window), one column a distance, as a view (..., rows, distances)."""
        *leading, rows, window = full.stride()
        assert (rows, window) == (self.window, 1)
        return full.as_strided((*full.shape[:-1], self.distances), (*leading, self.window + 1, 1))

    def outside(self, group: tuple[int, int], device: torch.device) -> Tensor | None:
        """Which of a group's pairs have no key, (blocks, rows, distances), or None."""
        first, last = self.span(group)
        if first >= 0 and last <= self.keys:
            return None
        query = torch.arange(group[0] * self.rows, group[1] * self.rows, device=device)
        key = query[:, None] + self.ahead - self.width + 1 + torch.arange(self.distances, device=device)
        return ((key < 0) | (key >= self.keys)).unflatten(0, (-1, self.rows))

    def scores(
        self, asking: Tensor, windows: Tensor, bias: Tensor | None, vectors: Tensor | None, scale: float
    ) -> Tensor:
        """The near scores of a group, (batch, heads, blocks, rows, distances)."""
        scores = self.diagonals((asking * scale) @ windows.mT)
        if vectors is not None:
            scores = scores + asking @ vectors[:, None, : self.distances].mT
        return scores if bias is None else scores + bias[:, None, None, : self.distances]

    def spread(self, weights: Tensor) -> Tensor:
        """The inverse of `diagonals`: zeros off the band."""
        full = weights.new_zeros((*weights.shape[:-1], self.window))
        self.diagonals(full).copy_(weights)
        return full


def _far_masks(constant: Tensor | None) -> fused.Mask:
    """Nothing to the left, the row's constant to the right."""

    def masks(part: fused.Part) -> tuple[Tensor | None, Tensor | None]:
        return None, None if part.is_left or constant is None else constant[:, :, part.queries]

    return masks


def _constant(query: Tensor, bias: Tensor | None, vectors: Tensor | None, is_causal: bool) -> Tensor | None:
    """What every key far to the right adds to its row's scores, (batch, heads, queries)."""
    if is_causal or (bias is None and vectors is None):
        return None
    constant = query.new_zeros(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    if bias is not None:
        constant += bias[:, -1:]
    if vectors is not None:
        constant += (query.to(constant.dtype) @ vectors[:, -1, :, None])[..., 0]
    return constant


@torch.library.custom_op("posenc::near_far", mutates_args=())
def _near_far(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    vectors: Tensor | None,
    values: Tensor | None,
    width: int,
    ahead: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The last two are the output and the log-sum-exp of the keys far to the right, empty where there are none."""
    out, lse = _nothing(query)
    band = _Band(query, key, width, ahead, is_causal)
    for group in band.groups:
        asking = band.blocks(query, group)
        scores = band.scores(asking, band.windows(key, group), bias, vectors, scale)
        outside = band.outside(group, query.device)
        if outside is not None:
            scores = scores.masked_fill(outside, -torch.inf)
        its = scores.logsumexp(-1)
        weights = (scores - its.masked_fill(its == -torch.inf, 0.0)[..., None]).exp_()
        one = band.spread(weights) @ band.windows(value, group)
        if values is not None:
            one += weights @ values[:, None, : band.distances]
        rows = slice(group[0] * band.rows, group[1] * band.rows)
        out[:, :, rows] = one.flatten(2, 3)[:, :, : out[:, :, rows].size(2)]
        lse[:, :, rows] = its.flatten(2, 3)[:, :, : out[:, :, rows].size(2)]
    sizes = (query.size(2), key.size(2))
    fused.forward(query, key, value, fused.left(*sizes, ahead - width), _far_masks(None), scale, out, lse)
    constant = _constant(query, bias, vectors, is_causal)
    beyond, its_lse = _nothing(query) if not is_causal else (query.new_empty(0), lse.new_empty(0))
    if not is_causal:
        masks = _far_masks(constant)
        fused.forward(query, key, value, fused.right(*sizes, ahead + width), masks, scale, beyond, its_lse)
        if values is not None:
            beyond += values[:, -1:] * (its_lse > -torch.inf)[..., None]
        fused.merge(out, lse, beyond, its_lse)
    return out.to(query.dtype), lse, beyond, its_lse


@torch.library.custom_op("posenc::near_far_backward", mutates_args=())
def _near_far_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    vectors: Tensor | None,
    values: Tensor | None,
    out: Tensor,
    lse: Tensor,
    beyond: Tensor,
    its_lse: Tensor,
    width: int,
    ahead: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grads = _zeros(query, key, value)
    d_query, d_key, d_value = grads
    d_bias, d_vectors, d_values = (
        grad.new_zeros(0 if x is None else x.shape, dtype=d_query.dtype) for x in (bias, vectors, values)
    )
    through = (grad * out).sum(-1, dtype=d_query.dtype)  # what the softmax takes from every pair of a row
    band = _Band(query, key, width, ahead, is_causal)
    for group in band.groups:
        asking, coming = band.blocks(query, group), band.blocks(grad, group)
        key_windows = band.windows(key, group)
        scores = band.scores(asking, key_windows, bias, vectors, scale)
        scores = scores - band.blocks(lse, group)[..., None]
        outside = band.outside(group, query.device)
        weights = scores.exp_() if outside is None else scores.masked_fill_(outside, -torch.inf).exp_()
        d_weights = band.diagonals(coming @ band.windows(value, group).mT)
        if values is not None:
            d_weights = d_weights + coming @ values[:, None, : band.distances].mT
        d_scores = (d_weights - band.blocks(through, group)[..., None]).mul_(weights)
        spread = band.spread(d_scores)
        d_asking = (spread @ key_windows).mul_(scale)
        if vectors is not None:
            d_asking += d_scores @ vectors[:, None, : band.distances]
            d_vectors[:, : band.distances] += torch.einsum("bhgsr,bhgsd->hrd", d_scores, asking)
        if bias is not None:
            d_bias[:, : band.distances] += d_scores.sum((0, 2, 3))
        if values is not None:
            d_values[:, : band.distances] += torch.einsum("bhgsr,bhgsd->hrd", weights, coming)
        rows = slice(group[0] * band.rows, group[1] * band.rows)
        d_query[:, :, rows] += d_asking.flatten(2, 3)[:, :, : d_query[:, :, rows].size(2)]
        band.add_windows(d_key, (spread.mT @ asking).mul_(scale), group)
        band.add_windows(d_value, band.spread(weights).mT @ coming, group)

    sizes = (query.size(2), key.size(2))
    masks = _far_masks(None)
    parts = fused.left(*sizes, ahead - width)
    fused.backward(grad, query, key, value, out, lse, parts, masks, scale, grads)
    if not is_causal:
        # Past the band to the right the weights carry a vector of the value door too. The kernel takes grad . out from
        # the gradient of every weight, so an output without that vector puts it in.
        far = out if values is None else (out.to(d_query.dtype) - values[:, -1:]).to(out.dtype)
        constant = _constant(query, bias, vectors, is_causal)
        parts = fused.right(*sizes, ahead + width)
        fused.backward(grad, query, key, value, far, lse, parts, _far_masks(constant), scale, grads)
        share = (its_lse - lse).exp()
        if values is not None:
            d_values[:, -1] += torch.einsum("bhi,bhid->hd", share, grad.to(share.dtype))
        d_constant = share * ((grad * beyond).sum(-1, dtype=share.dtype) - through)
        if bias is not None:
            d_bias[:, -1] += d_constant.sum((0, 2))
        if vectors is not None:
            d_query += d_constant[..., None] * vectors[:, -1:]
            d_vectors[:, -1] += torch.einsum("bhi,bhid->hd", d_constant, query.to(share.dtype))
    return *_rounded(grads, query.dtype), d_bias, d_vectors, d_values


@_near_far.register_fake
def _(query, key, value, bias, vectors, values, width, ahead, is_causal, scale):  # type: ignore[no-untyped-def]
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    beyond = query.new_empty(0 if is_causal else query.shape, dtype=dtype)
    return out, _rows(query), beyond, _rows(query) if not is_causal else query.new_empty(0, dtype=dtype)


@_near_far_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad, query, key, value, bias, vectors, values, out, lse, beyond, its_lse, width, ahead, is_causal, scale
):
    dtype = torch.promote_types(query.dtype, torch.float32)
    three = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    tables = (query.new_empty(0 if x is None else x.shape, dtype=dtype) for x in (bias, vectors, values))
    return *three, *tables


def _near_far_save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _near_far_grads(ctx, grad, *_):  # type: ignore[no-untyped-def]
    if grad is None:
        return (None,) * 10
    grads = torch.ops.posenc.near_far_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.rest)
    tables = (g if x is not None else None for g, x in zip(grads[3:], ctx.saved_tensors[3:6], strict=True))
    return *grads[:3], *tables, None, None, None, None


_near_far.register_autograd(_near_far_grads, setup_context=_near_far_save)


# -- shared -----------------------------------------------------------------------------------------------------------


def _rows(query: Tensor) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))


def _nothing(query: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of queries that have seen no key yet, in the precision of scores."""
    lse = _rows(query).fill_(-torch.inf)
    return lse.new_zeros(query.shape), lse


def _zeros(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    query, key, value = (x.new_zeros(x.shape, dtype=dtype) for x in tensors)
    return query, key, value


def _rounded(grads: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (x.to(dtype) for x in grads)
    return query, key, value


NEAR_FAR = Backend("near_far", refuses=_refuses, run=_run)
