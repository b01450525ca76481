"""The windows of a schedule take the place of a model's own windows and chunks, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import posenc
from posenc import Chunk, RoPE, Schedule
from posenc.huggingface import patch, scheme_from_config
from tests.huggingface.test_attention import DOCUMENTS, GENERATE, IDS, TERMS, built, output
from tests.rounding import of_angles, of_sums

ROPE = RoPE(12, layout="interleaved")
PADDING = 4
IS_TOKEN = torch.arange(13 + PADDING).expand(2, -1) >= torch.tensor([[0], [PADDING]])
PLACES = (IS_TOKEN.cumsum(1) - 1).clamp(min=0)
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
        output(model, input_ids=PADDED, attention_mask=IS_TOKEN.long(), position_ids=PLACES)[IS_TOKEN],
    ]


@pytest.mark.parametrize("window", [None, 4, 12, Chunk(4), Chunk(12)], ids=repr)
def test_a_schedule_takes_the_place_of_the_models_own_chunks(window: Any) -> None:
    schedule = Schedule([(ROPE, window)] * 2)
    own, without = llama4("chunked_attention"), llama4("full_attention")
    with patch(own, schedule), patch(without, schedule):
        for ours, expected in zip(runs(own), runs(without), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=of_sums(torch.float64, TERMS, expected))


def test_a_scheme_leaves_the_models_own_chunks() -> None:
    """Counted by transformers from the first token of a row, whatever the position_ids."""
    own, without = llama4("chunked_attention"), llama4("full_attention")
    with patch(own, ROPE), patch(without, Schedule([(ROPE, Chunk(6))] * 2)):
        for ours, expected in zip(runs(own), runs(without), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=of_sums(torch.float64, TERMS, expected))
        slots = output(own, input_ids=PADDED, attention_mask=IS_TOKEN.long())[1, PADDING:]
        # its five norms round to float32: 5 * 2^-24 of numbers up to 2, on either side
        torch.testing.assert_close(slots, output(own, input_ids=IDS)[1], rtol=0, atol=1e-6)


def test_the_models_own_chunks_as_a_schedule_are_counted_as_the_model_counts_them() -> None:
    """From the first token of a row, whatever the position_ids."""
    model = built("llama4").double()
    inputs: list[dict[str, Any]] = [
        {"input_ids": IDS, "position_ids": torch.arange(5, 18).expand(2, -1)},
        {"input_ids": PADDED, "attention_mask": IS_TOKEN.long(), "position_ids": PLACES},
        {"input_ids": PADDED, "attention_mask": IS_TOKEN.long()},
    ]
    plain = [output(model, **each) for each in inputs]
    with patch(model, scheme_from_config(model.config).schedule) as patched:
        assert any("model's own factor counts the slots of the cache" in change for change in patched.changes)
        for each, expected in zip(inputs, plain, strict=True):
            is_token = each.get("attention_mask", torch.ones_like(IDS)).bool()
            bound = 2 * of_angles(torch.float32, 18, expected)  # its own angles are in float32, in two layers
            torch.testing.assert_close(output(model, **each)[is_token], expected[is_token], rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["llama4", "bloom"])
def test_a_schedule_without_other_windows_runs_in_a_static_cache(name: str) -> None:
    model, how = built(name), {"attention_mask": IS_TOKEN.long(), **GENERATE}
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
