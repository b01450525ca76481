"""Turns that are learned: relative or not as their algebra says, shared by the queries of a key, sharded by heads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posenc
from posenc import STRING, LieRE, MixedRoPE, Positions, RoPE, Scheme
from posenc.encoding.encoding import Context
from posenc.models import ImageClassifier
from tests.rounding import of_sums

HEADS, HEAD_DIM, TOKENS = 4, 8, 7
PER_HEAD: dict[str, Callable[[int], Scheme]] = {
    "mixed_rope": lambda heads: MixedRoPE(HEAD_DIM, heads),
    "string": lambda heads: STRING(HEAD_DIM, 2, num_heads=heads),
    "string circulant": lambda heads: STRING(HEAD_DIM, 2, "circulant", heads),
    "lie_re": lambda heads: LieRE(HEAD_DIM, 2, 4, heads),
}
per_head = pytest.mark.parametrize("name", PER_HEAD)


# Scores up to 16 of angles up to a distance of 18 + 13 times a rate below 4.
BOUND = of_sums(torch.float64, HEAD_DIM, 16.0, score=4 * (18 + 13))


def scattered(axes: int = 2) -> Positions:
    return Positions(torch.randint(-9, 9, (1, TOKENS, axes), generator=torch.Generator().manual_seed(2)))


def drawn(scheme: Scheme) -> Scheme:
    for parameter in scheme.double().parameters():
        torch.nn.init.normal_(parameter)
    return scheme


def heads(count: int = HEADS) -> Tensor:
    return torch.randn(2, count, TOKENS, HEAD_DIM, dtype=torch.float64)


def moved(scheme: Scheme, positions: Positions, axis: int) -> float:
    """How far scores go when every token moves along one axis."""
    query, key = heads(), heads()
    by = torch.zeros(positions.coords.size(-1), dtype=torch.int64)
    by[axis] = 13
    here, there = (
        posenc.logits(query, key, scheme(at, dtype=torch.float64))
        for at in (positions, Positions(positions.coords + by))
    )
    return (here - there).abs().max().item()


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("form", ["cayley", "circulant"])
def test_string_is_relative_on_any_number_of_axes(axes: int, form: str) -> None:
    scheme = drawn(STRING(HEAD_DIM, axes, form))  # type: ignore[arg-type]
    for axis in range(axes):
        assert moved(scheme, scattered(axes), axis) < BOUND


def test_lie_re_is_relative_on_one_axis_and_not_on_two_unless_its_blocks_are_pairs() -> None:
    assert moved(drawn(LieRE(HEAD_DIM, 1, 4)), scattered(1), 0) < BOUND
    assert min(moved(drawn(LieRE(HEAD_DIM, 2, 4)), scattered(), axis) for axis in (0, 1)) > 0.1
    assert max(moved(drawn(LieRE(HEAD_DIM, 2, 2)), scattered(), axis) for axis in (0, 1)) < BOUND


def test_string_begins_near_an_axial_rope() -> None:
    """With the small numbers left out it is one."""
    scheme = STRING(HEAD_DIM, 2, base=77.0).double()
    torch.nn.init.zeros_(scheme.skew)
    with torch.no_grad():
        scheme.frequencies.copy_((scheme.frequencies.abs() > 0.1) * scheme.frequencies)
    query, positions = heads(), scattered()
    rope = RoPE(HEAD_DIM, base=77.0, axes=2)
    found = scheme(positions, dtype=torch.float64).rotate_query(query)
    near = rope(positions, dtype=torch.float64).rotate_query(query)
    assert (found - near).abs().max() < 9 * 0.1 * HEAD_DIM  # |p| times what a frequency was drawn off by
    torch.testing.assert_close(found.norm(dim=-1), query.norm(dim=-1))


def test_mixed_rope_begins_along_and_across_a_direction() -> None:
    scheme = MixedRoPE(16, 3, base=77.0)
    first, second = scheme.frequencies.detach().unflatten(-1, (2, 4)).unbind(-2)
    magnitude = 77.0 ** (-4 * torch.arange(4) / 16)
    for part in (first, second):
        torch.testing.assert_close(part.norm(dim=0), magnitude.expand(3, -1))
    torch.testing.assert_close((first * second).sum(0), torch.zeros(3, 4))
    assert not torch.allclose(first[:, 0], first[:, 1])


@per_head
def test_queries_turn_with_the_key_that_they_meet(name: str) -> None:
    """Grouped queries are what they are with every key repeated."""
    scheme = drawn(PER_HEAD[name](2))
    query, key = heads(), heads(2)
    found = posenc.logits(query, key, scheme(scattered(), dtype=torch.float64))
    wide = PER_HEAD[name](4).double()
    with torch.no_grad():
        for mine, theirs in zip(wide.parameters(), scheme.parameters(), strict=True):
            axis = next(n for n, (a, b) in enumerate(zip(mine.shape, theirs.shape, strict=True)) if a != b)
            mine.copy_(theirs.repeat_interleave(2, axis))
    repeated = key.repeat_interleave(2, 1)
    expected = posenc.logits(query, repeated, wide(scattered(), dtype=torch.float64))
    torch.testing.assert_close(found, expected)


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


@per_head
def test_a_shard_of_the_heads_is_what_it_is_in_the_whole(name: str) -> None:
    scheme = drawn(PER_HEAD[name](HEADS))
    query, key = heads(), heads()
    whole = posenc.logits(query, key, scheme(scattered(), dtype=torch.float64))
    encoding = scheme(scattered(), dtype=torch.float64, context=Context(heads=range(1, 3)))
    torch.testing.assert_close(posenc.logits(query[:, 1:3], key[:, 1:3], encoding), whole[:, 1:3])


@pytest.mark.parametrize("scheme", [STRING(HEAD_DIM, 2), LieRE(HEAD_DIM, 2)], ids=["string", "lie_re"])
def test_half_precision_is_rounded_once(scheme: Scheme) -> None:
    x = torch.randn(2, HEADS, TOKENS, HEAD_DIM).bfloat16()
    encoding = scheme(scattered())
    assert torch.equal(encoding.rotate_query(x), encoding.rotate_query(x.float()).bfloat16())
