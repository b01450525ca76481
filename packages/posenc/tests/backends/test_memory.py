"""Memory, counted in bytes: what claims to be linear in the tokens is, forward and backward, for one layer and more."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posenc
from posenc.backends.native.library import missing, multiplies_bfloat16
from posenc.command.memory import peak_bytes
from tests.backends.parity_cases import LINEAR, Case, case, refuses
from tests.rows import with_more

TOKENS = 2048
LAYERS, LAYER_TOKENS = 3, 1024


def call(name: str, tokens: int, place: str = "text", way: str = "causal") -> Case:
    return case(name, place, tokens, way, heads=2, dtype=torch.float32)


def forward(it: Case, backend: str) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return it.attend(backend, it.query, it.key, it.value)

    return run


def training(it: Case, backend: str) -> Callable[[], object]:
    def run() -> object:
        (out,) = it.attend(backend, it.query, it.key, it.value)
        return torch.autograd.grad(out.sum(), list(it.leaves.values()), materialize_grads=True)

    return run


STEPS: dict[str, Callable[[Case, str], Callable[[], object]]] = {"forward": forward, "training": training}


def growth(of: Callable[[int], Callable[[], object]], tokens: int = TOKENS) -> float:
    """How many times the memory twice the tokens need. Linear is 2, quadratic 4; what does not depend on the tokens
    makes it less."""
    of(129)()  # what is made once and kept is not this call's
    return peak_bytes(of(2 * tokens)) / peak_bytes(of(tokens))


# Straight in the distance from near on, from the ends of a table on, and nowhere; and what no tile can hold. Blocks of
# queries are one loop for all of them.
LINEAR_RUNS = [
    pytest.param(*run, backend, marks=() if run[0] in ("alibi", "t5") else pytest.mark.more)
    for run in (
        ("alibi", "text", "causal", "forward"),
        ("t5", "padded left and right", "causal", "training"),
        ("shaw", "text", "causal", "training"),
        ("transformer_xl", "text", "a window", "training"),
        ("distance_aware", "packed", "both", "training"),
    )
    for backend in LINEAR
    if not refuses(backend, *run[:3])
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place", "way", "step", "backend"), LINEAR_RUNS)
def test_twice_the_tokens_take_twice_the_memory(name: str, place: str, way: str, step: str, backend: str) -> None:
    assert growth(lambda tokens: STEPS[step](call(name, tokens, place, way), backend)) < 2.5


@pytest.mark.parametrize("step", STEPS)
def test_what_lays_the_scores_out_takes_four_times_the_memory(step: str) -> None:
    """So the count would show it."""
    assert growth(lambda tokens: STEPS[step](call("alibi", tokens), "reference"), 512) > 3.5


# --- several layers ---------------------------------------------------------------------------------------------------


def layers(it: Case, backend: str, count: int) -> Callable[[], object]:
    """So many layers of attention that share one encoding, bound once; the output of each is the query of the next."""
    encoding = it.scheme(it.query_positions, it.key_positions)

    def run() -> object:
        x = it.query
        for _ in range(count):
            out = posenc.attention(x, it.key, it.value, encoding, **it.how, backend=backend)
            assert isinstance(out, Tensor)
            x = out
        return torch.autograd.grad(x.sum(), list(it.leaves.values()), materialize_grads=True)

    return run


@pytest.mark.parametrize("backend", LINEAR)
@pytest.mark.parametrize("name", with_more(["rope+alibi"], ["t5 bidirectional", "shaw"]))
def test_a_further_layer_trained_keeps_no_scores(name: str, backend: str) -> None:
    """What a layer keeps for its backward pass is of the size of its tensors: query, key and value as turned and as
    wide as the heads, the output, and what the backward pass hands on. Scores would be 146 times the query or more."""
    it = call(name, LAYER_TOKENS)
    one, several = (layers(it, backend, count) for count in (1, LAYERS))
    one(), several()
    assert (peak_bytes(several) - peak_bytes(one)) / (LAYERS - 1) <= 8 * it.query.nbytes


@pytest.mark.skipif(missing(torch.bfloat16) is not None, reason=f"no kernel: {missing(torch.bfloat16)}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", with_more([posenc.RoPE(64)], [posenc.T5(8)]), ids=["rope", "t5"])
def test_a_training_step_of_the_kernel_needs_no_more_than_plain_attention(
    scheme: posenc.Scheme, dtype: torch.dtype
) -> None:
    """Output and gradients included: of rotated queries and keys there is no copy, and none in another precision."""
    if dtype == torch.bfloat16 and not multiplies_bfloat16():
        pytest.skip("this processor does not multiply bfloat16, which is widened")
    leaves = [torch.randn(1, 8, 2048, 64, dtype=dtype, requires_grad=True) for _ in range(3)]
    given = torch.randn(1, 8, 2048, 64, dtype=dtype)

    def step(attend: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            out = attend()
            assert isinstance(out, Tensor)
            return out, torch.autograd.grad(out, leaves, given)

        return run

    ours = step(lambda: posenc.attention(*leaves, scheme, is_causal=True, backend="native"))
    plain = step(lambda: torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True))
    ours()  # what is made once and kept is not this call's
    assert peak_bytes(ours) <= peak_bytes(plain)
