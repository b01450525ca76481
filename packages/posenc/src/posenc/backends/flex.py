"""The FlexAttention backend: a fused kernel compiled for the score terms, which skips masked blocks.

Score terms are score_mods, (score, b, h, i, j) -> score, bound to the whole call and chained. The block mask,
O((N/128)^2), is computed from the lowest and highest document and order of every 128 tokens. The tensors of a term may
be larger: q times a table of every distance is queries x distances.

Properties of FlexAttention (torch 2.13) that this file depends on:

- A score_mod is traced with a score of the query's dtype, although the kernel keeps it in float32. ALiBi's distances in
  bfloat16 would be wrong, so scores are cast to float32 first. The CPU compiler omits the rounding, but does not
  guarantee it.
- On CPU it supports only inference: no backward, no log-sum-exp, no float64.
- On CPU lengths must not be dynamic: the C++ template inserts tile sizes by replacing a name, ks2, everywhere, and the
  sizes of indexed tensors may be named ks24 or ks2. So it is compiled for lengths that are powers of two, and other
  lengths are padded with tokens that the block mask skips. There is one compilation for each doubling of the length,
  and one for each batch size.
- On CPU it must be compiled separately: it cannot index a tensor that the same compiled graph computes.
- Compilations are reused for other calls and layers, since dynamo compares the code and closure of a function, not its
  identity. For the same reason causality, windows and shifts are values, not code, and broadcast rows are contiguous.
- On CUDA a tile is 128 x 128 for 64 channels in half precision (torch 2.9 to 2.13, H100 and B200), and a number that is
  read for each pair of it does not fit. So scores are computed from indices where layouts are known, tiles are smaller
  where numbers are read for each pair, and again where a kernel does not fit all the same.
- Code for all lengths takes the remainder of each index by the length in each tile, since lengths need not be multiples
  of a block (without terms 0.58 ms for 0.42, H100). Where they are, that is said, and the code is as short as that for
  one length. So there are two compilations for all lengths.
- On Hopper and Blackwell it can run FlashAttention 4 (`FLEX_FLASH`), compiled for the score function like its own
  kernel. That one has no gradients for the function's tensors, takes no symbolic number, and on Blackwell the blocks of
  the mask must have 256 queries. (All this is read in PyTorch's sources, and was not run.)
- dynamo keeps 8 compilations of one function, then runs without compiling, with only a log message. Every kind of term,
  dtype and length is a compilation of the same function here, so the limit is raised, and exceeding it is an error
  (fullgraph).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask

from posenc import compat
from posenc.backends.blockwise import counted_blocks, orders_seen, seen_blocks
from posenc.backends.cache import cached
from posenc.backends.call import Backend, Call, Unless, cleared, never
from posenc.backends.fitting import run_first_fitting
from posenc.encoding.terms import AddedVector, Bias, CumulativeBias, Function, RelativeDot, Row, ScoreTerm, Term, Value
from posenc.lowering.distances import FARTHEST, Pair, shift_of
from posenc.lowering.forms import ScoreFunction, fold, function
from posenc.positions.positions import PADDING, Positions

BLOCK = 128  # tokens along each side of a block of the mask: the kernel's own size
COMPILATIONS = 256  # the maximum number of compilations

Options: TypeAlias = Any  # not flex.FlexKernelOptions, which lacks some of the kernel's
_BACKWARD = "bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"
SIZES: tuple[Callable[[], Options], ...] = (
    dict,
    lambda: {"BLOCK_N": 64, "fwd_num_warps": 8},
    lambda: {"BLOCK_N": 32, "bwd_num_stages": 1, **dict.fromkeys(_BACKWARD, 32)},
    lambda: {"BLOCK_M": 32, "BLOCK_N": 32, "bwd_num_stages": 1, **dict.fromkeys(_BACKWARD, 32)},
)
"""The kernel's sizes, from PyTorch's own to the smallest; functions, since numbers of a dict might become symbolic."""
HALF = (torch.bfloat16, torch.float16)
NO_SIZES = "No valid triton configs"  # the error where a kernel does not fit


def attend(operands: tuple[Any, ...], reads_pairs: bool, by_flash: bool = False) -> tuple[Tensor, Tensor | None]:
    """FlexAttention of ``operands``, the rest of what `_attend` takes. ``reads_pairs``: a number is read for each pair.
    ``by_flash``: by FlashAttention's kernels, for which the ends of tables must not become symbolic.

    Raises RuntimeError if no size of the kernel fits the GPU.
    """
    query, key, value = operands[:3]
    if query.device.type == "cpu":
        with compat.compilations(COMPILATIONS):
            return _compiled(False)(SIZES[0], False, *operands)
    first = int(reads_pairs and query.dtype in HALF and query.size(-1) == 64)
    if torch.compiler.is_compiling():
        return _attend(_by_flash if by_flash else SIZES[first], False, *operands)
    if by_flash:
        with compat.compilations(COMPILATIONS), compat.eager_backward():
            return _compiled(not reads_pairs)(_by_flash, False, *operands)
    kind = "flex", query.device, query.dtype, query.size(-1), value.size(-1), first, torch.is_grad_enabled()
    has_whole_blocks = query.size(2) % BLOCK == 0 and key.size(2) % BLOCK == 0

    def run(size: Callable[[], Options]) -> tuple[Tensor, Tensor | None]:
        with compat.compilations(COMPILATIONS), compat.eager_backward():
            return _compiled(True)(size, has_whole_blocks, *operands)

    try:
        return run_first_fitting(kind, SIZES[first:], run, _is_too_large)[1]
    except RuntimeError as error:
        if not _is_too_large(error):
            raise
        channels = f"{query.dtype} with {query.size(-1)} channels"
        raise RuntimeError(
            f"no size of FlexAttention's kernel fits this GPU for {channels}: use another backend, such as 'chunked'"
        ) from error


def _by_flash() -> Options:
    return {"BACKEND": "FLASH"}


def _is_too_large(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and NO_SIZES in str(error)


@functools.cache
def _compiled(dynamic: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(_attend, dynamic=dynamic, fullgraph=True)


def _attend(
    size: Callable[[], Options],
    has_whole_blocks: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    function: ScoreFunction | None,
    blocks: BlockMask,
    scale: float,
    grouped: bool,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    options: Options = {**size(), "IS_DIVISIBLE": True} if has_whole_blocks else size()
    found: Any = flex.flex_attention(
        query, key, value, function, blocks, scale, grouped, kernel_options=options or None,
        return_aux=flex.AuxRequest(lse=True) if return_lse else None,
    )  # fmt: skip
    return (found[0], found[1].lse) if return_lse else (found, None)


SHORTEST = 16  # the minimum length on CPU, by padding


KINDS: dict[type[Term], tuple[Unless, ...]] = {
    Bias: (),
    RelativeDot: (),
    AddedVector: (),
    CumulativeBias: (),
    Function: (
        Unless(
            "a score term is a function of both coordinates, which FlexAttention does not support",
            lambda term, call: term.reads_coordinates,
        ),
    ),
    Row: never("a score term needs whole rows of scores, but FlexAttention processes one score at a time"),
    Value: never("the value door needs the attention weights, which FlexAttention does not return"),
}


def _inputs(call: Call) -> str | None:
    query, device = call.query, call.query.device.type
    if device not in ("cpu", "cuda"):
        return f"FlexAttention runs on CPU and CUDA, but the query is on {device}"
    if query.dtype == torch.float64:
        return "FlexAttention has no float64"
    if query.numel() == 0 or call.value.numel() == 0:
        return "FlexAttention needs at least one query, key and channel"
    return None


def _of_first_pair(call: Call) -> list[ScoreFunction] | str:
    """The score_mods of the first query and key, or why there are none, which depends on the positions of all."""
    few = call.part(slice(0, 1), slice(0, 1))
    few = replace(few, query_positions=call.query_positions, key_positions=call.key_positions)
    return _functions(few, few.score_terms)


def _score_mods(call: Call) -> str | None:
    functions = _of_first_pair(call)
    return functions if isinstance(functions, str) else None


def _ways(call: Call) -> str | None:
    query, is_cuda = call.query, call.query.device.type == "cuda"
    if call.dropout_p > 0:
        return "FlexAttention has no dropout"
    if is_cuda:
        narrowest = min(query.size(-1), call.value.size(-1))
        if narrowest < 16:
            return f"FlexAttention needs at least 16 channels on CUDA, got {narrowest}"
    elif call.return_lse:
        return "FlexAttention does not return the log-sum-exp on CPU"
    elif torch.compiler.is_compiling():
        return "FlexAttention on CPU is compiled separately and cannot be part of a compiled graph"
    return None


def _derivative(call: Call) -> str | None:
    is_graded, on_cpu = torch.is_grad_enabled(), call.query.device.type == "cpu"
    read = {"query": call.query, "key": call.key, "value": call.value, "attn_mask": call.attn_mask}
    is_strict = torch.are_deterministic_algorithms_enabled()
    is_strict = is_strict and not torch.is_deterministic_algorithms_warn_only_enabled()
    of_pairs = (_first_score(call), call.attn_mask) if is_graded and not on_cpu and is_strict else ()
    if any(x is not None and x.requires_grad for x in of_pairs):
        return (
            "FlexAttention adds up the gradients of a mask and of a score term's tensors in no fixed order, and "
            "torch.use_deterministic_algorithms(True) forbids it"
        )
    # Compiled code would drop tangents without an error.
    if torch.compiler.is_compiling() or not ((on_cpu and is_graded) or compat.is_forward_mode()):
        return None
    for name, x in (read | {"a score term": _first_score(call)}).items():
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:
            return f"FlexAttention has no forward-mode derivative, and {name} has a tangent"
        if x is not None and on_cpu and is_graded and x.requires_grad:
            return f"FlexAttention has no backward on CPU, and {name} requires grad"
    return None


def _first_score(call: Call) -> Tensor:
    """What the terms add to the score of the first pair. The parameters of a term are unknown, but this requires grad,
    or has a tangent, if one of them or what is read of queries and keys does."""
    functions = _of_first_pair(call)
    assert not isinstance(functions, str)  # `_score_mods` has been asked
    return _at_first_pair(functions, call.query.device)


def _at_first_pair(functions: Sequence[ScoreFunction], device: torch.device) -> Tensor:
    score = torch.zeros(1, device=device)
    indices = [torch.zeros(1, dtype=torch.int64, device=device)] * 4  # one of no axes would be read, to index with
    for change in functions:
        score = change(score, *indices)
    return score


def _run(call: Call, by_flash: bool = False) -> tuple[Tensor, Tensor | None]:
    on_cpu = call.query.device.type == "cpu"
    queries, keys = call.query.size(2), call.key.size(2)
    call = cleared(call)
    height = 2 if by_flash and torch.cuda.get_device_capability(call.query.device)[0] == 10 else 1
    blocks = _block_mask(call, *((_length(queries), _length(keys)) if on_cpu else (queries, keys)), height)
    if on_cpu:
        call = _padded(call, *blocks.seq_lengths)
    query, key, left = fold(call.score_terms, call)
    function = _score_function(call, left)
    grouped = query.size(1) != key.size(1)
    value, width = call.value, call.value.size(3)
    if not torch.is_grad_enabled():  # on CPU it rejects leaves that require grad even under no_grad
        query, key, value = query.detach(), key.detach(), value.detach()
    operands = (query, key, value, function, blocks, call.scale, grouped, call.return_lse)
    reads_pairs = call.attn_mask is not None or any(_reads_pairs(term) for term in left)
    out, lse = attend(operands, reads_pairs, by_flash)
    return out[:, :, :queries, :width], lse


def _reads_pairs(term: ScoreTerm) -> bool:
    """Whether the score_mod reads a number for each pair, rather than some for each query, key or head."""
    has_linear_tail = isinstance(term, Bias) and term.distance.tail == "linear" and term.distance.past == 0
    return not (
        has_linear_tail or isinstance(term, CumulativeBias) or (isinstance(term, Function) and term.distance is None)
    )


# --- the scores -----------------------------------------------------------------------------------------------------


def _functions(call: Call, score_terms: Sequence[ScoreTerm]) -> list[ScoreFunction] | str:
    # A term that reads only positions needs no cast of query and key.
    block = call if all(term.is_content_free for term in score_terms) else call.block()
    functions = []
    for term in score_terms:
        made = _of_positions(term, call) if term.is_content_free else function(term, block)
        if isinstance(made, str):
            return made
        functions.append(made)
    return functions


def _of_positions(term: ScoreTerm, call: Call) -> ScoreFunction | str:
    """The score_mod of a term that reads no queries and keys. With its tensors it is kept for other calls of the plan,
    which has the same terms, unless these have a gradient or are of every pair."""
    device = call.query.device

    def may_stay(made: ScoreFunction | str) -> bool:
        is_dense = term.distance is None or term.distance.axis is None
        return not (is_dense or isinstance(made, str) or _at_first_pair([made], device).requires_grad)

    place = next((n for n, each in enumerate(call.score_terms) if each is term), None)
    store = None if place is None else call.store
    return cached(store, ("score", place), device, lambda: function(term, call), may_stay)


def _score_function(call: Call, left: tuple[ScoreTerm, ...]) -> ScoreFunction | None:
    functions = _functions(call, left)
    if isinstance(functions, str):  # not found with one pair: the range of coordinates is too large for a table
        raise ValueError(f"backend 'flex' cannot run this: {functions}")
    mask = call.attn_mask
    if mask is not None:
        mask = mask.expand(call.query.size(0), call.query.size(1), call.query.size(2), call.key.size(2))
    elif not functions:
        return None

    def changed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score.to(torch.float32)
        for change in functions:
            score = change(score, b, h, i, j)
        if mask is None:
            return score
        if mask.dtype == torch.bool:
            return torch.where(mask[b, h, i, j], score, -torch.inf)
        return score + mask[b, h, i, j].to(torch.float32)

    return changed


# --- what is seen ---------------------------------------------------------------------------------------------------


class _SeenBlocks(NamedTuple):
    """What follows from positions alone: the blocks that are checked pair by pair and those with only unmasked pairs,
    whether a pair is unmasked, and the block mask."""

    lists: Bool[Tensor, "2 batch 1 query_blocks key_blocks"]
    pair: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    blocks: BlockMask


_of_layouts: dict[Any, Any] = {}  # the latest, for all encodings, as `cached` keeps them


def _block_mask(call: Call, queries: int, keys: int, height: int = 1) -> BlockMask:
    """The block mask of a call padded to ``queries`` and ``keys``, of blocks ``height`` times as high as wide.

    A block is skipped if all its pairs are masked or negligible, and full if none is masked; otherwise each pair is
    checked. What follows from positions is kept for the plan and, unless the layouts are unknown, for all calls with
    the same ones, whose many spans would take time to compare in each layer.
    """
    device = call.query.device

    def by_layouts() -> _SeenBlocks:
        layouts = call.layouts
        key = layouts, call.visibility, call.query.size(0), queries, keys, height
        return cached(None if layouts is None else _of_layouts, key, device, lambda: _seen(call, queries, keys, height))

    seen = cached(call.store, ("seen", queries, keys, height), device, by_layouts)
    counted = counted_blocks(call, BLOCK)
    if counted is None:
        return seen.blocks
    more_queries, more_keys = seen.lists.size(3) - counted.size(2), seen.lists.size(4) - counted.size(3)
    return _blocks(seen.lists & F.pad(counted, (0, more_keys, 0, more_queries)), seen.pair, (queries, keys), height)


def _seen(call: Call, queries: int, keys: int, height: int) -> _SeenBlocks:
    batch, device = call.query.size(0), call.query.device
    (document, order), (of_key, key_order) = (
        (_filled(p.document, n, PADDING).expand(batch, -1), _filled(p.order, n, 0).expand(batch, -1))
        for p, n in ((call.query_positions, queries), (call.key_positions, keys))
    )
    oldest, newest = orders_seen(order, call.visibility)
    some, every = seen_blocks(document, of_key, oldest, newest, key_order, BLOCK)

    # Compiled code is specialized to strides, so broadcast rows are made contiguous.
    document, of_key, oldest, newest, key_order = (
        x.contiguous() for x in (document, of_key, oldest, newest, key_order)
    )
    known, is_single = (None, False) if device.type == "cpu" else _by_index(call)  # on the CPU there is padding

    def within(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        when = key_order[b, j]
        return (when <= newest[b, i]) & (when >= oldest[b, i])

    in_reach = known or within

    def pair(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if is_single:
            return in_reach(b, i, j)
        mine = of_key[b, j]
        return (document[b, i] == mine) & (mine != PADDING) & in_reach(b, i, j)

    lists = torch.stack((some & ~every, every))[:, :, None]
    return _SeenBlocks(lists, pair, _blocks(lists, pair, (queries, keys), height))


def _by_index(call: Call) -> tuple[Pair | None, bool]:
    """Whether a key's order is in reach of a query, from indices alone; None if layouts do not tell. And whether all
    tokens are known to be of one document."""
    if call.layouts is None:
        return None, False
    query, key = call.layouts
    shift = shift_of(query, key, lambda span: span.order if span.order_step == 1 else None)
    if shift is None or not -FARTHEST <= shift <= FARTHEST:
        return None, False
    left, right = call.visibility.left, call.visibility.furthest
    ends = (
        -2 * FARTHEST if left is None else max(-left - shift, -2 * FARTHEST),
        2 * FARTHEST - 1 if right is None else min(right - shift, 2 * FARTHEST - 1),
    )
    low, high = (torch.full((), end, dtype=torch.int32, device=call.query.device) for end in ends)
    is_single = query.start is not None and key.start is not None and query.start[0] == key.start[0]
    return lambda b, i, j: (j - i >= low) & (j - i <= high), is_single


def _blocks(lists: Tensor, pair: Callable[..., Tensor], lengths: tuple[int, int], height: int) -> BlockMask:
    """The block mask of blocks that are checked and of whole ones, (2, batch, heads, query_blocks, key_blocks). Of
    ``height`` blocks above one another it makes one: whole if each is, skipped if none is there."""
    if height > 1:
        more = 0, 0, 0, -lists.size(3) % height
        there, every = F.pad(lists.any(0), more), F.pad(lists[1], more, value=True)
        there, every = (x.unflatten(2, (-1, height)) for x in (there, every))
        lists = torch.stack((there.any(3) & ~every.all(3), every.all(3)))
    (some, every), (indices, every_indices) = _listed(lists)
    (of_some, of_every), (of_indices, of_every_indices) = _listed(lists.mT)
    return BlockMask(
        seq_lengths=lengths,
        kv_num_blocks=some,
        kv_indices=indices,
        full_kv_num_blocks=every,
        full_kv_indices=every_indices,
        q_num_blocks=of_some,
        q_indices=of_indices,
        full_q_num_blocks=of_every,
        full_q_indices=of_every_indices,
        BLOCK_SIZE=(height * BLOCK, BLOCK),
        mask_mod=pair,
    )


def _listed(
    blocks: Bool[Tensor, "... query_blocks key_blocks"],
) -> tuple[Int[Tensor, "... query_blocks"], Int[Tensor, "... query_blocks key_blocks"]]:
    """The number of key blocks of each query block, and their indices, which come first and in order."""
    first = (~blocks).to(torch.int32, memory_format=torch.contiguous_format).argsort(dim=-1, stable=True)
    return blocks.sum(-1, dtype=torch.int32), first.to(torch.int32)


# --- padding --------------------------------------------------------------------------------------------------------


def _length(tokens: int) -> int:
    """The power of two to pad to."""
    return max(SHORTEST, 1 << (tokens - 1).bit_length())


def _filled(x: Tensor, length: int, value: int) -> Tensor:
    return F.pad(x, (0, length - x.size(1)), value=value)


def _padded(call: Call, queries: int, keys: int) -> Call:
    """The call padded with masked queries and keys, contiguous. They have the last token's position, which every scheme
    can encode."""
    more_queries, more_keys = queries - call.query.size(2), keys - call.key.size(2)
    more = {"query": more_queries, "key": more_keys}

    def longer(side: Literal["query", "key"], x: Tensor) -> Tensor:
        return x if x.size(2) == 1 else _more(x, more[side])

    mask = call.attn_mask
    if mask is not None:
        wider = (0, more_keys if mask.size(3) > 1 else 0, 0, more_queries if mask.size(2) > 1 else 0)
        mask = F.pad(mask, wider)
    return replace(
        call,
        query=F.pad(call.query, (0, 0, 0, more_queries)).contiguous(),
        key=F.pad(call.key, (0, 0, 0, more_keys)).contiguous(),
        value=F.pad(call.value, (0, 0, 0, more_keys)).contiguous(),
        query_positions=_stretched(call.query_positions.expand(call.query.size(0)), queries),
        key_positions=_stretched(call.key_positions.expand(call.key.size(0)), keys),
        attn_mask=mask,
        score_terms=tuple(term.mapped(longer) for term in call.score_terms),
        query_features={name: _more(x, more_queries) for name, x in call.query_features.items()},
        key_features={name: _more(x, more_keys) for name, x in call.key_features.items()},
    )


def _more(x: Tensor, tokens: int) -> Tensor:
    """(batch, heads, tokens, ...) padded with zeros by ``tokens``."""
    return F.pad(x, (0, 0) * (x.dim() - 3) + (0, tokens)).contiguous()


def _stretched(positions: Positions, tokens: int) -> Positions:
    """Positions with padding, of which the layout says nothing more."""
    last = positions.order.size(1) - 1
    more = positions[torch.arange(tokens, device=positions.device).clamp(max=last)]
    document = _filled(positions.document, tokens, PADDING)
    longer = Positions(more.coords, order=more.order, document=document, segment=more.segment)
    return longer.with_layout(replace(positions.layout, tokens=tokens))


FLEX = Backend("flex", _run, KINDS, first=(_inputs,), last=(_score_mods, _ways, _derivative))

# --- by FlashAttention ------------------------------------------------------------------------------------------------

FIXED = "support only fixed biases: they give no gradient to what a score term reads"
FLASH_KINDS: dict[type[Term], tuple[Unless, ...]] = {
    kind: found if kind in (Bias, Function) else never(f"FlashAttention's kernels {FIXED}")
    for kind, found in KINDS.items()
}


def _by_other_kernels(call: Call) -> str | None:
    width, of_value, device = call.query.size(-1), call.value.size(-1), call.query.device
    is_learned = torch.is_grad_enabled() and _first_score(call).requires_grad
    reasons = {
        "run only on CUDA devices": device.type != "cuda",
        "support only bfloat16 and float16": call.query.dtype not in HALF,
        f"support at most 128 channels, a multiple of 8, as in values, got {width}, and {of_value} in values": (
            width > 128 or width % 8 > 0 or of_value != width
        ),
        "support neither attn_mask nor return_lse": call.attn_mask is not None or call.return_lse,
        "sum gradients in no fixed order": torch.are_deterministic_algorithms_enabled(),
        FIXED: is_learned,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return compat.missing_flash(device) if reason is None else f"FlashAttention's kernels {reason}"


FLEX_FLASH = Backend(
    "flex_flash",
    functools.partial(_run, by_flash=True),
    FLASH_KINDS,
    first=(_inputs,),
    last=(_score_mods, _ways, _derivative, _by_other_kernels),
)
