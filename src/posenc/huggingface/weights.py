"""Weights for another convention: pairs of channels in the other layout, learned tables for other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from posenc.arguments import check_choice, check_flag, check_type, shown, whole
from posenc.phases import PairLayout

# -- the layout of pairs ----------------------------------------------------------------------------------------------


def half_to_interleaved(
    x: Shaped[Tensor, "..."], head_dim: int, *, rotary_dim: int | None = None, first_channel: int = 0, axis: int = 0
) -> Shaped[Tensor, "..."]:
    """What makes queries or keys for a rotation in the "half" layout, for one in the "interleaved" layout.

    Channel k of the rotated d = rotary_dim channels of each head goes to 2k, channel k + d/2 to 2k + 1. Converted on
    both sides, scores are what they were, and so is all behind them: values, output and channels that do not turn are
    left alone.

    ``x`` has heads times ``head_dim`` entries along ``axis``, however many heads: the weight of q_proj or k_proj
    (axis 0; of a Conv1D axis -1), its bias, LoRA's B (LoRA's A stays as it is), scales and zero points per output
    channel, and the weight of a norm of queries or keys, (head_dim,) or (heads head_dim,). Of MLA: q_b_proj, with
    head_dim = qk_nope_head_dim + qk_rope_head_dim, rotary_dim = qk_rope_head_dim and first_channel =
    qk_nope_head_dim; kv_a_proj_with_mqa, which is one head of kv_lora_rank + qk_rope_head_dim with first_channel =
    kv_lora_rank.

    `interleaved_to_half` is the inverse; entries are moved and never changed, so both ways are bit-equal, in any dtype.
    Errors: ValueError for an axis that is no multiple of head_dim, or a rotary_dim that is odd or does not fit.
    """
    return _moved(x, head_dim, rotary_dim, first_channel, axis, "interleaved")


def interleaved_to_half(
    x: Shaped[Tensor, "..."], head_dim: int, *, rotary_dim: int | None = None, first_channel: int = 0, axis: int = 0
) -> Shaped[Tensor, "..."]:
    """The inverse of `half_to_interleaved`: channel 2k goes to k, channel 2k + 1 to k + rotary_dim/2."""
    return _moved(x, head_dim, rotary_dim, first_channel, axis, "half")


def _moved(
    x: Tensor, head_dim: int, rotary_dim: int | None, first_channel: int, axis: int, to: PairLayout, name: str = "x"
) -> Tensor:
    check_type(name, x, Tensor)
    order = _order(head_dim, rotary_dim, first_channel, to)
    axis = whole("axis", axis, -x.dim(), x.dim() - 1)
    size = x.size(axis)
    if size == 0 or size % head_dim:
        raise ValueError(
            f"{name} must have a multiple of head_dim = {head_dim} entries along axis {axis}, got {tuple(x.shape)}"
        )
    index = torch.arange(0, size, head_dim)[:, None] + order
    return x.index_select(axis, index.flatten().to(x.device))


def _order(head_dim: int, rotary_dim: int | None, first_channel: int, to: PairLayout) -> Tensor:
    """Which channel of a head comes to each place."""
    head_dim = whole("head_dim", head_dim, least=2)
    first_channel = whole("first_channel", first_channel, 0, head_dim - 2)
    room = head_dim - first_channel
    turned = room if rotary_dim is None else whole("rotary_dim", rotary_dim, least=2)
    if turned % 2 or turned > room:
        raise ValueError(f"rotary_dim must be even and within 2..head_dim - first_channel = {room}, got {turned}")
    pairs = torch.arange(turned)
    moved = pairs.view(2, -1).mT.flatten() if to == "interleaved" else pairs.view(-1, 2).mT.flatten()
    every = torch.arange(head_dim)
    every[first_channel : first_channel + turned] = first_channel + moved
    return every


PROJECTIONS = ("q_proj", "k_proj", "q_norm", "k_norm", "query_norm", "key_norm")
"""Modules that make queries and keys in most models of transformers, and those that norm them head by head."""

BY_OUTPUT = ("weight", "bias", "weight_scale", "weight_zero_point", "scales", "zero_point", "lora_magnitude_vector")
UNTOUCHED = ("input_scale", "output_scale", "lora_A", "lora_embedding_A")


def convert_layout(
    state: Mapping[str, Tensor],
    to: PairLayout,
    head_dim: int,
    *,
    rotary_dim: int | None = None,
    first_channel: int = 0,
    projections: Sequence[str] = PROJECTIONS,
) -> dict[str, Tensor]:
    """A state_dict for a rotation in the other layout: a new dictionary, in which other tensors are the same objects.

    Of every module that is named in ``projections``, weights, biases, LoRA's B (adapters named or not) and scales and
    zero points per output channel are moved as by `half_to_interleaved` or `interleaved_to_half`; LoRA's A, and numbers
    that are of the whole tensor, stay. Projections that make queries, keys and values at once are not taken apart: cut
    them first. ``convert_layout(convert_layout(state, "interleaved", d), "half", d)`` is the state again, bit by bit.

    Errors: ValueError for a state without such a module, for a parameter of one whose channels are not known (packed
    weights, scales of blocks of channels), and as `half_to_interleaved`.
    """
    check_choice("to", to, ("half", "interleaved"))
    converted = dict(state)
    found = False
    for name, x in state.items():
        parts = name.split(".")
        where = [n for n, part in enumerate(parts) if part in projections]
        if not where:
            continue
        found = True
        inner = [part for part in parts[where[-1] + 1 :] if part != "base_layer"]
        kind = inner[0] if inner else ""
        if kind in UNTOUCHED or x.numel() == 1:
            continue
        if kind not in (*BY_OUTPUT, "lora_B", "lora_embedding_B"):
            raise ValueError(
                f"state has {name!r}, {shown(x)}: what its channels are is not known, so it cannot be converted; "
                f"known are {', '.join((*BY_OUTPUT, 'lora_B'))}"
            )
        rows = _rows(state, parts[: where[-1] + 1])
        if rows is not None and x.size(0) != rows:
            raise ValueError(f"state has {name!r}, {shown(x)}, which has not one entry for each of {rows} channels")
        converted[name] = _moved(x, head_dim, rotary_dim, first_channel, 0, to, name)
    if not found:
        raise ValueError(f"state must have a module named {', '.join(projections)}, got {_first(state)}")
    return converted


def _rows(state: Mapping[str, Tensor], module: list[str]) -> int | None:
    """How many channels the module gives, where its weight is there to say so."""
    for inner in ("weight", "base_layer.weight"):
        weight = state.get(".".join([*module, inner]))
        if weight is not None:
            return weight.size(0)
    return None


def _first(state: Mapping[str, Tensor]) -> str:
    names = list(state)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "nothing"


# -- learned tables ---------------------------------------------------------------------------------------------------


def resize_line(table: Float[Tensor, "... rows dim"], length: int, *, kept: int = 0) -> Float[Tensor, "... length dim"]:
    """A learned table for more or fewer positions, by linear interpolation between its rows.

    Position i of m new ones stands at (i + 1/2) n/m - 1/2 of the n old ones, and no row is past the ends: middles of
    positions are laid over one another, as `Positions.grid` lays patches with ``extent``. The first ``kept`` rows (two
    of OPT's, pad_token_id + 1 of RoBERTa's) are no positions: they stay as they are, and do not count in ``length``.

    Computed in float32 at least and rounded once. The same length is the table itself, bit by bit.
    Errors: ValueError for a table that is not floating, or has no rows beside those kept.
    """
    rows = _table(table, kept) - kept
    length = whole("length", length)
    if length == rows:
        return table
    line = _wide(table[..., kept:, :]).flatten(0, -3).mT if table.dim() > 2 else _wide(table[kept:]).mT[None]
    resized = F.interpolate(line, length, mode="linear", align_corners=False).mT.to(table.dtype)
    return torch.cat((table[..., :kept, :], resized.reshape(*table.shape[:-2], length, table.size(-1))), -2)


def resize_grid(
    table: Float[Tensor, "... rows dim"],
    grid: Sequence[int],
    to: Sequence[int],
    *,
    kept: int = 0,
    mode: str = "bicubic",
    antialias: bool = False,
) -> Float[Tensor, "... resized dim"]:
    """A learned table of image patches, for another grid: (height, width) ``grid`` to (height, width) ``to``.

    Rows are patches in raster order, after ``kept`` rows for class tokens and registers, which stay as they are. Both
    sizes are said and none is guessed from a square root. Middles of patches are laid over one another, (i + 1/2) n/m
    - 1/2, by the two sizes and not by a rounded factor. ``mode`` is "bicubic" (PyTorch's kernel, a = -3/4, or -1/2 with
    antialias) or "bilinear"; ``antialias`` blurs where the grid shrinks, as timm and DINOv2's registers do. A bias of
    Swin is a grid (2h - 1, 2w - 1) with heads for dim.

    Computed in float32 at least and rounded once. The same size is the table itself, bit by bit.
    Errors: ValueError for a table of other than kept + height width rows, and for sizes below 1.
    """
    rows = _table(table, kept)
    (height, width), (new_height, new_width) = _size("grid", grid), _size("to", to)
    check_choice("mode", mode, ("bicubic", "bilinear"))
    check_flag("antialias", antialias)
    if rows != kept + height * width:
        raise ValueError(
            f"table must have kept + height width = {kept} + {height} x {width} = {kept + height * width} rows, "
            f"got {tuple(table.shape)}"
        )
    if (height, width) == (new_height, new_width):
        return table
    dim = table.size(-1)
    image = _wide(table[..., kept:, :]).reshape(-1, height, width, dim).permute(0, 3, 1, 2)
    resized = F.interpolate(image, (new_height, new_width), mode=mode, align_corners=False, antialias=antialias)
    patches = resized.permute(0, 2, 3, 1).reshape(*table.shape[:-2], new_height * new_width, dim).to(table.dtype)
    return torch.cat((table[..., :kept, :], patches), -2)


def _table(table: Tensor, kept: int) -> int:
    """How many rows it has."""
    if not isinstance(table, Tensor) or table.dim() < 2 or not table.is_floating_point():
        raise ValueError(f"table must be a floating tensor (..., rows, dim), got {shown(table)}")
    whole("kept", kept, 0, table.size(-2) - 1)
    return table.size(-2)


def _size(name: str, size: Any) -> tuple[int, int]:
    if not isinstance(size, Sequence) or isinstance(size, str) or len(size) != 2:
        raise ValueError(f"{name} must be (height, width), got {shown(size)}")
    return whole(f"{name}[0]", size[0]), whole(f"{name}[1]", size[1])


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
