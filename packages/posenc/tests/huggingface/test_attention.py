"""posenc as an attention implementation: what a model gives is no further from the truth than transformers' own.

The truth is the model's own eager attention in double precision, every row and every document by itself: no padding, no
packing, no cache. A softmax that eager computes in single precision whatever the model's is made double for it.

Bounds: two ways of computing the same in the same precision round equally often, so the largest error of the one is of
the size of the other's; twice as much, and half of eager's own for the luck of the draw, is room enough.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers

import posenc.huggingface as hf
from posenc.huggingface import attention as module
from posenc.huggingface.adapters import ADAPTERS
from tests.huggingface.configs import ADAPTED, DECODERS, ENCODERS, SMALL
from tests.huggingface.tiny_models import exact_alibi, small_config

transformers.logging.set_verbosity_error()
GENERATE = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def built(name: str, **changes: Any) -> Any:
    """A small model, with weights large enough for attention to be far from uniform."""
    torch.manual_seed(0)
    kind = transformers.AutoModel if name in ENCODERS else transformers.AutoModelForCausalLM
    return moved(kind.from_config(small_config(name, **changes)).eval())


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


def output(model: Any, cache: Any = None, **inputs: Any) -> Tensor:
    if cache is not None:  # which is "past_key_values" before transformers 5.24
        takes = inspect.signature(model.forward).parameters
        inputs["cache" if "cache" in takes else "past_key_values"] = cache
    with torch.no_grad():
        out = model(**inputs)
    return (out.logits if hasattr(out, "logits") else out.last_hidden_state).double()


IDS = torch.randint(3, 48, (2, 13), generator=torch.Generator().manual_seed(0))
LENGTHS = (9, 13)  # of the rows, where they are padded
TERMS = 2 * (20 + 40)  # of the sums of attention: two layers of scores of at most 20 channels over at most 40 keys
DOCUMENTS = (8, 5)  # of each row, where it is packed


def at(model: Any, positions: Tensor) -> dict[str, Tensor]:
    """The positions, where the model takes any. RoBERTa and BERT count by themselves."""
    takes = inspect.signature(model.forward).parameters
    return {"position_ids": positions} if "position_ids" in takes and model.config.model_type != "roberta" else {}


def in_one(model: Any) -> list[Tensor]:
    return list(output(model, input_ids=IDS))


def rows(side: str) -> tuple[Tensor, Tensor]:
    """Rows of ids that are padded on a side, and which are tokens."""
    is_token = torch.arange(13) < torch.tensor(LENGTHS)[:, None]
    is_token = is_token if side == "right" else is_token.flip(1)
    ids = torch.zeros_like(IDS)
    for n, length in enumerate(LENGTHS):
        ids[n, is_token[n]] = IDS[n, :length]
    return ids, is_token


def padded(model: Any, side: str, steps: tuple[int, ...] = ()) -> list[Tensor]:
    """The tokens of every row, of rows padded on a side; in several steps, from a cache."""
    ids, is_token = rows(side)
    positions = (is_token.long().cumsum(1) - 1).clamp(min=0)
    if not steps:
        out = output(model, input_ids=ids, attention_mask=is_token.long(), **at(model, positions))
    else:
        parts, start = [], 0
        cache = transformers.DynamicCache(config=model.config)
        for step in steps:
            here = slice(start, start + step)
            mask = is_token[:, : start + step].long()
            inputs = {"input_ids": ids[:, here], "attention_mask": mask, "cache": cache, "use_cache": True}
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


def in_turn(names: Iterable[str]) -> list[tuple[str, str]]:
    """Every model in three of the five ways: alone, as it is generated from, and one of the others in turn."""
    always = ["full", "cached"]
    others = [kind for kind in KINDS if kind not in always]
    return [(name, kind) for n, name in enumerate(names) for kind in (*always, others[n % len(others)])]


def with_attention(model: Any, name: str, dtype: torch.dtype) -> Any:
    """Falcon's eager attention adds its ALiBi twice, so what is compared with is "sdpa", its default."""
    other = copy.deepcopy(model).to(dtype)
    if other.config.model_type in ADAPTERS:
        if name == "posenc":
            hf.patch(other, hf.scheme_from_config(other.config).schedule)
        return other
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


@pytest.mark.parametrize(
    ("name", "kind"), [*in_turn(DECODERS), *in_turn(ADAPTED), *product(ENCODERS, ["full", "left", "right"])]
)
def test_a_model_is_as_exact_as_its_eager_attention(name: str, kind: str) -> None:
    if name == "llama4" and kind in ("left", "cached"):
        pytest.skip("transformers scales queries by their place in the cache, so its padded rows are other rows")
    if kind == "packed" and name in ADAPTED and name != "gptj":
        pytest.skip("the model tells no documents apart")
    with exact_alibi():
        check(built(name), *KINDS[kind])


def test_t5_with_its_bias_and_cross_attention() -> None:
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 48}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    model, (ids, is_token) = moved(transformers.T5ForConditionalGeneration(config).eval()), rows("left")

    def run(model: Any) -> list[Tensor]:
        padding = {"attention_mask": is_token.long(), "decoder_attention_mask": is_token.long()}
        out = output(model, input_ids=ids, decoder_input_ids=ids, **padding)
        return [out[n, is_token[n]] for n in range(2)]

    def truth(model: Any) -> list[Tensor]:
        each = [IDS[n : n + 1, :length] for n, length in enumerate(LENGTHS)]
        return [output(model, input_ids=row, decoder_input_ids=row)[0] for row in each]

    check(model, run, truth)


IMAGE = torch.tensor(  # two words, an image of 2 x 3 patches, five words: t, h and w differ
    [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 9],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9],
    ]
)
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}


def with_axes(family: str) -> Any:
    """A model whose positions have three axes."""
    config = getattr(transformers, f"{family}Config")(**SMALL | {"head_dim": 12}, rope_parameters=dict(MROPE))
    return moved(getattr(transformers, f"{family}Model")(config).eval())


def mask_functions() -> Iterator[tuple[str, Any]]:
    from transformers.masking_utils import (
        and_masks,
        bidirectional_mask_function,
        causal_mask_function,
        chunked_causal_mask_function,
        packed_sequence_mask_function,
        remap_positions_for_packed_sequence,
        sliding_window_bidirectional_mask_function,
        sliding_window_causal_mask_function,
    )

    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]])
    document = torch.tensor([[0] * 5 + [1] * 6, [0] * 3 + [1] * 8])
    for name, function in (
        ("causal", causal_mask_function),
        ("bidirectional", bidirectional_mask_function),
        ("sliding", sliding_window_causal_mask_function(3)),
        ("sliding both ways", sliding_window_bidirectional_mask_function(2)),
        ("chunked", chunked_causal_mask_function(4, torch.tensor([3, 0]))),
    ):
        yield name, function
        apart = packed_sequence_mask_function(document)
        yield f"{name}, packed", and_masks(remap_positions_for_packed_sequence(function, positions), apart)


@pytest.mark.parametrize(("name", "function"), list(mask_functions()), ids=[name for name, _ in mask_functions()])
def test_a_mask_is_that_of_transformers(name: str, function: Any) -> None:
    is_token = torch.ones(2, 11, dtype=torch.bool)
    is_token[0, :3] = False
    lengths = [(11, 11, 0, 0)] if "packed" in name else [(11, 11, 0, 0), (4, 11, 7, 0), (1, 6, 10, 5), (3, 16, 2, 0)]
    for m, n, q_offset, k_offset in lengths:
        for attention_mask in (None, is_token):
            if "packed" in name and attention_mask is not None:
                continue  # transformers takes documents from position_ids where there is no mask
            said = (2, m, n, q_offset, k_offset, function, attention_mask)
            ours = module.mask(*said)
            theirs = transformers.masking_utils.sdpa_mask(*said, allow_is_causal_skip=False)
            assert isinstance(ours, module.Visible)
            assert torch.equal(ours.dense(), theirs), (m, n, q_offset, k_offset)
            assert torch.equal(ours[:, :, :, : n - 1], theirs[..., : n - 1])  # whoever cuts it gets a mask
            if attention_mask is None and "chunked" not in name and "packed" not in name:
                assert ours.keys.layout.start is not None  # known without reading, so that fused kernels take it


def test_a_mask_of_ones_own_is_laid_out() -> None:
    from transformers.masking_utils import and_masks, causal_mask_function

    def even(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key % 2 == 0

    for function in (even, and_masks(causal_mask_function, even)):
        mask = module.mask(1, 5, 5, 0, 0, function)
        assert type(mask) is Tensor
        assert torch.equal(
            mask, transformers.masking_utils.sdpa_mask(1, 5, 5, 0, 0, function, allow_is_causal_skip=False)
        )


Q, K = torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 7, 8)
REFUSED: list[tuple[Tensor, Any, dict[str, Any], str]] = [
    (Q, None, {"output_attentions": True}, "output_attentions is not supported.*no attention weights are computed"),
    (Q, None, {"cu_seq_lens_q": Q[0, 0, 0]}, "cu_seq_lens_q is not supported.*position_ids that start again"),
    (Q, None, {"block_indices": Q}, "block_indices is not supported.*selected blocks"),
    (Q, None, {"something_new": Q}, "something_new is not supported.*does not know whether"),
    (K, None, {"is_causal": True}, "attention_mask must say which of 7 keys each of 5 queries attends to"),
    (K, K[:, 0, 0] > 0, {}, r"attention_mask must be of four dimensions .* got torch.bool \(2, 8\)"),
    (K, module.mask(2, 5, 5), {}, r"attention_mask must be for .* \(5, 7\), got \(5, 5\)"),
    (Q, None, {"is_causal": False, "sliding_window": 3}, "sliding_window=3 is not supported without a mask"),
]


@pytest.mark.parametrize(("key", "mask", "how", "words"), REFUSED, ids=[row[3][:40] for row in REFUSED])
def test_what_would_be_dropped_or_does_not_fit_is_refused_by_name(key: Any, mask: Any, how: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        module.attention(nn.Identity(), Q, key, key, mask, **how)


@pytest.mark.parametrize(("name", "others"), [("llama", {}), ("bloom", {"hidden_dropout": 0.0})])
def test_dropout_is_applied_in_training_alone(name: str, others: dict[str, float]) -> None:
    model = with_attention(built(name, attention_dropout=0.5, **others), "posenc", torch.float32)
    still = output(model, input_ids=IDS)
    assert torch.equal(output(model, input_ids=IDS), still)
    model.train()
    assert not torch.equal(output(model, input_ids=IDS), still)


def test_what_cannot_be_divided_among_processes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXCHANGES", [object()])
    x, of_two = torch.randn(1, 2, 3, 8), nn.Module()
    of_two.config = transformers.T5Config()
    with pytest.raises(ValueError, match=r"is of an encoder-decoder, whose two texts cannot be divided"):
        module.attention(of_two, x, x, x, None)
    with pytest.raises(ValueError, match=r"position_bias is not supported while a text is divided among processes"):
        module.attention(nn.Identity(), x, x, x, None, position_bias=torch.zeros(1, 2, 3, 3))
    with pytest.raises(ValueError, match=r"the mask must be of a known function, made uncompiled, .* got .*<lambda>"):
        module.mask(1, 3, 3, mask_function=lambda *_: True)
