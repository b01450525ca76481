"""Converts weights: pairs of channels to the other layout, and learned tables to other sizes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from posenc.arguments import check_choice, check_flag, check_type, shown, sides, whole
from posenc.rotation.phases import PairLayout

# -- the layout of pairs ----------------------------------------------------------------------------------------------


def half_to_interleaved(
    x: Shaped[Tensor, "..."], head_dim: int, *, rotary_dim: int | None = None, first_channel: int = 0, axis: int = 0
) -> Shaped[Tensor, "..."]:
    """Converts weights of queries or keys from the "half" to the "interleaved" layout of a rotation.

    Channel k of the rotated d = rotary_dim channels of each head goes to 2k, channel k + d/2 to 2k + 1. If both queries
    and keys are converted, scores do not change. Values, output and channels that are not rotated are unchanged.

    ``x`` has heads times ``head_dim`` entries along ``axis``, for any number of heads: the weight of q_proj or k_proj
    (axis 0; of a Conv1D axis -1), its bias, LoRA's B (LoRA's A does not change), scales and zero points per output
    channel, and the weight of a norm of queries or keys, (head_dim,) or (heads head_dim,). In MLA: q_b_proj, with
    head_dim = qk_nope_head_dim + qk_rope_head_dim, rotary_dim = qk_rope_head_dim and first_channel =
    qk_nope_head_dim; and kv_a_proj_with_mqa, a single head of kv_lora_rank + qk_rope_head_dim with first_channel =
    kv_lora_rank.

    `interleaved_to_half` is the inverse. Entries are moved, not changed, so a round trip is exact in any dtype.
    Errors: ValueError for an axis whose size is not a multiple of head_dim, or a rotary_dim that is odd or too large.
    """
    return _permute("x", x, _order(head_dim, rotary_dim, first_channel, "interleaved"), axis)


def interleaved_to_half(
    x: Shaped[Tensor, "..."], head_dim: int, *, rotary_dim: int | None = None, first_channel: int = 0, axis: int = 0
) -> Shaped[Tensor, "..."]:
    """The inverse of `half_to_interleaved`: channel 2k goes to k, channel 2k + 1 to k + rotary_dim/2."""
    return _permute("x", x, _order(head_dim, rotary_dim, first_channel, "half"), axis)


def _permute(name: str, x: Tensor, order: Tensor, axis: int) -> Tensor:
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
    """The old index of each new channel of a head."""
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
"""Modules of transformers that normalize queries and keys, per head or over all heads."""

PROJECTIONS = ("q_proj", "k_proj", *NORMS)
"""Modules that project queries and keys in most models of transformers, and those that normalize them."""

OTHER_NORMS = ("v_norm", "q_a_norm", "q_a_layernorm", "kv_a_layernorm", "attn_sub_norm")
"""Norms of tensors that are not rotated: values, MLA's latent vectors, the output."""

WEIGHTS = ("weight", "weight._data")  # of optimum-quanto
BY_OUTPUT = (*WEIGHTS, "bias", "weight_scale", "weight_zero_point", "scales", "zero_point", "weight._scale")
ADAPTERS = ("lora_B", "lora_embedding_B", "lora_magnitude_vector")
UNTOUCHED = ("input_scale", "output_scale", "lora_A", "lora_embedding_A")

SIDES = {"queries": {"q", "query"}, "keys": {"k", "key", "kv"}}
"""Words in a module's name that mean queries or keys."""

Found = dict[tuple[str, ...], dict[str, dict[str, str]]]
"""What is converted: path of an attention -> module in it -> name in the state -> parameter of the module."""


def convert_layout(
    state: Mapping[str, Tensor],
    to: PairLayout,
    head_dim: int,
    *,
    rotary_dim: int | None = None,
    first_channel: int = 0,
    projections: Sequence[str] = PROJECTIONS,
) -> dict[str, Tensor]:
    """A state_dict for a rotation in the other layout: a new dictionary, which shares all other tensors.

    For every module named in ``projections``, converts weights, biases, LoRA's B (with or without adapter names) and
    scales and zero points per output channel like `half_to_interleaved` or `interleaved_to_half`. LoRA's A and numbers
    for the whole tensor do not change. A module with "norm" or "ln" in its name is a norm, with weights (head_dim,),
    (heads head_dim,), (heads, head_dim) or, as in StableLM, a module per head. A projection of queries, keys and values
    at once must be split before. A round trip, ``convert_layout(convert_layout(state, "interleaved", d), "half", d)``,
    is exact.

    If queries and keys have heads of different widths, as in MLA, call it once for each, with their ``projections``;
    if layers differ in width, call it once for each set of layers.

    Errors: ValueError for a state without such a module, for an attention that has only one of the sides that
    ``projections`` names (an adapter may have one), for a parameter with unknown channels (packed weights, scales of
    blocks of channels), for norms of other widths or unknown ones beside a projection, and as for
    `half_to_interleaved`.
    """
    check_choice("to", to, ("half", "interleaved"))
    order = _order(head_dim, rotary_dim, first_channel, to)
    found = _find_weights(state, projections)
    if not found:
        names = ", ".join([*list(state)[:3], *["..."][: len(state) > 3]]) or "nothing"
        raise ValueError(f"state must have a module named {', '.join(projections)}, got {names}")
    converted = dict(state)
    for modules in found.values():
        for module, parameters in modules.items():
            is_norm = _is_norm(module)
            beside = [m for m in modules if not _is_norm(m) and _sides(m) & _sides(module)] if is_norm else [module]
            widths = [state[n].size(0) for m in beside for n, inner in modules[m].items() if inner in WEIGHTS]
            for name, inner in parameters.items():
                if inner.split(".")[0] not in UNTOUCHED and state[name].numel() > 1:
                    _check_channels(name, state[name], inner, is_norm, head_dim, widths)
                    converted[name] = _permute(name, state[name], order, -1 if is_norm else 0)
    _check_sides(found, projections)
    _check_gates(state, found)
    _check_norms(state, found, projections)
    return converted


def _find_weights(state: Mapping[str, Tensor], projections: Sequence[str]) -> Found:
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


def _sides(*modules: str) -> set[str]:
    return {side for module in modules for side, words in SIDES.items() if words & set(module.lower().split("_"))}


def _check_sides(found: Found, projections: Sequence[str]) -> None:
    """ValueError if only one side is converted, which would change scores. An adapter may have one side."""
    named = [name for name in projections if not _is_norm(name)]
    for path, modules in found.items():
        weighty = [m for m, inner in modules.items() if any(i.startswith("weight") for i in inner.values())]
        missing = _sides(*named) - _sides(*(m for m in weighty if not _is_norm(m)))
        if weighty and missing:
            side = max(missing)
            others = ", ".join(name for name in named if side in _sides(name))
            raise ValueError(
                f"state has {'.'.join((*path, weighty[0]))!r}, and beside it none of {others}: both sides must be "
                f"converted; name the module of {side} in projections=, or convert queries and keys in separate calls, "
                f"with projections= of one side"
            )


def _check_gates(state: Mapping[str, Tensor], found: Found) -> None:
    """ValueError for a q_proj that also projects a gate, as in Qwen3-Next."""
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
    """ValueError for an unknown norm beside a projection."""
    for name in state:
        parts = name.split(".")
        for n, part in enumerate(parts):
            if not _is_norm(part) or part in projections or part in OTHER_NORMS:
                continue
            beside = [module for module in found.get(tuple(parts[:n]), ()) if not _is_norm(module)]
            of_the_other_side = _sides(part) and not _sides(part) & _sides(*beside)
            if beside and not of_the_other_side:
                raise ValueError(
                    f"state has {name!r} beside {beside[0]}, and projections do not name {part!r}: "
                    f"if it normalizes queries or keys, name it there, else convert the state without it"
                )


def _check_channels(name: str, x: Tensor, inner: str, is_norm: bool, head_dim: int, widths: list[int]) -> None:
    """ValueError for a parameter with unknown channels, or neither of a head nor of all channels of a projection."""
    *within, kind = inner.split(".")
    if is_norm:
        known: tuple[str, ...] = ("weight", "bias", "norms.0.weight")
        is_known = kind in known and all(part == "norms" or part.isdigit() for part in within)
    else:
        known, is_packed = (*BY_OUTPUT, *ADAPTERS), inner == "weight" and x.dtype is torch.uint8
        is_known = not is_packed and (inner in BY_OUTPUT or inner.split(".")[0] in ADAPTERS)
    if not is_known:
        raise ValueError(
            f"state has {name!r}, {shown(x)}: its channels are not known, so it cannot be converted; "
            f"known are {', '.join(known)}"
        )
    if is_norm and x.size(-1) != head_dim and (x.dim() > 1 or (widths and x.size(0) not in widths)):
        width = f" nor of all {widths[0]}" if widths else ""
        raise ValueError(
            f"state has {name!r}, {shown(x)}, which is not of a head of head_dim = {head_dim} channels{width}; "
            f"where heads are wider in some layers, convert those in a separate call"
        )
    if not is_norm and widths and x.size(0) not in widths:
        raise ValueError(f"state has {name!r}, {shown(x)}, which has not one entry for each of {widths[0]} channels")


# -- learned tables ---------------------------------------------------------------------------------------------------


def resize_line(table: Float[Tensor, "... rows dim"], length: int, *, kept: int = 0) -> Float[Tensor, "... length dim"]:
    """A learned table for more or fewer positions, by linear interpolation between its rows.

    Position i of m new ones maps to (i + 1/2) n/m - 1/2 of the n old ones, clamped to the ends: centers of positions
    are aligned, as in `Positions.grid` with ``extent``. The first ``kept`` rows (two in OPT, pad_token_id + 1 in
    RoBERTa) are not positions: they are unchanged, and do not count in ``length``.

    Computed in float32 or wider and rounded once. For the same length, returns the table itself.
    Errors: ValueError for a table that is not floating, or that has only the kept rows.
    """
    rows = _table(table, kept) - kept
    length = whole("length", length)
    return _resized(table, kept, (rows,), (length,), mode="linear")


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

    Rows are patches in row-major order, after ``kept`` rows for class tokens and registers, which are unchanged.
    Centers of patches are aligned, (i + 1/2) n/m - 1/2, by the two sizes and not by a rounded factor. ``mode`` is
    "bicubic" (PyTorch's kernel, a = -3/4, or -1/2 with antialias) or "bilinear". ``antialias`` blurs when the grid
    shrinks, as in timm and DINOv2 with registers. The bias of Swin is a grid (2h - 1, 2w - 1) with heads as dim.

    Computed in float32 or wider and rounded once. For the same size, returns the table itself.
    Errors: ValueError for a table without kept + height width rows, and for sizes below 1.
    """
    rows = _table(table, kept)
    (height, width), (new_height, new_width) = sides(grid), sides(to, "to")
    check_choice("mode", mode, ("bicubic", "bilinear"))
    check_flag("antialias", antialias)
    if rows != kept + height * width:
        raise ValueError(
            f"table must have kept + height width = {kept} + {height} x {width} = {kept + height * width} rows, "
            f"got {tuple(table.shape)}"
        )
    return _resized(table, kept, (height, width), (new_height, new_width), mode=mode, antialias=antialias)


def _table(table: Tensor, kept: int) -> int:
    """How many rows it has."""
    if not isinstance(table, Tensor) or table.dim() < 2 or not table.is_floating_point():
        raise ValueError(f"table must be a floating tensor (..., rows, dim), got {shown(table)}")
    whole("kept", kept, 0, table.size(-2) - 1)
    return table.size(-2)


def _resized(table: Tensor, kept: int, sizes: tuple[int, ...], to: tuple[int, ...], **how: Any) -> Tensor:
    """The table with other rows behind those that are kept; itself for the same sizes."""
    if sizes == to:
        return table
    wide, dim = table.to(torch.promote_types(table.dtype, torch.float32))[..., kept:, :], table.size(-1)
    wide = wide.reshape(-1, math.prod(sizes), dim).mT.unflatten(-1, sizes)
    resized = F.interpolate(wide, to, align_corners=False, **how).flatten(2).mT
    rows = resized.reshape(*table.shape[:-2], math.prod(to), dim).to(table.dtype)
    return torch.cat((table[..., :kept, :], rows), -2)
