"""What was read of a model's configuration, put back into the model by patch(), changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers

from posenc import NoPE, RoPE, Schedule
from posenc.huggingface import patch, scheme_from_config
from posenc.huggingface.replacing import TABLES
from tests.huggingface.configs import ALIKE, FAMILIES, OTHERS
from tests.huggingface.tiny import config_of
from tests.rows import with_more

SURVEY = pytest.mark.survey
IDS = torch.arange(40)[None] % 57 + 5
CLOSE = 1e-4
"""Of the largest output. Both sides are float32 and round differently, by up to 4e-6; without positions it is 1e-2."""

REST = [*(row for row in ALIKE if row != "mistral4"), "bloom", "mpt"]

AXES = "has positions of several axes, and a scheme needs those of all keys of a cache"
UNKNOWN = "has neither rotary modules nor a learned table or bias that posenc knows"
OWN_CODE = "must have layout='half', the pairs of channels of queries and keys in the attention of"
REFUSED = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"), AXES),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), AXES),
    **dict.fromkeys(("gte", "jina_embeddings_v3", "nomic_bert"), "takes scalings only: its attention layers have no"),
    "granitemoehybrid still": UNKNOWN,
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
    own = model(IDS).last_hidden_state
    with patch(model, what):
        found = model(IDS).last_hidden_state
    assert torch.equal(model(IDS).last_hidden_state, own)
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


@pytest.mark.more
@pytest.mark.parametrize("row", [row for row in OTHERS if row in TABLES])
@torch.no_grad()
def test_the_table_of_a_configuration_changes_nothing(row: str) -> None:
    model = built(row)
    said: Any = scheme_from_config(model.config).input
    [own] = [module for name, module in model.named_modules() if name.endswith(TABLES[row])]
    said.weight.copy_(own.weight)
    assert put_back(model, said) < CLOSE
    assert put_back(model, NoPE()) > 100 * CLOSE
