"""posenc as an attention implementation: what a model gives is no further from the truth than transformers' own.

The truth is the model's own eager attention in double precision, every row and every document by itself: no padding, no
packing, no cache. A softmax that eager computes in single precision whatever the model's is made double for it.

Bounds: two ways of computing the same in the same precision round equally often, so the largest error of the one is of
the size of the other's; twice as much, and half of eager's own for the luck of the draw, is room enough.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

import posenc.huggingface as hf
from posenc.huggingface import attention as module
from posenc.visibility import visible

transformers.logging.set_verbosity_error()
VOCABULARY = 48
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
ALTERNATING = ["sliding_attention", "full_attention"]
ALL_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 2}  # none is chosen, so rounding changes no choice

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES),
    "qwen2": ("Qwen2", SIZES | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 16}),
    "mistral": ("Mistral", SIZES | {"sliding_window": 5}),
    "gemma2": ("Gemma2", SIZES | {"head_dim": 16, "sliding_window": 5, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3Text", SIZES | {"head_dim": 16, "sliding_window": 5, "layer_types": ALTERNATING}),
    "smollm3": ("SmolLM3", SIZES | {"no_rope_layers": [1, 0]}),
    "llama4": (
        "Llama4Text",
        SIZES
        | ALL_EXPERTS
        | {"head_dim": 12, "intermediate_size_mlp": 64, "attention_chunk_size": 6, "no_rope_layers": [1, 0]},
    ),
    "gpt_oss": ("GptOss", SIZES | ALL_EXPERTS | {"head_dim": 16, "sliding_window": 5}),
    "deepseek_v3": (
        "DeepseekV3",
        SIZES
        | {"num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 4}
        | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16}
        | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10},
    ),
    "cohere2": ("Cohere2", SIZES | {"sliding_window": 5, "layer_types": ALTERNATING}),
    "gpt2": ("GPT2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}),
    "gpt_neox": ("GPTNeoX", ENCODER),
    "phi": ("Phi", SIZES),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", ENCODER),
    "roberta": ("Roberta", ENCODER),
    "modernbert": (
        "ModernBert",
        ENCODER
        | {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
}


def built(name: str, **changes: Any) -> Any:
    """A small model, with weights large enough for attention to be far from uniform."""
    family, options = (DECODERS | ENCODERS)[name]
    config = getattr(transformers, f"{family}Config")(**options | changes)
    kind = {"GPT2": "GPT2LMHeadModel", "Llama4Text": "Llama4ForCausalLM", "Gemma3Text": "Gemma3ForCausalLM"}
    ending = "Model" if name in ENCODERS else "ForCausalLM"
    model = getattr(transformers, kind.get(family, f"{family}{ending}"))(config).eval()
    return moved(model)


def moved(model: Any) -> Any:
    """Its weights moved by numbers that make scores of the size of 1."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            width = parameter.size(-1) if parameter.dim() > 1 else 48
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.6 * width**-0.5)
    if hasattr(model, "set_experts_implementation") and hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the other one has no double precision
    return model


@contextmanager
def exact_softmax() -> Iterator[None]:
    """Softmax in double precision for double inputs, though a model asks for single."""
    original = nn.functional.softmax

    def softmax(x: Tensor, dim: int = -1, dtype: Any = None, **others: Any) -> Tensor:
        return original(x, dim=dim, dtype=torch.float64 if x.dtype == torch.float64 else dtype, **others)

    nn.functional.softmax = softmax  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.functional.softmax = original


def output(model: Any, **inputs: Any) -> Tensor:
    with torch.no_grad():
        out = model(**inputs)
    return (out.logits if hasattr(out, "logits") else out.last_hidden_state).double()


IDS = torch.randint(3, VOCABULARY, (2, 13), generator=torch.Generator().manual_seed(0))
LENGTHS = (9, 13)  # of the rows, where they are padded
DOCUMENTS = (8, 5)  # of each row, where it is packed


def at(model: Any, positions: Tensor) -> dict[str, Tensor]:
    """The positions, where the model takes any. RoBERTa and BERT count by themselves."""
    takes = inspect.signature(model.forward).parameters
    return {"position_ids": positions} if "position_ids" in takes and model.config.model_type != "roberta" else {}


def in_one(model: Any) -> list[Tensor]:
    return [row for row in output(model, input_ids=IDS)]


def padded(model: Any, side: str, steps: tuple[int, ...] = ()) -> list[Tensor]:
    """The tokens of every row, of rows padded on a side; in several steps, from a cache."""
    is_token = torch.arange(13) < torch.tensor(LENGTHS)[:, None]
    is_token = is_token if side == "right" else is_token.flip(1)
    ids = torch.zeros_like(IDS)
    for n, length in enumerate(LENGTHS):
        ids[n, is_token[n]] = IDS[n, :length]
    positions = (is_token.long().cumsum(1) - 1).clamp(min=0)
    if not steps:
        out = output(model, input_ids=ids, attention_mask=is_token.long(), **at(model, positions))
    else:
        parts, start = [], 0
        cache = transformers.DynamicCache(config=model.config)
        for step in steps:
            here = slice(start, start + step)
            mask = is_token[:, : start + step].long()
            inputs = {"input_ids": ids[:, here], "attention_mask": mask, "past_key_values": cache, "use_cache": True}
            parts.append(output(model, **inputs, **at(model, positions[:, here])))
            start += step
        out = torch.cat(parts, 1)
    return [out[n, is_token[n]] for n in range(2)]


def packed(model: Any) -> list[Tensor]:
    positions = torch.cat([torch.arange(n) for n in DOCUMENTS]).expand(2, -1)
    out = output(model, input_ids=IDS, position_ids=positions, use_cache=False)
    return [part for row in out for part in row.split(DOCUMENTS)]


def alone(model: Any) -> list[Tensor]:
    return [output(model, input_ids=IDS[n : n + 1, :length])[0] for n, length in enumerate(LENGTHS)]


def documents_alone(model: Any) -> list[Tensor]:
    return [output(model, input_ids=part[None])[0] for row in IDS for part in row.split(DOCUMENTS)]


Run = Callable[[Any], list[Tensor]]
KINDS: dict[str, tuple[Run, Run]] = {
    "full": (in_one, lambda model: [output(model, input_ids=row[None])[0] for row in IDS]),
    "left": (lambda model: padded(model, "left"), alone),
    "right": (lambda model: padded(model, "right"), alone),
    "cached": (lambda model: padded(model, "left", (6, 1, 4, 1, 1)), alone),
    "packed": (packed, documents_alone),
}


def with_attention(model: Any, name: str, dtype: torch.dtype) -> Any:
    other = copy.deepcopy(model).to(dtype)
    other.set_attn_implementation(name)
    assert other.config.get_text_config()._attn_implementation == name
    return other


def check(model: Any, run: Run, truth: Run) -> None:
    """What posenc gives in float32 and bfloat16 is no further from the truth than what eager gives."""
    with exact_softmax():
        exact = truth(with_attention(model, "eager", torch.float64))
    for dtype in (torch.float32, torch.bfloat16):
        eager, ours = (
            max(float((x - y).abs().max()) for x, y in zip(run(with_attention(model, name, dtype)), exact, strict=True))
            for name in ("eager", "posenc")
        )
        assert 0 < ours <= 2.5 * eager, (dtype, ours, eager)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_as_exact_as_its_eager_attention(name: str, kind: str) -> None:
    if name == "llama4" and kind in ("left", "cached"):
        pytest.skip("transformers scales queries by their place in the cache, so its padded rows are other rows")
    check(built(name), *KINDS[kind])


@pytest.mark.parametrize("kind", ["full", "left", "right"])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_is_as_exact_as_its_eager_attention(name: str, kind: str) -> None:
    check(built(name), *KINDS[kind])
