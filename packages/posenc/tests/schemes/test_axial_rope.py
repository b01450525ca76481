"""The conventions of images are those of the released models, and a class token is not turned under any of them."""

import pytest
import torch
from torch import Tensor

from posenc import AxialRoPE
from tests.oracles import axial_rope as oracle
from tests.rounding import of_angles

HEIGHT, WIDTH, HEAD_DIM, PREFIX = 3, 5, 24, 2
CONVENTIONS = ("index", "llama4", "pe", "eva", "dinov3", "gemma4")
named = pytest.mark.parametrize("convention", CONVENTIONS)


def built(convention: str, **how: object) -> AxialRoPE:
    extent = (7, 11) if convention == "eva" else None
    return AxialRoPE(HEAD_DIM, convention, extent=extent, **how)  # type: ignore[arg-type]


def heads(tokens: int) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(2, 2, 3, tokens, HEAD_DIM, dtype=torch.float64))  # type: ignore[return-value]


@named
def test_its_grid_is_the_oracles(convention: str) -> None:
    scheme = built(convention)
    found = scheme.grid(HEIGHT, WIDTH, prefix=PREFIX)
    patches = [
        oracle.coordinates(convention, i, j, HEIGHT, WIDTH, (7, 11)) for i in range(HEIGHT) for j in range(WIDTH)
    ]
    expected = torch.tensor([[[0.0, 0.0]] * PREFIX + patches], dtype=torch.float64)
    # A quotient is rounded on either side.
    torch.testing.assert_close(found.coords.double(), expected, rtol=2.0**-52, atol=2.0**-52)
    assert found.layout.rows is not None
    assert found.order.tolist() == [list(range(PREFIX + HEIGHT * WIDTH))]


@named
def test_the_prefix_is_not_turned(convention: str) -> None:
    """Not by training either; the patches are."""
    how = {"shift": 0.5, "jitter": 1.5, "rescale": 2.0} if convention == "dinov3" else {}
    scheme = built(convention, **how)
    query, key = heads(PREFIX + HEIGHT * WIDTH)
    encoding = scheme(scheme.grid(HEIGHT, WIDTH, prefix=PREFIX), dtype=query.dtype)
    for turned, x in zip(encoding.rotate(query, key), (query, key), strict=True):
        assert torch.equal(turned[:, :, :PREFIX], x[:, :, :PREFIX])
        assert ((turned - x)[:, :, PREFIX + 1 :].abs().amax(-1) > 1e-3).all()


def test_llama4_is_transformers() -> None:
    """Of a square, since theirs knows no other; its class token comes last."""
    pytest.importorskip("transformers")
    from transformers import Llama4VisionConfig
    from transformers.models.llama4 import modeling_llama4 as llama4

    config = Llama4VisionConfig(hidden_size=2 * HEAD_DIM, num_attention_heads=2, patch_size=4, image_size=20)
    theirs = llama4.Llama4VisionRotaryEmbedding(config).freqs_ci
    query, key = (x.float() for x in heads(26))
    expected = llama4.vision_apply_rotary_emb(query.transpose(1, 2), key.transpose(1, 2), theirs)
    scheme = built("llama4")
    positions = scheme.grid(5, 5, prefix=1)
    last = positions[torch.tensor([*range(1, 26), 0])]
    found = scheme(last).rotate(query, key)
    bound = 2**0.5 * of_angles(torch.float32, 5, query)  # of angles up to 5 in float32
    torch.testing.assert_close(found, tuple(x.transpose(1, 2) for x in expected), rtol=0, atol=bound)


def test_training_moves_the_patches_by_as_much_as_is_said_and_all_alike() -> None:
    scheme = built("dinov3", shift=0.25, jitter=1.5, rescale=2.0)
    still = scheme.eval().grid(HEIGHT, WIDTH).coords
    assert torch.equal(still, built("dinov3").grid(HEIGHT, WIDTH).coords)
    factors = []
    for _ in range(50):
        moved = scheme.train().grid(HEIGHT, WIDTH).coords
        by = (moved[0, -1] - moved[0, 0]) / (still[0, -1] - still[0, 0])
        factors.append(by)
        torch.testing.assert_close(moved - moved[:, :1], (still - still[:, :1]) * by)
        assert ((moved[0, 0] / by - still[0, 0]).abs() <= 0.25 + 1e-12).all()
    drawn = torch.stack(factors)
    assert (drawn >= 1 / 3 - 1e-12).all()
    assert (drawn <= 3 + 1e-12).all()
    ratio = drawn[:, 0] / drawn[:, 1]  # of the jitters alone
    assert (ratio >= 1 / 1.5**2 - 1e-12).all()
    assert (ratio <= 1.5**2 + 1e-12).all()
    assert drawn.std() > 0.1
    assert ratio.std() > 0.05
