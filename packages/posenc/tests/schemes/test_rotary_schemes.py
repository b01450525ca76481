"""The schemes that are RoPE but for one thing, against the code of released models, and what only they promise."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import MLA, LeRoPE, PoPE, Positions, Proportional, RoPE, RotatedValues, XPos, YaRN
from tests.oracles import xpos
from tests.rounding import of_angles, of_sums

ROWS, HEADS, TOKENS, HEAD_DIM = 2, 3, 7, 16
IDS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [11, 12, 13, 20, 21, 22, 23]])
# The other side makes its angles in single precision: up to 24 radians, rounded twice, and cos and sin once; a channel
# is a sum of two products with numbers below 4, which is 2 * 4 * (24 * 2 * 2^-24 + 2^-24) at most.
FLOAT = {"rtol": 0.0, "atol": 2 * of_angles(torch.float32, 24, 4.0)}
# After projections of 48 such channels, scores of 16 over 7 keys and another projection.
SUMMED = {"rtol": 0.0, "atol": FLOAT["atol"] + of_sums(torch.float32, 2 * 48 + 16 + TOKENS, 4.0)}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).clamp(-4, 4)


def model(name: str) -> Any:
    return pytest.importorskip(f"transformers.models.{name}.modeling_{name}")


def configuration(name: str, **settings: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, name)(**settings)


def turned(scheme: posenc.Scheme, x: Tensor) -> tuple[Tensor, Tensor]:
    """x as queries and as keys at IDS."""
    return scheme(Positions(IDS)).rotate(x, x)


# --- partial and proportional ---------------------------------------------------------------------------------------


def check_partial_is_not_proportional() -> None:
    """At equal shapes with equally many turning pairs: other channels turn, and by other angles."""
    x = torch.ones(1, 1, 1, HEAD_DIM, dtype=torch.float64)
    there = Positions(torch.tensor([[3]]))
    partial, proportional = (
        RoPE(HEAD_DIM, 100.0, **how)(there, dtype=torch.float64).rotate(x, x)[0].flatten()
        for how in ({"rotary_dim": 8}, {"scaling": Proportional(0.5)})
    )
    assert ((partial - 1).abs() > 1e-9).nonzero().flatten().tolist() == list(range(8))
    assert ((proportional - 1).abs() > 1e-9).nonzero().flatten().tolist() == [*range(4), *range(8, 12)]
    for found, exponent, second in ((partial, 8, 4), (proportional, 16, 8)):
        for k in range(4):
            angle = 3 * 100.0 ** (-2 * k / exponent)
            pair = math.cos(angle) - math.sin(angle), math.cos(angle) + math.sin(angle)
            assert found[[k, k + second]].tolist() == pytest.approx(pair, abs=1e-14)


# --- LeRoPE ---------------------------------------------------------------------------------------------------------


def test_mistral_large_4_turns_by_learned_frequencies_over_yarn() -> None:
    config = configuration("MistralLarge4TextConfig", qk_rope_head_dim=64)
    theirs = model("mistral_large4").MistralLarge4TextRotaryEmbedding(config)
    theirs.alpha.data.copy_(0.3 * drawn(32))
    given = config.rope_parameters
    keys = {"beta_fast": given["beta_fast"], "beta_slow": given["beta_slow"], "attention_factor": 1.0}
    yarn = YaRN(given["factor"], given["original_max_position_embeddings"], **keys)
    scheme = LeRoPE(64, given["rope_theta"], scaling=yarn)
    with torch.no_grad():
        scheme.alpha.copy_(theirs.alpha)
    for found, expected in zip(scheme(Positions(IDS)).cos_sin(), theirs(drawn(1), IDS), strict=True):
        torch.testing.assert_close(found, expected[..., :32], **FLOAT)


# --- MLA ------------------------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "rope_theta": 313.0, "factor": 8.0, "original_max_position_embeddings": 64}


def check_deepseek_v3(rope: dict[str, Any], scaling: YaRN | None) -> None:
    """The whole layer of DeepSeek-V3, by its own projections: whole, by slice, and from latent vectors."""
    deepseek = model("deepseek_v3")
    config = configuration(
        "DeepseekV3Config",
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=None,
        kv_lora_rank=10,
        qk_rope_head_dim=8,
        qk_nope_head_dim=6,
        v_head_dim=5,
        rope_parameters=rope,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    layer = deepseek.DeepseekV3Attention(config, 0).eval()
    x = drawn(ROWS, TOKENS, 24)
    embeddings = deepseek.DeepseekV3RotaryEmbedding(config)(x, IDS)
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None].expand(ROWS, -1, -1, -1)
    with torch.no_grad():
        expected, _ = layer(x, embeddings, mask)
        query = layer.q_proj(x).unflatten(-1, (3, 14)).transpose(1, 2)
        latent, shared = layer.kv_a_proj_with_mqa(x).split([10, 8], -1)
        latent, shared = layer.kv_a_layernorm(latent)[:, None], shared[:, None]
        up_key, up_value = layer.kv_b_proj.weight.unflatten(0, (3, 11)).split([6, 5], 1)
        key = torch.cat((latent @ up_key.mT, shared.expand(-1, 3, -1, -1)), -1)
        scheme, places = MLA(14, 8, 313.0, scaling=scaling), Positions(IDS)
        encoding = scheme(places)
        q_pe, k_pe = encoding.rotate_query(query[..., 6:]), encoding.rotate_key(shared)
        by_slice = torch.cat((query[..., :6], q_pe), -1), torch.cat((key[..., :6], k_pe.expand(-1, 3, -1, -1)), -1)
        absorbed = torch.cat((query[..., :6] @ up_key, q_pe), -1), torch.cat((latent, k_pe), -1)
        pairs = encoding.pairs
        outs = {
            "whole": posenc.attention(query, key, latent @ up_value.mT, encoding, is_causal=True),
            "by slice": posenc.attention(*by_slice, latent @ up_value.mT, pairs, is_causal=True),
            "absorbed": posenc.attention(*absorbed, latent, pairs, is_causal=True) @ up_value.mT,
        }
    for out in outs.values():
        torch.testing.assert_close(layer.o_proj(out.transpose(1, 2).flatten(2)), expected, **SUMMED)


def test_mla_is_deepseek_v3s() -> None:
    check_deepseek_v3({"rope_type": "default", "rope_theta": 313.0}, None)


def test_mla_has_yarns_scale() -> None:
    mscales = {"mscale": 0.7, "mscale_all_dim": 1.1}
    check_deepseek_v3(YARN | mscales, YaRN(8.0, 64, **mscales))


# --- rotated values -------------------------------------------------------------------------------------------------


def test_rotated_values_are_deepseek_v4s() -> None:
    """Keys that are values, turned once, and compressed ones that stand at their block's start and are seen from its
    last token on."""
    deepseek = model("deepseek_v4")
    rate, blocks, width, n = 3, 2, 16, 8
    query, kv = drawn(ROWS, HEADS, TOKENS, width, seed=1), drawn(ROWS, 1, TOKENS + blocks, width, seed=2)
    at = torch.cat((torch.arange(TOKENS), rate * torch.arange(blocks)))

    def angles(places: Tensor) -> tuple[Tensor, Tensor]:
        angle = places[None, :, None] * 313.0 ** (-torch.arange(0, n, 2) / n)
        return angle.cos(), angle.sin()

    turned_query = deepseek.apply_rotary_pos_emb(query, *angles(at[:TOKENS]))
    turned_kv = deepseek.apply_rotary_pos_emb(kv, *angles(at))
    entries = torch.arange(blocks)
    seen = torch.cat(
        (
            torch.ones(TOKENS, TOKENS).tril().bool(),
            entries < (torch.arange(TOKENS)[:, None] + 1) // rate,  # their causal threshold
        ),
        1,
    )
    scores = (turned_query @ turned_kv.mT / width**0.5).masked_fill(~seen, -torch.inf)
    cos, sin = angles(at[:TOKENS])
    expected = deepseek.apply_rotary_pos_emb(scores.softmax(-1) @ turned_kv, cos, -sin)
    text = Positions.arange(TOKENS)
    ends = torch.cat((torch.arange(TOKENS), rate * (entries + 1) - 1))
    keys = Positions(at[None], order=ends[None])
    encoding = RotatedValues(width, n, 313.0)(text, keys)
    out = posenc.attention(query, kv, kv, encoding, is_causal=True)
    torch.testing.assert_close(out, expected, **SUMMED)


# --- PoPE -----------------------------------------------------------------------------------------------------------


def test_pope_widens_and_says_of_which_width_it_is() -> None:
    encoding = PoPE(6, 4)(Positions.arange(5))
    assert encoding.rotate_query(torch.zeros(2, 4, 5, 6, dtype=torch.bfloat16)).shape == (2, 4, 5, 12)
    assert encoding.scale == pytest.approx(6**-0.5)
    with pytest.raises(ValueError, match="PoPE was made for head_dim 6, got q or k of head_dim 12"):
        encoding.rotate_key(torch.zeros(2, 4, 5, 12))
    with pytest.raises(ValueError, match=r"PoPE was made for \(batch, heads, tokens\) \(1, 4, 5\), got \(2, 3, 5, 6\)"):
        encoding.rotate_query(torch.zeros(2, 3, 5, 6))


# --- xPos -----------------------------------------------------------------------------------------------------------

FAR = torch.tensor([[0, 1, 90, 5_000, 5_040, 40_000, 40_003, 2**20 - 300, 2**20 - 1]])


def xpos_scores(scheme: XPos, q: Tensor, k: Tensor, places: Tensor) -> Tensor:
    """By the oracle, for keys at or before the query; NaN for others."""
    score = xpos.score(q, k, *[places.tolist()] * 2, scheme.base, scheme.scale_base, scheme.layout)
    n = places.size(1)
    rows = [[score(0.0, 0, 0, i, j) if j <= i else math.nan for j in range(n)] for i in range(n)]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_xpos_holds_at_a_million(dtype: torch.dtype) -> None:
    """One call with queries from 0 to 2^20: what is near is exact, what is far is 0, and nothing is infinite. q and k
    are rounded once each, relative to themselves, and a score is a sum of 4 pairs of products below 32."""
    scheme = XPos(8)
    q, k = (drawn(1, 1, FAR.size(1), 8, seed=n).to(dtype).requires_grad_() for n in (1, 2))
    found = posenc.logits(q, k, scheme(Positions(FAR), dtype=torch.promote_types(dtype, torch.float32)))[0, 0]
    expected = xpos_scores(scheme, q, k, FAR)
    behind = ~expected.isnan()
    # cos, sin and factors are rounded to the precision of scores; an angle of a million radians is one of double's.
    wide = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    close = 4 * 2 * 16 * (2 * torch.finfo(dtype).eps + 4 * wide + 2 * 2**20 * 2**-52)
    torch.testing.assert_close(found[behind].double(), expected[behind], rtol=0.0, atol=close / 8**0.5)
    assert found.isfinite().all()
    assert (found[-1, :5].abs() <= torch.finfo(torch.float16).tiny).all()
    encoding = scheme(Positions(FAR), dtype=torch.promote_types(dtype, torch.float32))
    out = posenc.attention(q, k, k, encoding, is_causal=True)
    for gradient in torch.autograd.grad(out.float().square().sum(), (q, k)):
        assert gradient.isfinite().all()


def test_padding_moves_no_origin() -> None:
    """Padding stands at 0, and the text a million further."""
    scheme, x = XPos(8), drawn(1, 1, 4, 8).double()
    text = Positions(torch.tensor([[0, 2**20, 2**20 + 1, 2**20 + 2]]), document=torch.tensor([[-1, 0, 0, 0]]))
    encoding = scheme(text, dtype=torch.float64)
    assert encoding.rotate_query(x).shape == x.shape
    alone = posenc.logits(x[:, :, 1:], x[:, :, 1:], scheme(text[1:], dtype=torch.float64))
    torch.testing.assert_close(
        posenc.logits(x, x, encoding)[..., 1:, 1:], alone, rtol=0, atol=of_sums(torch.float64, 8, alone)
    )
