"""The answers that the kernel must know, by the reference backend: `python -m tests.backends.known_answers` writes them
to `posenc/backends/native/known.json`."""

import json
import math
from collections.abc import Callable

import torch
from torch import Tensor

from posenc.backends.call import Call
from posenc.backends.native.proof import BLIND, BREAKS, FIXED, IN_DOUBLE, KNOWN, Question, measured, named, questions
from posenc.backends.reference import REFERENCE
from posenc.encoding.pieces import AddedVector, Bias, CumulativeBias, Distance, Function, Piece, RelativeDot, Value
from posenc.schemes.distance_aware import rescaled
from posenc.schemes.softcap import capped

SINGLE = 2.0**-24
LINE = Distance("Known", integral=True)


def by_distance(table: Tensor, low: int) -> Callable[[Tensor], Tensor]:
    """What a table has at distances, the last entries going on."""
    return lambda r: table[:, (r - low).clamp(0, table.size(1) - 1)]


def pieces(ask: Question, x: dict[str, Tensor]) -> tuple[list[Piece], list[Value]]:
    """The terms of a question as a scheme would say them, of these tensors."""
    _, lows, (function, is_last) = ask.given
    at = {name: by_distance(x[name], low) for name, low in lows.items() if name != "plane"}
    found: list[Piece] = []
    if "vectors" in x:
        found.append(RelativeDot(at["vectors"], LINE, feature="meeting" if "meeting" in x else None))
    if "key_vectors" in x:  # the kernel's are scaled
        found.append(RelativeDot(lambda r: at["key_vectors"](r) / ask.place.scale, LINE, side="key"))
    if "bias" in x:
        found.append(Bias(lambda r: at["bias"](r)[..., 0], LINE))
    if "shift" in x:
        found.append(AddedVector("Known", query=x["shift"][None, :, None]))
    if "query_clock" in x:
        found.append(CumulativeBias("clock"))
    if "lines" in x:
        found.append(Function(lambda score: score + broken(ask, x)))
    found += planar(ask, x)
    if function:
        f = Function((rescaled, capped)[function - 1], lambda r: (at["factor"](r)[..., 0],), LINE)
        found.insert(len(found) if is_last else 0, f)
    return found, [Value(at["values"], LINE)] if "values" in x else []


def broken(ask: Question, x: dict[str, Tensor]) -> Tensor:
    """l x + m of every pair, with x = away(r) share and (l, m) that of its line."""
    r = ask.key_positions.coords[:, None] - ask.query_positions.coords[:, :, None]
    place = (r - ask.reach[0]).clamp(0, x["away"].size(1) - 1)
    there = x["away"][0, :, 0][place] * x["share"][..., None]
    line = torch.bucketize(there.detach(), torch.tensor(BREAKS, dtype=there.dtype))
    slope, start = (x["lines"][:, :, n][:, line].movedim(1, 0) for n in (0, 1))
    return slope * there[:, None] + start


def planar(ask: Question, x: dict[str, Tensor]) -> list[Piece]:
    """What goes by two coordinates."""
    low = ask.reach[0]
    found: list[Piece] = []
    if "plane" in x:
        found.append(Bias(lambda r: x["plane"][:, r[..., 0] - low, r[..., 1] - low], Distance("Known", None, 2)))
    for axis, name in enumerate(("by_row", "by_column")):
        if name in x:  # its numbers meet vectors of which each picks one
            picks = torch.eye(x[name].size(-1), dtype=x[name].dtype)[None]
            found.append(RelativeDot(by_distance(picks, low), Distance("Known", axis, 2), feature=name))
    return found


def turn(ask: Question, x: Tensor, given: dict[str, Tensor], side: str) -> Tensor:
    """x with pairs of channels turned by angles, from a channel on."""
    if not ask.rotation:
        return x
    first, is_interleaved = ask.rotation
    cos, sin = given[f"{side}_cos"], given[f"{side}_sin"]
    pairs = cos.size(-1)
    numbers = first + torch.arange(2 * pairs)
    one, other = numbers.view(pairs, 2).T if is_interleaved else numbers.view(2, pairs)
    left, right = x[..., one], x[..., other]
    turned = torch.cat((left * cos - right * sin, left * sin + right * cos), -1)
    return x.index_copy(-1, torch.cat((one, other)), turned)


def answers(ask: Question, dtype: torch.dtype = torch.float64, times: float = 1.0) -> dict[str, Tensor]:
    """What the reference makes of a question in this precision, by name. Gradients are computed of so many ``times``
    those that are asked for, and divided again: which rounds otherwise."""
    query, key, value = (ask.tensors[name].to(dtype) for name in ("query", "key", "value"))
    dout, dlse = ((times * ask.tensors[f"gradient of the {name}"]).to(dtype) for name in ("output", "log-sum-exp"))
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in ask.given[0].items()}
    given |= {name: given[name].double() for name in IN_DOUBLE if name in given and "clock" in name}
    leaves = {"query": query, "key": key, "value": value}
    leaves |= {name: x for name, x in given.items() if name not in FIXED}
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    found, values = pieces(ask, leaves)
    turned = {side: turn(ask, leaves[side], given, side) for side in ("query", "key")}
    clocks = [{"clock": leaves[f"{side}_clock"]} if f"{side}_clock" in leaves else {} for side in ("query", "key")]
    features = {name: leaves[name] for name in ("meeting", "by_row", "by_column") if name in leaves}
    call = Call(
        turned["query"],
        turned["key"],
        leaves["value"],
        ask.query_positions,
        ask.key_positions,
        tuple(found),
        tuple(values),
        None,
        ask.place.visibility,
        0.0,
        ask.place.scale,
        True,
        query_features={**clocks[0], **features},
        key_features=clocks[1],
    )
    out, lse = REFERENCE.run(call)
    gradients = torch.autograd.grad(
        (out, lse), list(leaves.values()), (dout, dlse.masked_fill(lse == -torch.inf, 0.0)), materialize_grads=True
    )
    gradients = [gradient.double() / times for gradient in gradients]
    return named(out.detach(), lse.detach(), dict(zip(leaves, gradients, strict=True)))


def known(ask: Question) -> dict[str, list[float]]:
    """What is kept of a question: of every answer x projection and length; ``off``, how far single precision is off, in
    roundings, the furthest of three ways to round, as a gradient that is a single number may be right by chance in one;
    and ``least``: a weight e^(s - lse) is off by the rounding of both, relatively, which a reference that keeps no
    log-sum-exp does not show, so (1 + the greatest log-sum-exp) |x|. The last two are rounded up to powers of two."""
    found, single = answers(ask), [answers(ask, torch.float32, times) for times in (1.0, 1.1, 1.3)]
    seen = found["log-sum-exp"] != BLIND
    greatest = 1 + found["log-sum-exp"][seen].abs().max().item()
    kept = {}
    for name, x in found.items():
        off = max((one[name].double() - x).norm().item() for one in single) / SINGLE
        kept[name] = [*measured(x), *map(rounded_up, (off, greatest * x.norm().item()))]
    return kept


def rounded_up(x: float) -> float:
    return 2.0 ** math.ceil(math.log2(x)) if x else 0.0


def text() -> str:
    """The file, a question in each line."""
    lines = (f"{json.dumps(ask.name)}: {json.dumps(known(ask))}" for ask in questions())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    KNOWN.write_text(text())
