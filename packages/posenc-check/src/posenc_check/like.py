"""Builds the scheme that a subject claims to implement, with the subject's parameters."""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from itertools import islice, permutations
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from posenc import Scheme, catalog
from posenc.arguments import meant, shown
from posenc.schemes.entry import Shape
from posenc_check.calls import attributes_of, one_line
from posenc_check.captured import EXCHANGED, scores_of
from posenc_check.subjects import Batch, Bias, Layer, Subject
from posenc_check.trial import TrialPlan

LIKE_FORMS = 'a scheme of posenc, the name of one such as "t5" or "t5(num_buckets=16)", or a function that gives one'


# -- which scheme ------------------------------------------------------------------------------------------------------


class LayerSizes(NamedTuple):
    """How many heads a subject has, and how wide they are, as far as that is known."""

    heads: int | None = None
    head_dim: int | None = None


UNKNOWN_SIZES = LayerSizes()


def scheme_of(subject: Subject, sizes: LayerSizes = UNKNOWN_SIZES, changed: Mapping[str, Any] = {}) -> Scheme:
    """The scheme that a subject claims to be, in float64, with newly drawn parameters; ``changed`` options of the
    subject count.

    ``sizes`` are used where the name of a scheme does not give them. Raises ValueError for what is no scheme.
    """
    like = scheme = subject.like
    with torch.random.fork_rng(devices=()):  # building draws parameters
        if isinstance(like, str):
            scheme = _scheme_by_name(like, subject, sizes)
        elif callable(like) and not isinstance(like, nn.Module):
            options = {**subject.options, **changed}
            scheme = like(**{name: options[name] for name in signature(like).parameters if name in options})
    if not isinstance(scheme, Scheme):
        raise ValueError(f"like must be {LIKE_FORMS}, got {shown(scheme)}")
    return copy.deepcopy(scheme).double()


def check_like(subject: Subject) -> None:
    """Raises ValueError if ``like`` is no scheme, or has heads or parameters that the subject does not have."""
    made = subject.make()
    sizes = sizes_of(subject, made)
    scheme, heads = scheme_of(subject, sizes), sizes.heads
    wanted = next((n for part in scheme.modules() if (n := getattr(part, "num_heads", None)) is not None), None)
    if None not in (heads, wanted) and wanted != heads and {"score", "value"} & set(scheme.doors):
        raise ValueError(
            f"like must have as many heads as the subject, {heads}, got {wanted} of {type(scheme).__name__}: say "
            f"heads={wanted} and build so many, or give like those of the subject"
        )
    adopt(scheme, subject, made)


def sizes_of(subject: Subject, made: Any) -> LayerSizes:
    """The sizes of a bias, of the scores in a layer, or those that the subject claims."""
    if isinstance(subject, Bias):
        line = torch.arange(2, device=subject.device)[None]
        line = line if subject.axes == 1 else line[..., None].expand(-1, -1, subject.axes)
        return LayerSizes(int(subject.bias(made, line, line).size(1)), subject.head_dim)
    if isinstance(subject, Layer):
        plan = TrialPlan(subject)
        batch = plan.text(1, plan.room(subject.registers + 2))
        return captured_sizes(subject, made, batch)
    return LayerSizes(getattr(subject, "heads", None), getattr(subject, "head_dim", None))


def captured_sizes(subject: Subject, made: Any, batch: Batch) -> LayerSizes:
    """The number of heads of the first attention whose scores are captured; how wide they are is not known."""
    scores = scores_of(subject, made, batch)
    return LayerSizes(scores[0].size(1)) if scores else LayerSizes()


def _scheme_by_name(text: str, subject: Subject, sizes: LayerSizes) -> Scheme:
    """The scheme of that name, with the sizes and claims of the subject, and the options in the text."""
    name, _, rest = text.partition("(")
    options = _options(text) if rest else {}
    entry = next((entry for entry in catalog() if entry.name == name.strip()), None)
    if entry is None:
        hint = ": a function gives a sum of several"
        hint = hint if "+" in name else meant(name.strip(), [entry.name for entry in catalog()]) or hint
        raise ValueError(f"like must name one scheme of posenc.catalog(), got {text!r}{hint}")
    claimed_heads = (v for k, v in subject.options.items() if "heads" in k and isinstance(v, int))
    heads = sizes.heads or next(claimed_heads, 0) or 1
    takes = signature(entry.scheme).parameters
    if unknown := [k for k in options if k not in takes]:
        raise ValueError(
            f"like must give options that {entry.scheme.__name__} has, {', '.join(takes)}; got {unknown[0]!r} in "
            f"{text!r}"
        )
    heads = options.get("num_heads", heads)
    head_dim = options.get("head_dim", sizes.head_dim)
    if "head_dim" in takes and head_dim is None:
        raise ValueError(f"like must say how wide heads are, as in '{name.strip()}(head_dim=64)', got {text!r}")
    head_dim, longest = head_dim or 2, options.get("max_positions", subject.max_positions or 64)
    grid = subject.max_grid or (longest,) * subject.axes
    dim = options.get("dim", getattr(subject, "dim", heads * head_dim))
    shape = Shape(dim, heads, head_dim, longest, causal=subject.causal, grid=tuple(grid) if subject.axes > 1 else None)
    claimed = {k: getattr(subject, k, None) for k in ("base", "layout", "rotary_dim")}
    said = {k: v for k, v in claimed.items() if v is not None and k in takes}
    usual = entry.build(shape)
    said |= {k: v for k, v in options.items() if getattr(usual, k, None) != v}
    return rebuild(usual, **said)


def _options(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and not call.args:
            return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"like must be {LIKE_FORMS}, with options as name=value, got {text!r}")


def rebuild(scheme: Scheme, **changed: Any) -> Scheme:
    """The same scheme with some arguments changed. It must have its arguments as attributes."""
    if not changed:
        return scheme
    given = {}
    for name, parameter in signature(type(scheme)).parameters.items():
        if hasattr(scheme, name):
            given[name] = getattr(scheme, name)
        elif parameter.default is parameter.empty and name not in changed:
            raise ValueError(
                f"like must be a scheme itself where it has options: {type(scheme).__name__} is built anew"
            )
    return type(scheme)(**{**given, **changed})


# -- its parameters ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def adopt(scheme: Scheme, subject: Subject, made: Any, order: int = 0) -> Scheme:
    """Copies the parameters of the subject into the scheme: by ``match``, or those of the same shapes.

    Axes of size 1 are ignored, and a matrix may be transposed. Several of one shape are matched by name, or else by
    order; ``order`` chooses another order. Raises ValueError if there are not as many as the scheme has.
    """
    if subject.match is not None:
        try:
            given = subject.match(made, scheme)
        except Exception as error:
            raise ValueError(f"match must give the scheme its parameters, and failed: {one_line(error)}") from error
        return (given if isinstance(given, Scheme) else scheme).double()
    wanted, held = dict(scheme.named_parameters()), _tensors(made)
    for shape in dict.fromkeys(map(_bare, wanted.values())):
        ours = {name: x for name, x in wanted.items() if _bare(x) == shape}
        theirs = _of_shape(held, shape)
        namesakes = [[k for k in theirs if k == name or k.endswith(f".{name}")] for name in ours]
        names = [found[0] for found in namesakes if len(found) == 1]
        if len(set(names)) != len(ours):
            names = list(theirs)
            if len(names) != len(ours):
                said = ", ".join(f"{name} {tuple(x.shape)}" for name, x in held.items()) or "none"
                raise ValueError(
                    f"like: {type(scheme).__name__} has {', '.join(ours)} of shape {shape}, and build makes "
                    f"{len(theirs)} of that shape (it has {said}): give like with the options of the subject, or say "
                    "which is which with match=, a function of what build makes and the scheme"
                )
            names = list(next(islice(permutations(names), order, None), names))
        for own, name in zip(ours.values(), names, strict=True):
            value = theirs[name].detach().double()
            value = value.reshape(shape) if _bare(value) == shape else value.reshape(shape[::-1]).mT
            own.copy_(value.reshape(own.shape))
    return scheme


def _tensors(made: Any) -> dict[str, Tensor]:
    """The parameters and then the buffers of a module; of anything else, every floating-point tensor that it holds."""
    if isinstance(made, nn.Module):
        found: Iterator[tuple[str, Any]] = iter([*made.named_parameters(), *made.named_buffers()])
    else:
        found = attributes_of(made)
    return {name: x for name, x in found if isinstance(x, Tensor) and x.is_floating_point()}


def _of_shape(held: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The tensors of this shape, or else, for a matrix, of the transposed shape; parameters before buffers."""
    for wanted in (shape, shape[::-1] if len(shape) == 2 else shape):
        for trained in (True, False):
            found = {k: x for k, x in held.items() if _bare(x) == wanted and isinstance(x, nn.Parameter) == trained}
            if found:
                return found
    return {}


def _bare(x: Tensor) -> tuple[int, ...]:
    return tuple(n for n in x.shape if n != 1)


# -- its conventions ---------------------------------------------------------------------------------------------------

MAX_PARAMETER_ORDERS = 6  # orders that are tried: all those of three parameters


@dataclass(frozen=True)
class Convention:
    """A scheme, as claimed (with the name "") or in another convention, and a function applied to its positions."""

    name: str
    scheme: Scheme
    places: Callable[[Tensor], Tensor] = lambda coords: coords


def conventions_of(subject: Subject, made: Any, sizes: LayerSizes, changed: Mapping[str, Any]) -> list[Convention]:
    """The scheme that the subject claims to be, with the subject's parameters; then its other conventions: parameters
    of one shape in another order, other values of options that have few, distances of the opposite sign, and axes in
    another order."""
    usual = scheme_of(subject, sizes, changed)
    usual = adopt(usual, subject, made)
    found = [Convention("", usual)]
    if len({_bare(x) for x in usual.parameters()}) < len(list(usual.parameters())) and subject.match is None:
        found += [
            Convention(f"{EXCHANGED} ({order})", adopt(copy.deepcopy(usual), subject, made, order))
            for order in range(1, MAX_PARAMETER_ORDERS)
        ]
    for name, value in _choices(usual):
        with suppress(ValueError), torch.random.fork_rng(devices=()):
            other = adopt(rebuild(usual, **{name: value}).double(), subject, made)
            found.append(Convention(f"{type(usual).__name__} with {name}={value!r}", other))
    found.append(Convention(f"{type(usual).__name__} with the sign of all distances reversed", usual, torch.neg))
    for axes in permutations(range(subject.axes)):
        if list(axes) != sorted(axes):
            name = f"{type(usual).__name__} with the axes in the order {list(axes)}"
            found.append(Convention(name, usual, lambda coords, axes=list(axes): coords[..., axes]))  # type: ignore[misc]
    return found


def _choices(scheme: Scheme) -> Iterator[tuple[str, Any]]:
    """The other values of options that are a Literal or a bool."""
    for name, kind in get_type_hints(type(scheme).__init__).items():
        now = getattr(scheme, name, None)
        values = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        yield from ((name, value) for value in values if value != now)
