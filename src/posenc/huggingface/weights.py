"""Weights for another convention: pairs of channels in the other layout, learned tables for other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from posenc.arguments import check_choice, check_flag, check_type, shown, whole
from posenc.rotation.phases import PairLayout

# -- the layout of pairs ----------------------------------------------------------------------------------------------


def half_to_interleaved(
    x: Shaped[Tensor, "..."], head_dim: int, *, rotary_dim: int | None = None, first_channel: int = 0, axis: int = 0
) -> Shaped[Tensor, "..."]:
    """Converts weights of queries or keys from the "half" to the "interleaved" layout of a rotation.

    Channel k of the rotated d = rotary_dim channels of each head goes to 2k, channel k + d/2 to 2k + 1. If both queries
    and keys are converted, scores do not change; values, output and channels that do not rotate are not touched.

    ``x`` has heads times ``head_dim`` entries along ``axis``, however many heads: the weight of q_proj or k_proj
    (axis 0; of a Conv1D axis -1), its bias, LoRA's B (LoRA's A stays as it is), scales and zero points per output
    channel, and the weight of a norm of queries or keys, (head_dim,) or (heads head_dim,). Of MLA: q_b_proj, with
    head_dim = qk_nope_head_dim + qk_rope_head_dim, rotary_dim = qk_rope_head_dim and first_channel =
    qk_nope_head_dim; kv_a_proj_with_mqa, which is one head of kv_lora_rank + qk_rope_head_dim with first_channel =
    kv_lora_rank.

    `interleaved_to_half` is the inverse; entries are moved and never changed, so both ways are bit-equal, in any dtype.
    Errors: ValueError for an axis that is no multiple of head_dim, or a rotary_dim that is odd or does not fit.
    """
    return _moved("x", x, _order(head_dim, rotary_dim, first_channel, "interleaved"), axis)


def interleaved_to_half(
    x: Shaped[Tensor, "..."], head_dim: int, *, rotary_dim: int | None = None, first_channel: int = 0, axis: int = 0
) -> Shaped[Tensor, "..."]:
    """The inverse of `half_to_interleaved`: channel 2k goes to k, channel 2k + 1 to k + rotary_dim/2."""
    return _moved("x", x, _order(head_dim, rotary_dim, first_channel, "half"), axis)


def _moved(name: str, x: Tensor, order: Tensor, axis: int) -> Tensor:
    check_type(name, x, Tensor)
    axis = whole("axis", axis, -x.dim(), x.dim() - 1)
    size, head_dim = x.size(axis), len(order)
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


NORMS = tuple(f"{side}_{norm}" for norm in ("norm", "layernorm", "layer_norm") for side in ("q", "k", "query", "key"))
"""Modules of transformers that norm queries and keys, head by head or all heads at once."""

PROJECTIONS = ("q_proj", "k_proj", *NORMS)
"""Modules that make queries and keys in most models of transformers, and those that norm them."""

OTHER_NORMS = ("v_norm", "q_a_norm", "q_a_layernorm", "kv_a_layernorm", "attn_sub_norm")
"""Norms beside projections, of what does not turn: values, MLA's latents, the output."""

BY_OUTPUT = (
    "weight",
    "bias",
    "weight_scale",
    "weight_zero_point",
    "scales",
    "zero_point",
    "weight._data",
    "weight._scale",
)
ADAPTERS = ("lora_B", "lora_embedding_B", "lora_magnitude_vector")
UNTOUCHED = ("input_scale", "output_scale", "lora_A", "lora_embedding_A")

SIDES = {"queries": {"q", "query"}, "keys": {"k", "key", "kv"}}
"""Words in the name of a module that say what it makes or norms."""

Found = dict[tuple[str, ...], dict[str, dict[str, str]]]
"""What is converted: an attention's path, the name of a module in it, a name in the state, and what of it that is."""


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
    that are of the whole tensor, stay. A module with "norm" or "ln" in its name is a norm, with weights (head_dim,),
    (heads head_dim,), (heads, head_dim) or, as StableLM's, a module for each head. Projections that make queries, keys
    and values at once are not taken apart: cut them first.
    ``convert_layout(convert_layout(state, "interleaved", d), "half", d)`` is the state again, bit by bit.

    Where queries and keys have heads of other widths, as in MLA, each is a call of its own, with ``projections`` of one
    side; so is each set of layers, where heads are wider in some.

    Errors: ValueError for a state without such a module, for an attention of which ``projections`` names both sides and
    has one (an adapter may be of one alone), for a parameter whose channels are not known (packed weights, scales of
    blocks of channels), for norms of other widths or unknown ones beside a projection, and as `half_to_interleaved`.
    """
    check_choice("to", to, ("half", "interleaved"))
    order = _order(head_dim, rotary_dim, first_channel, to)
    found = _found(state, projections)
    if not found:
        raise ValueError(f"state must have a module named {', '.join(projections)}, got {_first(state)}")
    converted = dict(state)
    for modules in found.values():
        for module, parameters in modules.items():
            for name, inner in parameters.items():
                x = state[name]
                if inner.split(".")[0] in UNTOUCHED or x.numel() == 1:
                    continue
                if _is_norm(module):
                    beside = [m for m in modules if not _is_norm(m) and _sides([m]) & _sides([module])]
                    _check_norm(name, x, inner, head_dim, _widths(state, modules, beside))
                else:
                    _check_projection(name, x, inner, _widths(state, modules, [module]))
                converted[name] = _moved(name, x, order, -1 if _is_norm(module) else 0)
    _check_sides(found, projections)
    _check_gates(state, found)
    _check_norms(state, found, projections)
    return converted


def _found(state: Mapping[str, Tensor], projections: Sequence[str]) -> Found:
    found: Found = {}
    for name in state:
        parts = name.split(".")
        where = [n for n, part in enumerate(parts) if part in projections]
        if where:
            *path, module = parts[: where[-1] + 1]
            inner = ".".join(part for part in parts[where[-1] + 1 :] if part != "base_layer")
            found.setdefault(tuple(path), {}).setdefault(module, {})[name] = inner
    return found


def _is_norm(module: str) -> bool:
    return "norm" in module.lower() or "ln" in module.split("_")


def _sides(modules: Iterable[str]) -> set[str]:
    return {side for module in modules for side, words in SIDES.items() if words & set(module.lower().split("_"))}


def _check_sides(found: Found, projections: Sequence[str]) -> None:
    """Scores stay as they are where both sides are converted. An adapter may be of one side alone."""
    named = [name for name in projections if not _is_norm(name)]
    for path, modules in found.items():
        weighty = [m for m, inner in modules.items() if any(i.startswith("weight") for i in inner.values())]
        missing = _sides(named) - _sides(m for m in weighty if not _is_norm(m))
        if weighty and missing:
            side = max(missing)
            others = ", ".join(name for name in named if side in _sides([name]))
            raise ValueError(
                f"state has {'.'.join((*path, weighty[0]))!r}, and beside it none of {others}: both sides must be "
                f"converted; name what makes {side} in projections=, or convert queries and keys by a call each, with "
                f"projections= of one side"
            )


def _check_gates(state: Mapping[str, Tensor], found: Found) -> None:
    """A q_proj that also makes a gate, as Qwen3-Next's, has heads that are not all queries."""
    for path in found:
        names = [".".join((*path, module, "weight")) for module in ("q_proj", "k_proj", "v_proj", "o_proj")]
        weights = [state[name] for name in names if name in state]
        if len(weights) < len(names) or not all(x.dim() == 2 and x.is_floating_point() for x in weights):
            continue
        q, k, v, o = weights
        if q.size(0) * v.size(0) != o.size(1) * k.size(0):
            raise ValueError(
                f"state has {names[0]!r}, {shown(q)}, which makes more than the queries that o_proj, {shown(o)}, "
                "takes: cut the rows of a gate from it first, and put them back"
            )


def _check_norms(state: Mapping[str, Tensor], found: Found, projections: Sequence[str]) -> None:
    """No norm beside a projection is left out for its name."""
    for name in state:
        parts = name.split(".")
        for n, part in enumerate(parts):
            if not _is_norm(part) or part in projections or part in OTHER_NORMS:
                continue
            beside = [module for module in found.get(tuple(parts[:n]), ()) if not _is_norm(module)]
            of_the_other_side = _sides([part]) and not _sides([part]) & _sides(beside)
            if beside and not of_the_other_side:
                raise ValueError(
                    f"state has {name!r} beside {beside[0]}, and projections do not name {part!r}: "
                    f"if it norms queries or keys, name it there, else convert the state without it"
                )


def _check_norm(name: str, x: Tensor, inner: str, head_dim: int, widths: list[int]) -> None:
    """A norm is of a head, or of all channels that the projection beside it gives."""
    *within, kind = inner.split(".")
    if kind not in ("weight", "bias") or not all(part == "norms" or part.isdigit() for part in within):
        raise _unknown(name, x, ("weight", "bias", "norms.0.weight"))
    if x.size(-1) != head_dim and (x.dim() > 1 or (widths and x.size(0) not in widths)):
        width = f" nor of all {widths[0]}" if widths else ""
        raise ValueError(
            f"state has {name!r}, {shown(x)}, which is not of a head of head_dim = {head_dim} channels{width}; "
            f"where heads are wider in some layers, convert those by a call of their own"
        )


def _check_projection(name: str, x: Tensor, inner: str, widths: list[int]) -> None:
    packed = inner == "weight" and x.dtype is torch.uint8
    if packed or (inner not in BY_OUTPUT and inner.split(".")[0] not in ADAPTERS):
        raise _unknown(name, x, (*BY_OUTPUT, *ADAPTERS))
    if widths and x.size(0) not in widths:
        raise ValueError(f"state has {name!r}, {shown(x)}, which has not one entry for each of {widths[0]} channels")


def _widths(state: Mapping[str, Tensor], modules: Mapping[str, Mapping[str, str]], of: Iterable[str]) -> list[int]:
    """How many channels each of these modules gives, where its weight is there to say so."""
    return [
        state[name].size(0)
        for module in of
        for name, inner in modules[module].items()
        if inner in ("weight", "weight._data")
    ]


def _unknown(name: str, x: Tensor, known: Sequence[str]) -> ValueError:
    return ValueError(
        f"state has {name!r}, {shown(x)}: what its channels are is not known, so it cannot be converted; "
        f"known are {', '.join(known)}"
    )


def _first(state: Mapping[str, Tensor]) -> str:
    names = list(state)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "nothing"


# -- learned tables ---------------------------------------------------------------------------------------------------


def resize_line(table: Float[Tensor, "... rows dim"], length: int, *, kept: int = 0) -> Float[Tensor, "... length dim"]:
    """A learned table for more or fewer positions, by linear interpolation between its rows.

    Position i of m new ones maps to (i + 1/2) n/m - 1/2 of the n old ones, clamped to the ends: centres of positions
    are aligned, as in `Positions.grid` with ``extent``. The first ``kept`` rows (two in OPT, pad_token_id + 1 in
    RoBERTa) are not positions: they are unchanged, and do not count in ``length``.

    Computed in float32 at least and rounded once. The same length returns the same table, bit for bit.
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

    Rows are patches in row-major order, after ``kept`` rows for class tokens and registers, which are unchanged. Both
    sizes must be given. Centres of patches are aligned, (i + 1/2) n/m - 1/2, by the two sizes and not by a rounded
    factor. ``mode`` is "bicubic" (PyTorch's kernel, a = -3/4, or -1/2 with
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
