"""Where transformers 5.23 is at fault: each test shows it with transformers alone, and fails when it is mended.

They say why a test elsewhere compares with something else, or leaves a model out.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from transformers.models.falcon import modeling_falcon

import posenc
from tests.huggingface.test_attention import ENCODER, IDS, built, moved, output

LEFT = (torch.arange(13) >= torch.tensor([[4], [0]])).long()
PLACES = (LEFT.cumsum(1) - 1).clamp(min=0)


def test_llama_4_scales_queries_by_their_place_in_the_cache() -> None:
    """Its temperature, 1 + 0.1 ln(1 + floor((p + 1)/8192)) in layers without position, takes p from the cache, so a row
    that is padded on the left is another row."""
    found = []
    for scale in (8192, 4):
        model = built("llama4", floor_scale=scale, attn_scale=0.5).double()
        model.set_attn_implementation("posenc")  # eager has NaN in its rows of padding; the fault is before attention
        padded = output(model, input_ids=IDS * LEFT, attention_mask=LEFT, position_ids=PLACES)[0, 4:]
        alone = output(model, input_ids=IDS[:1, 4:])[0]
        found.append(float((padded - alone).abs().max()))
    assert found[0] < 1e-5 < 1e-2 < found[1]


def test_eager_attention_in_double_precision_is_nan_beside_padding_on_the_left() -> None:
    """The mask's least double becomes -inf when the softmax casts it to float32, and a row of -inf has no softmax."""
    model = built("llama").double()
    model.set_attn_implementation("eager")
    assert output(model, input_ids=IDS, attention_mask=LEFT, position_ids=PLACES)[0, 4:].isnan().all()
    model.set_attn_implementation("posenc")
    assert output(model, input_ids=IDS, attention_mask=LEFT, position_ids=PLACES).isfinite().all()


def test_documents_are_told_apart_without_a_cache_alone() -> None:
    model = built("llama")
    packed = {"input_ids": IDS, "position_ids": torch.cat([torch.arange(8), torch.arange(5)]).expand(2, -1)}
    apart = output(model, **packed, use_cache=False)
    torch.testing.assert_close(apart[:, 8:], output(model, input_ids=IDS[:, 8:]), rtol=0, atol=2e-5)
    as_one = output(model, **packed)
    assert float((as_one - apart)[:, 8:].abs().max()) > 0.1
    assert torch.equal(as_one, output(model, **packed, use_cache=False, attention_mask=torch.ones(2, 13).long()))


def test_dynamic_scaling_turns_a_row_by_the_longest_of_its_batch() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = built("llama", max_position_embeddings=8, rope_parameters=scaling)
    model.set_attn_implementation("eager")
    short = (torch.arange(13) < torch.tensor([[7], [13]])).long()
    beside = output(model, input_ids=IDS, attention_mask=short)[0, :7]
    alone = output(model, input_ids=IDS[:1, :7])[0]
    assert (beside - alone).abs().max() > 1e-2


def test_falcon_with_alibi_rounds_its_bias_to_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """m p of a key at place p, before softmax takes differences: far from the start a head of slope 2^-1/2 is off by 1,
    and the same words further on are other words."""
    torch.manual_seed(0)
    options = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 12, "vocab_size": 48, "alibi": True}
    model = moved(transformers.FalconForCausalLM(transformers.FalconConfig(**options)).eval()).double()
    ids = torch.randint(3, 48, (1, 300), generator=torch.Generator().manual_seed(0))
    own = output(model, input_ids=ids)
    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", exact_alibi)
    assert (output(model, input_ids=ids)[:, -13:] - own[:, -13:]).abs().max() > 1e-2


def exact_alibi(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """What is meant: m p in double precision."""
    places = (attention_mask.cumsum(-1) - 1) * attention_mask
    slopes = torch.tensor(posenc.ALiBi(num_heads).slopes, dtype=torch.float64)
    return (slopes[None, :, None] * places[:, None]).reshape(-1, 1, places.size(1)).to(dtype)


def test_swin_v2_adds_its_mask_twice() -> None:
    """-200 for patches of other windows, where the published code has -100."""
    config = transformers.Swinv2Config(embed_dim=24, depths=[1], num_heads=[2], window_size=2)
    layer = transformers.models.swinv2.modeling_swinv2.Swinv2SelfAttention(config, 24, 2, 2).eval()
    x, mask = torch.randn(1, 4, 24, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    weights = [
        layer(x, None if m is None else m.expand(1, 4, 4), output_attentions=True)[1].log() for m in (None, mask)
    ]
    difference = (weights[1] - weights[0])[..., 1:] - (weights[1] - weights[0])[..., :1]
    torch.testing.assert_close(difference, (2 * mask[:, 1:]).expand_as(difference), rtol=1e-4, atol=1e-4)


def test_falcon_with_alibi_counts_its_bias_twice_in_eager_attention() -> None:
    """The model adds the bias to the mask, "sdpa" takes that, and eager adds the bias once more."""
    torch.manual_seed(0)
    options = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 48, "alibi": True}
    found = {}
    for name in ("eager", "sdpa"):
        torch.manual_seed(0)
        config = transformers.FalconConfig(**options)
        found[name] = output(
            moved(transformers.FalconForCausalLM._from_config(config, attn_implementation=name).eval()), input_ids=IDS
        )
    assert (found["eager"] - found["sdpa"]).abs().max() > 1e-2


def test_reentrant_checkpointing_of_deberta_goes_back_twice_through_what_layers_share() -> None:
    """The norm of its relative embeddings is done once, outside of the layers that are handed it by its name."""
    options = ENCODER | {"relative_attention": True, "pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm"}
    model = transformers.DebertaV2Model(transformers.DebertaV2Config(**options)).train()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        model(input_ids=IDS)[0].sum().backward()


def test_the_last_layer_of_deberta_cannot_be_repeated() -> None:
    """z_steps of the model's own: it appends to a tuple."""
    options = ENCODER | {"relative_attention": True, "pos_att_type": "p2c|c2p"}
    model = transformers.DebertaV2Model(transformers.DebertaV2Config(**options)).eval()
    model.z_steps = 2
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'append'"):
        model(input_ids=IDS)


def test_swin_v2_has_no_table_for_the_whole_image() -> None:
    """The one that use_absolute_embeddings asks for has a row more than there are patches."""
    config = transformers.Swinv2Config(
        image_size=8, patch_size=2, embed_dim=24, depths=[1], num_heads=[2], window_size=2, use_absolute_embeddings=True
    )
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(16\) must match the size of tensor b \(17\)"):
        transformers.Swinv2Model(config)(torch.zeros(1, 3, 8, 8))
