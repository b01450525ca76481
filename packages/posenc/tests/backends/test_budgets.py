"""What half precision and long texts may cost: errors against double precision, held to what the reference or PyTorch's
own attention is off by in the same precision."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions
from posenc.positions.tiles import Visibility, visible
from posenc.schemes.catalog import CATALOG, Shape
from tests.backends.parity_cases import (
    FAST,
    KINDS,
    VALUES,
    Case,
    bound,
    case,
    coarse,
    projection,
    refuses,
    with_features,
)
from tests.rows import with_more

HALF = tuple(backend for backend in FAST if backend != "native")  # which has no half precision


def ulp(x: Tensor, dtype: torch.dtype) -> float:
    """The step between neighbours in ``dtype`` at the greatest of x."""
    greatest = x.abs().max().item()
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(greatest)) if greatest else 0.0


@lru_cache(maxsize=1)
def truth(name: str, place: str, tokens: int) -> tuple[Case, dict[str, Tensor]]:
    """A call on numbers that half precision holds exactly, and what it gives in double precision."""
    it = case(name, place, tokens, True, heads=2)
    with torch.no_grad():
        for parameter in it.scheme.parameters():
            parameter.copy_(parameter.float())  # exactly what a model of single precision has
        for x in (it.query, it.key, it.value):
            x.copy_(coarse(x))
    return it, it.run("reference")


def of_a_rounded_output(it: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """How far the gradients move where the backward pass has the output as rounded to ``dtype``, which is all that a
    fused kernel keeps of it. It takes sum_d g_id o_id, the softmax's share of the gradient of each score of
    row i, from that output. An error e_i of it makes the gradient of score s_ij wrong by -a_ij e_i, and a_ij is the
    derivative of row i's log-sum-exp."""
    asked = replace(it, how={**it.how, "return_lse": True})
    out, lse = asked.attend("reference", it.query, it.key, it.value)
    error = (projection(out) * (out.to(dtype) - out)).sum(-1).detach()
    gradients = torch.autograd.grad((error * lse).sum(), list(it.leaves.values()), materialize_grads=True)
    return {f"gradient of {name}": g for name, g in zip(it.leaves, gradients, strict=True)}


def of_rounded_weights(it: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """How far the gradient of the value moves where the weights are rounded to ``dtype`` before they are summed over
    the queries, as a fused kernel must to multiply them with the gradient of the output."""
    (out,) = it.attend("reference", it.query, it.key, it.value)
    encoding = with_features(bound(it.scheme, it.query_positions, it.key_positions, it.query), it.features)
    causal = bool(it.how.get("is_causal"))
    scores = posenc.logits(it.query, it.key, encoding, is_causal=causal)
    seen = visible(it.query_positions, it.key_positions, Visibility(causal))
    weights = (scores if seen is None else scores.masked_fill(~seen[:, None], -torch.inf)).softmax(-1)
    error = (weights.to(dtype) - weights).mT @ projection(out)
    heads = it.value.size(1)
    return {"gradient of value": error.unflatten(1, (heads, -1)).sum(2).detach()}


@lru_cache(maxsize=1)
def budgets(name: str, place: str, tokens: int, dtype: torch.dtype) -> dict[str, float]:
    """Twice what the reference is off by in that precision, and twice what a rounded output and rounded weights add to
    it; and one step of ``dtype`` at the scale of the result."""
    it, exact = truth(name, place, tokens)
    own = it.to(dtype).run("reference")
    more = (of_a_rounded_output(it, dtype), of_rounded_weights(it, dtype))

    def budget(what: str, x: Tensor) -> float:
        error = (own[what].double() - x).abs().max() + sum(one[what].abs().max() for one in more if what in one)
        return 2 * float(error.detach()) + ulp(x, dtype)

    return {what: budget(what, x) for what, x in exact.items()}


def check_budget(name: str, place: str, tokens: int, dtype: torch.dtype, backend: str) -> None:
    it, exact = truth(name, place, tokens)
    budget = budgets(name, place, tokens, dtype)
    found = it.to(dtype).run(backend)
    assert found.keys() == exact.keys()
    assert found["output"].dtype == dtype
    over = {
        what: (error, budget[what])
        for what, x in exact.items()
        if not (error := (found[what].double() - x).abs().max().item()) <= budget[what]
    }
    assert over == {}


BFLOAT, HALF_FLOAT = torch.bfloat16, torch.float16
# Every kind of term, and the value door; where tiles merge what is near and what is far, both halves.
MORE = [("t5", BFLOAT), ("shaw", HALF_FLOAT), ("transformer_xl", HALF_FLOAT), ("disentangled", BFLOAT)]
MORE += [("clocked", HALF_FLOAT), ("distance_aware", BFLOAT), ("relative_2d", HALF_FLOAT)]
RUNS = with_more(
    *(
        [(*run, backend) for run in runs for backend in HALF if not refuses(backend, run[0], "text")]
        for runs in ([("rope+alibi", BFLOAT), ("rope+alibi", HALF_FLOAT)], MORE)
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "backend"), RUNS)
def test_half_precision_is_within_its_budget(name: str, dtype: torch.dtype, backend: str) -> None:
    check_budget(name, "text", 1025, dtype, backend)


# --- far out ----------------------------------------------------------------------------------------------------------

FAR, LESS_FAR = 100_000, 6_250  # less where a network makes an entry for every distance
# No positions, or none in the weights; counts of tokens in their place; channels that all have faded, as its docstring
# says. The columns of M-RoPE turn the slowest pair of eight channels, and queries grow by a hundred-thousandth.
ALIKE = frozenset({"nope", "segment", "softcap", "cope", "exponential_decay", "mrope", "query_scale", "key_offset"})
NEED_A_LAYER = frozenset(
    {"carope", "fox", "inkling", "re_po", "selective_rope", "wall"}
)  # for what it makes of its tokens
TOLD_APART = (
    *sorted({entry.name for entry in CATALOG} - ALIKE - NEED_A_LAYER),
    "rope+alibi",
    "disentangled",
    "squeezing",
)


@pytest.mark.parametrize("backend", ["auto", "reference", *HALF])
@pytest.mark.parametrize("name", TOLD_APART)
def test_far_out_neighbours_are_told_apart_in_bfloat16(name: str, backend: str) -> None:
    """Tokens of one content, and values that are the unit vectors, so that the output is the weights. What they are off
    by is less than half of what the weights of one token, as key or as query, differ from those of the next: the
    position of each is there to be read."""
    kind = KINDS[name]
    far = LESS_FAR if name == "swin_v2" else FAR
    scheme = kind.build(Shape(16, 2, 8, max_positions=far + 16))
    for parameter in scheme.parameters() if name != "kerple" else ():  # of which half would be clamped to nothing
        torch.nn.init.normal_(parameter)
    positions = kind.at(Positions.arange(8, start=far))
    if "add" in scheme.doors:
        exact = scheme.double()(positions, dtype=torch.float64).add(torch.zeros(1, 8, 16, dtype=torch.float64))
        found = scheme.float()(positions).add(torch.zeros(1, 8, 16, dtype=torch.bfloat16))
        apart = (exact[:, 1:] - exact[:, :-1]).abs().amax((0, 2))
    else:
        content = coarse(torch.randn(1, 2, 1, 8)).expand(-1, -1, 8, -1)
        values = torch.eye(8).expand(1, 2, 8, 8)
        if name in VALUES:
            torch.nn.init.zeros_(scheme.value_table)  # type: ignore[arg-type]  # it would hide the weights

        def weights(dtype: torch.dtype, backend: str) -> Tensor:
            scheme.to(torch.promote_types(dtype, torch.float32))
            tensors = (x.to(dtype) for x in (content, content, values))
            at = {"query_positions": positions, "key_positions": positions}
            with torch.no_grad():
                out = posenc.attention(*tensors, scheme, **at, is_causal=kind.looks_back, backend=backend)
            assert isinstance(out, Tensor)
            return out

        exact = weights(torch.float64, "reference")
        if backend != "auto" and refuses(backend, name, "text", "both"):
            with pytest.raises(ValueError, match=f"^backend '{backend}' cannot run this: "):
                weights(torch.bfloat16, backend)
            return
        found = weights(torch.bfloat16, backend)
        as_key = (exact[..., 1:] - exact[..., :-1]).abs().amax((0, 1, 2))
        as_query = (exact[:, :, 1:] - exact[:, :, :-1]).abs().amax((0, 1, 3))
        apart = torch.maximum(as_key, as_query)
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() < apart.min() / 2
