"""What patch() is given and a model cannot have: what can be told from the arguments is an error by name, at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from posenc.huggingface import patch, scheme_from_config
from tests.huggingface.test_attention import IDS, MROPE, SIZES, built, output
from tests.huggingface.test_patching import refused

WHAT = r"what must be a scaling, a scheme, a Schedule or \{layer type: scaling\}, got "
SCALING = "scaling must return theta' of"
PAIRS = "must have layout='half', the pairs of channels of queries and keys in the attention of "
TABLE = posenc.Learned(64, 48)
SINE = posenc.Sinusoidal(48)

MISFITS: list[tuple[str, Any, str]] = [
    ("llama", None, f"{WHAT}None"),
    ("llama", posenc.ALiBi, f"{WHAT}the class ALiBi"),
    ("llama", posenc.YaRN, f"{WHAT}the class YaRN"),
    ("llama", torch.nn.Identity(), rf"{WHAT}Identity\(\)"),
    ("llama", {}, r"what must name the layer types that it maps to scalings, got \{\}"),
    ("llama", {None: posenc.YaRN}, "what must map layer types to scalings, got the class YaRN for None"),
    (
        "llama",
        {None: posenc.ALiBi(4)},
        r"what must map layer types to scalings, got ALiBi\(4, form='causal'\) for None",
    ),
    ("llama", lambda theta: theta, rf"{SCALING} 6 pairs in float64 and a factor, got torch.float64 \(6,\)"),
    ("llama", lambda theta: (theta[1:], 1.0), f"{SCALING} 6 pairs in float64 and a factor"),
    ("llama", lambda theta: (theta.float(), 1.0), f"{SCALING} 6 pairs in float64 and a factor"),
    ("llama", lambda theta: (theta, float("nan")), f"{SCALING} 6 pairs in float64 and a factor"),
    ("gptj", lambda theta: theta, f"{SCALING} 4 pairs in float64 and a factor"),
    ("llama", posenc.RoPE(12) + posenc.ALiBi(8), r"ALiBi is made for 8 heads, and LlamaForCausalLM \(llama\) has 4"),
    (
        "llama",
        posenc.STRING(12, axes=1, num_heads=4),
        r"STRING is made for 4 key heads, and LlamaForCausalLM \(llama\) has 2",
    ),
    ("bloom", posenc.STRING(12, axes=1, num_heads=2), r"STRING is made for 2 key heads, and \w+ \(bloom\) has 5"),
    ("llama", posenc.RoPE(12, layout="interleaved"), rf"RoPE {PAIRS}Llama\w+ \(llama\), got 'interleaved'"),
    ("llama", posenc.ALiBi(4) + posenc.XPos(12), rf"XPos {PAIRS}Llama\w+ \(llama\), got 'interleaved'"),
    ("llama", posenc.DualChunk(12, 8, 2, layout="interleaved"), f"DualChunk {PAIRS}"),
    ("deepseek_v3", posenc.MLA(20, 8), rf"MLA {PAIRS}Deepseek\w+ \(deepseek_v3\), got 'interleaved'"),
    ("gptj", posenc.RoPE(12), r"RoPE must have layout='interleaved', .* of GPTJForCausalLM \(gptj\), got 'half'"),
    ("cohere2", posenc.RoPE(12), r"RoPE must have layout='interleaved', .* \(cohere2\), got 'half'"),
    ("llama", posenc.RoPE(12, axes=2), "RoPE takes 2 coordinates per token, got positions of 1 axes"),
    ("llama", posenc.Swin((2, 3), 4), "Swin takes 2 coordinates per token, got positions of 1"),
    ("gpt2", posenc.Learned(64, 32), r"Learned is made for dim 32, and GPT2LMHeadModel \(gpt2\) has 48"),
    (
        "gpt2",
        posenc.Schedule([(TABLE, None), (SINE + posenc.ALiBi(4), None)]),
        r"what must add the same to the input in every layer, since GPT2LMHeadModel \(gpt2\) adds to it once, got "
        "Learned and Sinusoidal: give layers one scheme that adds",
    ),
    (
        "llama",
        posenc.ALiBi(4, "directed"),
        r"ALiBi in this form has heads that attend only to keys after the query, which LlamaForCausalLM "
        r"\(llama\) masks: make it in its causal form",
    ),
    (
        "bert",
        posenc.ALiBi(4),
        r"ALiBi encodes only keys up to the query, and in BertModel \(bert\) queries attend to later keys: use "
        "form='bidirectional' or form='directed'",
    ),
    ("bert", TABLE + posenc.T5(4), r"T5 encodes only keys up to the query, .*: use bidirectional=True"),
    (
        "bert",
        posenc.StickBreaking(),
        r"StickBreaking encodes only keys up to the query, and in BertModel \(bert\) queries attend to later keys: "
        "use a bidirectional scheme",
    ),
    *[
        ("bert", TABLE + scheme, rf"{type(scheme).__name__} encodes only .* later keys: use {other}")
        for scheme, other in (
            (posenc.FIRE(4), "KERPLE"),
            (posenc.XPos(12), "RoPE"),
            (posenc.DualChunk(12, 8, 2), "RoPE"),
        )
    ],
    (
        "modernbert",
        posenc.Schedule([(posenc.NoPE(), None), (posenc.ALiBi(4), 4)]),
        r"in ModernBertModel \(modernbert\) queries attend to later keys",
    ),
]


@pytest.mark.parametrize(("name", "what", "words"), MISFITS, ids=[f"{m[0]} {m[2][:40]}" for m in MISFITS])
def test_what_does_not_fit_a_model_is_refused_at_once(name: str, what: Any, words: str) -> None:
    refused(what, built(name), words)


@pytest.mark.parametrize(
    ("model", "came"), [("llama", "'llama'"), (posenc.YaRN(4.0, 16), r"YaRN\(factor=4.0")], ids=str
)
def test_what_is_no_model_is_refused(model: Any, came: str) -> None:
    with pytest.raises(ValueError, match=f"model must be a model of transformers, got {came}"):
        patch(model, posenc.YaRN(4.0, 16))


@pytest.mark.parametrize("family", ["Qwen2VLText", "Qwen3VLText"])
def test_a_scheme_in_a_model_with_positions_of_three_axes_is_refused(family: str) -> None:
    config = getattr(transformers, f"{family}Config")(**SIZES | {"head_dim": 12}, rope_parameters=dict(MROPE))
    model = getattr(transformers, f"{family}Model")(config)
    refused(posenc.NoPE(), model, r"_text\) has positions of several axes, and a scheme needs those of all keys of a")


def test_the_schedule_of_deepseek_v3_is_refused_since_its_pairs_are_laid_out_anew() -> None:
    model = built("deepseek_v3")
    refused(scheme_from_config(model.config).schedule, model, f"RoPE {PAIRS}")


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
