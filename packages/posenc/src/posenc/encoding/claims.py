"""What terms need of positions, and whether they are what their `Distance` declares, which backends rely on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc import compat
from posenc.encoding.encoding import Encoding
from posenc.encoding.terms import Bias, Distance, Function, RelativeDot, Value
from posenc.positions.positions import Positions

NEAR, FARTHEST = 64, 20  # beyond `past`, so many distances in a row are tried, and powers of two up to this one
FAILURES = (IndexError, RuntimeError)  # of a table without such an entry

_is_checking = sys.flags.dev_mode  # python -X dev
_OfDistance: TypeAlias = "Bias | RelativeDot | Function | Value"


class ClaimError(ValueError):
    """A term of a scheme is not what its `Distance` declares."""


@contextmanager
def checking_claims() -> Iterator[None]:
    """A context in which schemes are tried when they are bound, as they always are under ``python -X dev``."""
    global _is_checking
    before, _is_checking = _is_checking, True
    try:
        yield
    finally:
        _is_checking = before


def coordinates(distance: Distance, positions: Positions) -> Tensor:
    """(rows, tokens) along the term's axis, or (rows, tokens, axes). Raises ValueError for a wrong number of axes, and
    for missing segments."""
    coords, scheme = positions.coords, distance.scheme
    if distance.axis == "segment":
        if positions.segment is None:
            raise ValueError(f"{scheme} needs positions with a segment per token: positions.with_segment(segment)")
        return positions.segment
    if distance.integral and coords.dtype != torch.int64:
        raise ValueError(f"{scheme} looks distances up in a table and needs int64 coordinates, got {coords.dtype}")
    axes, wanted = 1 if coords.dim() == 2 else coords.size(2), distance.axes
    if distance.axis is None:
        wanted = axes if distance.reach is None else len(distance.reach)
    elif wanted == 1:
        return positions.scalar(scheme)
    if coords.dim() != 3 or axes != wanted:
        how = "Positions.grid(height, width)" if wanted == 2 else f"Positions(coords), coords (rows, tokens, {wanted})"
        raise ValueError(
            f"{scheme} takes {wanted} coordinates per token, got positions of {axes}: make them with {how}"
        )
    return coords if distance.axis is None else coords[..., distance.axis]


def check_bound(scheme: nn.Module, encoding: Encoding) -> None:
    """ValueError for a scheme bound to positions of another number of axes, or another dtype, than its terms take.

    Within `checking_claims`, `ClaimError` for a false `Distance`, which names the attribute, the distance, the head and
    the error; not where operations are traced or the scheme's parameters have no numbers.
    """
    terms = (*encoding.score_terms, *encoding.values)
    for term in terms:
        if term.distance is not None:
            for positions in (encoding.query_positions, encoding.key_positions):
                coordinates(term.distance, positions)
    if torch.compiler.is_compiling() or not _is_checking or not compat.is_eager():
        return
    parameters = list(scheme.parameters())
    if any(type(x) not in compat.PLAIN or x.is_meta for x in parameters):
        return
    device = next((x.device for x in parameters), torch.device("cpu"))
    with torch.no_grad():
        for term in terms:
            if isinstance(term, (Bias, RelativeDot, Function, Value)) and term.distance is not None:
                wrong = _false_claim(term, term.distance, device)
                if wrong:
                    raise ClaimError(f"{type(scheme).__name__}: its {type(term).__name__} declares {wrong}")


def _false_claim(term: _OfDistance, claimed: Distance, device: torch.device) -> str:
    """The false attribute, and what shows it; empty if there is none."""
    if claimed.axis is None:
        sides = [torch.tensor([1 - n, 0, n - 1], device=device) for n in claimed.reach or ()]
        return _missing(term, claimed, torch.cartesian_prod(*sides)) if sides else ""
    reach = 2**FARTHEST + claimed.past + 1 if claimed.reach is None else claimed.reach[0]
    beyond = {claimed.past + n for n in (*range(NEAR), *(2**n for n in range(FARTHEST + 1)))}
    away = torch.tensor(sorted(n for n in {0, reach - 1} | beyond if n < reach), device=device)
    if wrong := _missing(term, claimed, torch.cat((-away, away))):
        return wrong
    if not claimed.integral:
        away = torch.cat((away, away[:-1] + 0.5)).double().sort().values
        try:
            _entries(term, away)
        except (TypeError, *FAILURES) as error:
            return f"integral=False, but distance 0.5 has no entry ({_describe_error(error)}): declare integral=True"
    if isinstance(term, Bias) and not term.masks and bool(_entries(term, torch.cat((-away, away))).isneginf().any()):
        return "masks=False, but some of its numbers are -inf: declare masks=True"
    tail = away[away >= claimed.past]
    if claimed.tail is None or len(tail) < 3:
        return ""
    sides = [-tail, tail]
    off, description = max((_deviation(term, claimed, r) for r in sides), key=lambda values: values[0])
    if not off:
        return ""
    later = (n for n in away[(away > claimed.past) & (away < claimed.past + NEAR)] if float(n).is_integer())
    starts = (int(n) for n in later if not any(_deviation(term, claimed, r[r.abs() >= n])[0] for r in sides))
    start = next(starts, None)
    if start is None:
        return f"tail={claimed.tail!r} and past={claimed.past}, but {description}: declare another tail, or tail=None"
    return f"past={claimed.past}, but is {claimed.tail} from {start} on only: {description}: declare past={start}"


def _missing(term: _OfDistance, claimed: Distance, r: Tensor) -> str:
    """The nearest distance without an entry."""
    try:
        _entries(term, r)
    except FAILURES:
        size = r.abs() if r.dim() == 1 else r.abs().sum(-1)
        for n in r[size.argsort(stable=True)]:
            try:
                _entries(term, n[None])
            except FAILURES as error:
                description = (
                    f"reach={claimed.reach}, but distance {n.tolist()} has no entry ({_describe_error(error)})"
                )
                return f"{description}: declare the first distance without one"
    return ""


def _entries(term: _OfDistance, r: Tensor) -> Float[Tensor, "heads distances channels"]:
    if isinstance(term, Function):
        values = term.coefficients(r) or (torch.zeros(1, len(r), device=r.device),)
    else:
        values = (term.vectors(r) if isinstance(term, Value) else term.at(r),)
    heads = max(x.size(0) for x in values)
    return torch.cat([x.reshape(x.size(0), len(r), -1).expand(heads, -1, -1) for x in values], -1)


def _deviation(term: _OfDistance, claimed: Distance, r: Tensor) -> tuple[float, str]:
    """How far the term is from its tail at the first of the distances r of one side at which it is, and in words."""
    entries = _entries(term, r)
    rounding = 16 * max(torch.finfo(entries.dtype).eps, 2.0**-23)  # it may compute in float32 whatever it returns
    actual, apart = entries.double(), (r - r[0]).abs()[:, None]
    expected, slack = actual[:, :1].expand_as(actual), actual.abs() + actual[:, :1].abs()
    if claimed.tail == "constant":  # also one that the term approaches: what is left is nothing beside its near numbers
        near = torch.arange(min(claimed.past, NEAR) + 1, device=r.device) * r[-1:].sign().to(torch.int64)
        slack = slack + _entries(term, near).double().abs().nan_to_num(0.0, 0.0).amax(1, keepdim=True)
    elif claimed.tail == "linear":
        step = _entries(term, r[:1] + r[-1:].sign()).double() - actual[:, :1]
        expected, slack = expected + step * apart, slack + (2 * actual[:, :1].abs() + step.abs()) * apart
        expected = torch.where(actual == actual[:, :1], actual, expected)  # also of -inf, times a distance of 0
    error = torch.where(actual == expected, 0.0, (actual - expected).abs()).nan_to_num(torch.inf, torch.inf)
    error = error.masked_fill(error <= rounding * slack.nan_to_num(posinf=0.0), 0.0)
    off = error.amax((0, 2)).nonzero()
    if not len(off):
        return 0.0, ""
    n = int(off[0])
    head, channel = divmod(int(error[:, n].argmax()), error.size(2))
    is_, is_not, by = (x[head, n, channel].item() for x in (actual, expected, error))
    return by, f"at distance {r[n].item():g} head {head} has {is_:.6g} and not {is_not:.6g}, which is {by:.2g} off"


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
