"""Weights converted to the other layout give the same scores; tables are resized to what is said, and only that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Positions, RoPE, logits
from posenc.huggingface import convert_layout, half_to_interleaved, interleaved_to_half, resize_grid, resize_line

CASES = {
    "all channels": (12, 12, 0),
    "partial": (20, 8, 0),
    "a slice behind": (17, 12, 5),
    "a slice inside": (20, 6, 4),
}


def by_hand(x: Tensor, head_dim: int, rotary_dim: int, first: int) -> Tensor:
    """Half to interleaved, entry by entry."""
    out = x.clone()
    for head in range(x.size(0) // head_dim):
        for k in range(rotary_dim // 2):
            start = head * head_dim + first
            out[start + 2 * k] = x[start + k]
            out[start + 2 * k + 1] = x[start + k + rotary_dim // 2]
    return out


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_permutation_and_its_inverse_bit_by_bit(case: str) -> None:
    head_dim, rotary_dim, first = CASES[case]
    how = {"rotary_dim": rotary_dim, "first_channel": first}
    for x in (
        torch.randn(3 * head_dim, 7),
        torch.randn(head_dim),
        torch.randint(-8, 8, (5 * head_dim, 2)).to(torch.int8),
    ):
        there = half_to_interleaved(x, head_dim, **how)
        assert torch.equal(there, by_hand(x, head_dim, rotary_dim, first))
        assert torch.equal(interleaved_to_half(there, head_dim, **how), x)
    x = torch.randn(7, 3 * head_dim)  # a Conv1D
    assert torch.equal(half_to_interleaved(x, head_dim, axis=-1, **how), by_hand(x.mT, head_dim, rotary_dim, first).mT)


def state_of(head_dim: int, heads: int, kv_heads: int, width: int = 11) -> dict[str, Tensor]:
    """What makes queries and keys, with all that adapters and quantisation bring along."""
    state: dict[str, Tensor] = {}
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        at, rows = f"layers.0.self_attn.{name}_proj", count * head_dim
        state |= {
            f"{at}.weight": torch.randn(rows, width, dtype=torch.float64),
            f"{at}.bias": torch.randn(rows, dtype=torch.float64),
            f"{at}.weight_scale": torch.rand(rows, 1, dtype=torch.float64) + 0.5,
            f"{at}.input_scale": torch.rand(()),
            f"{at}.lora_A.default.weight": torch.randn(2, width, dtype=torch.float64),
            f"{at}.lora_B.default.weight": torch.randn(rows, 2, dtype=torch.float64),
        }
    for name in "qk":
        state[f"layers.0.self_attn.{name}_norm.weight"] = torch.rand(head_dim, dtype=torch.float64) + 0.5
    return state


def scores(state: dict[str, Tensor], x: Tensor, rope: RoPE, heads: int, kv_heads: int) -> Tensor:
    """q k^T of a layer with bias, scales per channel, an adapter, and norms of queries and keys."""

    def made(name: str, count: int) -> Tensor:
        p = {k.removeprefix(f"layers.0.self_attn.{name}_"): v for k, v in state.items() if f".{name}_" in k}
        weight = p["proj.weight"] * p["proj.weight_scale"]
        weight = weight + p["proj.lora_B.default.weight"] @ p["proj.lora_A.default.weight"]
        y = (x @ weight.mT + p["proj.bias"]).unflatten(-1, (count, rope.head_dim)).transpose(1, 2)
        return y / y.square().mean(-1, keepdim=True).sqrt() * p["norm.weight"]

    encoding = rope(Positions.arange(x.size(1), start=100), dtype=torch.float64)
    key = made("k", kv_heads).repeat_interleave(heads // kv_heads, 1)
    return logits(made("q", heads), key, encoding)


@pytest.mark.parametrize("case", CASES)
def test_converted_weights_give_the_same_scores_in_the_other_layout(case: str) -> None:
    head_dim, rotary_dim, first = CASES[case]
    how: dict[str, Any] = {"rotary_dim": rotary_dim, "first_channel": first}
    state, x = state_of(head_dim, 6, 2), torch.randn(2, 9, 11, dtype=torch.float64)
    half, interleaved = (RoPE(head_dim, 777.0, layout, **how) for layout in ("half", "interleaved"))
    converted = convert_layout(state, "interleaved", head_dim, **how)
    expected = scores(state, x, half, 6, 2)
    torch.testing.assert_close(scores(converted, x, interleaved, 6, 2), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(scores(state, x, interleaved, 6, 2), expected, rtol=1e-3)  # unconverted is nonsense
    moved = {name for name in state if not torch.equal(converted[name], state[name])}
    assert moved == {name for name in state if ".v_" not in name and "lora_A" not in name and "input" not in name}
    back = convert_layout(converted, "half", head_dim, **how)
    assert all(torch.equal(back[name], x) for name, x in state.items())
    for name in ("q_proj.weight", "k_proj.weight"):  # channels that do not turn
        before, after = (s[f"layers.0.self_attn.{name}"].unflatten(0, (-1, head_dim)) for s in (state, converted))
        still = [c for c in range(head_dim) if not first <= c < first + rotary_dim]
        assert torch.equal(before[:, still], after[:, still])


def test_mla_has_one_head_of_keys_behind_its_latents() -> None:
    """q_b_proj and kv_a_proj_with_mqa of DeepSeek: the sizes of the docstring."""
    nope, turned, latents = 5, 12, 8
    query, key = torch.randn(3 * (nope + turned), 7), torch.randn(latents + turned, 7)
    q = half_to_interleaved(query, nope + turned, rotary_dim=turned, first_channel=nope)
    k = half_to_interleaved(key, latents + turned, rotary_dim=turned, first_channel=latents)
    assert torch.equal(k[:latents], key[:latents])
    assert torch.equal(k[latents::2], key[latents : latents + turned // 2])
    per_head = query.unflatten(0, (3, -1))
    assert torch.equal(q.unflatten(0, (3, -1))[:, :nope], per_head[:, :nope])
    x = torch.randn(4, 7)
    before, after = (
        (x @ each.unflatten(0, (3, -1))[:, nope:].mT) @ (x @ other[latents:].mT).mT
        for each, other in ((query, key), (q, k))
    )
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"q_proj.qweight": torch.zeros(4, 36)},
            r"state has 'q_proj.qweight', torch.float32 \(4, 36\): what its channels",
        ),
        (
            {"q_proj.weight": torch.zeros(36, 4), "q_proj.weight_scale": torch.zeros(3, 1)},
            r"'q_proj.weight_scale', torch.float32 \(3, 1\), which has not one entry for each of 36 channels",
        ),
        (
            {"q_proj.weight": torch.zeros(35, 4)},
            r"q_proj.weight must have a multiple of head_dim = 12 entries along axis",
        ),
        ({"fc.weight": torch.zeros(4, 4)}, r"state must have a module named q_proj, .* got fc.weight"),
    ],
)
def test_what_cannot_be_converted_is_named(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_layout(change, "interleaved", 12)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rotary_dim": 7}, "rotary_dim must be even and within 2..head_dim - first_channel = 12, got 7"),
        ({"rotary_dim": 12, "first_channel": 2}, "within 2..head_dim - first_channel = 10, got 12"),
        ({"first_channel": 11}, "first_channel must be a whole number within 0..10, got 11"),
        ({"axis": 2}, "axis must be a whole number within -2..1, got 2"),
    ],
)
def test_wrong_channels_are_named(how: dict[str, Any], message: str) -> None:
    for convert in (half_to_interleaved, interleaved_to_half):
        with pytest.raises(ValueError, match=message):
            convert(torch.zeros(24, 3), 12, **how)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_the_same_size_is_the_table_itself() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        table = torch.randn(2 + 15, 7).to(dtype)
        assert torch.equal(resize_line(table, 15, kept=2), table)
        assert torch.equal(resize_grid(table, (3, 5), (3, 5), kept=2), table)


@pytest.mark.parametrize("length", [4, 9, 13, 1])
def test_a_line_is_interpolated_between_middles(length: int) -> None:
    table = torch.randn(2 + 9, 3, dtype=torch.float64)
    resized = resize_line(table, length, kept=2)
    assert torch.equal(resized[:2], table[:2])
    for i in range(length):
        place = min(max((i + 0.5) * 9 / length - 0.5, 0.0), 8.0)
        low = min(int(place), 7)
        expected = table[2 + low] * (low + 1 - place) + table[3 + low] * (place - low)
        torch.testing.assert_close(resized[2 + i], expected, rtol=1e-12, atol=1e-12)
    batched = resize_line(table[None].repeat(1, 1, 1), length, kept=2)  # ViT's parameter is (1, rows, dim)
    assert torch.equal(batched[0], resized)


def cubic(t: float) -> float:
    """The kernel of PyTorch's bicubic interpolation: Keys 1981, a = -3/4."""
    t = abs(t)
    if t <= 1:
        return 1.25 * t**3 - 2.25 * t**2 + 1
    return -0.75 * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def linear(t: float) -> float:
    return max(0.0, 1 - abs(t))


@pytest.mark.parametrize(("mode", "kernel"), [("bilinear", linear), ("bicubic", cubic)])
def test_a_grid_keeps_its_orientation_and_its_class_token(mode: str, kernel: Any) -> None:
    """Entry by entry, from 3 x 5 to 7 x 4: rows stay rows, and past the border stands its last patch."""
    (h, w), (new_h, new_w) = (3, 5), (7, 4)
    table = torch.randn(2 + h * w, 3, dtype=torch.float64)
    resized = resize_grid(table, (h, w), (new_h, new_w), kept=2, mode=mode)
    assert torch.equal(resized[:2], table[:2])
    for i in range(new_h):
        for j in range(new_w):
            y, x = (i + 0.5) * h / new_h - 0.5, (j + 0.5) * w / new_w - 0.5
            expected = torch.zeros(3, dtype=torch.float64)
            for row in range(-3, h + 3):
                for column in range(-3, w + 3):
                    patch = table[2 + min(max(row, 0), h - 1) * w + min(max(column, 0), w - 1)]
                    expected += kernel(y - row) * kernel(x - column) * patch
            torch.testing.assert_close(resized[2 + i * new_w + j], expected, rtol=1e-12, atol=1e-12)


def test_a_resized_table_is_rounded_once() -> None:
    table = torch.randn(1, 1 + 12, 4)
    half = table.bfloat16()
    assert torch.equal(
        resize_grid(half, (3, 4), (5, 2), kept=1), resize_grid(half.float(), (3, 4), (5, 2), kept=1).bfloat16()
    )
    assert torch.equal(resize_line(half, 7, kept=1), resize_line(half.float(), 7, kept=1).bfloat16())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: resize_grid(t, (4, 4), (5, 5)), r"kept \+ height width = 0 \+ 4 x 4 = 16 rows, got \(17, 3\)"),
        (lambda t: resize_grid(t, 4, (5, 5), kept=1), r"grid must be \(height, width\), got 4"),
        (lambda t: resize_grid(t, (4, 4), (5, 0), kept=1), r"to\[1\] must be a whole number of at least 1, got 0"),
        (
            lambda t: resize_grid(t, (4, 4), (5, 5), kept=1, mode="area"),
            "mode must be 'bicubic' or 'bilinear', got 'area'",
        ),
        (lambda t: resize_line(t, 0), "length must be a whole number of at least 1, got 0"),
        (lambda t: resize_line(t, 4, kept=17), "kept must be a whole number within 0..16, got 17"),
        (lambda t: resize_line(t.long(), 4), r"table must be a floating tensor \(..., rows, dim\), got torch.int64"),
    ],
)
def test_a_table_that_does_not_fit_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.randn(17, 3))
