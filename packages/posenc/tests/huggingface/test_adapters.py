"""adapt(): models whose positions are made of their layers' own weights, run through posenc.

The proof is that of test_attention: no further from the truth than 2.5 times the model's own error. Of Swin v2 it is
the same function in double precision.
"""

import copy
from itertools import cycle
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from transformers.models.falcon import modeling_falcon

import posenc
import posenc.huggingface as hf
from posenc.huggingface import patching
from tests.huggingface.configs import ENCODER
from tests.huggingface.test_attention import (
    IDS,
    KINDS,
    TERMS,
    built,
    check,
    moved,
    output,
    with_attention,
)
from tests.huggingface.test_patching import check_checkpointing, same, state
from tests.rounding import of_sums

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


def in_double(model: Any, name: str = "eager") -> Any:
    """The model, with the coordinates of its network in double precision too: it makes them by `Tensor.float`."""
    model = with_attention(model, name, torch.float64)
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


V2 = {"relative_attention": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7}
V3 = V2 | {"share_att_key": True, "position_buckets": 8, "max_relative_positions": 16, "norm_rel_ebd": "layer_norm"}
V3 |= {"position_biased_input": False}
DEBERTAS: dict[str, dict[str, Any]] = {
    "projections of its own": V2 | {"max_relative_positions": 5},
    "shared, in buckets": V3,
    "its own, in buckets": V3 | {"share_att_key": False, "conv_kernel_size": 3, "conv_act": "gelu"},
    "shared, no buckets": V2 | {"share_att_key": True},
    "c2p alone": V2 | {"pos_att_type": ["c2p"]},
    "p2c alone, shared": V3 | {"pos_att_type": ["p2c"]},
    "no term": V2 | {"pos_att_type": []},
    "no relative attention": V2 | {"relative_attention": False},
}


def deberta(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(**ENCODER | options)
    return moved(transformers.DebertaV2Model(config).eval())


@pytest.mark.parametrize(("case", "kind"), [*zip(DEBERTAS, cycle(["full", "left", "right"]))])
def test_deberta_is_as_exact_adapted(case: str, kind: str) -> None:
    check(deberta(**DEBERTAS[case]), *KINDS[kind])


def test_deberta_of_a_mask_of_pairs_and_of_queries_of_their_own() -> None:
    """A model hands its layers query_states where it repeats the last of them; in transformers 5.23 it fails there."""
    model = deberta(**V3).double()
    pairs = torch.rand(2, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.6
    pairs |= torch.eye(13, dtype=torch.bool)
    embedded = model.embeddings(input_ids=IDS).detach()
    inputs = {"hidden_states": embedded, "attention_mask": pairs, "query_states": embedded.flip(0)}
    plain = output(model.encoder, **inputs)
    with hf.adapt(model):
        torch.testing.assert_close(
            output(model.encoder, **inputs), plain, rtol=0, atol=of_sums(torch.float64, TERMS, plain)
        )


FALCON = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 12, "vocab_size": 48, "alibi": True}
FAR = torch.randint(3, 48, (2, 300), generator=torch.Generator().manual_seed(0))
PADDED = torch.arange(300) >= torch.tensor([[0], [45]])


@pytest.mark.parametrize("exact", [False, True])
def test_falcon_has_its_alibi_once(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As "sdpa", rounded to bfloat16, at twelve heads, whose slopes are no powers of two, and past place 256, from
    where on places are rounded too; or exactly, as "sdpa" would if it did not round."""
    torch.manual_seed(0)
    kind = transformers.FalconForCausalLM
    model = moved(kind._from_config(transformers.FalconConfig(**FALCON), attn_implementation="sdpa").eval()).double()
    if exact:
        monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", exact_alibi)
    plain = output(model, input_ids=FAR, attention_mask=PADDED.long())
    said = hf.scheme_from_config(model.config).schedule
    with hf.patch(model, said) if exact else hf.adapt(model):
        ours = output(model, input_ids=FAR, attention_mask=PADDED.long())
        cache = transformers.DynamicCache(config=model.config)
        for here in (slice(0, 290), slice(290, 299), slice(299, 300)):
            mask = PADDED[:, : here.stop].long()
            last = output(model, input_ids=FAR[:, here], attention_mask=mask, cache=cache)
    bound = of_sums(torch.float64, 2 * (4 + 300), plain, score=300)  # biases reach 300 times a slope below 1
    torch.testing.assert_close(ours[PADDED], plain[PADDED], rtol=0, atol=bound)
    torch.testing.assert_close(last[:, -1], ours[:, -1], rtol=0, atol=bound)


def exact_alibi(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """What is meant: m p in double precision."""
    places = (attention_mask.cumsum(-1) - 1) * attention_mask
    slopes = torch.tensor(posenc.ALiBi(num_heads).slopes, dtype=torch.float64)
    return (slopes[None, :, None] * places[:, None]).reshape(-1, 1, places.size(1)).to(dtype)


MODELS: dict[str, tuple[Any, dict[str, Tensor]]] = {
    "swin": (swin, {"pixel_values": image((24, 24))}),
    "deberta": (lambda: deberta(**V3 | {"share_att_key": False}), {"input_ids": IDS}),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_it_changed_and_puts_it_back(name: str) -> None:
    make, inputs = MODELS[name]
    model = make()
    before, plain = state(model), output(model, **inputs)
    names = list(model.state_dict())
    with hf.adapt(model) as patched:
        said = str(patched).splitlines()
        assert list(model.state_dict()) == names  # so it is saved as it is
        ours = output(model, **inputs)
        assert torch.equal(output(copy.deepcopy(model), **inputs), ours)
        with pytest.raises(ValueError, match=r"model is patched already: undo\(\)"):
            hf.adapt(model)
    assert said[1:] == [
        "  attention: posenc's instead of the model's own, with the weights of each layer",
        *{
            "swin": ["  layers 0, 1: LayerSwinV2((4, 4), 2)", "  layers 2, 3: LayerSwinV2((4, 4), 3)"],
            "deberta": ["  layers 0, 1: LayerDeBERTa(4, 12, max_distance=16, num_buckets=8, terms c2p and p2c)"],
        }[name],
    ]
    assert same(state(model), before)
    assert torch.equal(output(model, **inputs), plain)
    assert not torch.equal(ours, plain)  # another way to compute the same


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_models_own(name: str) -> None:
    make, inputs = MODELS[name]
    found = {}
    for attention in ("eager", "posenc"):
        model = with_attention(make(), attention, torch.float64) if name == "deberta" else in_double(make(), attention)
        given = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        out = model(**given).last_hidden_state
        (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)).sum().backward()
        found[attention] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert found["eager"].keys() == found["posenc"].keys()
    learned = "continuous_position_bias_mlp" if name == "swin" else "rel_embeddings"
    assert any(learned in n and gradient.abs().max() > 0.01 for n, gradient in found["posenc"].items())
    greatest = max(float(gradient.abs().max()) for gradient in found["eager"].values())
    for n, gradient in found["eager"].items():
        # A rounding grows to 4,000 times itself in Swin v2, as above.
        torch.testing.assert_close(found["posenc"][n], gradient, rtol=0, atol=4000 * 2.0**-52 * greatest, msg=n)


@pytest.mark.parametrize(("name", "reentrant"), [("swin", True), ("deberta", False)])
def test_activation_checkpointing_changes_no_gradient(name: str, reentrant: bool) -> None:
    make, inputs = MODELS[name]
    if name == "deberta":
        inputs = inputs | {"attention_mask": (torch.arange(13) < torch.tensor([[9], [13]])).long()}
    with hf.adapt(model := make().double()):
        check_checkpointing(
            model, {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}, reentrant
        )


def test_a_model_trains_with_dropout() -> None:
    for make, inputs in MODELS.values():
        model = make()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for module in model.modules():
            if type(module).__name__ in ("Swinv2SelfAttention", "DisentangledSelfAttention"):
                module.dropout.p = 0.5
        with hf.adapt(model):
            assert torch.equal(output(model, **inputs), output(model, **inputs))
            model.train()
            assert not torch.equal(output(model, **inputs), output(model, **inputs))


@pytest.mark.more
def test_a_compiled_model_gives_the_same() -> None:
    """Without a mask too, for which its model makes one of floating numbers."""
    model = deberta(**V3 | {"num_hidden_layers": 1})
    with hf.adapt(model):
        plain, ours = output(model, input_ids=IDS), output(torch.compile(model, backend="eager"), input_ids=IDS)
    torch.compiler.reset()
    torch.testing.assert_close(ours, plain, rtol=0, atol=of_sums(torch.float32, TERMS, plain))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
def test_lora_on_the_projections_of_positions_counts() -> None:
    peft = pytest.importorskip("peft")
    model = deberta(**V3).double()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query_proj", "key_proj"], r=2))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    plain = output(wrapped, input_ids=IDS)
    with hf.adapt(wrapped):
        torch.testing.assert_close(
            output(wrapped, input_ids=IDS), plain, rtol=0, atol=of_sums(torch.float64, TERMS, plain)
        )
    assert (output(deberta(**V3).double(), input_ids=IDS) - plain).abs().max() > 1e-2


def test_what_cannot_be_said_is_refused_by_name() -> None:
    def refused(model: Any, words: str) -> None:
        before = state(model)
        with pytest.raises(ValueError, match=words):
            hf.adapt(model)
        assert same(state(model), before)

    refused(
        deberta(**V2 | {"pos_att_type": ["p2p", "c2p"]}), "deberta-v2's pos_att_type must be of c2p and p2c, got 'p2p'"
    )
    refused(deberta(**V3 | {"position_buckets": 7}), "position_buckets=7 .* num_buckets must be even")
    refused(deberta(**V3 | {"max_relative_positions": 5}), "max_relative_positions=5 .* max_distance must be above 5")
    model = swin()
    attention = model.encoder.layers[0].blocks[0].attention.self
    attention.continuous_position_bias_mlp[0] = torch.nn.Identity()
    refused(model, "continuous_position_bias_mlp must be of torch.nn.Linear, whose weights are read, got Identity")
    one = transformers.DebertaModel(transformers.DebertaConfig(**ENCODER))
    refused(one, r"DebertaModel \(deberta\) cannot be patched: its positions go through")
    for make, inputs in MODELS.values():
        model = make()
        with pytest.raises(ValueError, match=r"cannot be patched: its .*; adapt\(\) runs it through posenc unchanged"):
            hf.patch(model, posenc.NoPE())
        with hf.adapt(model), pytest.raises(ValueError, match=r"output_attentions is not supported .* undo"):
            model(**inputs, output_attentions=True)
    with hf.adapt(model), pytest.raises(ValueError, match="relative_pos is not supported by posenc"):
        model.encoder(model.embeddings(IDS), torch.ones_like(IDS), relative_pos=torch.zeros(13, 13).long())


def test_a_cache_by_a_name_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be forgotten without an error, as if there were none."""
    monkeypatch.setattr(patching, "CACHES", ("kept",))
    with pytest.raises(ValueError, match=r"^BloomAttention must take its cache as kept, got self, .*layer_past"):
        hf.adapt(built("bloom"))


def test_buckets_that_single_precision_counts_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.deberta_v2 import modeling_deberta_v2 as theirs

    original = theirs.make_log_bucket_position

    def moved_border(n: Tensor, *sizes: int) -> Tensor:
        found: Tensor = original(n, *sizes)
        return found + (n == 9)

    hf.adapt(deberta(**V3))
    monkeypatch.setattr(theirs, "make_log_bucket_position", moved_border)
    with pytest.raises(ValueError, match=r"gives other buckets in the float32 .* first at a distance of 9"):
        hf.adapt(deberta(**V3))
