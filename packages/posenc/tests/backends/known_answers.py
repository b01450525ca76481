"""The known answers of the kernel, by the reference backend: `python -m tests.backends.known_answers` writes them
to `posenc/backends/native/known.json`."""

import json
import math
from collections.abc import Callable

import torch
from torch import Tensor

from posenc.backends.call import Call
from posenc.backends.native.proof import (
    BREAKPOINTS,
    IN_DOUBLE,
    KNOWN_ANSWERS,
    MASKED_LSE,
    WITHOUT_GRADIENT,
    KnownAnswerCase,
    answers_by_name,
    cases,
    fingerprint,
)
from posenc.backends.reference import REFERENCE
from posenc.encoding.terms import AddedVector, Bias, CumulativeBias, Distance, Function, RelativeDot, ScoreTerm, Value
from posenc.schemes.distance_aware import rescaled
from posenc.schemes.softcap import capped

SINGLE = 2.0**-24
LINE = Distance("Known", integral=True)


def by_distance(table: Tensor, low: int) -> Callable[[Tensor], Tensor]:
    """What a table has at distances, the last entries going on."""
    return lambda r: table[:, (r - low).clamp(0, table.size(1) - 1)]


def score_terms(case: KnownAnswerCase, x: dict[str, Tensor]) -> tuple[list[ScoreTerm], list[Value]]:
    """The terms of a case as a scheme would state them, of these tensors."""
    _, lows, (function, is_last) = case.operands
    at = {name: by_distance(x[name], low) for name, low in lows.items() if name != "plane"}
    terms: list[ScoreTerm] = []
    if "vectors" in x:
        terms.append(RelativeDot(at["vectors"], LINE, feature="meeting" if "meeting" in x else None))
    if "key_vectors" in x:  # the kernel's are scaled
        terms.append(RelativeDot(lambda r: at["key_vectors"](r) / case.geometry.scale, LINE, side="key"))
    if "bias" in x:
        terms.append(Bias(lambda r: at["bias"](r)[..., 0], LINE))
    if "shift" in x:
        terms.append(AddedVector("Known", query=x["shift"][None, :, None]))
    if "query_clock" in x:
        terms.append(CumulativeBias("clock"))
    if "lines" in x:
        terms.append(Function(lambda score: score + piecewise_linear(case, x)))
    terms += planar(case, x)
    if function:
        f = Function((rescaled, capped)[function - 1], lambda r: (at["factor"](r)[..., 0],), LINE)
        terms.insert(len(terms) if is_last else 0, f)
    return terms, [Value(at["values"], LINE)] if "values" in x else []


def piecewise_linear(case: KnownAnswerCase, x: dict[str, Tensor]) -> Tensor:
    """l x + m of every pair, with x = away(r) share and (l, m) that of its line."""
    r = case.key_positions.coords[:, None] - case.query_positions.coords[:, :, None]
    entry = (r - case.distance_range[0]).clamp(0, x["away"].size(1) - 1)
    along = x["away"][0, :, 0][entry] * x["share"][..., None]
    line = torch.bucketize(along.detach(), torch.tensor(BREAKPOINTS, dtype=along.dtype))
    slope, start = (x["lines"][:, :, n][:, line].movedim(1, 0) for n in (0, 1))
    return slope * along[:, None] + start


def planar(case: KnownAnswerCase, x: dict[str, Tensor]) -> list[ScoreTerm]:
    """What depends on two coordinates."""
    low = case.distance_range[0]
    terms: list[ScoreTerm] = []
    if "plane" in x:
        terms.append(Bias(lambda r: x["plane"][:, r[..., 0] - low, r[..., 1] - low], Distance("Known", None, 2)))
    for axis, name in enumerate(("by_row", "by_column")):
        if name in x:  # its numbers meet vectors of which each picks one
            picks = torch.eye(x[name].size(-1), dtype=x[name].dtype)[None]
            terms.append(RelativeDot(by_distance(picks, low), Distance("Known", axis, 2), feature=name))
    return terms


def rotate(case: KnownAnswerCase, x: Tensor, operands: dict[str, Tensor], side: str) -> Tensor:
    """x with pairs of channels rotated by angles, from a channel on."""
    if not case.rotation:
        return x
    first, is_interleaved = case.rotation
    cos, sin = operands[f"{side}_cos"], operands[f"{side}_sin"]
    pairs = cos.size(-1)
    numbers = first + torch.arange(2 * pairs)
    one, other = numbers.view(pairs, 2).T if is_interleaved else numbers.view(2, pairs)
    left, right = x[..., one], x[..., other]
    rotated = torch.cat((left * cos - right * sin, left * sin + right * cos), -1)
    return x.index_copy(-1, torch.cat((one, other)), rotated)


def answers(case: KnownAnswerCase, dtype: torch.dtype = torch.float64, times: float = 1.0) -> dict[str, Tensor]:
    """The answers of the reference to a case in this precision, by name. Gradients are computed of so many ``times``
    those that are asked for, and divided again: which rounds otherwise."""
    query, key, value = (case.tensors[name].to(dtype) for name in ("query", "key", "value"))
    dout, dlse = ((times * case.tensors[f"gradient of the {name}"]).to(dtype) for name in ("output", "log-sum-exp"))
    operands = {name: x.to(dtype) if x.is_floating_point() else x for name, x in case.operands[0].items()}
    operands |= {name: operands[name].double() for name in IN_DOUBLE if name in operands and "clock" in name}
    leaves = {"query": query, "key": key, "value": value}
    leaves |= {name: x for name, x in operands.items() if name not in WITHOUT_GRADIENT}
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    terms, values = score_terms(case, leaves)
    rotated = {side: rotate(case, leaves[side], operands, side) for side in ("query", "key")}
    clocks = [{"clock": leaves[f"{side}_clock"]} if f"{side}_clock" in leaves else {} for side in ("query", "key")]
    features = {name: leaves[name] for name in ("meeting", "by_row", "by_column") if name in leaves}
    call = Call(
        rotated["query"],
        rotated["key"],
        case.query_positions,
        case.key_positions,
        case.geometry.scale,
        query_features={**clocks[0], **features},
        key_features=clocks[1],
        value=leaves["value"],
        score_terms=tuple(terms),
        values=tuple(values),
        attn_mask=None,
        visibility=case.geometry.visibility,
        dropout_p=0.0,
        return_lse=True,
    )
    out, lse = REFERENCE.run(call)
    gradients = torch.autograd.grad(
        (out, lse), list(leaves.values()), (dout, dlse.masked_fill(lse == -torch.inf, 0.0)), materialize_grads=True
    )
    gradients = [gradient.double() / times for gradient in gradients]
    return answers_by_name(out.detach(), lse.detach(), dict(zip(leaves, gradients, strict=True)))


def known(case: KnownAnswerCase) -> dict[str, list[float]]:
    """What is stored of a case: of every answer x its projection and norm; ``off``, how far single precision is off, in
    roundings, the furthest of three ways to round, as a gradient that is a single number may be right by chance in one;
    and ``least``: a weight e^(s - lse) is off by the rounding of both, relatively, which a reference that keeps no
    log-sum-exp does not show, so (1 + the greatest log-sum-exp) |x|. The last two are rounded up to powers of two."""
    exact, single = answers(case), [answers(case, torch.float32, times) for times in (1.0, 1.1, 1.3)]
    is_visible = exact["log-sum-exp"] != MASKED_LSE
    greatest = 1 + exact["log-sum-exp"][is_visible].abs().max().item()
    stored = {}
    for name, x in exact.items():
        off = max((one[name].double() - x).norm().item() for one in single) / SINGLE
        stored[name] = [*fingerprint(x), *map(rounded_up, (off, greatest * x.norm().item()))]
    return stored


def rounded_up(x: float) -> float:
    return 2.0 ** math.ceil(math.log2(x)) if x else 0.0


def text() -> str:
    """The file, a case in each line."""
    lines = (f"{json.dumps(case.name)}: {json.dumps(known(case))}" for case in cases())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    KNOWN_ANSWERS.write_text(text())
