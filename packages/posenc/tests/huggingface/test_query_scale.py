"""A scheme takes the place of all that a model does with positions, its factor of queries included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from posenc.huggingface import patch, scheme_from_config
from tests.huggingface.test_attention import moved, output
from tests.huggingface.test_patching import same, state
from tests.huggingface.tiny import config_of
from tests.rounding import of_sums

IDS = torch.randint(3, 64, (1, 150), generator=torch.Generator().manual_seed(6))
PLACES = torch.arange(150)[None]


def scaling(family: str) -> Any:
    """A model whose factor is far from 1 at these places, in double precision."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config_of(family)).eval()
    return moved(model).double()


@pytest.mark.parametrize("family", ["ministral3", "llama4_text"])
def test_its_own_schedule_scales_queries_once(family: str) -> None:
    model = scaling(family)
    before, plain = state(model), output(model, input_ids=IDS)
    with patch(model, scheme_from_config(model.config).schedule) as patched:
        assert "the model's own factor of queries by their position: off" in patched.changes
        # transformers takes the factor and angles up to 150 in float32: 150 * 2^-24, in four layers, of numbers up to 3
        torch.testing.assert_close(output(model, input_ids=IDS), plain, rtol=0, atol=1e-4)
        other = copy.deepcopy(model)
    torch.testing.assert_close(output(other, input_ids=IDS), plain, rtol=0, atol=1e-4)
    with patch(model, posenc.NoPE()):
        there = output(model, input_ids=IDS, position_ids=PLACES)
        assert torch.equal(output(model, input_ids=IDS, position_ids=PLACES + 1000), there)
    assert float((there - plain).abs().max()) > 1e-2
    assert same(state(model), before)
    assert torch.equal(output(model, input_ids=IDS), plain)


def test_places_of_a_cache_are_those_of_the_model() -> None:
    """Ministral 3's layers are then given none, so they come from the model's rotary module."""
    model = scaling("ministral3")
    with patch(model, posenc.RoPE(20) + posenc.QueryScale("ministral3", length=8)):
        whole = output(model, input_ids=IDS, position_ids=PLACES + 7)
        cache, parts = transformers.DynamicCache(), []
        for places in PLACES.split([100, 1, 49], 1):
            parts.append(output(model, input_ids=IDS[:, places[0]], position_ids=places + 7, cache=cache))
        torch.testing.assert_close(
            torch.cat(parts, 1), whole, rtol=0, atol=of_sums(torch.float64, 4 * (20 + 150), whole)
        )
        assert float((output(model, input_ids=IDS) - whole).abs().max()) > 1e-3
