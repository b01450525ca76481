"""A patched model is saved, loaded, copied and pickled, and never runs without the positions that it was given."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_file
from torch import Tensor

import posenc
from posenc.huggingface import patch, scheme_from_config
from posenc.huggingface.attention import LAYER_SCHEME
from posenc.huggingface.attention import mask as mask_of
from tests.huggingface.configs import ENCODER
from tests.huggingface.test_attention import IDS, built, output
from tests.huggingface.test_patching import same, state
from tests.rounding import of_angles


def le_rope() -> posenc.LeRoPE:
    return posenc.LeRoPE(12, layout="half")


PUT: dict[str, tuple[str, Callable[[], Any], int]] = {  # and how many tensors it learns
    "scaling": ("llama", lambda: posenc.YaRN(4.0, 16), 0),
    "of one type": ("gemma3", lambda: {"full_attention": posenc.YaRN(4.0, 16, mscale=1.0, mscale_all_dim=1.0)}, 0),
    "windows": (
        "llama",
        lambda: posenc.Schedule([(posenc.RoPE(12, 500.0), 4), (ALiBi() + posenc.NoPE(), (6, None))]),
        0,
    ),
    "a function": ("llama", lambda: lambda theta: (theta / 2, 1.0), 0),
    "shared": ("llama", lambda: posenc.Shaw(12, 8), 2),
    "in one layer": ("llama", lambda: posenc.Schedule([(posenc.NoPE(), None), (posenc.KERPLE(4), None)]), 2),
    "in each layer": ("llama", lambda: posenc.Schedule([(le_rope(), None), (le_rope(), 4)]), 2),
    "a table": ("gpt2", lambda: posenc.Learned(64, 48) + posenc.T5(4), 2),
    "bert": ("bert", lambda: posenc.T5(4, bidirectional=True), 1),
    "bloom": ("bloom", lambda: posenc.Shaw(12, 8), 2),
}


class ALiBi(posenc.ALiBi):
    """A scheme of one's own."""

    def __init__(self) -> None:
        super().__init__(4)


def saved(name: str, place: Path, **how: Any) -> tuple[Any, Tensor, Tensor]:
    """A model, what it gives, and what it gives patched, as it is saved then; what is learned is not as it was made."""
    family, make, _ = PUT[name]
    model, what = built(family), make()
    plain = output(model, input_ids=IDS)
    with patch(model, what):
        for number, parameter in enumerate(what.parameters() if isinstance(what, torch.nn.Module) else ()):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
        out = output(model, input_ids=IDS)
        model.save_pretrained(place, **how)
    assert float((out - plain).abs().max()) > 1e-3
    return model, plain, out


def unpatched(place: Path, kind: Any) -> Any:
    """A patched model that was saved, without the patch."""
    with pytest.warns(UserWarning, match="patch had put .* and this one is without it: call patch") as said:
        model = kind.from_pretrained(place, attn_implementation="sdpa" if kind._supports_sdpa else "eager")
    assert {each.filename for each in said} == {__file__}
    return model


def loaded(place: Path, kind: Any, what: Any) -> Any:
    """A patched model that was saved, by the lines of the page."""
    model = unpatched(place, kind)
    before = model.config.to_dict()
    patch(model, what).undo()
    assert model.config.to_dict() == before
    patch(model, what)
    saved = {key: x for file in place.glob("*.safetensors") for key, x in load_file(file).items()}
    learned = {key: x for key, x in saved.items() if ".scheme." in key}
    model.load_state_dict(learned, strict=False)
    learning = {key: x.data_ptr() for key, x in model.state_dict().items() if ".scheme." in key}
    assert {learning[key] for key in learned} == set(learning.values())
    return model


@pytest.mark.parametrize("name", PUT)
def test_a_patched_model_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    family, make, learned = PUT[name]
    model, plain, out = saved(name, tmp_path, max_shard_size="20KB")
    again = loaded(tmp_path, type(model), make())
    assert torch.equal(output(again, input_ids=IDS), out)
    again.save_pretrained(tmp_path / "again")
    again = loaded(tmp_path / "again", type(model), make())
    assert torch.equal(output(again, input_ids=IDS), out)

    kind = type(model)
    with pytest.raises(ValueError, match=r"^Specified `attn_implementation=\"posenc.*call patch\(\) again with what"):
        kind.from_pretrained(tmp_path)  # transformers' own error, also where posenc is not imported
    with pytest.warns(UserWarning, match="patch had put .* and this one is without it"):
        other = kind.from_pretrained(tmp_path, attn_implementation="eager", output_loading_info=True)
    unexpected = other[1]["unexpected_keys"]
    assert all(".posenc_plan.scheme." in key or ".wpe.scheme." in key for key in unexpected)
    assert len(unexpected) == learned
    if family != "bloom":  # its eager attention rounds otherwise than posenc's
        other[0].set_attn_implementation("sdpa")
    assert torch.equal(output(other[0], input_ids=IDS), plain)


@pytest.mark.parametrize(
    ("family", "put", "other"),
    [
        ("llama", posenc.ALiBi(4), posenc.T5(4)),
        ("llama", posenc.Shaw(12, 8), posenc.Schedule([(posenc.Shaw(12, 8), None), (posenc.Shaw(12, 8), None)])),
        ("llama", posenc.Schedule([(posenc.Shaw(12, 8), None), (posenc.Shaw(12, 8), None)]), posenc.Shaw(12, 8)),
        ("llama", posenc.YaRN(4.0, 64), posenc.YaRN(4.0, 128)),
        ("bloom", posenc.Shaw(12, 16), posenc.NoPE()),
    ],
    ids=["another", "one per layer", "shared", "another length", "nothing"],
)
def test_another_patch_than_the_saved_one_is_refused(family: str, put: Any, other: Any, tmp_path: Path) -> None:
    model = built(family)
    with patch(model, put):
        model.save_pretrained(tmp_path)
    patch(model, other).undo()  # in one process it is another patch
    again = unpatched(tmp_path, type(model))
    before, output_before = again.config.to_dict(), output(again, input_ids=IDS)
    with pytest.raises(ValueError, match=rf"tion says, {type(put).__name__}.*, got {type(other).__name__}.*: put"):
        patch(again, other)
    assert again.config.to_dict() == before
    assert torch.equal(output(again, input_ids=IDS), output_before)
    del again.config.posenc_patch
    assert patch(again, other).changes


def test_a_configuration_says_what_was_put_in_until_undo() -> None:
    config = built("llama").config
    first, second = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    before = config.to_dict()
    one = patch(first, posenc.YaRN(4.0, 16))
    assert config.posenc_patch.startswith("YaRN(factor=4.0, original_length=16")
    assert "in the model itself, which was patched: posenc_patch = YaRN(" in str(scheme_from_config(config))
    two = patch(second, posenc.YaRN(2.0, 16))
    one.undo()  # of models of one configuration, the second stays patched
    assert config.posenc_patch.startswith("YaRN(factor=2.0")  # that of the second
    two.undo()
    assert config.to_dict() == before
    was = config._attn_implementation
    for last in (False, True):
        every = [patch(each, posenc.NoPE()) for each in (first, second)]
        every.pop(last).undo()
        output(second if not last else first, input_ids=IDS)  # which raises where posenc does not run
        every.pop().undo()
        assert (config._attn_implementation, config.to_dict()) == (was, before)
    with (
        patch(first, posenc.YaRN(4.0, 16)),
        pytest.warns(UserWarning, match="patch had put .* and this one is without it"),
    ):
        transformers.LlamaModel(config)


def test_a_learned_table_that_is_not_used_keeps_its_name() -> None:
    model, other = built("gpt2"), built("gpt2")
    with torch.no_grad():
        other.transformer.wpe.weight.mul_(2.0)
    with patch(model, posenc.ALiBi(4)):
        assert model.state_dict().keys() == other.state_dict().keys()
        model.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(output(model, input_ids=IDS), output(other, input_ids=IDS))


OTHERS = {
    "rotation": ("llama", posenc.ALiBi(4)),
    "scaling by length": ("llama", posenc.DynamicNTK(2.0, 4)),
    "table": ("gpt2", posenc.ALiBi(4)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_attention_in_a_patched_model_is_refused(name: str) -> None:
    family, what = OTHERS[name]
    model = built(family)
    with patch(model, what):
        out = output(model, input_ids=IDS)
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match=r"attn_implementation must be 'posenc' while .* patched, got 'eager'"):
            output(model, input_ids=IDS)
        model.set_attn_implementation("posenc")
        assert torch.equal(output(model, input_ids=IDS), out)


@pytest.mark.parametrize("family", ["bloom", "gpt2", "llama"])
def test_a_patched_model_is_pickled(family: str) -> None:
    model = built(family)
    with patch(model, posenc.ALiBi(model.config.num_attention_heads)):
        out = output(model, input_ids=IDS)
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert torch.equal(output(other, input_ids=IDS), out)
            assert [type(m).__name__ for m in other.modules()] == [type(m).__name__ for m in model.modules()]


def test_an_attention_may_have_a_class_that_is_derived_from_its_own() -> None:
    """As fully_shard and parametrizations derive one of a module that is there."""
    model = built("bloom")
    before = state(model)
    patched = patch(model, posenc.NoPE())
    out = output(model, input_ids=IDS)
    layer = next(module for module in model.modules() if hasattr(module, LAYER_SCHEME))
    kind = type(layer)
    layer.__class__ = type(f"FSDP{kind.__name__}", (kind,), {})
    for each in (model, copy.deepcopy(model)):
        assert torch.equal(output(each, input_ids=IDS), out)
    layer.__class__ = kind
    patched.undo()
    assert same(state(model), before)


EXPERTS = {"q_lora_rank": 8, "qk_rope_head_dim": 4, "moe_intermediate_size": 16, "n_routed_experts": 4}
OWN_ATTENTION: dict[str, dict[str, Any]] = {
    "mpt": {"d_model": 48, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2},
    "falcon": {},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4},
    "roformer": {"is_decoder": True},
    "trocr": {"d_model": 48, "decoder_ffn_dim": 64, "decoder_layers": 2, "decoder_attention_heads": 4},
    "git": {"vision_config": {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}},
    "deepseek_v4": EXPERTS | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4},
}


def made(family: str, attention: str) -> Any:
    config = transformers.CONFIG_MAPPING[family](**ENCODER | OWN_ATTENTION[family])
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


@pytest.mark.parametrize("family", OWN_ATTENTION)
def test_a_model_with_an_attention_of_its_own_is_refused_when_it_is_made(family: str) -> None:
    with pytest.raises(ValueError, match=rf"is not supported by \w+ \({family}\), which has its own attention"):
        made(family, "posenc")


@pytest.mark.parametrize("name", ["bloom", "git"])
def test_a_model_that_would_keep_its_own_attention_is_refused_where_it_is_set(name: str) -> None:
    model = built(name) if name == "bloom" else made(name, "eager")
    before = model.config._attn_implementation
    advice = r", and patch\(model, .*\.schedule\) runs it through posenc" if name == "bloom" else ""
    for given in ("posenc", {"": "posenc"}):
        with pytest.raises(ValueError, match=rf"by \w+ \({name}\), which has its own .*='eager'{advice}$"):
            model.set_attn_implementation(given)
    assert model.config._attn_implementation == before
    if name == "bloom":
        with patch(model, scheme_from_config(model.config).schedule):
            model.set_attn_implementation("posenc")  # it is


class Mine(transformers.LlamaForCausalLM):
    """A class of one's own, which goes through the table as what it is derived from does."""


def test_a_class_of_ones_own_is_taken_for_what_it_is_derived_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "__module__", "typed at a prompt")  # transformers cannot read its source
    model = Mine._from_config(built("llama").config, attn_implementation="posenc")
    assert model.config._attn_implementation == "posenc"


OWN = posenc.LongRoPE([1.0] * 6, [1.0] * 6, 64, 4.0, attention_factor=1.0)


def deeper(attention: str) -> Any:
    """A model with a copy of its last layer, which holds a copy of the configuration."""
    model = built("llama")
    model.set_attn_implementation(attention)
    layers = model.model.layers
    layers.append(copy.deepcopy(layers[-1]))
    layers[-1].self_attn.layer_idx = 2
    model.config.num_hidden_layers = 3
    return model


@pytest.mark.parametrize(("what", "attention"), [(OWN, "eager"), (posenc.RoPE(12), "sdpa")], ids=["length", "RoPE"])
def test_a_copied_layer_runs_through_posenc(what: Any, attention: str) -> None:
    model = deeper(attention)
    plain = output(model, input_ids=IDS)
    with patch(model, what):
        # the same angles, in double precision where transformers has float32, through three layers
        torch.testing.assert_close(
            output(model, input_ids=IDS), plain, rtol=0, atol=3 * of_angles(torch.float32, 13, plain)
        )
    assert torch.equal(output(model, input_ids=IDS), plain)
    assert model.model.layers[-1].self_attn.config._attn_implementation == attention


def test_a_copied_layer_that_adds_the_mask_to_its_scores_is_refused() -> None:
    model = deeper("eager")
    model.set_attn_implementation("posenc")
    with pytest.raises(ValueError, match=r"gives a boolean mask, and this layer adds it to its scores .* if it has a"):
        output(model, input_ids=IDS)


def test_the_mask_is_a_boolean_one_to_who_reads_it() -> None:
    mask = mask_of(1, 5, 5)
    assert mask is not None
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    scores = torch.randn(1, 1, 5, 5)
    assert torch.equal(scores.masked_fill(~mask, -1.0), scores.masked_fill(~causal, -1.0))
    assert torch.equal(mask * mask, causal)
    assert torch.equal(mask.float(), causal.float())
    for join in (lambda: scores + mask, lambda: mask + scores, lambda: scores * mask):
        with pytest.raises(ValueError, match="gives a boolean mask"):
            join()
    with pytest.raises(ValueError, match="gives a boolean mask"):
        torch.cat((scores, mask))


def test_weights_of_a_patched_model_are_refused_with_the_way_out() -> None:
    model = built("llama")
    with (
        patch(model, posenc.ALiBi(4)),
        pytest.raises(ValueError, match=r"; undo\(\) the patch and set attn_impl"),
    ):
        model(input_ids=IDS, output_attentions=True)
