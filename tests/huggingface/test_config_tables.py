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
from tests.huggingface.configs import IMAGE, OTHERS, SIZES
from tests.huggingface.families import HOW, compare, outputs
from tests.huggingface.tiny import config_of, model_of, run
from tests.rounding import of_angles, of_sums

PLACES = torch.tensor([[0, 1, 5, 700, 1023]])

BOUNDS = {  # of the largest number; others are equal, but for a sum in double precision
    **{name: of_sums(torch.float32, 2 * (12 + 40)) for name, how in HOW.items() if how is outputs},
    **dict.fromkeys(("m2m_100", "nllb-moe", "whisper"), of_angles(torch.float32, 90.0)),
    "dinov3_vit": of_angles(torch.float32, 2 * math.pi),
    "esm": of_angles(torch.float32, 2000.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_model_does_what_was_read(name: str) -> None:
    count, worst = compare(name)
    assert count > 300
    assert worst <= BOUNDS.get(name, 2**-46)


def made(model_type: str, **given: Any) -> tuple[Any, ModelPositions]:
    config = transformers.AutoConfig.for_model(model_type, **given)
    return config, scheme_from_config(config)


def test_gpt2_scales_by_layer() -> None:
    config, said = made("gpt2", **SIZES, scale_attn_by_inverse_layer_idx=True)
    calls, _ = run(model_of(config), torch.arange(5)[None] + 1, PLACES)
    assert [call.scaling for call in calls] == [layer.scale or 12**-0.5 for layer in said.layers]
    _, plain = made("gpt2", **SIZES, scale_attn_weights=False)
    assert {layer.scale for layer in plain.layers} == {1.0}


def test_tables_end_and_begin_where_the_models_do() -> None:
    _, said = made("opt", **SIZES, word_embed_proj_dim=36)
    assert said.input is not None
    with pytest.raises(posenc.PositionError, match="OffsetLearned encodes positions 0 to 4095, got 4096"):
        said.input.table(Positions(torch.tensor([[4096]])))
    config, said = made("roberta", **SIZES | {"pad_token_id": 3})
    embeddings = transformers.AutoModel.from_config(config).embeddings
    said.input.weight.data = embeddings.position_embeddings.weight.data  # type: ignore[operator, union-attr]
    rows = embeddings.create_position_ids_from_input_ids(torch.tensor([[5, 6, 7, 8]]), 3)
    assert torch.equal(said.input.table(Positions.arange(4)), embeddings.position_embeddings(rows))  # type: ignore[union-attr]


def test_which_are_encoders() -> None:
    for name, causal in (("bert", False), ("roberta", False), ("dinov3_vit", False), ("gptj", True), ("bloom", True)):
        assert scheme_from_config(config_of(name)).causal is causal
    assert made("bert", **SIZES, is_decoder=True)[1].causal
    for name, layers, lengths in (
        ("m2m_100", [2, 4], [90, 90]),
        ("whisper", [2, 4], [50, 20]),
        ("t5", [2, 2], [None, None]),
    ):
        said = [scheme_from_config(config_of(name), part) for part in ("encoder", "decoder")]
        assert [each.causal for each in said] == [False, True]
        assert [len(each.layers) for each in said] == layers
        assert [each.length for each in said] == lengths


def test_scales_and_shifts_beside_the_scheme() -> None:
    assert {layer.scale for layer in scheme_from_config(config_of("t5")).layers} == {1.0}
    assert [layer.scale for layer in scheme_from_config(config_of("mpt")).layers] == [0.5, 0.5]
    said = scheme_from_config(config_of("swinv2"))
    model = transformers.AutoModel.from_config(config_of("swinv2"))
    blocks = [block for stage in model.encoder.layers for block in stage.blocks]
    assert [(b.window_size, b.shift_size) for b in blocks] == [(each.patches, each.shift) for each in said.layers]
    assert [layer.shift for layer in said.layers] == [0, 4, 0, 0]
    for block, (scheme, _) in zip(blocks, said.schedule, strict=True):
        theirs, net = block.attention.self, block.attention.self.continuous_position_bias_mlp
        torch.nn.init.normal_(net[0].bias)
        names = {"tau": theirs.logit_scale.flatten(), "inner.weight": net[0].weight, "inner.bias": net[0].bias}
        scheme.load_state_dict(names | {"outer.weight": net[2].weight})
        x = torch.randn(1, block.window_size**2, theirs.num_attention_heads * theirs.attention_head_size)
        _, weights = theirs.eval()(x, output_attentions=True)
        heads = (theirs.num_attention_heads, -1)
        q, k = (each(x).unflatten(-1, heads).transpose(1, 2) for each in (theirs.query, theirs.key))
        torch.testing.assert_close(logits(q, k, scheme(Positions.grid(*2 * (block.window_size,)))).softmax(-1), weights)


def test_dinov3_rotates_no_register_and_draws_nothing() -> None:
    _, said = made("dinov3_vit", **IMAGE | {"hidden_size": 60}, num_register_tokens=2, pos_embed_shift=0.5)
    assert not said.schedule[0][0].training  # as from_pretrained leaves a model: nothing is drawn at random
    assert "grid(height, width, prefix=3)" in repr(said)


def test_alibi_of_twelve_heads_is_that_of_falcon_bloom_and_mpt() -> None:
    """Slopes of other numbers of heads than powers of two are another formula."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    falcon = made("falcon", num_hidden_layers=2, hidden_size=72, num_attention_heads=12, vocab_size=64, alibi=True)[1]
    theirs = build_alibi_tensor(torch.ones(1, 40), 12, torch.float64).view(12, 1, 40)
    # Theirs has slopes in float32, and rounds their products with places up to 40, of which biases are differences.
    for said, bias in (
        (made("bloom", n_layer=2, n_head=12, hidden_size=72)[1], theirs),
        (made("mpt", n_layers=2, n_heads=12, d_model=72)[1], build_mpt_alibi_tensor(12, 40).double()),
        (falcon, theirs / 6**0.5),  # in the model rounded to bfloat16: see test_adapters.py
    ):
        q = torch.zeros(1, 12, 40, 6, dtype=torch.float64)
        ours = logits(q, q, said.schedule[0][0](Positions.arange(40)))[0].tril()
        torch.testing.assert_close(ours, since_diagonal(bias.expand(12, 40, 40)), rtol=4 * 2.0**-24, atol=40 * 2.0**-24)


def since_diagonal(bias: Tensor) -> Tensor:
    """A bias less what its row has at the query itself, which softmax does not see; keys ahead left out."""
    return (bias - bias.diagonal(dim1=-2, dim2=-1)[..., None]).tril()
