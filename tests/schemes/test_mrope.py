"""M-RoPE is RoPE on text, and the released models' on images; positions of both follow its rule, in decoding too."""

import pytest
import torch
from torch import Tensor

import posenc
from posenc import MRoPE, Positions, RoPE, RoPE3D
from posenc.models import Decoder, KVCache
from tests.oracles import mrope as oracle
from tests.rounding import of_angles

FORMS = ("sections", "interleaved", "ernie", "videorope")
HEAD_DIM, SECTIONS = 32, (4, 6, 6)
PARTS = [3, (1, 4, 6), 5, (4, 2, 2), 2]  # time, row and column differ, and the video is longer than it is high or wide
forms = pytest.mark.parametrize("form", FORMS)


def heads(tokens: int) -> list[Tensor]:
    return list(torch.randn(2, 2, 3, tokens, HEAD_DIM, dtype=torch.float64))


@forms
def test_on_text_it_is_rope(form: str) -> None:
    scheme = MRoPE(HEAD_DIM, SECTIONS, form, base=313.0)  # type: ignore[arg-type]
    rope = RoPE(HEAD_DIM, 313.0, layout=scheme.layout)
    text, line = Positions.multimodal([9], start=5), Positions.arange(9, start=5)
    query, key = heads(9)
    found = scheme(text, dtype=torch.float64).rotate(query, key)
    torch.testing.assert_close(found, rope(line, dtype=torch.float64).rotate(query, key), rtol=0, atol=0)


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


def test_interleaved_sections_that_are_too_long_end_with_the_pairs() -> None:
    scheme = MRoPE(64, (8, 12, 12), "interleaved")
    assert [scheme.allocation.count(axis) for axis in range(3)] == [11, 11, 10]
    assert MRoPE(128, (24, 20, 20), "interleaved").allocation[57:] == (0, 1, 2, 0, 0, 0, 0)


def test_a_head_for_each_axis_is_rope_three_times() -> None:
    """MHRoPE: every axis has all frequencies, in heads of its own."""

    def of_axis(axis: int) -> RoPE:
        allocation = [axis] * (HEAD_DIM // 2)
        return RoPE(HEAD_DIM, axes=3, allocation=allocation, heads=range(axis, axis + 1), num_heads=3)

    scheme = of_axis(0) + of_axis(1) + of_axis(2)
    positions = Positions.multimodal(PARTS)
    query, _ = heads(len(positions))
    found = scheme(positions, dtype=torch.float64).rotate_query(query)
    for axis in range(3):
        line = Positions(positions.coords[..., axis])
        alone = RoPE(HEAD_DIM)(line, dtype=torch.float64).rotate_query(query[:, axis : axis + 1])
        torch.testing.assert_close(found[:, axis : axis + 1], alone)


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


def test_positions_of_a_video_are_a_grid_of_frames() -> None:
    video = Positions.grid(2, 3, frames=4, prefix=1)
    assert video.coords[0, 1:].tolist() == oracle.rule([(4, 2, 3)])
    assert video.coords[0, 0].tolist() == [0, 0, 0]
    Positions(video.coords).with_layout(video.layout)
    wide = Positions.grid(2, 3, frames=4, extent=(4, 6))
    assert wide.coords[0, -1].tolist() == [3.0, 2.5, 4.5]
    assert len(Positions.grid(2, 3, frames=0)) == 0


def test_a_padded_row_goes_on_after_its_last_token() -> None:
    ids = Positions.multimodal([2, (1, 2, 3), 1]).coords
    rows = torch.cat((ids, torch.cat((ids[:, :4], 0 * ids[:, 4:]), 1)))
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    after = Positions.from_ids(rows, mask).following(2)
    assert after.coords.tolist() == [[[6] * 3, [7] * 3], [[4] * 3, [5] * 3]]
    assert after.order.tolist() == [[9, 10], [4, 5]]
    empty = Positions.from_ids(rows[:1], mask[:1] & False).following()
    assert (empty.coords.tolist(), empty.document.tolist()) == ([[[0, 0, 0]]], [[0]])


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


@pytest.mark.parametrize(
    "scheme", [MRoPE(HEAD_DIM, SECTIONS, "interleaved"), RoPE3D(HEAD_DIM)], ids=["mrope", "rope_3d"]
)
@pytest.mark.parametrize("backend", ["reference", "native", "sdpa"])
def test_texts_with_images_that_are_packed_are_each_by_itself(scheme: posenc.Scheme, backend: str) -> None:
    texts = [Positions.multimodal(PARTS), Positions.multimodal([(2, 3, 1), 4])]
    lengths = [len(text) for text in texts]
    query, key = heads(sum(lengths))
    value = torch.randn_like(key)

    def attend(positions: Positions, *tensors: Tensor) -> Tensor:
        how = {"query_positions": positions, "key_positions": positions, "is_causal": True, "backend": backend}
        out = posenc.attention(*tensors, scheme, **how)
        assert isinstance(out, Tensor)
        return out

    together = attend(Positions.cat(texts, documents="new"), query, key, value)
    parts = zip(*(x.split(lengths, 2) for x in (query, key, value)), strict=True)
    alone = torch.cat([attend(text, *part) for text, part in zip(texts, parts, strict=True)], 2)
    torch.testing.assert_close(together, alone)
