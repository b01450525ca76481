"""adapt() of Swin v2: the same function in double precision, and each layer in the others as exact as it can be.

Errors of whole models are not compared. The greatest scale is 100, so the error of a whole model is that of the few
rows where two keys are nearly level, made larger by the layers after them. Where one number decides, the errors of two
equally exact ways are in a ratio of two normal variables, which passes 2.5 one time in four.
"""

from __future__ import annotations

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


def errors(case: str, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each layer: how far eager's and posenc's outputs are from its own in double precision. Weights and inputs are
    rounded to the dtype before, so that nothing but the computing differs."""
    changes, sides = SWINS[case]
    eager, ours = (with_attention(swin(**changes), name, dtype) for name in ("eager", "posenc"))
    exact = in_double(eager)
    for n, given in enumerate(given_to_layers(exact, image(sides, number=8).double())):
        states, mask = (None if x is None else x.to(dtype) for x in given)
        wide = (states.double(), None if mask is None else mask.double())
        with torch.no_grad():
            truth = layers(exact)[n](*wide)[0]
            theirs, mine = (layers(m)[n](states, mask)[0].double() - truth for m in (eager, ours))
            yield theirs, mine


@pytest.mark.parametrize(("dtype", "case"), every_second(product([torch.float32, torch.bfloat16], SWINS)))
def test_a_layer_is_as_exact_adapted(case: str, dtype: torch.dtype) -> None:
    """Root mean squares over 8 images: from one set of images to another the ratio strays by 0.1 of itself."""
    for eager, ours in errors(case, dtype):
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
    with pytest.raises(AssertionError):
        test_a_layer_is_as_exact_adapted("trained in other windows", torch.float32)
