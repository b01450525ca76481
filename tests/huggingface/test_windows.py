"""The windows of a schedule take the place of a model's own windows and chunks, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import posenc
from posenc import Chunk, RoPE, Schedule
from posenc.huggingface import patch
from tests.huggingface.test_attention import DOCUMENTS, IDS, TERMS, built, output
from tests.rounding import of_sums

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


@pytest.mark.more
@pytest.mark.parametrize("name", ["mistral", "llama4"])
def test_a_window_that_a_laid_out_mask_holds_is_refused(name: str) -> None:
    """A compiled graph's holds the model's own, and what its caller meant by a mask nobody knows."""
    model, mask = built(name), torch.ones(13, 13).tril().bool().expand(2, 1, -1, -1)
    said = "a window of a schedule needs the positions of queries and keys, and a plain mask was given instead"
    head_dim = model.config.head_dim or 12
    with patch(model, Schedule([(RoPE(head_dim), None)] * 2)):
        with pytest.raises(ValueError, match=said):
            output(model, input_ids=IDS, attention_mask=mask, use_cache=False)
        with pytest.raises(ValueError, match=said):
            output(torch.compile(model, backend="eager"), input_ids=IDS, use_cache=False)
    torch.compiler.reset()  # which would remember that its functions raised, for other tests


@pytest.mark.more
def test_a_schedule_on_a_model_without_windows_compiles() -> None:
    model = built("llama")
    with patch(model, Schedule([(posenc.NoPE(), 4), (posenc.RoPE(12), None)])):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        expected = output(model, input_ids=IDS, use_cache=False)
        made = output(compiled, input_ids=IDS, use_cache=False)
        torch.testing.assert_close(made, expected, rtol=0, atol=of_sums(torch.float32, TERMS, expected))
