"""What is read of configurations whose models have tables, biases or a rotation of their own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import posenc
from posenc import Positions, logits
from posenc.huggingface import ModelPositions, scheme_from_config
from tests.huggingface.configs import SIZES
from tests.huggingface.families import sinusoids
from tests.huggingface.tiny import config_of, model_of, run
from tests.rounding import of_angles

TWELVE = {"num_hidden_layers": 2, "vocab_size": 64, "hidden_size": 72, "num_attention_heads": 12, "pad_token_id": 0}
PLACES = torch.tensor([[0, 1, 5, 700, 1023]])


def made(model_type: str, **given: Any) -> tuple[Any, ModelPositions]:
    config = transformers.AutoConfig.for_model(model_type, **given)
    return config, scheme_from_config(config)


def biases(said: ModelPositions, layer: int, tokens: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """What the scheme of a layer adds to scores that are 0."""
    scheme, _ = said.schedule[layer]
    q = torch.zeros(1, 12, tokens, 6, dtype=dtype)
    return logits(q, q, scheme(Positions.arange(tokens)))[0]


def since_diagonal(bias: Tensor) -> Tensor:
    """A bias less what its row has at the query itself, which softmax does not see; keys ahead left out."""
    return (bias - bias.diagonal(dim1=-2, dim2=-1)[..., None]).tril()


# -- rotations of their own -------------------------------------------------------------------------------------------


def test_gptj_turns_neighbours_of_its_first_channels() -> None:
    from transformers.models.gptj.modeling_gptj import GPTJModel, apply_rotary_pos_emb

    config, said = made("gptj", **SIZES, rotary_dim=8)
    attention = GPTJModel(config).h[0].attn
    x = torch.randn(1, 5, 3, 12)
    sin, cos = attention.embed_positions[PLACES[0]][None].chunk(2, -1)
    turned = torch.cat((apply_rotary_pos_emb(x[..., :8], sin, cos), x[..., 8:]), -1).transpose(1, 2)
    assert said.length == 4096
    for scheme, window in said.schedule:
        assert window is None
        ours = scheme.tokens(Positions(PLACES)).rotate_query(x.transpose(1, 2))
        assert ((ours - turned).abs() < 1023 * 2**-21 * x.norm(dim=-1).max()).all()


def test_falcon_turns_or_has_alibi() -> None:
    from transformers.models.falcon.modeling_falcon import FalconModel, apply_rotary_pos_emb, build_alibi_tensor

    config, said = made("falcon", **(TWELVE | {"rope_theta": 3e4}))
    x = torch.randn(1, 12, 5, 6)
    turned, _ = apply_rotary_pos_emb(x, x, *FalconModel(config).rotary_emb(x, PLACES))
    ours = said.schedule[1][0].tokens(Positions(PLACES)).rotate_query(x)
    assert ((ours - turned).abs() < 1023 * 2**-21 * x.norm(dim=-1).max()).all()

    _, said = made("falcon", **TWELVE, alibi=True)
    theirs = build_alibi_tensor(torch.ones(1, 40), 12, torch.float64).view(12, 1, 40) / 6**0.5
    ours = since_diagonal(biases(said, 1, 40))
    # It is rounded to bfloat16 twice: slopes, and their products with the position, 2^-8 of the largest of a head.
    bound = 2 * 2**-8 * theirs.amax((-1, -2), keepdim=True)
    assert ((since_diagonal(theirs.expand(12, 40, 40)) - ours).abs() <= bound).all()
    assert (since_diagonal(theirs.expand(12, 40, 40) * 6**0.5) - ours).abs().max() > 10 * bound.max()  # undivided


def test_dinov3_turns_patches_and_not_its_first_tokens() -> None:
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTModel, apply_rotary_pos_emb

    sizes = {"hidden_size": 60, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 8}
    config, said = made(
        "dinov3_vit", **sizes, num_register_tokens=2, patch_size=4, image_size=16, rope_theta=70.0, pos_embed_shift=0.5
    )
    rope = DINOv3ViTModel(config).eval().rope_embeddings
    cos, sin = rope(torch.zeros(1, 3, 12, 20))
    x = torch.randn(1, 3, 3 + 15, 20)
    turned, _ = apply_rotary_pos_emb(x, x, cos, sin)
    scheme = said.schedule[0][0]
    assert not scheme.training  # as from_pretrained leaves a model: nothing is drawn at random
    assert "grid(height, width, prefix=3)" in repr(said)
    encoding = scheme.tokens(scheme.grid(3, 5, prefix=3))  # type: ignore[operator]
    # Theirs has angles in float32, up to a full turn; a channel is off by sqrt(2) times what each of its pair is.
    bound = 2**0.5 * of_angles(torch.float32, 2 * math.pi, x)
    torch.testing.assert_close(encoding.rotate_query(x), turned, rtol=0, atol=bound)
    assert not said.causal


# -- tables -----------------------------------------------------------------------------------------------------------


def test_gpt2_adds_its_table_and_scales_by_layer() -> None:
    config, said = made("gpt2", **SIZES, scale_attn_by_inverse_layer_idx=True)
    assert said.input is not None
    model = model_of(config)
    said.input.weight.data = model.wpe.weight.data  # type: ignore[operator, union-attr]
    ids = torch.arange(5)[None] + 1
    with torch.no_grad():
        first = model(ids, position_ids=PLACES, output_hidden_states=True).hidden_states[0]
    vectors = said.input(Positions(PLACES), dtype=torch.float64).add(model.wte(ids))
    torch.testing.assert_close(vectors, first, rtol=0, atol=0)
    calls, _ = run(model, ids, PLACES)
    assert [call.scaling for call in calls] == [layer.scale or 12**-0.5 for layer in said.layers]
    _, plain = made("gpt2", **SIZES, scale_attn_weights=False)
    assert {layer.scale for layer in plain.layers} == {1.0}


def test_opt_skips_two_rows() -> None:
    config, said = made("opt", **TWELVE, max_position_embeddings=1024, word_embed_proj_dim=72)
    table = transformers.AutoModel.from_config(config).decoder.embed_positions
    assert said.input is not None
    said.input.weight.data = table.weight.data  # type: ignore[operator, union-attr]
    assert torch.equal(said.input.table(Positions(PLACES)), table(torch.ones(1, 5), position_ids=PLACES))
    with pytest.raises(posenc.PositionError, match="OffsetLearned encodes positions 0 to 1023, got 1024"):
        said.input.table(Positions(torch.tensor([[1024]])))


def test_roberta_begins_behind_its_padding_token() -> None:
    config, said = made("roberta", **(TWELVE | {"pad_token_id": 3}), max_position_embeddings=1030)
    embeddings = transformers.AutoModel.from_config(config).embeddings
    assert said.input is not None
    said.input.weight.data = embeddings.position_embeddings.weight.data  # type: ignore[operator, union-attr]
    rows = embeddings.create_position_ids_from_input_ids(torch.tensor([[5, 6, 7, 8]]), 3)
    assert torch.equal(said.input.table(Positions.arange(4)), embeddings.position_embeddings(rows))
    assert not said.causal


def test_bert_is_an_encoder_unless_it_decodes() -> None:
    config, said = made("bert", **TWELVE, max_position_embeddings=1024)
    table = transformers.AutoModel.from_config(config).embeddings.position_embeddings
    assert said.input is not None
    said.input.weight.data = table.weight.data  # type: ignore[operator, union-attr]
    assert torch.equal(said.input.table(Positions(PLACES)), table(PLACES))
    assert not said.causal
    assert made("bert", **TWELVE, is_decoder=True)[1].causal


# -- biases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m2m_100", "whisper"])
def test_sinusoids_are_those_of_tensor2tensor(name: str) -> None:
    """Theirs has angles in float32, up to 50 radians, which are rounded once, as is each frequency."""
    count, worst = sinusoids(name)
    assert count > 1000
    assert worst < 50 * 2.0**-23
    said = [scheme_from_config(config_of(name), part) for part in ("encoder", "decoder")]
    assert [each.causal for each in said] == [False, True]
    assert [len(each.layers) for each in said] == [2, 4]
    assert [each.length for each in said] == ([90, 90] if name == "m2m_100" else [50, 20])


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_t5_has_buckets_and_no_scale(part: str) -> None:
    given = {"num_heads": 12, "d_model": 72, "d_kv": 6, "d_ff": 8, "num_layers": 2, "num_decoder_layers": 3}
    given |= {"relative_attention_num_buckets": 20, "relative_attention_max_distance": 50, "vocab_size": 64}
    config = transformers.AutoConfig.for_model("t5", **given)
    said = scheme_from_config(config, part)
    attention = getattr(transformers.AutoModel.from_config(config), part).block[0].layer[0].SelfAttention
    scheme = said.schedule[0][0]
    scheme.weight.data = attention.relative_attention_bias.weight.data  # type: ignore[operator, union-attr]
    assert torch.equal(biases(said, 1, 80, torch.float32), attention.compute_bias(80, 80)[0])
    assert len(said.layers) == {"encoder": 2, "decoder": 3}[part]
    assert {layer.scale for layer in said.layers} == {attention.scaling} == {1.0}
    assert said.causal == (part == "decoder")


def test_bloom_and_mpt_have_alibi_of_twelve_heads() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    _, bloom = made("bloom", n_layer=2, n_head=12, hidden_size=72)
    # Theirs has slopes in float32, and rounds their products with places up to 40, of which biases are differences.
    bound = {"rtol": 4 * 2.0**-24, "atol": 40 * 2.0**-24}
    theirs = build_alibi_tensor(torch.ones(1, 40), 12, torch.float64).view(12, 1, 40).expand(12, 40, 40)
    torch.testing.assert_close(biases(bloom, 1, 40).tril(), since_diagonal(theirs), **bound)
    _, mpt = made("mpt", n_layers=2, n_heads=12, d_model=72, attn_config={"softmax_scale": 0.3})
    theirs = build_mpt_alibi_tensor(12, 40).double().expand(12, 40, 40)
    torch.testing.assert_close(biases(mpt, 1, 40).tril(), since_diagonal(theirs), **bound)
    assert [layer.scale for layer in mpt.layers] == [0.3, 0.3]


def test_swin_v2_has_its_windows_heads_and_network_per_stage() -> None:
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4]}
    config, said = made("swinv2", **sizes, window_size=8, pretrained_window_sizes=[6, 0])
    model = transformers.AutoModel.from_config(config).eval()
    blocks = [block for stage in model.encoder.layers for block in stage.blocks]
    for block, (scheme, _), layer in zip(blocks, said.schedule, said.layers, strict=True):
        assert (block.window_size, block.shift_size) == (layer.patches, layer.shift)
        theirs, net = block.attention.self, block.attention.self.continuous_position_bias_mlp
        heads, window = theirs.num_attention_heads, block.window_size
        torch.nn.init.normal_(net[0].bias)
        names = {"tau": theirs.logit_scale.flatten(), "inner.weight": net[0].weight, "inner.bias": net[0].bias}
        scheme.load_state_dict(names | {"outer.weight": net[2].weight})
        x = torch.randn(1, window * window, heads * theirs.attention_head_size)
        _, weights = theirs(x, output_attentions=True)
        q, k = (each(x).unflatten(-1, (heads, -1)).transpose(1, 2) for each in (theirs.query, theirs.key))
        ours = logits(q, k, scheme(Positions.grid(window, window))).softmax(-1)
        torch.testing.assert_close(ours, weights)
    assert [layer.shift for layer in said.layers] == [0, 4, 0, 0]
