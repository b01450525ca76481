"""Schemes of images and documents give what transformers' own modules give: scores of SAM, ViTDet, BEiT, LayoutLMv3,
UDOP and XLNet, and rotated vectors of Gemma 4, Step 3.7 and MiniMax M3."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import T5, Positions, Relative2D, Swin, TransformerXL
from tests.rounding import of_angles, of_sums

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.more

HEADS, HEAD_DIM = 3, 8


def of(model: str, name: str) -> Any:
    """Something of a model's code; a skip in a transformers that has none."""
    code = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    return getattr(code, name)


def drawn(module: Any) -> Any:
    """The module with parameters from N(0, 1), in double precision."""
    for parameter in module.double().eval().requires_grad_(False).parameters():
        nn.init.normal_(parameter)
    return module


def bias(scheme: posenc.Scheme, positions: Positions) -> Tensor:
    """What a scheme adds to the scores of zero vectors."""
    zeros = torch.zeros(1, HEADS, len(positions), HEAD_DIM, dtype=torch.float64)
    with torch.no_grad():
        return posenc.logits(zeros, zeros, scheme.double()(positions, dtype=torch.float64))


def copied(scheme: Any, tables: dict[str, Tensor]) -> Any:
    """The scheme with a model's tables."""
    scheme.double().load_state_dict(tables)
    return scheme


@pytest.mark.parametrize("model", ["sam", "vitdet"])
@pytest.mark.parametrize("trained", [(4, 4), (3, 3)])
def test_decomposed_positions(model: str, trained: tuple[int, int]) -> None:
    """The output of the layer's own attention, on its grid and on another one than it was made for. SAM's softmax is in
    float32."""
    dim, height, width = HEADS * HEAD_DIM, 4, 4
    if model == "sam":
        config = transformers.SamVisionConfig(
            hidden_size=dim,
            num_attention_heads=HEADS,
            image_size=16 * trained[0],
            use_rel_pos=True,
            attn_implementation="eager",
        )
        layer = drawn(of("sam", "SamVisionAttention")(config, 0))
    else:
        config = transformers.VitDetConfig(
            hidden_size=dim, num_attention_heads=HEADS, use_relative_position_embeddings=True
        )
        layer = drawn(of("vitdet", "VitDetAttention")(config, trained))
    layer.qkv.weight.mul_(dim**-0.5)
    x = torch.randn(2, height, width, dim, dtype=torch.float64)
    scheme = copied(
        Relative2D(trained, HEAD_DIM, convention="sam"), {"row_table": layer.rel_pos_h, "column_table": layer.rel_pos_w}
    ).resized((height, width))
    q, k, v = layer.qkv(x.flatten(1, 2)).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
    out = posenc.attention(q, k, v, scheme, query_positions=Positions.grid(height, width))
    found = layer.proj(out.transpose(1, 2).flatten(2)).detach()
    expected = layer(x)[0].detach()
    bound = of_sums(torch.float32 if model == "sam" else torch.float64, dim * height * width, expected, score=64.0)
    assert posenc.logits(q, k, scheme(Positions.grid(height, width), dtype=torch.float64)).abs().max() < 64
    torch.testing.assert_close(found.view_as(expected), expected, rtol=0, atol=bound)


def test_the_class_token_of_beit() -> None:
    """On a square: for a rectangle, transformers reads its table as one of width rows and height columns."""
    config = transformers.BeitConfig(
        hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, image_size=(80, 80), patch_size=16
    )
    module = drawn(of("beit", "BeitRelativePositionBias")(config))
    scheme = copied(Swin((5, 5), HEADS, class_token=True), {"weight": module.relative_position_bias_table})
    assert torch.equal(bias(scheme, scheme.positions()), module((5, 5)))


def test_the_buckets_of_layoutlmv3() -> None:
    """In its words of up to 512 and boxes of up to 1000; every table is drawn, so another bucket would show."""
    config = transformers.LayoutLMv3Config(
        hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, num_hidden_layers=1, visual_embed=False
    )
    module = drawn(of("layoutlmv3", "LayoutLMv3Encoder")(config))
    ids = torch.randint(0, 512, (1, 60))
    boxes = torch.randint(0, 1000, (1, 60, 4))
    scheme = sum(
        copied(T5(HEADS, buckets, longest, True, axis=axis, axes=3, factor=HEAD_DIM**-0.5), {"weight": layer.weight.mT})
        for axis, (layer, buckets, longest) in enumerate(
            (
                (module.rel_pos_bias, config.rel_pos_bins, config.max_rel_pos),
                (module.rel_pos_x_bias, config.rel_2d_pos_bins, config.max_rel_2d_pos),
                (module.rel_pos_y_bias, config.rel_2d_pos_bins, config.max_rel_2d_pos),
            )
        )
    )
    found = bias(scheme, Positions(torch.stack((ids, boxes[..., 0], boxes[..., 3]), -1)))  # type: ignore[arg-type]
    expected = (module._cal_1d_pos_emb(ids) + module._cal_2d_pos_emb(boxes)) / HEAD_DIM**0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=of_sums(torch.float64, 3, expected))


def test_the_buckets_of_udop() -> None:
    """Boxes are shares of the page in steps of 1/128, so that neither code rounds a difference before it truncates."""
    config = transformers.UdopConfig(num_heads=HEADS)
    modules = of("udop", "RelativePositionBiasAggregated")(of("udop", "create_relative_bias")(config))
    boxes = torch.randint(0, 128, (1, 60, 4)) / 128
    middles = 100 * torch.stack((boxes[..., [0, 2]].mean(-1), boxes[..., [1, 3]].mean(-1)), -1)
    places = torch.cat((torch.arange(60.0)[None, :, None], middles), -1)
    parts = [
        copied(
            T5(HEADS, part.relative_attention_num_buckets, part.max_distance, part.bidirectional, axis=axis, axes=3),
            {"weight": part.relative_attention_bias.weight},
        )
        for axis, part in enumerate(drawn(modules).biases)
    ]
    assert len(parts) == 3
    expected = modules(torch.ones(1, 60), boxes)
    found = bias(sum(parts), Positions(places))  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, rtol=0, atol=of_sums(torch.float64, 3, expected))


ROTATIONS = {  # the head, the scheme, its model's configuration and functions, and the model's ids of the patches
    "gemma4": (16, lambda d: posenc.AxialRoPE(d, "gemma4"), "Gemma4Vision", lambda ids: ids.flip(-1)),
    "step3p7": (16, lambda d: posenc.AxialRoPE(d, "step3"), "Step3p7Vision", lambda ids: ids[0]),
    "minimax_m3_vl": (20, lambda d: posenc.RoPE3D(d, (6,) * 3, layout="half"), "MiniMaxM3VLVision", lambda ids: ids[0]),
}


@pytest.mark.parametrize("model", ROTATIONS)
def test_rotations_of_patches(model: str) -> None:
    """Gemma's ids are (column, row). MiniMax turns 18 of 20 channels."""
    head_dim, make, name, told = ROTATIONS[model]
    config = of(model, f"{name}Config")(hidden_size=2 * head_dim, num_attention_heads=2)
    if model == "gemma4":
        config.head_dim = head_dim
    positions = Positions.grid(3, 5, frames=2) if model == "minimax_m3_vl" else Positions.grid(3, 5)
    ids = told(positions.coords)
    x = torch.randn(1, 2, len(positions), head_dim)
    cos, sin = of(model, f"{name}RotaryEmbedding")(config)(x, ids)
    tokens = x.transpose(1, 2)
    if model == "gemma4":
        expected = of(model, "apply_multidimensional_rope")(tokens, cos, sin, ids)
    else:
        expected, _ = of(model, "apply_rotary_pos_emb_vision")(tokens, tokens, cos, sin)
    found = make(head_dim)(positions).rotate_key(x)
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=0, atol=2**0.5 * of_angles(torch.float32, 4, x))


def test_transformer_xl_with_segments_is_xlnets_attention() -> None:
    """The output, and the gradients of what is learned. XLNet computes sinusoids in single precision."""
    config = transformers.XLNetConfig(vocab_size=3, d_model=HEADS * HEAD_DIM, n_head=HEADS, d_inner=8, n_layer=1)
    model = drawn(transformers.XLNetModel(config)).requires_grad_()
    layer = model.layer[0].rel_attn
    scheme = TransformerXL(HEADS, HEAD_DIM, segments=True, share_biases=False).double()
    pairs = {"content": layer.r_w_bias, "position": layer.r_r_bias, "segment": layer.r_s_bias}
    theirs = [*pairs.values(), layer.seg_embed]
    mine = [*(getattr(scheme.biases, name) for name in pairs), scheme.segment]
    with torch.no_grad():
        scheme.projection.copy_(layer.r.permute(1, 2, 0))
        for parameter, given in zip(mine, theirs, strict=True):
            parameter.copy_(given)  # type: ignore[union-attr]
    q, k, v = torch.randn(3, 2, HEADS, 7, HEAD_DIM, dtype=torch.float64)
    segment = torch.tensor([[0, 0, 1, 1, 1, 2, 0], [1, 0, 0, 0, 1, 1, 1]])
    apart = (segment[:, :, None] != segment[:, None]).permute(1, 2, 0).long()
    expected = layer.rel_attn_core(
        *(x.permute(2, 0, 1, 3) for x in (q, k, v)),
        torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(7, 7, bsz=2).double(), layer.r),
        seg_mat=nn.functional.one_hot(apart, 2).double(),
    )
    expected = expected.transpose(0, 1).flatten(2)
    out = posenc.attention(q, k, v, scheme(Positions.arange(7).with_segment(segment), dtype=torch.float64))
    found = out.transpose(1, 2).flatten(2)
    bound = of_sums(torch.float32, 2 * HEADS * HEAD_DIM, expected, score=64.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)
    weight = torch.randn_like(found)
    ours, others = (torch.autograd.grad((x * weight).sum(), of) for x, of in ((found, mine), (expected, theirs)))
    for one, other in zip(ours, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=10 * bound)
