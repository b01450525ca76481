"""M-RoPE is RoPE on text, and the released models' on images; positions of both follow its rule, in decoding too."""

from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import MRoPE, Positions
from posenc.models import Decoder, KVCache
from tests.oracles import mrope as oracle
from tests.rounding import of_angles

FORMS = ("sections", "interleaved", "ernie", "videorope")
HEAD_DIM, SECTIONS = 32, (4, 6, 6)
PARTS = [3, (1, 4, 6), 5, (4, 2, 2), 2]  # time, row and column differ, and the video is longer than it is high or wide
forms = pytest.mark.parametrize("form", FORMS)


def heads(tokens: int) -> list[Tensor]:
    return list(torch.randn(2, 2, 3, tokens, HEAD_DIM, dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS[:3])
def test_on_images_it_is_transformers(form: str) -> None:
    pytest.importorskip("transformers")
    from transformers.models.ernie4_5_vl_moe import configuration_ernie4_5_vl_moe, modeling_ernie4_5_vl_moe
    from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl
    from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

    model, rotary, config, sections = {
        "sections": (
            modeling_qwen2_vl,
            "Qwen2VLRotaryEmbedding",
            configuration_qwen2_vl.Qwen2VLTextConfig,
            list(SECTIONS),
        ),
        "interleaved": (
            modeling_qwen3_vl,
            "Qwen3VLTextRotaryEmbedding",
            configuration_qwen3_vl.Qwen3VLTextConfig,
            list(SECTIONS),
        ),
        "ernie": (
            modeling_ernie4_5_vl_moe,
            "Ernie4_5_VLMoeTextRotaryEmbedding",
            configuration_ernie4_5_vl_moe.Ernie4_5_VLMoeTextConfig,
            [SECTIONS[1], SECTIONS[2], SECTIONS[0]],  # theirs are in the order row, column, time
        ),
    }[form]
    rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": sections}
    how = config(hidden_size=3 * HEAD_DIM, num_attention_heads=3, head_dim=HEAD_DIM, rope_parameters=rope)
    positions = Positions.multimodal(PARTS)
    query, key = (x.float() for x in heads(len(positions)))
    cos, sin = getattr(model, rotary)(how)(query, positions.coords.movedim(-1, 0))
    expected = model.apply_rotary_pos_emb(query, key, cos, sin)
    scheme = MRoPE(HEAD_DIM, SECTIONS, form, base=500.0)  # type: ignore[arg-type]
    found = scheme(positions).rotate(query, key)
    # Theirs has angles in float32; a channel is off by sqrt(2) times what each of its pair is.
    bound = 2**0.5 * of_angles(torch.float32, positions.coords.max().item(), query)
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(("seconds", "frames"), [(0.5, 5), (0.7, 13), (1.1, 30), (0.04, 40)])
def test_videos_by_seconds_are_transformers(seconds: float, frames: int) -> None:
    pytest.importorskip("transformers")
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    make: Any = Qwen2_5_VLModel.get_vision_position_ids
    expected = make(None, 7, torch.tensor([frames, 3, 2]), time_interval=2 * seconds)
    found = Positions.multimodal([7, (frames, 3, 2, seconds), 2], tokens_per_second=2)
    assert torch.equal(found.coords[0, 7:-2], expected.mT)
    assert found.coords[0, -2].tolist() == [int(found.coords[0, :-2].max()) + 1] * 3
    Positions(found.coords).with_layout(found.layout)  # and it agrees


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [PARTS, [(1, 2, 3)], [(2, 0, 3), 4], [0, 2, 0, 3], [(3, 1, 1), (1, 1, 3), 1], []])
def test_positions_follow_the_rule(parts: list[object]) -> None:
    found = Positions.multimodal(parts, start=4)  # type: ignore[arg-type]
    assert found.coords.reshape(-1, 3).tolist() == oracle.rule(parts, start=4)
    assert found.order.tolist() == [list(range(len(found)))]
    Positions(found.coords, order=found.order, document=found.document).with_layout(found.layout)  # and it agrees
    bounds = (4, int(found.coords.max())) if len(found) else None
    assert found.layout.bounds == bounds
    after = [place[0] for place in oracle.rule([*parts, 3], start=4)[len(found) :]]
    if len(found):
        assert found.following(3).coords.tolist() == [[[p] * 3 for p in after]]


@pytest.mark.parametrize("spacing", [2, 1, 2.5])
@pytest.mark.parametrize("parts", [[*PARTS, (1, 5, 8), 1], [(2, 0, 3), 4], [(3, 1, 1), (1, 1, 3), 1], [0, 2, 0, 3], []])
def test_videoropes_positions_lie_around_the_line_of_text(parts: list[object], spacing: float) -> None:
    scheme = MRoPE(8, (2, 1, 1), "videorope")
    found = scheme.multimodal(parts, start=4, spacing=spacing)  # type: ignore[arg-type]
    expected = oracle.diagonal(parts, 4, spacing)
    assert found.coords.reshape(-1, 3).tolist() == expected
    assert found.order.tolist() == [list(range(len(found)))]
    assert found.coords.is_floating_point() == isinstance(spacing, float)
    if len(found):
        after = oracle.diagonal([*parts, 3], 4, spacing)[len(found) :]
        assert found.following(3).coords.tolist() == [after]


# --- models ----------------------------------------------------------------------------------------------------------


@forms
def test_what_is_generated_after_an_image_goes_on_as_the_whole_text(form: str) -> None:
    """From a cache, one token at a time, at the positions that follow by themselves."""
    torch.default_generator.manual_seed(0)
    scheme = MRoPE(8, (2, 1, 1), form)  # type: ignore[arg-type]
    model = Decoder(11, 16, 2, 2, position=scheme).double().eval()
    prompt, more = [2, (1, 3, 4)], 4
    whole = Positions.multimodal([*prompt, more])
    ids = torch.randint(11, (2, len(whole)))
    with torch.no_grad():
        expected = model(ids, whole)
        cache = KVCache()
        start = len(whole) - more
        found = [model(ids[:, :start], Positions.multimodal(prompt), cache=cache)]
        found += [model(ids[:, n : n + 1], cache=cache) for n in range(start, len(whole))]
    torch.testing.assert_close(torch.cat(found, 1), expected)
