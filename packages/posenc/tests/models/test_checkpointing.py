"""Activation checkpointing of a model's blocks changes no gradient, and drops none."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posenc import Positions
from posenc.models import Decoder
from posenc.schemes.catalog import Shape
from tests.backends.parity_cases import KINDS
from tests.rounding import of_sums

NAMES = ("learned", "shaw", "pope", "relative_2d", "fox", "cope", "deberta", "le_rope", "string")
BOUND_WITH_GRADIENTS = ("deberta", "le_rope", "pope", "string")
"""What all layers share of these has a gradient, which reentrant checkpointing would need once for each layer."""


def computed_again(forward: Callable[..., Tensor], reentrant: bool, *given: Any, adds: bool) -> Tensor:
    return checkpoint(partial(forward, adds=adds), *given, use_reentrant=reentrant)


@pytest.mark.parametrize("per_layer", [False, True], ids=["shared", "per layer"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_are_computed_again_have_the_same_gradients(name: str, reentrant: bool, per_layer: bool) -> None:
    kind = KINDS[name]
    torch.manual_seed(0)
    scheme = kind.build(Shape(48, 4, 12, max_positions=64, num_kv_heads=2))
    inject = "every_layer" if per_layer else "input"
    plain = Decoder(33, 48, 2, 4, 2, position=scheme, per_layer=per_layer, inject=inject).double()
    for part in plain.trunk.schemes:
        for parameter in part.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model = copy.deepcopy(plain)
    for block in model.trunk.blocks:
        block.forward = partial(computed_again, block.forward, reentrant)
    tokens, positions = torch.randint(33, (2, 21)), kind.at(Positions.packed([13, 8]))
    plain(tokens, positions=positions).square().sum().backward()
    out = model(tokens, positions=positions).square().sum()
    if reentrant and not per_layer and name in BOUND_WITH_GRADIENTS:
        with pytest.raises(
            ValueError, match=r"^the encoding was made of parameters before reentrant .* use_reentrant=False"
        ):
            out.backward()
        return
    out.backward()
    for (of, expected), found in zip(plain.named_parameters(), model.parameters(), strict=True):
        if expected.grad is None:
            assert found.grad is None, of
            continue
        bound = of_sums(torch.float64, 48 * 21 * 2 * 33, expected.grad, score=32)
        torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=bound, msg=of)
