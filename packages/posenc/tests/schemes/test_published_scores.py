"""What schemes of the score door offer beside it, and what their papers say of them that no oracle asks."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import FIRE, KERPLE, TUPE, DeBERTa, PositionError, Positions, Swin, SwinV2
from posenc.encoding.encoding import Context
from tests.mutants import drawn

DOUBLE = torch.float64


def bias(scheme: posenc.Scheme, positions: Positions, heads: int = 3) -> torch.Tensor:
    """What it adds to the scores of zero vectors."""
    zeros = torch.zeros(1, heads, len(positions), 4, dtype=DOUBLE)
    return posenc.logits(zeros, zeros, scheme(positions, dtype=DOUBLE))[0]


# --- kerple, sandwich, fire -----------------------------------------------------------------------------------------


def test_kerple_reads_numbers_out_of_bounds_as_the_bound_and_leaves_them() -> None:
    scheme = KERPLE(3, "power").double()
    with torch.no_grad():
        scheme.p.copy_(torch.tensor([-1.0, 5.0, 1.0]))
        scheme.a.copy_(torch.tensor([1.0, 1.0, -2.0]))
    found = bias(scheme, Positions.arange(4))
    torch.testing.assert_close(-found[:, 0, 3], torch.tensor([3**0.01, 9.0, 0.03], dtype=DOUBLE))
    found.sum().backward()
    assert (scheme.p.grad == 0).tolist() == [True, True, False]
    assert (scheme.a.grad == 0).tolist() == [False, False, True]
    assert scheme.p.tolist() == [-1.0, 5.0, 1.0]


def test_kerple_is_drawn_as_the_authors_draw_it() -> None:
    scheme = KERPLE(50_000)  # the largest of as many is within 1e-3 of the bound, but for e^-50
    assert 1.998 < scheme.p.max() <= 2
    assert 0.999 < scheme.a.max() <= 1
    assert min(scheme.p.min(), scheme.a.min()) >= 0


def test_fire_begins_as_published_and_its_share_never_leaves_0_to_1() -> None:
    scheme = FIRE(3)
    assert (scheme.c.item(), scheme.multiple.item(), scheme.length) == (pytest.approx(0.1), 1.0, 512.0)
    with torch.no_grad():  # the network passes the share on
        for p in scheme.parameters():
            p.zero_()
        scheme.c.fill_(0.1)
        scheme.multiple.fill_(1.0)
        scheme.inner.weight[0] = 1.0
        scheme.outer.weight[:, 0] = 1.0
    far = Positions(torch.tensor([[0, 3, 512, 10_000, 2**30]]))
    share = bias(scheme.double(), far)[0]
    assert 0 <= share.min() <= share.max() <= 1
    # FIRE adds 1e-6 to its divisor, here log(52.2) or more, and c is 0.1 in float32.
    off = 1e-6 / math.log(52.2) + 2.0**-24
    torch.testing.assert_close(share[3:, 0], torch.ones(2, dtype=DOUBLE), rtol=off, atol=0)  # a whole text back
    torch.testing.assert_close(
        share[1, 0], torch.tensor(math.log(1.3) / math.log(52.2), dtype=DOUBLE), rtol=off, atol=0
    )


# --- swin -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swin_resized_is_interpolated_as_the_authors_do(dtype: torch.dtype) -> None:
    scheme = drawn(Swin((3, 5), 4)).to(dtype).eval()
    scheme.weight.requires_grad_(False)
    same, larger = scheme.resized((3, 5)), scheme.resized((6, 4))
    assert torch.equal(same.weight, scheme.weight)
    assert same.weight.data_ptr() != scheme.weight.data_ptr()
    planes = scheme.weight.float().mT.reshape(1, 4, 5, 9)
    expected = F.interpolate(planes, size=(11, 7), mode="bicubic").reshape(4, 77).mT.to(dtype)
    assert torch.equal(larger.weight, expected)
    assert (larger.grid, larger.training, larger.weight.requires_grad) == ((6, 4), False, False)
    with pytest.raises(PositionError, match="Swin encodes"):
        posenc.logits(*torch.zeros(2, 1, 4, 24, 2, dtype=dtype), scheme(Positions.grid(6, 4)))


def test_swin_resized_keeps_the_entries_of_its_class_token() -> None:
    scheme, plain = (drawn(Swin((3, 5), 4, class_token)) for class_token in (True, False))
    plain.load_state_dict({"weight": scheme.weight[:-3]})
    larger = scheme.resized((6, 4))
    assert torch.equal(larger.weight, torch.cat((plain.resized((6, 4)).weight, scheme.weight[-3:])))
    assert posenc.Swin((6, 4), 4).positions().coords.tolist() == Positions.grid(6, 4).coords.tolist()
    assert larger.positions().coords[:, 1:].tolist() == Positions.grid(6, 4).coords.tolist()


def test_swin_v2_resized_has_the_same_bias_for_the_same_difference() -> None:
    scheme = drawn(SwinV2((3, 5), 3, hidden=7))
    same, larger = scheme.resized((3, 5)), scheme.resized((7, 6))
    grid = Positions.grid(3, 5)
    assert torch.equal(bias(same, grid), bias(scheme, grid))
    torch.testing.assert_close(bias(larger, grid), bias(scheme, grid))
    assert (larger.grid, larger.trained, larger.resized((3, 5)).trained) == ((7, 6), (3, 5), (3, 5))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(scheme.parameters(), same.parameters(), strict=True))
    assert bias(larger, Positions.grid(7, 6)).isfinite().all()
    assert bias(SwinV2((1, 5), 3), Positions.grid(1, 5)).isfinite().all()


def test_swin_v2s_scale_is_at_most_100() -> None:
    scheme = SwinV2((2, 2), 3, hidden=2).double()
    with torch.no_grad():
        scheme.tau.copy_(torch.tensor([0.0, 4.0, 9.0]))
    x = torch.randn(1, 3, 4, 5, dtype=DOUBLE)
    encoding = scheme(Positions.grid(2, 2), dtype=DOUBLE)
    torch.testing.assert_close(
        encoding.rotate_query(x).norm(dim=-1)[0, :, 0], torch.tensor([1.0, math.exp(4.0), 100.0], dtype=DOUBLE)
    )
    assert encoding.scale == 1.0


def test_a_shard_of_swin_v2s_heads_has_their_scales_and_biases() -> None:
    scheme, x = drawn(SwinV2((2, 3), 6, hidden=3)), torch.randn(3, 1, 6, 6, 4, dtype=DOUBLE)
    positions = Positions.grid(2, 3)
    whole = posenc.attention(*x, scheme(positions, dtype=DOUBLE))
    shard = scheme(positions, dtype=DOUBLE, context=Context(heads=range(2, 5)))
    torch.testing.assert_close(posenc.attention(*x[:, :, 2:5], shard), whole[:, 2:5])
    with pytest.raises(ValueError, match="SwinV2 was made for 3 heads, got queries of 6"):
        shard.rotate_query(x[0])


# --- deberta --------------------------------------------------------------------------------------------------------


def test_a_layers_scheme_of_deberta_has_its_projections_and_the_models_table() -> None:
    scheme, query, key = DeBERTa(6, 4, normalized=True), nn.Linear(24, 24), nn.Linear(24, 8)
    layer = scheme.of_layer(query, key)
    assert layer.query is query
    assert layer.key is key
    assert layer.relative is scheme.relative
    assert scheme.query is not query
    other = scheme.another()
    assert other.relative is scheme.relative
    assert not torch.equal(other.query.weight, scheme.query.weight)
    x = torch.randn(1, 6, 5, 4)
    assert posenc.attention(x, x[:, :2], x[:, :2], layer).isfinite().all()


# --- tupe -----------------------------------------------------------------------------------------------------------


def test_a_shard_of_tupes_heads_has_their_positions() -> None:
    scheme, x = drawn(TUPE(6, 4, 9, untie_cls=True)), torch.randn(3, 1, 6, 5, 4, dtype=DOUBLE)
    positions = Positions.arange(5)
    whole = posenc.attention(*x, scheme(positions, dtype=DOUBLE))
    shard = scheme(positions, dtype=DOUBLE, context=Context(heads=range(2, 5)))
    torch.testing.assert_close(posenc.attention(*x[:, :, 2:5], shard), whole[:, 2:5])
    with pytest.raises(ValueError, match="TUPE was made for 3 heads, got queries of 6"):
        shard.rotate_query(x[0])
    with pytest.raises(ValueError, match="TUPE was made for 3 heads, got keys of 2"):
        shard.rotate_key(x[0, :, :2])
