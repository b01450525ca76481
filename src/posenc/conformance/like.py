"""The scheme that a subject is said to be, with the parameters of the subject."""

import ast
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.conformance.calls import holdings, one_line
from posenc.conformance.captured import EXCHANGED, scores_of
from posenc.conformance.heads import Bias
from posenc.conformance.layers import Layer
from posenc.conformance.subjects import Batch, Subject
from posenc.scheme import Scheme, bare_parts
from posenc.schemes.catalog import entries_of
from posenc.schemes.entry import Shape

Said = dict[str, Any]  # plain numbers, which a script can hold
LONGEST = 1025  # tokens of the first grid that a layer has
FORM = 'a scheme of posenc, the name of one such as "t5" or "t5(num_buckets=16)", or a function that gives one'


# -- which scheme ------------------------------------------------------------------------------------------------------


def scheme_of(subject: Subject, heads: int | None = None, changed: Mapping[str, Any] = {}) -> Scheme:
    """The scheme that a subject claims to be, in float64, with parameters of its own; for these options of the subject.

    ``heads``: those of the subject, where a name says nothing of them. Raises ValueError for what is no scheme.
    """
    like = scheme = subject.like
    with torch.random.fork_rng(devices=()):  # building draws parameters
        if isinstance(like, str):
            scheme = _named(like, subject, heads)
        elif callable(like) and not isinstance(like, nn.Module):
            options = {**subject.options, **changed}
            scheme = like(**{name: options[name] for name in inspect.signature(like).parameters if name in options})
    if not isinstance(scheme, Scheme):
        raise ValueError(f"like must be {FORM}, got {shown(scheme)}")
    return copy.deepcopy(scheme).double()


def check_like(subject: Subject) -> None:
    """ValueError where ``like`` is no scheme, has other heads than the subject, or parameters that it is not given."""
    made = subject.make()
    heads = _heads_of(subject, made)
    scheme = scheme_of(subject, heads)
    wanted = next((n for part in bare_parts(scheme) if (n := getattr(part, "num_heads", None)) is not None), None)
    if None not in (heads, wanted) and wanted != heads and {"score", "value"} & set(scheme.doors):
        raise ValueError(
            f"like must have as many heads as the subject, {heads}, got {wanted} of {type(scheme).__name__}: say "
            f"heads={wanted} and build so many, or give like those of the subject"
        )
    adopt(scheme, subject, made)


def _heads_of(subject: Subject, made: Any) -> int | None:
    """How many heads a bias has, what a layer gives to its softmax, or the subject claims."""
    if isinstance(subject, Bias):
        line = torch.arange(2, device=subject.device)[None]
        line = line if subject.axes == 1 else line[..., None].expand(-1, -1, subject.axes)
        return int(subject.bias(made, line, line).size(1))
    if isinstance(subject, Layer):
        sizes = range(subject.registers + 2, LONGEST)
        tokens = next((n for n in sizes if not subject.on_grids or subject.grid_of(n)), sizes[0])
        heard = scores_of(subject, made, Batch([[1] * tokens]))
        return heard[0].size(1) if heard else None
    return getattr(subject, "heads", None)


def _named(text: str, subject: Subject, heads: int | None) -> Scheme:
    """The scheme of a name, for the sizes of the subject and what else it claims, with options written after it."""
    name, _, rest = text.partition("(")
    options = _options(text) if rest else {}
    (entry, *others) = entries_of(name.strip())
    if others:
        raise ValueError(f"like must name one scheme, got {text!r}: a function gives a sum of several")
    heads = heads or getattr(subject, "heads", None) or _option_of_heads(subject) or 1
    head_dim = getattr(subject, "head_dim", None) or max(getattr(subject, "dim", heads) // heads, 1)
    grid = subject.max_grid or subject.trained_grid or (subject.max_positions or 64,) * subject.axes
    shape = Shape(
        getattr(subject, "dim", heads * head_dim),
        heads,
        head_dim,
        subject.max_positions or 64,
        causal=subject.causal,
        grid=tuple(grid) if subject.axes > 1 else None,
    )
    claimed = {k: getattr(subject, k, None) for k in ("base", "layout", "rotary_dim")}
    usual = entry.build(shape)
    takes = inspect.signature(type(usual)).parameters
    said = {k: v for k, v in claimed.items() if v is not None and k in takes}
    unknown = [k for k in options if k not in takes]
    if unknown:
        raise ValueError(f"like must give options that {type(usual).__name__} has, {', '.join(takes)}; got {text!r}")
    return rebuilt(usual, **{**said, **options})


def _options(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and not call.args:
            return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"like must be {FORM}, with options as name=value, got {text!r}")


def _option_of_heads(subject: Subject) -> int | None:
    return next((v for k, v in subject.options.items() if "heads" in k and isinstance(v, int)), None)


def rebuilt(scheme: Scheme, **changed: Any) -> Scheme:
    """The same scheme with some arguments changed, where it keeps its arguments under their names."""
    if not changed:
        return scheme
    given = {}
    for name, parameter in inspect.signature(type(scheme)).parameters.items():
        if hasattr(scheme, name):
            given[name] = getattr(scheme, name)
        elif parameter.default is parameter.empty and name not in changed:
            raise ValueError(
                f"like must be a scheme itself where it has options: {type(scheme).__name__} is built anew"
            )
    return type(scheme)(**{**given, **changed})


# -- its parameters ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def adopt(scheme: Scheme, subject: Subject, made: Any, turn: int = 0) -> Scheme:
    """Gives the scheme the parameters of what was made: by ``match``, or those of the same shapes.

    A shape without its ones counts, and a matrix may lie on its side. Several of one shape are taken by their names, or
    else in their order; ``turn``: in another one. ValueError where there are not as many as the scheme has.
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
            names = list(next(islice(permutations(names), turn, None), names))
        for own, name in zip(ours.values(), names, strict=True):
            value = theirs[name].detach().double()
            value = value.reshape(shape) if _bare(value) == shape else value.reshape(shape[::-1]).mT
            own.copy_(value.reshape(own.shape))
    return scheme


def _tensors(made: Any) -> dict[str, Tensor]:
    """The parameters of a module, then its buffers; of anything else every floating tensor that can be reached."""
    if isinstance(made, nn.Module):
        found: Iterator[tuple[str, Any]] = iter([*made.named_parameters(), *made.named_buffers()])
    else:
        found = holdings(made)
    return {name: x for name, x in found if isinstance(x, Tensor) and x.is_floating_point()}


def _of_shape(held: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Those of this shape, or else, of a matrix, those that lie on their side; parameters before buffers."""
    for wanted in (shape, shape[::-1] if len(shape) == 2 else shape):
        for trained in (True, False):
            found = {k: x for k, x in held.items() if _bare(x) == wanted and isinstance(x, nn.Parameter) == trained}
            if found:
                return found
    return {}


def _bare(x: Tensor) -> tuple[int, ...]:
    return tuple(n for n in x.shape if n != 1)


# -- its conventions ---------------------------------------------------------------------------------------------------

TURNS = 6  # orders of three parameters


@dataclass(frozen=True)
class Convention:
    """A scheme, as it is or in another of its conventions: its name, and what it makes of positions."""

    name: str
    scheme: Scheme
    places: Callable[[Tensor], Tensor] = lambda coords: coords


def adopted(subject: Subject, made: Any, heads: int | None, changed: Mapping[str, Any]) -> list[Convention]:
    """What the subject claims to be, with the parameters of what it made; then what differs from that by convention:
    the scheme with another value of an option that has few, with the sign of all distances turned, and with the axes in
    another order."""
    usual = scheme_of(subject, heads, changed)
    usual = adopt(usual, subject, made)
    found = [Convention("", usual)]
    if len({_bare(x) for x in usual.parameters()}) < len(list(usual.parameters())) and subject.match is None:
        found += [
            Convention(f"{EXCHANGED} ({turn})", adopt(copy.deepcopy(usual), subject, made, turn))
            for turn in range(1, TURNS)
        ]
    for name, value in _choices(usual):
        with suppress(ValueError), torch.random.fork_rng(devices=()):
            other = adopt(rebuilt(usual, **{name: value}).double(), subject, made)
            found.append(Convention(f"{type(usual).__name__} with {name}={value!r}", other))
    found.append(Convention(f"{type(usual).__name__} with the sign of all distances turned", usual, torch.neg))
    for axes in permutations(range(subject.axes)):
        if list(axes) != sorted(axes):
            name = f"{type(usual).__name__} with the axes in the order {list(axes)}"
            found.append(Convention(name, usual, lambda coords, axes=list(axes): coords[..., axes]))  # type: ignore[misc]
    return found


def _choices(scheme: Scheme) -> Iterator[tuple[str, Any]]:
    """The other values of options that have few."""
    for name, kind in get_type_hints(type(scheme).__init__).items():
        now = getattr(scheme, name, None)
        values = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        yield from ((name, value) for value in values if value != now)
