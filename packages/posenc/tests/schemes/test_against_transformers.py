"""Schemes of published models against the modules of transformers that have them: outputs, and gradients of weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import DeBERTa, Positions, Swin, SwinV2, TransformerXL

pytest.importorskip("transformers")

HEADS, HEAD_DIM, ROWS, COLUMNS = 3, 4, 3, 5
DIM = HEADS * HEAD_DIM


def drawn(module: nn.Module) -> Any:
    """The module in double precision, with every number from N(0, 1/4), so that none hides behind its beginning."""
    module = module.double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def split(x: Tensor, layer: nn.Module) -> Tensor:
    projected: Tensor = layer(x)
    return projected.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def check(
    out: Tensor, mine: list[Tensor], theirs: Tensor, their_weights: list[Tensor], is_single: bool = False
) -> tuple[Tensor, ...]:
    """Sums of some tens of numbers of order 1 to 100, in double precision, in another order; ``is_single``: somewhere
    they have rounded to single precision, which is 2^-24 for each number. Gives the gradients of ``mine``."""
    tolerance = 100 * 2.0 ** (-24 if is_single else -53) * 50
    torch.testing.assert_close(out.transpose(1, 2).flatten(2), theirs, rtol=0, atol=tolerance)
    weight = torch.randn_like(theirs)
    one = torch.autograd.grad((out.transpose(1, 2).flatten(2) * weight).sum(), mine)
    other = torch.autograd.grad((theirs * weight).sum(), their_weights)
    for a, b in zip(one, other, strict=True):
        assert a.abs().max() > 1e-3
        torch.testing.assert_close(a, b.reshape(a.shape), rtol=0, atol=10 * tolerance)
    return one


# --- swin -----------------------------------------------------------------------------------------------------------


def swin_layer() -> Any:
    """An attention of a square window; the bias alone knows of rectangles."""
    from transformers import SwinConfig
    from transformers.models.swin import modeling_swin

    config = SwinConfig(embed_dim=DIM, qkv_bias=True)
    config._attn_implementation = "eager"
    layer = modeling_swin.SwinAttention(config, DIM, HEADS, 4)
    layer.o_proj = nn.Identity()
    return layer


def test_swin_is_that_of_transformers() -> None:
    layer = drawn(swin_layer())
    scheme = Swin((4, 4), HEADS).double()
    scheme.load_state_dict({"weight": layer.relative_position_bias.relative_position_bias_table})
    x = torch.randn(2, 16, DIM, dtype=torch.float64)
    q, k, v = (split(x, projection) for projection in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = posenc.attention(q, k, v, scheme(Positions.grid(4, 4)))
    table = layer.relative_position_bias.relative_position_bias_table
    check(out, [scheme.weight], layer(x)[0], [table], is_single=True)  # its softmax is in single precision


@pytest.mark.parametrize("trained", [(0, 0), (8, 6)])
def test_swin_v2_is_that_of_transformers(trained: tuple[int, int]) -> None:
    from transformers import Swinv2Config
    from transformers.models.swinv2 import modeling_swinv2

    made = modeling_swinv2.Swinv2SelfAttention(Swinv2Config(), DIM, HEADS, (ROWS, COLUMNS), trained)
    layer = drawn(made)
    check_swin_v2(layer, trained)
    with torch.no_grad():
        layer.logit_scale[0] = 6.0  # above ln 100, where it stays
    check_swin_v2(layer, trained, is_bounded=True)


def check_swin_v2(layer: Any, trained: tuple[int, int], is_bounded: bool = False) -> None:
    network = layer.continuous_position_bias_mlp
    scheme = SwinV2((ROWS, COLUMNS), HEADS, trained if trained[0] else None).double()
    scheme.load_state_dict(
        {
            "tau": layer.logit_scale.flatten(),
            "inner.weight": network[0].weight,
            "inner.bias": network[0].bias,
            "outer.weight": network[2].weight,
        }
    )
    x = torch.randn(2, ROWS * COLUMNS, DIM, dtype=torch.float64)
    q, k, v = (split(x, projection) for projection in (layer.query, layer.key, layer.value))
    out = posenc.attention(q, k, v, scheme(Positions.grid(ROWS, COLUMNS), dtype=torch.float64))
    theirs = [layer.logit_scale, network[0].weight, network[0].bias, network[2].weight]
    # Its table of differences was made in single precision.
    of_tau, *_ = check(out, list(scheme.parameters()), layer(x)[0], theirs, is_single=True)
    assert (of_tau[0] == 0) == is_bounded


# --- deberta --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("buckets", [-1, 6])
def test_deberta_is_that_of_transformers(buckets: int, shared: bool) -> None:
    """With a layer's own projections, as in version 3, and with others, over more tokens than the table has rows. Of 12
    channels, since its root of 3 d is of single precision, and that of 36 is exact."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2 import modeling_deberta_v2

    config = DebertaV2Config(
        hidden_size=36,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=7,
        position_buckets=buckets,
        share_att_key=shared,
        pos_att_type=["c2p", "p2c"],
    )
    layer = drawn(modeling_deberta_v2.DisentangledSelfAttention(config))
    scheme = drawn(DeBERTa(HEADS, 12, max_distance=7, num_buckets=buckets if buckets > 0 else None))
    tokens = 19
    x = torch.randn(2, tokens, 36, dtype=torch.float64)
    q, k, v = (split(x, projection) for projection in (layer.query_proj, layer.key_proj, layer.value_proj))
    if shared:
        scheme = scheme.of_layer(layer.query_proj, layer.key_proj)
    else:
        scheme.query.load_state_dict(layer.pos_query_proj.state_dict())
        scheme.key.load_state_dict(layer.pos_key_proj.state_dict())
    table = scheme.relative.rows.weight
    seen = torch.ones(2, 1, tokens, tokens)
    theirs, _ = layer(x, seen, rel_embeddings=table)
    out = posenc.attention(q, k, v, scheme(Positions.arange(tokens)))
    check(
        out,
        [table, layer.query_proj.weight, layer.value_proj.bias],
        theirs,
        [table, layer.query_proj.weight, layer.value_proj.bias],
    )


def test_deberta_has_the_buckets_of_single_precision_where_models_were_released() -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    n = torch.arange(-2000, 2001)
    published = make_log_bucket_position(n, 256, 512).long()
    assert torch.equal(DeBERTa(1, 2, num_buckets=256)._index(-n), (published + 256).clamp(0, 511))


# --- xlnet ----------------------------------------------------------------------------------------------------------


@pytest.mark.more  # importing the model takes seconds
def test_transformer_xl_with_segments_is_xlnets_attention() -> None:
    """Sinusoids, which they compute in single precision, included."""
    from transformers import XLNetConfig, XLNetModel

    theirs = drawn(XLNetModel(XLNetConfig(vocab_size=3, d_model=DIM, n_head=HEADS, d_inner=8, n_layer=1)))
    layer = theirs.layer[0].rel_attn
    scheme = TransformerXL(HEADS, HEAD_DIM, segments=True, share_biases=False).double()
    mine: dict[Any, Any] = {
        scheme.projection: layer.r.permute(1, 2, 0),
        scheme.segment: layer.seg_embed,
        scheme.biases["content"]: layer.r_w_bias,
        scheme.biases["position"]: layer.r_r_bias,
        scheme.biases["segment"]: layer.r_s_bias,
    }
    with torch.no_grad():
        for parameter, given in mine.items():
            parameter.copy_(given)
    q, k, v = torch.randn(3, 2, HEADS, 7, HEAD_DIM, dtype=torch.float64)
    segment = torch.tensor([[0, 0, 1, 1, 1, 2, 0], [1, 0, 0, 0, 1, 1, 1]])
    apart = (segment[:, :, None] != segment[:, None]).permute(1, 2, 0).long()
    sinusoids = theirs.relative_positional_encoding(7, 7, bsz=2).double()
    expected = layer.rel_attn_core(
        *(x.permute(2, 0, 1, 3) for x in (q, k, v)),
        torch.einsum("ibh,hnd->ibnd", sinusoids, layer.r),
        seg_mat=nn.functional.one_hot(apart, 2).double(),
    )
    out = posenc.attention(q, k, v, scheme(Positions.arange(7).with_segment(segment), dtype=torch.float64))
    theirs_laid = expected.transpose(0, 1).flatten(2)
    check(out, [*mine][1:], theirs_laid, [*mine.values()][1:], is_single=True)
