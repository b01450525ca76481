"""Learned tables and T5's bias are taken out: as a scheme they change nothing, and a model without them is one
whose table is zero. Whatever was read of a configuration, put back into the model, changes nothing."""

import dataclasses
import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers

import posenc
from posenc import NoPE, RoPE, Schedule
from posenc.huggingface import patch, questions, scheme_from_config
from posenc.huggingface.seams import Seams
from tests.huggingface.configs import ALIKE, ENCODER, FAMILIES
from tests.huggingface.families import tiny
from tests.huggingface.patched_families import PAGE, RECORD, patched, table
from tests.huggingface.test_attention import IDS, TERMS, moved, output
from tests.huggingface.test_patching import refused, same, state
from tests.huggingface.test_saving import loaded
from tests.huggingface.tiny_models import config_of
from tests.rounding import of_sums
from tests.rows import with_more

GPT = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
SIZES = ENCODER | GPT | {"type_vocab_size": 2, "ffn_dim": 64, "word_embed_proj_dim": 48, "embedding_size": 48}
SIZES |= {"languages": ["en_XX"], "default_language": "en_XX"}
IS_TOKEN = torch.arange(13) < torch.tensor([[9], [13]])
FEW = ("gpt_bigcode", "opt", "roberta")
MORE = "bert bert-generation camembert data2vec-text electra ernie gpt2 roberta-prelayernorm roc_bert xlm-roberta"
MORE = f"{MORE} xlm-roberta-xl xmod albert biogpt"


def with_table(name: str) -> Any:
    kind = transformers.CONFIG_MAPPING[name]
    takes = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    torch.manual_seed(0)
    config = kind(**{key: value for key, value in SIZES.items() if key in takes})
    return moved(transformers.AutoModel.from_config(config).eval()).double()


@pytest.mark.parametrize("name", with_more(FEW, MORE.split()))
def test_a_table_as_a_scheme_changes_nothing(name: str) -> None:
    model = with_table(name)
    padding = getattr(model.config, "pad_token_id", None) or 0
    inputs = {"input_ids": IDS.masked_fill(~IS_TOKEN, padding), "attention_mask": IS_TOKEN.long()}
    before, plain = state(model), output(model, **inputs)
    (table,) = (each for path, each in model.named_modules() if re.search("(wpe|position_embeddings|positions)$", path))
    rows = table.weight.detach()
    first = 2 if name in ("opt", "biogpt") else 0 if table.padding_idx is None else table.padding_idx + 1
    learned = posenc.Learned(len(rows) - first, rows.size(1)).double()
    learned.weight.data.copy_(rows[first:])

    def check(ours: Tensor, expected: Tensor) -> None:
        bound = of_sums(torch.float64, TERMS, expected)
        torch.testing.assert_close(ours[IS_TOKEN], expected[IS_TOKEN], rtol=0, atol=bound)

    with patch(model, learned):
        check(output(model, **inputs), plain)
    with patch(model, posenc.NoPE()):
        without = output(model, **inputs)
    assert same(state(model), before)
    with patch(model, bias := posenc.T5(4, bidirectional=name not in ("gpt_bigcode", "gpt2", "opt", "biogpt"))):
        nn.init.normal_(bias.weight)
        whole = output(model, **inputs)
        for row, length in enumerate((9, 13)):  # places are those of tokens, of a row alone too
            alone = output(model, input_ids=IDS[row : row + 1, :length])[0]
            torch.testing.assert_close(whole[row, :length], alone, rtol=0, atol=of_sums(torch.float64, TERMS, alone))
    table.weight.data.zero_()
    check(without, output(model, **inputs))
    assert float((without - plain)[IS_TOKEN].abs().max()) > 1e-2


def test_terms_of_keys_are_scaled_where_a_model_scales_its_queries_itself() -> None:
    """OPT hands over queries that are scaled, and a scale of 1."""
    model = with_table("opt")
    scheme = posenc.DeBERTa(4, 12, max_distance=8).double()
    seen = []
    layer = model.decoder.layers[0]
    with patch(model, scheme):
        handle = layer.register_forward_pre_hook(lambda _, args, given: seen.append(args[0]), with_kwargs=True)
        output(model, input_ids=IDS)
        handle.remove()
        x = layer.self_attn_layer_norm(seen[0])
        out = layer.self_attn(hidden_states=x, position_ids=torch.arange(13)[None], attention_mask=None)[0]
    q, k, v = (p(x).unflatten(-1, (4, 12)).transpose(1, 2) for p in projections(layer.self_attn))
    encoding = scheme(posenc.Positions.arange(13), dtype=torch.float64)
    attended = posenc.attention(q, k, v, encoding, is_causal=True, scale=12**-0.5)
    assert isinstance(attended, Tensor)
    expected = layer.self_attn.out_proj(attended.transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, rtol=0, atol=of_sums(torch.float64, TERMS, expected))


def projections(attention: Any) -> list[nn.Module]:
    return [attention.q_proj, attention.k_proj, attention.v_proj]


OFF = "the model's own bias: off"
STACKED = {"d_model": 48, "d_kv": 10, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 48}


def stacked() -> tuple[Any, dict[str, Tensor], dict[str, posenc.Scheme]]:
    """A model, inputs with padding, and its own biases as schemes."""
    torch.manual_seed(0)
    config = transformers.T5Config(**STACKED, decoder_start_token_id=0)
    model = moved(transformers.T5ForConditionalGeneration(config).eval()).double()
    ids, mask = IDS.masked_fill(~IS_TOKEN, 0), IS_TOKEN.long()
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "attention_mask": mask, "decoder_attention_mask": mask}
    biases = {}
    for name in ("encoder", "decoder"):
        (scheme,) = scheme_from_config(model.config, part=name).schedule.schemes
        own = getattr(model, name).block[0].layer[0].SelfAttention.relative_attention_bias.weight
        scheme.double().weight.data.copy_(own)  # type: ignore[union-attr]
        biases[name] = scheme
    return model, inputs, biases


def test_the_bias_of_t5_as_a_scheme_changes_nothing() -> None:
    model, inputs, biases = stacked()
    before, plain = state(model), output(model, **inputs)
    bound = of_sums(torch.float64, TERMS, plain)
    generated = model.generate(IDS, max_new_tokens=5, do_sample=False)
    with patch(model, biases) as patched:
        assert [patched.changes[n] for n in (0, 2, 4, 5)] == ["encoder:", OFF, "decoder:", OFF]
        torch.testing.assert_close(output(model, **inputs)[IS_TOKEN], plain[IS_TOKEN], rtol=0, atol=bound)
        assert torch.equal(model.generate(IDS, max_new_tokens=5, do_sample=False), generated)
    for name, scheme in biases.items():
        with patch(model, {name: scheme}):
            torch.testing.assert_close(output(model, **inputs)[IS_TOKEN], plain[IS_TOKEN], rtol=0, atol=bound)
    with patch(model, {"decoder": posenc.Schedule([(posenc.ALiBi(4), 3), (posenc.NoPE(), None)])}):
        out = output(model, **inputs)
        assert float((out - plain)[IS_TOKEN].abs().max()) > 1e-2
        cache, parts = transformers.EncoderDecoderCache(*(transformers.DynamicCache() for _ in range(2))), []
        for ids in inputs["decoder_input_ids"][1:].split([7, 1, 5], 1):
            given = {"input_ids": inputs["input_ids"][1:], "decoder_input_ids": ids, "cache": cache}
            parts.append(output(model, **given))
        torch.testing.assert_close(torch.cat(parts, 1), out[1:], rtol=0, atol=bound)
    assert same(state(model), before)


def test_a_model_of_two_stacks_is_loaded_again(tmp_path: Any) -> None:
    model, inputs, biases = stacked()
    model.float()
    what = {"encoder": biases["encoder"].float(), "decoder": posenc.ALiBi(4)}
    with patch(model, what):
        out = output(model, **inputs)
        model.save_pretrained(tmp_path)
    assert torch.equal(output(loaded(tmp_path, type(model), what), **inputs), out)


def test_one_scheme_for_two_stacks_is_refused() -> None:
    model, _, _ = stacked()
    words = r"what must be \{'encoder': scheme, 'decoder': scheme\}, or one of them, for T5ForConditionalGeneration"
    refused(posenc.NoPE(), model, words)
    refused({"encoder": posenc.ALiBi(4)}, model, "ALiBi encodes only keys up to the query, and in T5Stack")
    refused(
        posenc.NoPE(), model.encoder, r"model must be the whole, got T5Stack \(t5\), one of its two stacks, whose conf"
    )


SURVEY = pytest.mark.survey
LINE = torch.arange(40)[None] % 57 + 5
CLOSE = 1e-4
"""Of the largest output. Both sides are float32 and round differently, by up to 4e-6; without positions it is 1e-2."""

REST = [*(row for row in ALIKE if row != "mistral4"), "bloom", "mpt"]

AXES = "has positions of several axes, and a scheme needs those of all keys of a cache"
OWN_CODE = "must have layout='half', the pairs of channels of queries and keys in the attention of"
REFUSED = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"), AXES),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), AXES),
    **dict.fromkeys(("axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu"), OWN_CODE),
}
"""Rows that cannot be put back, and why. Those of one layout in the checkpoint and another in attention can in the
latter."""


def built(row: str) -> Any:
    torch.manual_seed(0)
    how = "sdpa" if row == "falcon" else "eager"  # which adds Falcon's bias twice
    model = transformers.AutoModel.from_config(config_of(row), attn_implementation=how).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    return model


def put_back(model: Any, what: Any) -> float:
    """The largest difference that a patch makes, as a share of the largest output; `undo` leaves none."""
    own = model(LINE).last_hidden_state
    with patch(model, what):
        found = model(LINE).last_hidden_state
    assert torch.equal(model(LINE).last_hidden_state, own)
    return float((found - own).abs().max() / own.abs().max())


def in_attention(schedule: Schedule) -> Schedule:
    """The same rotations, paired as queries and keys reach attention."""
    made: dict[int, Any] = {}
    for part in (part for scheme in schedule.schemes for part in scheme.parts):
        made[id(part)] = part
        if isinstance(part, RoPE):
            first, given = part.first_channel, {"scaling": part.scaling}
            made[id(part)] = RoPE(part.head_dim, part.base, "half", part.rotary_dim, first_channel=first, **given)
    return Schedule([(sum((made[id(p)] for p in s.parts[1:]), made[id(s.parts[0])]), w) for s, w in schedule])


@pytest.mark.parametrize("row", [*with_more((), [*FAMILIES, "gptj", "mistral4"]), *with_more((), REST, SURVEY)])
@torch.no_grad()
def test_the_schedule_of_a_configuration_changes_nothing(row: str) -> None:
    if row == "deepseek_v2":
        pytest.skip("transformers views its odd strides as complex numbers, and raises")
    model = built(row)
    schedule = scheme_from_config(model.config).schedule
    if row in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[row]):
            patch(model, schedule)
        if REFUSED[row] != OWN_CODE:
            return
        schedule = in_attention(schedule)
    assert put_back(model, schedule) < CLOSE
    if any(not isinstance(part, NoPE) for scheme in schedule.schemes for part in scheme.parts):
        assert put_back(model, NoPE()) > 100 * CLOSE


def test_what_still_differs_by_position_is_named() -> None:
    """Inkling's attention scales queries by where its cache ends, as soon as that is beyond a length."""
    config = tiny("inkling_text", log_scaling_n_floor=2, layer_types=["full_attention"] * 4)
    words = "cannot all be switched off: the query of layer 0, .* still differ by position"
    refused(NoPE(), transformers.AutoModelForCausalLM.from_config(config), words)
    whisper = transformers.AutoModel.from_config(tiny("whisper"))
    refused({"decoder": NoPE()}, whisper, "vectors that are added to its tokens still differ by position")
    vit = transformers.AutoModel.from_config(config_of("vit"))
    refused(NoPE(), vit, "it takes pixel_values, and a scheme is put into models of input_ids alone")
    doge = transformers.AutoModelForCausalLM.from_config(tiny("doge"))
    refused(NoPE(), doge, "cannot be patched in layer 0: attention makes a mask of its own, and by keep_window_size in")
    depth = transformers.CsmDepthDecoderForCausalLM(tiny("csm_depth_decoder_model"))
    refused(NoPE(), depth, r"positions \[0, 1, 2, 3\] \.\.\. are rows \[\d+, \d+, \d+, \d+\] \.\.\. of")
    llama = config_of("llama")
    refused(NoPE(), Leaning(llama), "cannot be patched in layer 0: a bias by position is in its mask")


class Leaning(transformers.LlamaModel):
    """A class of one's own, which adds a bias by position to its mask."""

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        places = torch.arange(input_ids.size(1)).double()
        lean = (places - places[:, None]).masked_fill(places > places[:, None], torch.finfo(torch.float64).min)
        return super().forward(input_ids, **given | {"attention_mask": lean[None, None]})


class Tabled(transformers.LlamaModel):
    """Another, with a learned table beside the rotation of its base class."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.table = nn.Embedding(64, config.hidden_size)

    def forward(self, input_ids: Tensor, position_ids: Any = None, **given: Any) -> Any:
        position_ids = torch.arange(input_ids.size(1))[None] if position_ids is None else position_ids
        x = self.embed_tokens(input_ids) + self.table(position_ids % 64)
        return super().forward(inputs_embeds=x, position_ids=position_ids, **given)


def test_positions_of_a_derived_class_are_found() -> None:
    config = config_of("llama", max_position_embeddings=64)
    model, places = Tabled(config).eval(), torch.arange(13)[None]
    with patch(model, NoPE()) as patched:
        assert "the model's own table table: not added" in patched.changes
        outs = [output(model, input_ids=IDS, position_ids=places + start) for start in (0, 20)]
    assert torch.equal(*outs)


def test_random_numbers_are_forked_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one thread would put back what another has seeded."""
    original, locked = torch.random.fork_rng, list[bool]()
    monkeypatch.setattr(
        torch.random, "fork_rng", lambda **how: (locked.append(questions._LOCK.locked()), original(**how))[1]
    )
    Seams(transformers.AutoModel.from_config(tiny("marian")).get_decoder())
    assert len(locked) > 1
    assert all(locked)


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_sinusoids_in_a_table_as_a_scheme_change_nothing_and_end_nowhere(name: str) -> None:
    torch.manual_seed(0)
    model = moved(transformers.AutoModel.from_config(tiny(name, max_position_embeddings=13)).eval()).double()
    for table_of in (model.encoder.embed_positions, model.decoder.embed_positions):
        table_of.weight.data.copy_(table_of.create_weight())
    own = scheme_from_config(model.config, part="decoder").input
    plain = output(model, input_ids=IDS, decoder_input_ids=IDS)
    model.get_submodule("encoder.embed_positions").train()  # others are not
    before = state(model)
    with patch(model, {"encoder": own, "decoder": own}):
        same_again = output(model, input_ids=IDS, decoder_input_ids=IDS)
        torch.testing.assert_close(same_again, plain, rtol=0, atol=of_sums(torch.float32, TERMS, plain))
        assert output(model, input_ids=LINE, decoder_input_ids=LINE).isfinite().all()
    assert same(state(model), before)
    with patch(model, {"encoder": NoPE()}):
        model.train()
    assert all(each.training for each in model.modules())


KEPT = json.loads(RECORD.read_text(encoding="utf-8"))
AGAIN = "python -m tests.huggingface.patched_families"


def test_the_page_has_the_table_of_patched_families() -> None:
    assert table(KEPT["patched"]) in PAGE.read_text(encoding="utf-8"), AGAIN


RUN = ["albert", "axk2", "bart", "beam", "codegen", "dia_encoder", "granite_swa", "speech_to_text", "t5"]


@pytest.mark.parametrize("name", with_more([n for n in RUN if n in KEPT["patched"]], KEPT["patched"], SURVEY))
def test_families_are_patched_as_the_page_says(name: str) -> None:
    if transformers.__version__ == KEPT["transformers"]:
        assert patched(name) == KEPT["patched"][name], AGAIN
