"""patch(): what is put into a model does what it says, from a cache too, and is taken out again bit for bit."""

import copy
import inspect
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers

import posenc
from posenc import Chunk, RoPE, Schedule
from posenc.huggingface import bounded_cache, patch, patching, scheme_from_config
from posenc.huggingface.adapters import UNSUPPORTED
from posenc.huggingface.seams import Patched
from posenc.rotation.scalings import DynamicNTK, Llama3, LongRoPE, NTKAware, PositionInterpolation, YaRN
from tests.huggingface.configs import ADAPTED, DECODERS, ENCODER
from tests.huggingface.test_attention import DOCUMENTS, GENERATE, IDS, IMAGE, TERMS, built, moved, output, with_axes
from tests.huggingface.tiny_models import config_of, exact_alibi, small_config
from tests.rounding import of_angles, of_sums

ROTATING = [name for name in DECODERS if name != "gpt2"]
TRAINED = 16
LONG = torch.randint(3, 48, (2, 40), generator=torch.Generator().manual_seed(5))
IS_TOKEN = torch.arange(40) >= torch.tensor([[13], [0]])


def state(model: Any) -> tuple[Any, ...]:
    """All that a patch could change: parameters and buffers, modules, and which attention runs."""
    tensors = {name: (x.data_ptr(), x.clone()) for name, x in [*model.named_parameters(), *model.named_buffers()]}
    modules = {
        name: (id(module), type(module), {k: v for k, v in vars(module).items() if isinstance(v, bool | int | str)})
        for name, module in model.named_modules()
    }
    return tensors, modules, model.config.to_dict(), model.config._attn_implementation


def same(x: tuple[Any, ...], y: tuple[Any, ...]) -> bool:
    pairs = zip(x[0].values(), y[0].values(), strict=True)
    return [*x[0]] == [*y[0]] and all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs) and x[1:] == y[1:]


def test_it_says_what_it_changed_and_puts_it_back() -> None:
    model = built("llama")
    before, plain = state(model), output(model, input_ids=LONG)
    patched = patch(model, DynamicNTK(2.0, TRAINED))
    assert repr(patched).splitlines() == [
        "LlamaForCausalLM, patched:",
        "  every rotating layer: base 10000, 12 channels, scaled by DynamicNTK(factor=2.0, original_length=16); in "
        "attention, with unrotated keys in the cache",
        "  DynamicNTK is made for 16 positions, the configuration has 64",
        "  attention: posenc instead of 'sdpa'",
    ]
    assert not torch.equal(output(model, input_ids=LONG), plain)
    patched.undo()
    patched.undo()
    assert repr(patched).startswith("LlamaForCausalLM, not patched:")
    assert same(state(model), before)
    assert torch.equal(output(model, input_ids=LONG), plain)


def test_an_undo_that_failed_can_be_called_again() -> None:
    steps = []

    def fails_once() -> None:
        steps.append("second")
        if len(steps) == 1:
            raise RuntimeError("busy")

    patched = Patched(torch.nn.Identity())
    patched.on_undo(lambda: steps.append("first"))
    patched.on_undo(fails_once)
    with pytest.raises(RuntimeError, match="busy"):
        patched.undo()
    assert repr(patched) == "Identity, patched:"
    patched.undo()
    assert steps == ["second", "second", "first"]
    assert repr(patched) == "Identity, not patched:"


def test_threads_patch_models_of_one_configuration() -> None:
    config, interval = SimpleNamespace(of="none"), sys.getswitchinterval()

    def patches(turn: int) -> None:
        for _ in range(2000):
            patched = Patched(torch.nn.Identity())
            patched.hold(config, "of", turn, "none")
            patched.hold(config, "new", turn)
            patched.undo()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(patches, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert vars(config) == {"of": "none"}


def test_a_scaling_for_another_length_than_the_models_is_remarked() -> None:
    """That of its configuration, or of its own scaling."""
    own = built("deepseek_v3", rope_parameters=MSCALE, max_position_embeddings=64)
    for length in (16, 64, 32):
        with patch(own, YaRN(2.0, length)) as patched:
            assert ("YaRN is made for 32 positions, the configuration has 16" in patched.changes) == (length == 32)


OWN: dict[str, tuple[Any, dict[str, Any], int]] = {
    "linear": (PositionInterpolation(2.0), {"rope_type": "linear", "factor": 2.0}, TRAINED),
    "dynamic": (DynamicNTK(2.0, TRAINED), {"rope_type": "dynamic", "factor": 2.0}, TRAINED),
    "yarn": (YaRN(4.0, TRAINED), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}, 64),
    "llama3": (
        Llama3(8.0, TRAINED),
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": TRAINED}
        | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        64,
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_scaling_is_the_one_that_transformers_has_under_its_name(kind: str) -> None:
    scaling, parameters, most = OWN[kind]
    theirs = built("llama", rope_parameters=parameters | {"rope_theta": 5e4}, max_position_embeddings=most)
    ours = built("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e4})
    with patch(ours, scaling):
        expected = output(theirs, input_ids=LONG)
        bound = 2 * of_angles(torch.float32, 40, expected)  # theirs has angles in float32, in two layers
        torch.testing.assert_close(output(ours, input_ids=LONG), expected, rtol=0, atol=bound)
    told = parameters | ({"original_max_position_embeddings": TRAINED} if kind == "dynamic" else {})
    with patch(ours, told) as patched:
        assert repr(scaling) in repr(patched)
        torch.testing.assert_close(output(ours, input_ids=LONG), expected, rtol=0, atol=bound)
    with patch(theirs, {"rope_type": "default"}) as patched:
        assert f"without a scaling, instead of {scaling!r}" in repr(patched)
        plain = output(ours, input_ids=LONG)
        torch.testing.assert_close(output(theirs, input_ids=LONG), plain, rtol=0, atol=bound)
    with patch(theirs, NTKAware(2.0)) as patched, patch(ours, NTKAware(2.0)):
        assert f"instead of {scaling!r}" in repr(patched)
        assert torch.equal(output(ours, input_ids=LONG), output(theirs, input_ids=LONG))


MSCALE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED}
MSCALE |= {"mscale": 1.0, "mscale_all_dim": 1.0}
OWN_YARN = YaRN(4.0, TRAINED, mscale=1.0, mscale_all_dim=1.0)


def test_yarns_factor_of_the_scores_goes_and_comes_with_it() -> None:
    """DeepSeek-V3 has it in the scale of its scores, which is no part of the rotation."""
    scaled, plain = built("deepseek_v3", rope_parameters=MSCALE, max_position_embeddings=64), built("deepseek_v3")
    scales = [layer.self_attn.scaling for layer in scaled.model.layers]
    assert scales[0] == pytest.approx(20**-0.5 * (0.1 * math.log(4) + 1) ** 2)
    for what in (PositionInterpolation(2.0), YaRN(2.0, TRAINED)):
        with patch(scaled, what) as patched, patch(plain, what) as other:
            assert "scale of the scores: 0.223607 instead of 0.289901, since mscale_all_dim differs" in repr(patched)
            assert "scale of the scores" not in repr(other)
            assert torch.equal(output(scaled, input_ids=LONG), output(plain, input_ids=LONG))
        assert [layer.self_attn.scaling for layer in scaled.model.layers] == scales
    with patch(scaled, posenc.NoPE()), patch(plain, posenc.NoPE()):
        assert torch.equal(output(scaled, input_ids=LONG), output(plain, input_ids=LONG))
    before = output(scaled, input_ids=LONG)
    with patch(plain, OWN_YARN) as patched:  # what was not there comes
        assert "scale of the scores: 0.289901 instead of 0.223607" in repr(patched)
        bound = 2 * of_angles(torch.float32, 40, before)  # its own angles are in float32, in two layers
        torch.testing.assert_close(output(plain, input_ids=LONG), before, rtol=0, atol=bound)
    for own in (OWN_YARN, posenc.MLA(20, 8, layout="half", scaling=OWN_YARN)):
        with patch(scaled, own) as patched:
            assert "scale of the scores" not in repr(patched)
            torch.testing.assert_close(output(scaled, input_ids=LONG), before, rtol=0, atol=bound)
    scaled.model.layers[1].self_attn.scaling = 0.5
    refused(OWN_YARN, scaled, "DeepseekV3Attention scales its scores by 0.5, and not by 1/sqrt")


@pytest.mark.parametrize("name", ROTATING)
def test_rotating_in_attention_is_rotating_in_the_model(name: str) -> None:
    """Up to its trained length DynamicNTK scales nothing, but posenc turns queries and unrotated keys by itself."""
    model = built(name).double()
    with patch(model, PositionInterpolation(1.0)):
        plain = output(model, input_ids=IDS)
    with patch(model, DynamicNTK(2.0, 64)):
        # The model's own path rounds cos and sin, or what it turns, to float32.
        torch.testing.assert_close(
            output(model, input_ids=IDS), plain, rtol=0, atol=2 * of_angles(torch.float32, 13, plain)
        )


SCALINGS = [DynamicNTK(2.0, TRAINED), YaRN(4.0, TRAINED)]


@pytest.mark.parametrize(("name", "scaling"), [*zip((n for n in ROTATING if n != "llama4"), cycle(SCALINGS))])
def test_a_row_is_the_same_alone_and_padded_from_a_cache(name: str, scaling: Any) -> None:
    """Llama 4 scales queries by their place in the cache, so its padded rows are other rows without posenc too."""
    model = built(name).double()
    model.set_attn_implementation("posenc")  # eager has NaN for rows of padding in double precision
    positions = (IS_TOKEN.cumsum(1) - 1).clamp(min=0)
    with patch(model, scaling):
        alone = [fed(model, LONG[n : n + 1, IS_TOKEN[n]], (int(IS_TOKEN[n].sum()) - 2, 1, 1))[0] for n in range(2)]
        together = fed(model, LONG.masked_fill(~IS_TOKEN, 0), (38, 1, 1), IS_TOKEN.long(), positions)
    for n in range(2):
        # The same angles; cos and sin, or what is turned, are rounded to float32 in two layers.
        bound = 2 * of_angles(torch.float32, 1, alone[n])
        torch.testing.assert_close(together[n, IS_TOKEN[n]], alone[n], rtol=0, atol=bound)


def fed(
    model: Any, ids: Tensor, steps: tuple[int, ...], mask: Any = None, positions: Any = None, cache: Any = None
) -> Tensor:
    """What the model says of every token, fed in steps to a cache."""
    parts, start = [], 0
    cache = transformers.DynamicCache(config=model.config) if cache is None else cache
    for step in steps:
        here, inputs = slice(start, start + step), {}
        if mask is not None:
            inputs = {"attention_mask": mask[:, : start + step], "position_ids": positions[:, here]}
        parts.append(output(model, input_ids=ids[:, here], cache=cache, **inputs))
        start += step
    return torch.cat(parts, 1)


@pytest.mark.parametrize(
    "scaling",
    [DynamicNTK(2.0, TRAINED), LongRoPE([1.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], TRAINED, factor=4.0)],
    ids=lambda s: type(s).__name__,
)
def test_keys_of_a_cache_turn_when_the_text_grows(scaling: Any) -> None:
    """Of one layer: what a second one keeps of a token was made when the text was shorter, whoever turns it."""
    model = built("llama", num_hidden_layers=1).double()
    with patch(model, scaling):
        last = fed(model, LONG, (14, 1, 1, 1, 1))[:, -1]  # across the trained length
        whole = output(model, input_ids=LONG[:, :18], use_cache=False)[:, -1]
        torch.testing.assert_close(last, whole, rtol=0, atol=of_sums(torch.float64, TERMS, whole))


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_row_of_several_documents_has_no_one_length(name: str) -> None:
    places = torch.cat([torch.arange(8), torch.arange(5)]).expand(2, -1)
    is_seen = (torch.arange(13) < 8)[:, None] == (torch.arange(13) < 8)
    mask = torch.zeros(13, 13).masked_fill(~(is_seen & torch.ones(13, 13).tril().bool()), -torch.inf)
    model, packed = built(name), {"input_ids": IDS, "position_ids": places, "use_cache": False}
    with patch(model, YaRN(4.0, 4)):
        output(model, **packed)
    no_one = "a row of several documents has no single length, got position_ids that start again"
    with patch(model, DynamicNTK(2.0, 4)):
        with pytest.raises(ValueError, match=no_one):
            output(model, **packed)
        with pytest.raises(ValueError, match=no_one):  # the mask tells documents apart, and says nothing of places
            output(model, **packed, attention_mask=mask[None, None].expand(2, 1, -1, -1))


def test_chunks_of_one_text_and_padding_are_no_documents() -> None:
    """So what comes from a cache is what comes without one, until the text grows."""
    model, mask, positions = built("llama4").double(), IS_TOKEN.long(), (IS_TOKEN.cumsum(1) - 1).clamp(min=0)
    with patch(model, DynamicNTK(2.0, 4)):
        cached = fed(model, LONG, (38, 1, 1), mask, positions)
        first = {"input_ids": LONG[:, :38], "attention_mask": mask[:, :38], "position_ids": positions[:, :38]}
        whole = output(model, **first, use_cache=False)[IS_TOKEN[:, :38]]
    assert cached[IS_TOKEN].isfinite().all()
    torch.testing.assert_close(
        cached[:, :38][IS_TOKEN[:, :38]], whole, rtol=0, atol=of_sums(torch.float64, TERMS, whole)
    )


@pytest.mark.parametrize("family", ["Qwen2VLText", "Qwen3VLText"])
def test_positions_of_three_axes_are_scaled_each_along_its_own(family: str) -> None:
    model = with_axes(family).double()
    places = IMAGE[:, None].expand(3, 2, 13)
    plain = output(model, input_ids=IDS, position_ids=places)
    with patch(model, PositionInterpolation(1.0)):
        bound = 2 * of_angles(torch.float32, int(places.max()), plain)  # its own angles are in float32, in two layers
        torch.testing.assert_close(output(model, input_ids=IDS, position_ids=places), plain, rtol=0, atol=bound)
    with patch(model, PositionInterpolation(2.0)):
        halved = output(model, input_ids=IDS, position_ids=places * 2)
        torch.testing.assert_close(halved, plain, rtol=0, atol=bound)
    with pytest.raises(ValueError, match="positions of several axes, and a scheme needs those of all keys"):
        patch(model, DynamicNTK(2.0, TRAINED))
    refused(posenc.NoPE(), model, r"_text\) has positions of several axes, and a scheme needs those of all keys of a")
    assert torch.equal(output(model, input_ids=IDS, position_ids=places), plain)


@pytest.mark.parametrize("what", [posenc.NoPE(), DynamicNTK(2.0, TRAINED), None], ids=repr)
@pytest.mark.parametrize("name", ADAPTED)
def test_a_model_with_an_attention_of_its_own_is_patched_and_put_back(name: str, what: Any) -> None:
    model = built(name)
    before, plain = state(model), output(model, input_ids=LONG)
    if isinstance(what, DynamicNTK) and name in ("bloom", "mpt", "falcon alibi"):
        refused(what, model, r"has no rotary frequencies to put a scaling on: layers 0, 1: \w*ALiBi")
        return
    with patch(model, scheme_from_config(model.config).schedule if what is None else what):
        inputs = {"attention_mask": IS_TOKEN.long()} | GENERATE
        ids = LONG.masked_fill(~IS_TOKEN, 0)
        out = model.generate(ids, **inputs)
        assert torch.equal(model.generate(LONG[:1, 13:], **GENERATE)[0, 27:], out[0, 40:])
        other = copy.deepcopy(model)
        changed = output(model, input_ids=LONG)
        assert torch.equal(output(other, input_ids=LONG), changed)
    assert same(state(model), before)
    assert torch.equal(output(model, input_ids=LONG), plain)
    assert ((changed - plain).abs().max() > 1e-3) == (what is not None)


FALCON = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 12, "vocab_size": 48, "alibi": True}


def test_falcon_has_its_alibi_once_and_exactly() -> None:
    """As "sdpa" would if it did not round to bfloat16: at twelve heads, whose slopes are no powers of two, and past
    place 256, from where on places are rounded too."""
    ids = torch.randint(3, 48, (2, 300), generator=torch.Generator().manual_seed(0))
    is_token = torch.arange(300) >= torch.tensor([[0], [45]])
    torch.manual_seed(0)
    kind = transformers.FalconForCausalLM
    model = moved(kind._from_config(transformers.FalconConfig(**FALCON), attn_implementation="sdpa").eval()).double()
    with exact_alibi():
        plain = output(model, input_ids=ids, attention_mask=is_token.long())
    with patch(model, scheme_from_config(model.config).schedule):
        ours = output(model, input_ids=ids, attention_mask=is_token.long())
        cache = transformers.DynamicCache(config=model.config)
        for here in (slice(0, 290), slice(290, 299), slice(299, 300)):
            mask = is_token[:, : here.stop].long()
            last = output(model, input_ids=ids[:, here], attention_mask=mask, cache=cache)
    bound = of_sums(torch.float64, 2 * (4 + 300), plain, score=300)  # biases reach 300 times a slope below 1
    torch.testing.assert_close(ours[is_token], plain[is_token], rtol=0, atol=bound)
    torch.testing.assert_close(last[:, -1], ours[:, -1], rtol=0, atol=bound)


def test_a_cache_by_a_name_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be forgotten without an error, as if there were none."""
    monkeypatch.setattr(patching, "CACHES", ("kept",))
    refused(posenc.NoPE(), built("bloom"), r"^BloomAttention must take its cache as kept, got self, .*layer_past")


@pytest.mark.parametrize("scheme", [posenc.NoPE(), posenc.ALiBi(4) + posenc.RoPE(12)], ids=["NoPE", "both"])
def test_a_scheme_generates_the_same_alone_padded_and_without_a_cache(scheme: Any) -> None:
    model = built("llama")
    with patch(model, scheme):
        ids = LONG.masked_fill(~IS_TOKEN, 0)
        out = model.generate(ids, attention_mask=IS_TOKEN.long(), **GENERATE)
        assert torch.equal(model.generate(LONG[:1, 13:], **GENERATE)[0, 27:], out[0, 40:])
        static = model.generate(ids, attention_mask=IS_TOKEN.long(), cache_implementation="static", **GENERATE)
        assert torch.equal(static, out)
        beams = model.generate(ids, attention_mask=IS_TOKEN.long(), num_beams=2, **GENERATE)
        recomputed = model.generate(ids, attention_mask=IS_TOKEN.long(), num_beams=2, use_cache=False, **GENERATE)
        assert torch.equal(beams, recomputed)
        helped = model.generate(LONG[1:], prompt_lookup_num_tokens=3, **GENERATE)
        assert torch.equal(helped[0], out[1])


def test_a_schedule_has_its_windows() -> None:
    model = built("llama").double()
    near, far = posenc.RoPE(12, base=100.0), posenc.NoPE()
    with patch(model, posenc.Schedule([(near, 4), (far, None)])) as patched:
        assert (
            "layer 0: RoPE(12, base=100.0, layout='half', rotary_dim=12, axes=1), window of 4 keys" in patched.changes
        )
        out = output(model, input_ids=IDS)
    with patch(model, posenc.Schedule([(near, 13), (far, None)])):
        wide = output(model, input_ids=IDS)
    torch.testing.assert_close(out[:, :4], wide[:, :4], rtol=0, atol=of_sums(torch.float64, TERMS, wide))
    assert (out[:, 4:] - wide[:, 4:]).abs().amax() > 1e-3


DYNAMIC = RoPE(12, scaling=DynamicNTK(2.0, TRAINED))
WINDOWS: dict[str, tuple[str, Any, tuple[int, ...]]] = {  # the model, what is put in, and how many keys layers hold
    "of some layers": ("llama", Schedule([(RoPE(12), 4), (posenc.ALiBi(4), None)]), (3, 40)),
    "of a token": ("llama", Schedule([(RoPE(12), 1), (RoPE(12), 6)]), (1, 5)),
    "unrotated keys": ("llama", Schedule([(DYNAMIC, 6), (DYNAMIC, 9)]), (5, 8)),
    "wider than its own": ("gemma3", Schedule([(RoPE(16), 9), (RoPE(16), 3)]), (8, 2)),
    "its own": ("mistral", RoPE(12), (4, 4)),
    "its own chunks": ("llama4", None, (5, 40)),
    "chunks": ("llama", Schedule([(RoPE(12), Chunk(4)), (RoPE(12), 4)]), (40, 3)),
    "its own attention": ("bloom", Schedule([(posenc.ALiBi(3), 4)] * 2), (3, 3)),
}


@pytest.mark.parametrize("of", WINDOWS)
def test_a_bounded_cache_holds_what_windows_reach(of: str) -> None:
    """Of rows padded on the left, fed in steps, as from a cache of all keys."""
    name, what, held = WINDOWS[of]
    model, positions = built(name).double(), (IS_TOKEN.long().cumsum(1) - 1).clamp(min=0)
    if what is None:
        what = scheme_from_config(model.config).schedule
    with patch(model, what):
        cache = bounded_cache(model)
        how = LONG, (15, 1, 1, 8, 1, 13, 1), IS_TOKEN.long(), positions
        out, whole = fed(model, *how, cache=cache), fed(model, *how, cache=transformers.DynamicCache())
    assert tuple(layer.keys.size(2) for layer in cache.layers) == held
    bound = of_sums(torch.float64, TERMS, whole[IS_TOKEN])
    torch.testing.assert_close(out[IS_TOKEN], whole[IS_TOKEN], rtol=0, atol=bound)


def test_a_cache_without_what_a_window_needs_is_refused() -> None:
    """That which transformers makes by the model's own windows."""
    model = built("gemma3")
    with (
        patch(model, WINDOWS["wider than its own"][1]),
        pytest.raises(ValueError, match=r"dropped keys .*bounded_cache"),
    ):
        fed(model, LONG, (20, 1))


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=["plain", "beams", "crop"])
def test_a_bounded_cache_generates_the_same(how: dict[str, Any]) -> None:
    """Rows are reordered, and rejected tokens taken back."""
    model, ids = built("llama"), LONG[:1].repeat(1, 4)
    takes = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with patch(model, Schedule([(DYNAMIC, 6), (posenc.ALiBi(4), 3)])):
        expected = model.generate(ids, **{takes: transformers.DynamicCache()}, **how, **GENERATE)
        assert torch.equal(model.generate(ids, **{takes: bounded_cache(model)}, **how, **GENERATE), expected)


@pytest.mark.parametrize(("name", "words"), [("llama", r"\(llama\) has none"), ("t5", "an encoder and a decoder")])
def test_a_bounded_cache_is_for_patched_decoders(name: str, words: str) -> None:
    model = built(name) if name == "llama" else transformers.AutoModelForSeq2SeqLM.from_config(config_of("t5"))
    with pytest.raises(
        ValueError, match=rf"^model must be a decoder whose layers have a scheme by patch\(\), .*{words}"
    ):
        bounded_cache(model)


def gradients(model: Any, inputs: dict[str, Tensor], checkpointing: bool | None) -> dict[str, Tensor]:
    """Of all parameters, with dropout off; ``checkpointing`` is whether it is reentrant, None: none."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    model.zero_grad()
    if checkpointing is None:
        model.activation_checkpointing_disable()
    else:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": checkpointing})
    out = model(**inputs)[0]
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_checkpointing(model: Any, inputs: dict[str, Tensor], reentrant: bool) -> dict[str, Tensor]:
    """Layers that are computed once more on the way back give the same gradients, to every parameter."""
    plain, again = gradients(model, inputs, None), gradients(model, inputs, reentrant)
    assert plain.keys() == again.keys()
    greatest = max(float(gradient.abs().max()) for gradient in plain.values())
    for name, gradient in plain.items():
        # The same operations on the same numbers, but a BLAS may sum otherwise where memory is aligned otherwise: the
        # roundings of sums of up to 2^10 numbers, four in a row.
        torch.testing.assert_close(again[name], gradient, rtol=0, atol=2.0 ** (12 - 52) * greatest, msg=name)
    return again


LEARNED = [posenc.Shaw(12, 8), posenc.DeBERTa(4, 12, max_distance=8)]
"""The second one projects its table when it is bound, so what a layer binds has a graph of its own."""


@pytest.mark.parametrize(
    ("reentrant", "name", "what"),
    [
        (False, "llama", DynamicNTK(2.0, TRAINED)),
        (True, "llama", LEARNED[1]),
        (False, "llama4", LEARNED[0]),
        (True, "llama4", None),
        (False, "falcon", LEARNED[1]),
        (True, "falcon", YaRN(4.0, TRAINED)),
    ],
)
def test_activation_checkpointing_changes_no_gradient(reentrant: bool, name: str, what: Any) -> None:
    model = built(name).double()
    inputs = {"input_ids": LONG.masked_fill(~IS_TOKEN, 0), "attention_mask": IS_TOKEN.long()}
    if what is None:
        model.set_attn_implementation("posenc")
        check_checkpointing(model, inputs, reentrant)
        return
    with patch(model, copy.deepcopy(what)):
        model.double()
        found = check_checkpointing(model, inputs, reentrant)
    assert any("posenc_plan" in name for name in found) == (what in LEARNED)


def test_what_learns_nothing_is_bound_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is what learns, where no gradient is wanted."""
    for what in (posenc.ALiBi(4), posenc.Shaw(12, 8)):
        model, bound = built("llama"), []
        original = type(what).bind
        monkeypatch.setattr(type(what), "bind", lambda *args, of=original, to=bound: (to.append(1), of(*args))[1])
        with patch(model, what):
            bound.clear()
            output(model, input_ids=IDS)
        assert len(bound) == 1


@pytest.mark.more
@pytest.mark.parametrize("what", [DynamicNTK(2.0, TRAINED), posenc.Schedule([(posenc.NoPE(), 4)])], ids=["NTK", "4"])
def test_a_patched_model_compiles_into_one_graph(what: Any) -> None:
    """With the scaling that needs most: identity from the model's rotary, places and lengths read off a plain mask; and
    with a window that the model's own mask does not have."""
    model = built("llama", num_hidden_layers=1)
    with patch(model, what):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        inputs: dict[str, Any] = {"input_ids": LONG, "use_cache": False}
        if isinstance(what, DynamicNTK):
            inputs |= {"attention_mask": IS_TOKEN.long(), "position_ids": (IS_TOKEN.cumsum(1) - 1).clamp(min=0)}
        plain, ours = (output(m, **inputs)[IS_TOKEN] for m in (model, compiled))
        torch.testing.assert_close(ours, plain, rtol=0, atol=of_sums(torch.float32, TERMS, plain))


def refused(what: Any, model: Any, words: str) -> None:
    before = state(model)
    with pytest.raises(ValueError, match=words):
        patch(model, what)
    assert same(state(model), before)


def test_what_is_no_such_model_is_refused_by_name() -> None:
    images = {"image_size": 8, "patch_size": 2, "embed_dim": 12, "depths": [1], "num_heads": [2], "window_size": 2}
    for name, why in UNSUPPORTED.items():
        model = transformers.AutoModel.from_config(
            transformers.AutoConfig.for_model(name, **images if "swin" in name else ENCODER)
        )
        for what in (posenc.NoPE(), YaRN(4.0, 16)):
            refused(what, model, rf"^{type(model).__name__} \({name}\) cannot be patched: {why}$")
    llama = built("llama")
    for wrong, came in ((torch.nn.Linear(2, 2), "Linear"), ("llama", "'llama'"), (YaRN(4.0, 16), r"YaRN\(factor=4.0")):
        with pytest.raises(ValueError, match=f"model must be a model of transformers, got {came}"):
            patch(wrong, YaRN(4.0, 16))  # type: ignore[arg-type]
    for model, what in ((llama, YaRN(4.0, 16)), (llama, posenc.NoPE()), (built("bloom"), posenc.NoPE())):
        with patch(model, what), pytest.raises(ValueError, match=r"model is patched already: undo\(\)"):
            patch(model, what)


def test_a_frequency_that_is_not_the_configurations_is_refused() -> None:
    model = built("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e4})
    model.config.rope_parameters["rope_theta"] = -5.0
    model.model.rotary_emb.config = model.config
    with pytest.raises(ValueError, match=r"turns by 1, 0.16.* a position, by no base and scaling of its config"):
        patch(model, YaRN(4.0, 16))


def test_cached_places_that_were_left_out_are_refused() -> None:
    model = built("llama")
    with patch(model, posenc.ALiBi(4)):
        cache = transformers.DynamicCache(config=model.config)
        output(model, input_ids=IDS[:, :5], position_ids=torch.tensor([[0, 1, 2, 5, 6]]), cache=cache)
        with pytest.raises(ValueError, match="position_ids must count the tokens of a cache one by one"):
            output(model, input_ids=IDS[:, 5:8], position_ids=torch.tensor([[7, 9, 10]]), cache=cache)


def test_hooks_of_accelerate_call_an_attention_that_was_replaced() -> None:
    """They put a forward on the instance, before a model is patched or after, and take it away again."""
    hooks = pytest.importorskip("accelerate.hooks")
    model, plain = built("gptj"), output(built("gptj"), input_ids=IDS)
    with patch(model, posenc.NoPE()):
        ours = output(model, input_ids=IDS)
    layer = next(module for module in model.modules() if type(module).__name__ == "GPTJAttention")
    for first in (True, False):
        for last in (True, False):
            if first:
                hooks.add_hook_to_module(layer, hooks.ModelHook())
            patched = patch(model, posenc.NoPE())
            if not first:
                hooks.add_hook_to_module(layer, hooks.ModelHook())
            assert torch.equal(output(model, input_ids=IDS), ours)
            if not last:
                hooks.remove_hook_from_submodules(model)
                assert torch.equal(output(model, input_ids=IDS), ours)
            patched.undo()
            assert torch.equal(output(model, input_ids=IDS), plain)
            hooks.remove_hook_from_submodules(model)
            assert torch.equal(output(model, input_ids=IDS), plain)


def test_a_layer_whose_softmax_is_saturated_is_not_taken_for_one_without_positions() -> None:
    """As three layers of SmolLM2 are, for inputs as large as the probe's first ones."""
    model = built("llama")
    with torch.no_grad():
        for projection in (model.model.layers[1].self_attn.q_proj, model.model.layers[1].self_attn.k_proj):
            projection.weight *= 100
    expected = output(model, input_ids=IDS)
    with patch(model, posenc.DynamicNTK(1.0, 64)):  # which does nothing to 13 tokens
        assert all("posenc_plan" in layer.self_attn._modules for layer in model.model.layers)
        bound = of_sums(torch.float32, TERMS, expected, score=10_000)  # of q and k a hundred times as large
        torch.testing.assert_close(output(model, input_ids=IDS), expected, rtol=0, atol=bound)


WHAT = r"what must be a scaling, a scheme, a Schedule or \{layer type: scaling\}, got "
SCALING = "scaling must return theta' of"
PAIRS = "must have layout='half', the pairs of channels of queries and keys in the attention of "
TABLE = posenc.Learned(64, 48)
SINE = posenc.Sinusoidal(48)

YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16}
SHARE = "partial_rotary_factor"
HAS = r"and LlamaForCausalLM \(llama\) has {}: only the scaling is replaced, so leave {} out, or change it in the conf"

MISFITS: list[tuple[str, Any, str]] = [
    ("llama", "yarn", f"{WHAT}'yarn'"),
    ("llama", {"local": YaRN(4.0, 16)}, r"of type 'local', and LlamaForCausalLM \(llama\) has no layer types"),
    ("llama", SINE, r"Sinusoidal adds to the input, and LlamaForCausalLM \(llama\) has no table"),
    ("llama", posenc.ALiBi(8), r"ALiBi is made for num_heads 8, and LlamaForCausalLM \(llama\) has 4"),
    ("llama", posenc.RoPE(64), r"RoPE is made for head_dim 64, and LlamaForCausalLM \(llama\) has "),
    ("llama", posenc.FoX(4), r"FoX needs features that each layer projects from its tokens \(forgotten\), which"),
    ("llama", posenc.Schedule([(posenc.NoPE(), None)]), "a Schedule of 2 layers .* got one of 1"),
    (
        "llama",
        YARN | {"original_max_position_embeddings": None},
        r"\['original_max_position_embeddings'\] must be",
    ),
    ("llama", {"rope_type": "su"}, r"scaling\['rope_type'\] must be one of default, linear, .* got 'su'"),
    ("llama", YARN | {"fastor": 2}, "scaling has the key 'fastor' = 2, which rope_type 'yarn' does not read"),
    ("llama", YARN | {"rope_theta": 5e5}, f"what has rope_theta = 500000.0, {HAS.format(10000, 'rope_theta')}"),
    ("llama", YARN | {SHARE: 0.5}, f"what has {SHARE} = 0.5, {HAS.format(1, SHARE)}"),
    ("gpt2", YaRN(4.0, 16), r"GPT2LMHeadModel \(gpt2\) has no rotary module"),
    ("llama", None, f"{WHAT}None"),
    ("llama", posenc.YaRN, f"{WHAT}the class YaRN"),
    ("llama", torch.nn.Identity(), rf"{WHAT}Identity\(\)"),
    ("llama", {}, r"what must name the layer types that it maps to scalings, got \{\}"),
    ("llama", {None: posenc.YaRN}, "what must map layer types to scalings, got the class YaRN for None"),
    ("llama", lambda theta: theta, rf"{SCALING} 6 pairs in float64 and a factor, got torch.float64 \(6,\)"),
    ("llama", lambda theta: (theta, float("nan")), f"{SCALING} 6 pairs in float64 and a factor"),
    ("gptj", lambda theta: theta, f"{SCALING} 4 pairs in float64 and a factor"),
    ("llama", posenc.RoPE(12) + posenc.ALiBi(8), r"ALiBi is made for num_heads 8, and LlamaFor\w+ \(llama\) has 4"),
    ("bloom", posenc.STRING(12, axes=1, num_heads=2), r"STRING is made for key num_heads 2, and \w+ \(bloom\) has 3"),
    ("llama", posenc.RoPE(12, layout="interleaved"), rf"RoPE {PAIRS}Llama\w+ \(llama\), got 'interleaved'"),
    ("gptj", posenc.RoPE(12), r"RoPE must have layout='interleaved', .* of GPTJForCausalLM \(gptj\), got 'half'"),
    ("llama", posenc.RoPE(12, axes=2), "RoPE takes 2 coordinates per token, got positions of 1 axes"),
    ("gpt2", posenc.Learned(64, 32), r"Learned is made for dim 32, and GPT2LMHeadModel \(gpt2\) has 48"),
    (
        "gpt2",
        posenc.Schedule([(TABLE, None), (SINE + posenc.ALiBi(4), None)]),
        "must add the same to the input in every layer, .* got Learned and Sinusoidal: give layers one scheme",
    ),
    (
        "llama",
        posenc.ALiBi(4, "directed"),
        r"has heads that attend only to keys after .* in its causal form",
    ),
    ("bert", posenc.ALiBi(4), r"ALiBi encodes only keys up to .*: use form='bidirectional' or form='directed'"),
    ("bert", TABLE + posenc.T5(4), r"T5 encodes only keys up to the query, .*: use bidirectional=True"),
    ("bert", posenc.StickBreaking(), r"StickBreaking encodes only .* to later keys: use a bidirectional scheme"),
    ("bert", TABLE + posenc.XPos(12), "XPos encodes only .* later keys: use RoPE"),
    ("modernbert", posenc.Schedule([(posenc.NoPE(), None), (posenc.ALiBi(4), 4)]), r"queries attend to later keys"),
]


@pytest.mark.parametrize(("name", "what", "words"), MISFITS, ids=[f"{m[0]} {m[2][:40]}" for m in MISFITS])
def test_what_does_not_fit_a_model_is_refused_at_once(name: str, what: Any, words: str) -> None:
    refused(what, built(name), words)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_positions_in_place_of_position_ids_are_refused(name: str) -> None:
    model, padded = built(name), posenc.Positions.padded(torch.arange(13) < torch.tensor([[9], [13]]))
    with patch(model, posenc.NoPE()):
        with pytest.raises(
            ValueError, match=r"position_ids must be a tensor \(rows, tokens\), got Positions: pass pos"
        ):
            model(input_ids=IDS, position_ids=padded)
        if name == "llama":
            output(model, input_ids=IDS, position_ids=padded.coords, attention_mask=(padded.document >= 0).long())
    assert not model._forward_pre_hooks


def test_what_fits_is_put_in() -> None:
    """The forms that the errors name, a table that compositions share, or beside another ``dim``, and
    a scaling that is a function.
    """
    shared = posenc.Schedule([(TABLE + posenc.ALiBi(4), None), (TABLE + posenc.NoPE(), 4)])
    for name, what in [
        ("bert", posenc.ALiBi(4, "directed")),
        ("bert", posenc.ReRoPE(12, 2)),
        ("modernbert", posenc.ALiBi(4, "bidirectional")),
        ("gpt2", shared),
        ("gpt2", TABLE + posenc.TransformerXL(4, 12, dim=96)),
        ("llama", posenc.STRING(12, axes=1, num_heads=2)),
        ("llama", posenc.XPos(12, layout="half")),
        ("deepseek_v3", posenc.MLA(20, 8, base=500.0, layout="half")),
        ("llama", lambda theta: (theta / 2, 1.0)),
    ]:
        model = built(name)
        plain = output(model, input_ids=IDS)
        with patch(model, what):
            assert float((output(model, input_ids=IDS) - plain).abs().max()) > 1e-3, name


class Extra(transformers.LlamaModel):
    def __init__(self, config: Any, extra: int) -> None:
        super().__init__(config)
        self.extra = extra


class Loses(transformers.LlamaModel):
    def __init__(self, config: Any, norm: int) -> None:
        super().__init__(config)
        self.layers[1].self_attn = torch.nn.Identity()


class Batch(transformers.LlamaModel):
    def forward(self, **batch: Any) -> Any:
        return super().forward(**batch)


class Both(Batch):
    def __init__(self, config: Any, extra: int) -> None:
        super().__init__(config)


WITHOUT_A_FILE = type(
    "WithoutAFile",
    (transformers.LlamaModel,),
    {
        "forward": eval(
            "lambda self, input_ids=None, **given: LlamaModel.forward(self, input_ids, **given)",
            {"LlamaModel": transformers.LlamaModel},
        )
    },
)

USERS: list[tuple[Callable[[Any], Any], str | None]] = [
    (lambda config: Extra(config, 3), None),
    (WITHOUT_A_FILE, None),
    (lambda config: Loses(config, 3), r"Loses has other modules than LlamaModel, such as layers.1.self_attn$"),
    (Batch, "it takes batch, and a scheme is put into models of input_ids alone"),
    (lambda config: Both(config, 3), "its model could not be built: TypeError: .*missing 1 required .* 'extra'"),
]


@pytest.mark.parametrize(("make", "words"), USERS)
def test_a_class_of_a_user_is_asked_itself_or_as_the_one_it_extends(make: Any, words: str | None) -> None:
    model = moved(make(small_config("llama")).eval())
    if words is not None:
        return refused(posenc.ALiBi(4), model, words)
    before = output(model, input_ids=IDS)
    with patch(model, posenc.NoPE()):
        assert not torch.equal(output(model, input_ids=IDS), before)
    assert torch.equal(output(model, input_ids=IDS), before)


def test_places_are_those_of_the_model_where_queries_are_scaled_by_them() -> None:
    """Ministral 3's layers are then given none, so they come from its rotary module, from a cache too; a scheme takes
    the place of its factor of queries as well."""
    model = moved(transformers.AutoModel.from_config(config_of("ministral3")).eval()).double()
    places = torch.arange(40)[None].expand(2, -1)
    with patch(model, posenc.RoPE(20) + posenc.QueryScale("ministral3", length=8)) as patched:
        assert "the model's own factor of queries by their position: off" in patched.changes
        whole = output(copy.deepcopy(model), input_ids=LONG, position_ids=places + 7)
        cache, parts = transformers.DynamicCache(), []
        for ids, here in zip(LONG.split([25, 1, 14], 1), places.split([25, 1, 14], 1), strict=True):
            parts.append(output(model, input_ids=ids, position_ids=here + 7, cache=cache))
        bound = of_sums(torch.float64, 4 * (20 + 40), whole)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=bound)
        assert float((output(model, input_ids=LONG) - whole).abs().max()) > 1e-3
    with patch(model, posenc.NoPE()):
        there = output(model, input_ids=LONG, position_ids=places)
        assert torch.equal(output(model, input_ids=LONG, position_ids=places + 1000), there)


def test_gemma_4_is_patched() -> None:
    """Layers of two widths, of which the wider turn only some channels, and layers that share keys and values."""
    config = config_of("gemma4_text", num_kv_shared_layers=2)
    model = moved(transformers.AutoModelForCausalLM.from_config(config).eval()).double()
    plain = output(model, input_ids=IDS)
    identity = [
        scheme_from_config(model.config).schedule,
        {"sliding_attention": PositionInterpolation(1.0)},
        {"sliding_attention": DynamicNTK(2.0, 64)},  # which does nothing to 13 tokens
    ]
    for what in (*identity, {"sliding_attention": PositionInterpolation(2.0)}, posenc.NoPE(), posenc.ALiBi(3)):
        with patch(model, what):
            out, cached = output(model, input_ids=IDS), fed(model, IDS, (7, 1, 4, 1))
            torch.testing.assert_close(cached, out, rtol=0, atol=of_sums(torch.float64, 4 * (28 + 13), out))
        if what in identity:  # its own angles are in float32, in four layers
            torch.testing.assert_close(out, plain, rtol=0, atol=4 * of_angles(torch.float32, 13, plain))
        else:
            assert float((out - plain).abs().max()) > 1e-2
    assert torch.equal(output(model, input_ids=IDS), plain)
    few = r"layers of type full_attention of Gemma4ForCausalLM \(gemma4_text\) have rope_type 'proportional', .* give "
    refused(YaRN(4.0, 64), model, few + r"\{layer type: scaling\} of 'sliding_attention'")


ROPE = RoPE(12, layout="interleaved")
PADDING = 4
IS_REAL = torch.arange(13 + PADDING).expand(2, -1) >= torch.tensor([[0], [PADDING]])
PLACES = (IS_REAL.cumsum(1) - 1).clamp(min=0)
PADDED = torch.cat((IDS[:, :PADDING], IDS), 1)
PACKED = torch.cat([torch.arange(n) for n in DOCUMENTS]).expand(2, -1)


def llama4(kind: str) -> Any:
    """Layers of one kind, with chunks of 6 where they have any. All have the same weights."""
    return built("llama4", layer_types=[kind] * 2, no_rope_layers=[1, 1]).double()


def runs(model: Any) -> list[Tensor]:
    """A text, packed documents, and rows of which the second begins later."""
    return [
        output(model, input_ids=IDS, use_cache=False),
        output(model, input_ids=IDS, position_ids=PACKED, use_cache=False),
        output(model, input_ids=PADDED, attention_mask=IS_REAL.long(), position_ids=PLACES)[IS_REAL],
    ]


@pytest.mark.parametrize("window", [None, 4, 12, Chunk(4), Chunk(12)], ids=repr)
def test_a_schedule_takes_the_place_of_the_models_own_chunks(window: Any) -> None:
    schedule = Schedule([(ROPE, window)] * 2)
    own, without = llama4("chunked_attention"), llama4("full_attention")
    with patch(own, schedule), patch(without, schedule):
        for ours, expected in zip(runs(own), runs(without), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=of_sums(torch.float64, TERMS, expected))


def test_the_models_own_chunks_as_a_schedule_are_counted_as_the_model_counts_them() -> None:
    """From the first token of a row, whatever the position_ids."""
    model = built("llama4").double()
    inputs: list[dict[str, Any]] = [
        {"input_ids": IDS, "position_ids": torch.arange(5, 18).expand(2, -1)},
        {"input_ids": PADDED, "attention_mask": IS_REAL.long(), "position_ids": PLACES},
        {"input_ids": PADDED, "attention_mask": IS_REAL.long()},
    ]
    plain = [output(model, **each) for each in inputs]
    with patch(model, scheme_from_config(model.config).schedule) as patched:
        assert any("model's own factor counts slots of the cache" in change for change in patched.changes)
        for each, expected in zip(inputs, plain, strict=True):
            is_token = each.get("attention_mask", torch.ones_like(IDS)).bool()
            bound = 2 * of_angles(torch.float32, 18, expected)  # its own angles are in float32, in two layers
            torch.testing.assert_close(output(model, **each)[is_token], expected[is_token], rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["llama4", "bloom"])
def test_a_schedule_without_other_windows_runs_in_a_static_cache(name: str) -> None:
    model, how = built(name), {"attention_mask": IS_REAL.long(), **GENERATE}
    with patch(model, scheme_from_config(model.config).schedule):
        assert torch.equal(model.generate(PADDED, cache_implementation="static", **how), model.generate(PADDED, **how))


def test_own_chunks_and_others_in_one_model() -> None:
    """Layers that share a mask, and not its chunks."""
    model, parts = llama4("chunked_attention"), llama4("full_attention")
    own, other = (ROPE, Chunk(6)), (ROPE, Chunk(4))
    with patch(model, Schedule([own, other])), patch(parts, Schedule([own, other])):
        for ours, expected in zip(runs(model), runs(parts), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=of_sums(torch.float64, TERMS, expected))


def test_a_window_that_a_laid_out_mask_holds_is_refused() -> None:
    """What its caller meant by a mask nobody knows."""
    model, mask = built("mistral"), torch.ones(13, 13).tril().bool().expand(2, 1, -1, -1)
    said = "a window of a schedule needs the positions of queries and keys, and a plain mask was given instead"
    with patch(model, Schedule([(posenc.NoPE(), None)] * 2)), pytest.raises(ValueError, match=said):
        output(model, input_ids=IDS, attention_mask=mask, use_cache=False)
