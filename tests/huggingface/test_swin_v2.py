"""adapt() of Swin v2: the same function in double precision, and each layer in the others as exact as it can be.

Errors of whole models are not compared. The greatest scale is 100, so the error of a whole model is that of the few
rows where two keys are nearly level, made larger by the layers after them. Where one number decides, the errors of two
equally exact ways are in a ratio of two normal variables, which passes 2.5 one time in four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers

from posenc.huggingface import adapters, variants
from posenc.schemes import swin_v2
from tests.huggingface.test_attention import moved, output, with_attention
from tests.rows import every_second

SWIN = {"image_size": 24, "patch_size": 2, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 3], "window_size": 4}
SWINS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "shifted windows": ({}, (24, 24)),
    "an image that windows do not fill": ({}, (20, 28)),
    "trained in other windows": ({"pretrained_window_sizes": [3, 6]}, (24, 24)),
    "projections without biases": ({"qkv_bias": False}, (24, 24)),
    "windows of one patch": ({"window_size": 1, "image_size": 8}, (8, 8)),
}


def swin(**changes: Any) -> Any:
    torch.manual_seed(0)
    model = moved(transformers.Swinv2Model(transformers.Swinv2Config(**SWIN | changes)).eval())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("logit_scale"):
                parameter[0] += 9.0  # past the greatest, ln 100
    return model


def image(sides: tuple[int, int], number: int = 2) -> Tensor:
    return torch.randn(number, 3, *sides, generator=torch.Generator().manual_seed(0))


def layers(model: Any) -> list[Any]:
    return [block.attention.self for stage in model.encoder.layers for block in stage.blocks]


def in_double(model: Any) -> Any:
    """The eager model, with the coordinates of its network in double precision too: it makes them by `Tensor.float`."""
    model = with_attention(model, "eager", torch.float64)
    with patch.object(Tensor, "float", Tensor.double):
        for layer in layers(model):
            layer.relative_coords_table, _ = layer.create_coords_table_and_index()
    return model


@pytest.mark.parametrize("case", SWINS)
def test_swin_v2_is_the_same_function_adapted(case: str) -> None:
    changes, sides = SWINS[case]
    model, pixels = swin(**changes), image(sides).double()
    expected = output(in_double(model), pixel_values=pixels)
    came = output(with_attention(model, "posenc", torch.float64), pixel_values=pixels)
    # A rounding of the scores grows to 4,000 times itself on the way, in float32; a thousand times that is 1e-9 here.
    torch.testing.assert_close(came, expected, rtol=0, atol=1e-9)


# -- each layer, on what reaches it in the model in double precision ---------------------------------------------------

Given = tuple[Tensor, Tensor | None]
"""Hidden states of windows, and the mask of shifted windows."""


def given_to_layers(model: Any, pixels: Tensor) -> list[Given]:
    given: list[Given] = []
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[:2])) for layer in layers(model)]
    output(model, pixel_values=pixels)
    for hook in hooks:
        hook.remove()
    return given


def errors(case: str, dtype: torch.dtype) -> Iterator[tuple[Any, Given, Tensor, Tensor]]:
    """Of each layer: in double precision, what it is given, and how far eager's and posenc's outputs are from its own.
    Weights and inputs are rounded to the dtype before, so that nothing but the computing differs."""
    changes, sides = SWINS[case]
    eager, ours = (with_attention(swin(**changes), name, dtype) for name in ("eager", "posenc"))
    exact = in_double(eager)
    for n, given in enumerate(given_to_layers(exact, image(sides, number=8).double())):
        states, mask = (None if x is None else x.to(dtype) for x in given)
        wide = (states.double(), None if mask is None else mask.double())
        with torch.no_grad():
            truth = layers(exact)[n](*wide)[0]
            yield layers(exact)[n], wide, *(layers(m)[n](states, mask)[0].double() - truth for m in (eager, ours))


def most_of_float32(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """How far each of the layer's outputs may be off in float32, in whatever order it sums: u is half an epsilon, and a
    sum of n terms is off by at most n u times the sum of their absolute values.

    An error e_ij of the scores moves the output of row i by sum_j p_ij e_ij (v_j - o_i), to first order, and by no more
    than exp(2 max e) times as much beyond it.
    """
    u, channels, d = 2.0**-24, states.size(-1), layer.attention_head_size

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (layer.num_attention_heads, d)).transpose(1, 2)

    def projected(linear: Any) -> tuple[Tensor, Tensor]:
        """What the layer projects, and how far that may be off."""
        bias = 0.0 if linear.bias is None else linear.bias.abs()
        return split(linear(states)), split((channels + 1) * u * (states.abs() @ linear.weight.abs().T + bias))

    (q, of_q), (k, of_k), (v, of_v) = map(projected, (layer.query, layer.key, layer.value))
    out, p = layer(states, mask, output_attentions=True)

    # The cosine: vectors that are off, two norms of (d/2 + 1) u, two quotients and a sum of d products. The scale that
    # it is multiplied by: tau or ln 100 rounded, up to 5 u of the exponential, which is off by 2 u, and the product.
    of_q, of_k = (of_x.norm(dim=-1) / x.norm(dim=-1).clamp(min=1e-12) for of_x, x in ((of_q, q), (of_k, k)))
    turned = of_q[..., :, None] + of_k[..., None, :]  # of padding, whose keys are zeros, by nothing
    scale = layer.logit_scale.clamp(max=math.log(100)).exp()
    score = scale * (turned + (d + 4 + d + 8) * u)

    # The bias 16 sigmoid(z) has slopes up to 4. Its coordinates log2(y) / 3 are off by 3 u of y and 2 u of themselves.
    inner, outer = layer.continuous_position_bias_mlp[0], layer.continuous_position_bias_mlp[2]
    x, w = layer.relative_coords_table, inner.weight.abs()
    hidden = inner(x).relu()
    of_x = (3 / math.log(2) / 3 + 2) * u * (1 + x.abs())
    of_hidden = of_x @ w.T + 3 * u * (x.abs() @ w.T + inner.bias.abs())
    of_z = (of_hidden + hidden.size(-1) * u * hidden) @ outer.weight.abs().T
    score = score + (4 * of_z.amax((0, 1, 2)) + 16 * 4 * u)[:, None, None]

    # Their sum with the mask, twice, what is taken off it and its exponential: eight roundings of the largest of them.
    largest = scale + 16
    if mask is not None:
        largest = largest + 2 * mask.abs().repeat(states.size(0) // mask.size(0), 1, 1)[:, None]
    score = score + 8 * u * largest

    apart = (v[..., None, :, :] - split(out)[..., :, None, :]).abs()
    moved_by_scores = (p * score)[..., None, :] @ apart
    # Two sums over keys, four roundings of p, and what is too small for float32.
    summed = ((2 * p.size(-1) + 4) * u * p + 2.0**-126) @ v.abs()
    bound = (2 * score.max()).exp() * moved_by_scores.squeeze(-2) + p @ of_v + summed
    return bound.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("case", SWINS)
def test_a_layer_in_float32_is_within_what_its_roundings_may_do(case: str) -> None:
    for layer, given, eager, ours in errors(case, torch.float32):
        bound = most_of_float32(layer, *given)
        assert (eager.abs() <= bound).all()  # or it would not be one
        assert (ours.abs() <= bound).all()


@pytest.mark.parametrize(("dtype", "case"), every_second(product([torch.float32, torch.bfloat16], SWINS)))
def test_a_layer_is_as_exact_adapted(case: str, dtype: torch.dtype) -> None:
    """Root mean squares over 8 images: from one set of images to another the ratio strays by 0.1 of itself."""
    for _, _, eager, ours in errors(case, dtype):
        theirs, mine = (float(error.square().mean().sqrt()) for error in (eager, ours))
        assert 0 < mine <= 1.5 * theirs, (mine, theirs)


# -- bugs that the tests above must see --------------------------------------------------------------------------------


def test_a_mask_that_is_dropped_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(self: Any, hidden_states: Tensor, attention_mask: Any = None, *rest: Any) -> Any:
        return adapters.swin_v2(self, hidden_states, None, *rest)

    monkeypatch.setitem(adapters.BOUND["swinv2"][1]["Swinv2SelfAttention"], "forward", without)
    with pytest.raises(AssertionError):
        test_swin_v2_is_the_same_function_adapted("shifted windows")


def test_the_window_that_it_was_trained_in_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(layer: Any) -> Any:
        scheme = variants.LayerSwinV2(layer)
        scheme.trained = scheme.grid
        return scheme

    monkeypatch.setattr(adapters, "LayerSwinV2", untrained)
    with pytest.raises(AssertionError):
        test_swin_v2_is_the_same_function_adapted("trained in other windows")


def test_unit_vectors_of_eleven_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a processor that multiplies in TF32 has them."""
    unit = swin_v2._unit
    monkeypatch.setattr(swin_v2, "_unit", lambda x: unit(x).half().to(x.dtype))
    for proof in (test_a_layer_in_float32_is_within_what_its_roundings_may_do, test_a_layer_is_as_exact_adapted):
        with pytest.raises(AssertionError):
            proof("trained in other windows", **{"dtype": torch.float32} if "as_exact" in proof.__name__ else {})
