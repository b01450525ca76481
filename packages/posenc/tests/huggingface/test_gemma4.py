"""Gemma 4: layers of two widths, of which the wider turn only some channels, and layers that share keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers

import posenc
from posenc.huggingface import patch, scheme_from_config
from tests.huggingface.test_attention import moved, output
from tests.huggingface.test_patching import refused
from tests.huggingface.tiny import config_of
from tests.rounding import of_angles, of_sums
from tests.rows import with_more

IDS = torch.randint(3, 60, (2, 13), generator=torch.Generator().manual_seed(0))


def gemma4(shared: int) -> Any:
    torch.manual_seed(0)
    config = config_of("gemma4_text", num_kv_shared_layers=shared)
    return moved(transformers.AutoModelForCausalLM.from_config(config).eval()).double()


def in_steps(model: Any) -> Tensor:
    cache = transformers.DynamicCache(config=model.config)
    return torch.cat([output(model, input_ids=ids, cache=cache) for ids in IDS.split([7, 1, 4, 1], 1)], 1)


@pytest.mark.parametrize("shared", with_more([2], [0]))
def test_it_is_patched(shared: int) -> None:
    model = gemma4(shared)
    plain = output(model, input_ids=IDS)
    bound = 4 * of_angles(torch.float32, 13, plain)  # its own angles are in float32, in four layers
    half = {"sliding_attention": posenc.PositionInterpolation(2.0)}
    same = [
        scheme_from_config(model.config).schedule,
        {"sliding_attention": posenc.PositionInterpolation(1.0)},
        {"sliding_attention": posenc.DynamicNTK(2.0, 64)},  # which does nothing to 13 tokens
    ]
    for what in (*same, half, posenc.NoPE(), posenc.ALiBi(3)):
        with patch(model, what):
            out = output(model, input_ids=IDS)
            torch.testing.assert_close(in_steps(model), out, rtol=0, atol=of_sums(torch.float64, 4 * (28 + 13), out))
        if what in same:
            torch.testing.assert_close(out, plain, rtol=0, atol=bound)
        else:
            assert float((out - plain).abs().max()) > 1e-2
    assert torch.equal(output(model, input_ids=IDS), plain)


def test_a_scaling_of_layers_that_turn_few_channels_is_refused() -> None:
    refused(
        posenc.YaRN(4.0, 64),
        gemma4(0),
        r"layers of type full_attention of Gemma4ForCausalLM \(gemma4_text\) have rope_type 'proportional', .* give "
        r"\{layer type: scaling\} of 'sliding_attention'",
    )
