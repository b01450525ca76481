"""Mistakes that would run without a word: each is refused, or means what it looks like."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import T5, ALiBi, FoX, Learned, Positions, RoPE, Scheme, Sinusoidal, XPos, attention

HEADS, WIDTH, TOKENS = 4, 8, 7


def qkv(tokens: int = TOKENS, heads: int = HEADS, **how: Any) -> list[Tensor]:
    return [torch.randn(2, heads, tokens, WIDTH, **how) for _ in range(3)]


# --- copies of encodings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [RoPE(WIDTH), ALiBi(HEADS), T5(HEADS), FoX(HEADS)], ids=str)
def test_a_copy_of_an_encoding_is_the_encoding(scheme: Scheme) -> None:
    encoding = scheme(Positions.arange(TOKENS))
    assert copy.deepcopy({"batch": [encoding]})["batch"][0] is copy.copy(encoding) is encoding


def test_an_encoding_is_not_copied_with_the_scheme_that_it_reads() -> None:
    class Model(nn.Module):
        def __init__(self, scheme: Scheme) -> None:
            super().__init__()
            self.scheme, self.encoding = scheme, scheme(Positions.arange(TOKENS))

    copied = copy.deepcopy(Model(RoPE(WIDTH)))  # has no parameters
    torch.testing.assert_close(attention(*qkv(), copied.encoding).shape, (2, HEADS, TOKENS, WIDTH))
    with pytest.raises(
        ValueError, match=r"^the encoding would be copied with its scheme, and still read the parameters"
    ):
        copy.deepcopy(Model(T5(HEADS)))


def test_an_encoding_of_numbers_alone_can_be_pickled() -> None:
    mask, x, (query, key, value) = torch.tensor([[0] * 2 + [1] * 5, [1] * 7]), torch.randn(2, TOKENS, 6), qkv()
    encoding = (Sinusoidal(6) + RoPE(WIDTH))(Positions.padded(mask))
    loaded = pickle.loads(pickle.dumps(encoding))
    assert torch.equal(loaded.add(x), encoding.add(x))
    assert torch.equal(attention(query, key, value, loaded), attention(query, key, value, encoding))


@pytest.mark.parametrize("scheme", [ALiBi(HEADS), T5(HEADS), Learned(9, 6), XPos(WIDTH)], ids=str)
def test_one_that_refers_to_its_scheme_cannot_be_pickled(scheme: Scheme) -> None:
    encoding = scheme(Positions.arange(TOKENS))
    refers = rf"^an encoding that opens {scheme.doors[0]} refers to its scheme and cannot be pickled: pickle the scheme"
    with pytest.raises(TypeError, match=refers):
        pickle.dumps(encoding)
    again: Scheme = pickle.loads(pickle.dumps(scheme))
    assert again(pickle.loads(pickle.dumps(Positions.arange(TOKENS)))).doors == encoding.doors


# --- derivatives and inference mode -----------------------------------------------------------------------------------

ONCE = (
    r"^attention's fused kernels have only a first derivative: pass backend='reference' for a second one "
    r"\(create_graph=True\)$"
)


@pytest.mark.parametrize("backend", ["sdpa", "native", "tiled", "chunked"])
@pytest.mark.parametrize("scheme", [None, RoPE(WIDTH), ALiBi(HEADS)], ids=str)
def test_a_second_derivative_is_asked_of_the_reference(scheme: Scheme | None, backend: str) -> None:
    tensors = qkv(requires_grad=True)
    out = attention(*tensors, scheme, is_causal=True, backend=backend)
    first = torch.autograd.grad(out.square().sum(), tensors, create_graph=True)
    with pytest.raises(ValueError, match=ONCE):
        torch.autograd.grad(first[0].square().sum() + tensors[0].sum(), tensors)
    torch.autograd.grad((first[0].detach() * tensors[0]).sum(), tensors[0])  # the first alone


POSITIONS_TABLES = [Learned(9, 6), posenc.AbsoluteInAttention(9, WIDTH), posenc.TUPE(HEADS, WIDTH, 9)]


@pytest.mark.parametrize("scheme", POSITIONS_TABLES, ids=str)
def test_positions_of_inference_mode_may_be_trained_with(scheme: Scheme) -> None:
    with torch.inference_mode():
        positions = Positions.arange(TOKENS)
    encoding = scheme(positions)
    encoding.add(torch.zeros(1, TOKENS, 6)).sum().backward() if "add" in scheme.doors else attention(
        *qkv(), encoding
    ).sum().backward()
    assert next(scheme.parameters()).grad is not None


def test_an_encoding_of_inference_mode_that_hides_its_tensors_is_not_trained_with() -> None:
    scheme, grid = posenc.SwinV2((1, TOKENS), HEADS), Positions.grid(1, TOKENS)
    with torch.inference_mode():
        encoding = scheme(grid)
    with pytest.raises(
        ValueError, match=r"^the encoding was made under torch.inference_mode\(\) and cannot be used fo"
    ):
        attention(*qkv(requires_grad=True), encoding)
