"""Turns that are learned: relative or not as their algebra says, shared by the queries of a key, sharded by heads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc import STRING, LieRE, MixedRoPE, Positions, Scheme
from posenc.models import ImageClassifier

HEADS, HEAD_DIM, TOKENS = 4, 8, 7
PER_HEAD: dict[str, Callable[[int], Scheme]] = {
    "mixed_rope": lambda heads: MixedRoPE(HEAD_DIM, heads),
    "string": lambda heads: STRING(HEAD_DIM, 2, num_heads=heads),
    "string circulant": lambda heads: STRING(HEAD_DIM, 2, "circulant", heads),
    "lie_re": lambda heads: LieRE(HEAD_DIM, 2, 4, heads),
}
per_head = pytest.mark.parametrize("name", PER_HEAD)


def scattered(axes: int = 2) -> Positions:
    return Positions(torch.randint(-9, 9, (1, TOKENS, axes), generator=torch.Generator().manual_seed(2)))


def heads(count: int = HEADS) -> Tensor:
    return torch.randn(2, count, TOKENS, HEAD_DIM, dtype=torch.float64)


@per_head
@pytest.mark.parametrize(("made", "came"), [(1, 3), (2, 4), (2, 3)])
def test_keys_of_other_heads_are_refused(name: str, made: int, came: int) -> None:
    encoding = PER_HEAD[name](made)(scattered(), dtype=torch.float64)
    encoding.rotate_query(heads(2 * made))
    encoding.rotate_key(heads(made))
    words = f"^the rotation was made for keys of {made} heads, got {came}: build it for as many heads as keys have$"
    with pytest.raises(ValueError, match=words):
        encoding.rotate_key(heads(came))


@per_head
def test_a_model_of_grouped_queries_takes_as_many_heads_as_its_keys_have(name: str) -> None:
    sizes = {"num_classes": 3, "patch": 2, "dim": 4 * HEAD_DIM, "num_layers": 1, "num_heads": 4, "num_kv_heads": 2}
    ImageClassifier(**sizes, position=PER_HEAD[name](2))(torch.ones(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"position must be made for num_heads 2 like the model, got .* for 4"):
        ImageClassifier(**sizes, position=PER_HEAD[name](4))


@pytest.mark.parametrize("scheme", [STRING(HEAD_DIM, 2), LieRE(HEAD_DIM, 2)], ids=["string", "lie_re"])
def test_half_precision_is_rounded_once(scheme: Scheme) -> None:
    x = torch.randn(2, HEADS, TOKENS, HEAD_DIM).bfloat16()
    encoding = scheme(scattered())
    assert torch.equal(encoding.rotate_query(x), encoding.rotate_query(x.float()).bfloat16())
