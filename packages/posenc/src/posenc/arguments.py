"""Argument checks. Each raises a ValueError that names the argument, what was expected and what was passed."""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar


def shown(value: object) -> str:
    """A value as error messages show it: its repr, but dtype and shape of a tensor or array, and the type of anything
    that does not fit on a line.

    >>> shown("12"), shown((2, None)), shown(float)
    ("'12'", '(2, None)', 'the class float')
    """
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        described = f"{value.dtype} {tuple(value.shape)}"
        if described.startswith("torch."):
            return described
        if value.shape:  # a NumPy scalar is shown like a Python number
            return f"{kind} {described}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(shown, value[:8])) + (", ..." if len(value) > 8 else "," if len(value) == 1 else "")
        return f"({inside})" if isinstance(value, tuple) else f"[{inside.removesuffix(',')}]"
    written = repr(value)
    return kind if len(written) > 60 or written.startswith("<") or "\n" in written else written


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The value as an int within ``least``..``most``. Raises ValueError otherwise, also for True, 12.0 or "12"."""
    if not isinstance(value, bool) and isinstance(value, Integral):
        found = int(value)
        if found >= least and (most is None or found <= most):
            return found
    within = f"of at least {least}" if most is None else f"within {least}..{most}"
    raise ValueError(f"{name} must be a whole number {within}, got {shown(value)}")


def sides(grid: Any, name: str = "grid") -> tuple[int, int]:
    """Height and width, each at least 1. Raises ValueError for anything else."""
    if not isinstance(grid, Sequence) or len(grid) != 2:
        raise ValueError(f"{name} must be (height, width), got {shown(grid)}")
    return whole(f"{name}[0]", grid[0]), whole(f"{name}[1]", grid[1])


def is_number(value: object) -> bool:
    """Whether it is a real number of Python or NumPy, and not a bool."""
    return not isinstance(value, bool) and isinstance(value, Real)


def one_or(size: int, n: int) -> bool:
    """Whether a size broadcasts to n. By "==", since ``in`` does not work for the symbolic sizes of a dynamic graph."""
    return size == n or size == 1  # in this order: of a length and itself, an exported program asks nothing


def number(name: str, value: Any, above: int | float = -math.inf, least: int | float | None = None) -> float:
    """The value as a finite float above ``above``, or of at least ``least``. Raises ValueError otherwise, also for True
    or "12"."""
    try:
        found = float(value) if is_number(value) else math.nan
    except OverflowError:  # an int beyond the largest float
        found = math.inf
    if (above < found if least is None else least <= found) and found < math.inf:
        return found
    beyond = "" if above == -math.inf else f" above {above:g}"
    beyond = beyond if least is None else f" of at least {least:g}"
    raise ValueError(f"{name} must be a finite number{beyond}, got {shown(value)}")


def check_flag(name: str, value: Any) -> None:
    """ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_choice(name: str, value: Any, choices: Sequence[Any], more: str = "") -> None:
    """ValueError, ending with ``more``, unless the value is one of the choices, which are all str or all dtypes."""
    if not isinstance(value, type(choices[0])) or value not in choices:
        raise ValueError(f"{name} must be {_either(list(map(repr, choices)))}, got {shown(value)}{more}")


def check_name(name: str, value: str, names: Sequence[str], more: str = "") -> None:
    """ValueError, with the closest name, unless the value is one of the ``names``; ``more`` lists other valid values.
    More than 12 names are listed only where none is close.

    >>> check_name("figure", "tabel", ("lines", "table"))
    Traceback (most recent call last):
    ...
    ValueError: figure must be one of lines, table, got 'tabel' (did you mean 'table'?)
    """
    if value not in names:
        close = meant(value, names)
        listed = "the known names" if close and len(names) > 12 else ", ".join(names)
        raise ValueError(f"{name} must be one of {listed}{more}, got {value!r}{close}")


def meant(value: object, names: Sequence[str]) -> str:
    """The end of an error message: the closest of the names if any is close, or the one that differs in case; or both
    schemes that are called PRoPE."""
    if not isinstance(value, str):
        return ""
    if value.lower() == "prope":
        return (
            ": p-RoPE of Barbero et al. 2024 is RoPE with the scaling Proportional (p_rope), PRoPE of Li et al. 2025, "
            "for cameras, is Cameras (cameras)"
        )
    close = difflib.get_close_matches(value, names, n=1) or [n for n in names if n.lower() == value.lower()]
    return f" (did you mean {close[0]!r}?)" if close else ""


FOREIGN = {
    "causal": "is_causal",
    **dict.fromkeys(("positions", "position_ids", "input_pos"), "query_positions"),
    **dict.fromkeys(("mask", "attention_mask", "attn_bias", "bias"), "attn_mask"),
    **dict.fromkeys(("softmax_scale", "sm_scale", "scaling"), "scale"),
    **dict.fromkeys(("dropout", "p"), "dropout_p"),
    **dict.fromkeys(("window_size", "sliding_window", "local_window_size"), "window"),
    **dict.fromkeys(("theta", "rope_theta", "freq_base"), "base"),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), "scaling"),
    **dict.fromkeys(("dim", "d", "head_size"), "head_dim"),
    **dict.fromkeys(("d_model", "embed_dim", "embedding_dim", "hidden_size", "head_dim"), "dim"),
    **dict.fromkeys(("heads", "n_heads", "n_head", "nhead", "num_attention_heads"), "num_heads"),
    **dict.fromkeys(("max_seq_len", "max_len", "max_position_embeddings", "num_embeddings"), "max_positions"),
}
"""What other libraries call an argument, and its name here."""


def instead_of(argument: str, known: Collection[str]) -> str:
    """The end of an error message for an argument that a call does not take: which of the ``known`` to pass."""
    name = FOREIGN.get(argument)
    if name in known:
        return f": pass {name}="
    if "max_positions" in (name, argument):
        return ": leave it out"
    return meant(argument, list(known))


F = TypeVar("F", bound=Callable[..., Any])


def naming(initialize: F) -> F:
    """An ``__init__`` whose TypeError for an argument of another library has the name to pass here."""
    parameters = inspect.signature(initialize).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return initialize
    known = [parameter.name for parameter in parameters][1:]

    @functools.wraps(initialize)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> None:
        for argument in (name for name in kwargs if name not in known):
            raise TypeError(f"{type(self).__name__} has no argument {argument!r}{instead_of(argument, known)}")
        initialize(self, *args, **kwargs)

    return checked  # type: ignore[return-value]  # of the same signature


def check_type(name: str, value: Any, *kinds: type | None) -> None:
    """ValueError unless the value has one of these types, where None means None itself."""
    for kind in kinds:
        if value is None if kind is None else isinstance(value, kind):
            return
    known = ["None" if kind is None else kind.__name__ for kind in kinds]
    named = [noun if noun == "None" else f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}" for noun in known]
    raise ValueError(f"{name} must be {_either(named)}, got {shown(value)}{_hint(kinds, value)}")


def _hint(kinds: Sequence[type | None], value: Any) -> str:
    """How to make positions of the number of tokens, or the tensor, that was passed instead."""
    if "Positions" not in {getattr(kind, "__name__", "") for kind in kinds}:
        return ""
    if type(value) is int and value >= 0:
        return f"; use Positions.arange({value})"
    if type(value).__name__ != "Tensor":
        return ""
    # The axis of tokens of coordinates, (rows, tokens, dim) and (rows, heads, tokens, head_dim).
    axis = {1: 0, 3: 1, 4: 2}.get(value.dim())
    line = "" if axis is None else f"Positions.arange({value.size(axis)}), "
    return f"; use {line}Positions.from_ids(position_ids, mask), or Positions.padded(mask) for a mask of tokens"


def swapped_axes(name: str, x: Any, tokens: int) -> str:
    """The end of an error message for a tensor whose heads seem to be its third axis, not its second."""
    if x.dim() != 4 or x.size(1) != tokens:
        return ""
    shape = f"it must be (batch, heads, tokens, head_dim), got {tuple(x.shape)}"
    return f"; {shape}: if that is (batch, tokens, heads, head_dim), pass {name}.transpose(1, 2)"


def missing_axis(name: str, x: Any) -> str:
    """The end of an error message for a tensor of three axes, one short of (batch, heads, tokens, head_dim)."""
    if getattr(x, "ndim", 0) != 3:
        return ""
    return (
        f"; if that is (batch, tokens, head_dim), of one head, pass {name}.unsqueeze(1), if it is (heads, tokens, "
        f"head_dim), pass {name}.unsqueeze(0), and if it is (tokens, heads, head_dim), of documents that cu_seqlens "
        f"divides, pass {name}.transpose(0, 1).unsqueeze(0) with Positions.packed(cu_seqlens=...)"
    )


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
