"""Validates the arguments of `Positions` and its constructors."""

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from posenc.arguments import check_choice, check_type, number, one_or, shown

NUMBERS = (torch.int64, torch.float32, torch.float64)  # dtypes of coordinates


def is_readable(x: Tensor) -> bool:
    """Whether values can be read without synchronizing a device."""
    return type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()


def check_facts(coords: Any, **facts: Any) -> int:
    """The number of rows of positions with these tensors. Raises ValueError for a wrong shape, dtype or device."""
    if not isinstance(coords, Tensor) or coords.dim() not in (2, 3):
        raise ValueError(f"coords must be a tensor (rows, tokens) or (rows, tokens, axes), got {described(coords)}")
    if coords.dtype not in NUMBERS:
        raise ValueError(
            f"coords must be int64, float32 or float64 (half precision cannot tell 256 from 257), got {coords.dtype}"
        )
    rows, tokens = coords.shape[:2]
    for name, value in facts.items():
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.dim() != 2 or value.size(1) != tokens:
            raise ValueError(f"{name} must be a tensor (rows, {tokens}) like coords, got {described(value)}")
        if value.dtype != torch.int64:
            raise ValueError(f"{name} must be int64, got {value.dtype}")
        if value.device != coords.device:
            raise ValueError(f"{name} must be on {coords.device} like coords, got {value.device}")
        if rows != 1 and not one_or(value.size(0), rows):
            raise ValueError(f"{name} must have 1 or {rows} rows like coords, got {value.size(0)}")
        rows = value.size(0) if rows == 1 else rows  # there may also be 0 rows
    return rows


def check_parts(parts: Any, kind: type, documents: Any) -> None:
    """ValueError for arguments that `Positions.cat` cannot join: no parts, wrong types, several devices or numbers of
    axes, segments in only some parts, an unknown ``documents``."""
    check_type("parts", parts, Sequence)
    if not parts:
        raise ValueError("cat needs at least one Positions, got none")
    for part in parts:
        check_type("parts", part, kind)
        if part.device != parts[0].device:
            raise ValueError(f"parts must be on one device, got {parts[0].device} and {part.device}")
        if part.coords.shape[2:] != parts[0].coords.shape[2:]:
            raise ValueError(f"cat needs parts with the same number of axes, got {parts[0]} and {part}")
    if len({part.segment is None for part in parts}) > 1:
        raise ValueError("segment must be given in every part or in none")
    if documents is not None:
        check_choice("documents", documents, ("same", "new"))


def axes_of(coords: Tensor) -> int:
    return 1 if coords.dim() == 2 else coords.size(2)


def token_mask(name: str, mask: Any) -> Tensor:
    """The mask of tokens as bool. Raises ValueError unless it is a bool tensor or one of 0 and 1."""
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.is_floating_point() or mask.is_complex():
        hint = (
            "; convert a float mask with mask == 1, or an additive one with mask == 0"
            if isinstance(mask, Tensor) and mask.dim() == 2
            else ""
        )
        raise ValueError(f"{name} must be a tensor (rows, tokens) of True or 1 = token, got {described(mask)}{hint}")
    if mask.dtype == torch.bool:
        return mask
    if is_readable(mask) and mask.numel() and not ((mask == 0) | (mask == 1)).all():
        odd = mask[(mask != 0) & (mask != 1)][0]
        raise ValueError(f"{name} must be bool or contain only 0 and 1, got {int(odd)}")
    return mask != 0


def documents_of(name: str, mask: Any) -> Tensor:
    """The document of each token, and -1 for padding, from a mask of tokens or one that numbers the documents of each
    row in their order from 1 on. Raises ValueError for another."""
    is_whole = isinstance(mask, Tensor) and mask.dim() == 2 and not (mask.is_floating_point() or mask.is_complex())
    if not is_whole or mask.dtype == torch.bool or (is_readable(mask) and not (mask > 1).any()):
        return token_mask(name, mask).long() - 1
    if is_readable(mask):
        wrong = (mask < 0) | ((mask > 0) & (mask < mask.cummax(1).values))
        goes_on = (mask[:, 1:] == mask[:, :-1]) & (mask[:, 1:] > 0)
        if wrong.any() or not goes_on.any():  # documents of one token each would rather be position ids
            odd = int(mask[wrong][0] if wrong.any() else mask.max())
            raise ValueError(
                f"{name} must be bool, contain only 0 and 1, or number the documents of each row in order, such as "
                f"1 1 1 2 2 0, got {odd}; for position ids use Positions.from_ids"
            )
    return mask.long() - 1


def real(name: str, value: Any) -> Any:
    """An integral number as int, any other as float, a symbolic one unchanged. ValueError unless it is finite."""
    if isinstance(value, torch.SymInt):
        return value
    found = number(name, value)
    return int(value) if isinstance(value, Integral) else found


def extent_of(extent: Any) -> tuple[float, float]:
    if not isinstance(extent, Sequence) or len(extent) != 2:
        raise ValueError(f"extent must be (height, width) or None, got {shown(extent)}")
    return number("extent[0]", extent[0], above=0), number("extent[1]", extent[1], above=0)


def lengths_of_documents(lengths: Any, cu_seqlens: Any) -> list[list[int]]:
    """The lengths of each row's documents. ValueError unless one of the two is given, as whole numbers: ``lengths`` of
    at least 0, or ``cu_seqlens`` that begin at 0 and do not decrease."""
    if (lengths is None) == (cu_seqlens is None):
        which = "none" if lengths is None else "both"
        raise ValueError(f"lengths or cu_seqlens must be given, got {which}")
    if cu_seqlens is not None:
        ends = _numbers(cu_seqlens)
        are_whole = all(map(_is_whole, ends))
        steps = [int(b - a) for a, b in pairwise(ends)] if are_whole else [-1]
        if min(steps, default=0) < 0 or ends[:1] != [0]:
            given = shown(cu_seqlens if ends == [None] else ends)
            falls = next((f" ({b} after {a})" for a, b in pairwise(ends) if are_whole and b < a), "")
            raise ValueError(
                f"cu_seqlens must be whole numbers that begin at 0 and do not decrease, got {given}{falls}: for the "
                "lengths of documents pass lengths="
            )
        return [steps]
    listed = _numbers(lengths)
    if getattr(lengths, "ndim", 0) == 1 and listed[:1] == [0] and listed[-1] and listed == sorted(listed):
        raise ValueError(
            f"lengths must be a list where a tensor could be cumulative sums, got {shown(lengths)}: pass "
            "cu_seqlens=... for sums from 0, lengths.tolist() for lengths"
        )
    rows = [listed] if all(isinstance(n, Integral) for n in listed) else [_numbers(row) for row in listed]
    if not all(_is_whole(n) for row in rows for n in row):
        raise ValueError(f"lengths must be whole numbers, or a sequence of them for each row, got {lengths!r}")
    if any(n < 0 for row in rows for n in row):
        raise ValueError(f"lengths must not be negative, got {listed}")
    return [[int(n) for n in row] for row in rows]


def _is_whole(n: object) -> bool:
    return isinstance(n, Integral) and not isinstance(n, bool)


def _numbers(given: Any) -> list[Any]:
    """A sequence, a tensor or an array of NumPy as a list; for anything else, a list that holds no number."""
    if getattr(given, "ndim", 0) > 0 and hasattr(given, "tolist") and not getattr(given, "is_meta", False):
        return list(given.tolist())
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [None]


def check_index(index: Any, tokens: int) -> None:
    """ValueError for an invalid index of tokens."""
    if isinstance(index, slice):
        parts = {"start": index.start, "stop": index.stop, "step": index.step}
        ends = {name: end for name, end in parts.items() if end is not None}
        check_whole(**ends)
        if ends.get("step", 1) < 1:
            raise ValueError(f"step must be above 0, got {index.step}")
    elif not (isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64):
        raise ValueError(f"positions are indexed by a slice or a 1-D int64 tensor of tokens, got {described(index)}")
    elif index.numel() and is_readable(index):
        lowest, highest = int(index.min()), int(index.max())
        if lowest < -tokens or highest >= tokens:
            outside = lowest if lowest < -tokens else highest
            raise ValueError(f"index must be within {-tokens}..{tokens - 1}, got {outside}")


def ends_of(index: slice, tokens: int) -> tuple[int, int]:
    """The ends of a slice of step 1, as slice.indices, which would specialize a graph to one length."""
    start, stop = (0 if index.start is None else index.start), (tokens if index.stop is None else index.stop)
    start, stop = (end + tokens if end < 0 else end for end in (start, stop))
    return min(max(start, 0), tokens), min(max(stop, 0), tokens)


def check_whole(**values: object) -> None:
    """ValueError unless all are ints, possibly symbolic."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
            raise ValueError(f"{name} must be a whole number, got {shown(value)}")


def check_held(name: str, *ends: Any) -> None:
    """ValueError for integer coordinates that int64 cannot represent, as far as they are known in a graph."""
    for end in ends:
        if isinstance(end, Integral) and not -(2**63) <= int(end) < 2**63:
            raise ValueError(
                f"{name} must keep coordinates within -2**63..2**63 - 1, which int64 represents, got {end}"
            )


def check_exact(coords: Tensor) -> None:
    """ValueError for float32 coordinates of a size at which float32 cannot tell one from the next."""
    if coords.dtype == torch.float32 and is_readable(coords) and bool((coords.abs() > 2**24).any()):
        raise ValueError(
            "coords must be float64 beyond 2**24, where float32 cannot tell one coordinate from the next, got float32 "
            f"{float(coords.abs().max()):g}: pass float64, or subtract the first coordinate before the cast to float32"
        )


def check_not_negative(**values: Any) -> None:
    """ValueError unless all are ints of at least 0."""
    check_whole(**values)
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")


def device_of(device: Any) -> Any:
    """The torch.device. Raises ValueError for an unknown one."""
    if device is None or isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one that torch knows, got {shown(device)}") from None


def described(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__} {value!r}"
