"""Weights converted to the other layout give the same scores; tables are resized to what is said, and only that."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.huggingface import convert_layout, half_to_interleaved, interleaved_to_half, resize_grid, resize_line
from tests.rounding import of_sums

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
    norms = {"q": torch.rand(head_dim), "k": torch.rand(kv_heads, head_dim)}  # of every head alike, or each by itself
    state |= {f"layers.0.self_attn.{name}_norm.weight": norm.double() + 0.5 for name, norm in norms.items()}
    return state


@pytest.mark.parametrize("case", CASES)
def test_all_that_makes_queries_and_keys_is_converted(case: str) -> None:
    head_dim, rotary_dim, first = CASES[case]
    how: dict[str, Any] = {"rotary_dim": rotary_dim, "first_channel": first}
    state = state_of(head_dim, 6, 2)
    converted = convert_layout(state, "interleaved", head_dim, **how)
    for name, x in state.items():
        stays = ".v_" in name or "lora_A" in name or "input" in name
        flat = x.flatten(0, 1) if "k_norm" in name else x
        assert torch.equal(converted[name], x if stays else by_hand(flat, head_dim, rotary_dim, first).view_as(x))
    back = convert_layout(converted, "half", head_dim, **how)
    assert all(torch.equal(back[name], x) for name, x in state.items())


TINY = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

WITH_NORMS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "olmo2": {},  # all heads at once
    "lfm2": {"layer_types": ["full_attention"]},  # q_layernorm
    "hunyuan_v1_dense": {},  # query_layernorm
    "phi": {"qk_layernorm": True, "partial_rotary_factor": 0.5},  # with bias
    "stablelm": {"qk_layernorm": True, "partial_rotary_factor": 0.5},  # q_layernorm.norms.0
    "cohere": {"use_qk_norm": True},  # (heads, head_dim)
}


def turned_in(layout: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x rotated by the angles of half layout's cos and sin."""
    pairs = cos.size(-1) // 2
    turned, rest = x.split((2 * pairs, x.size(-1) - 2 * pairs), -1)
    a, b = turned.unflatten(-1, (2, pairs) if layout == "half" else (pairs, 2)).unbind(-2 if layout == "half" else -1)
    c, s = cos[:, None, :, :pairs], sin[:, None, :, :pairs]
    new = torch.stack((a * c - b * s, b * c + a * s), -2 if layout == "half" else -1).flatten(-2)
    return torch.cat((new, rest), -1)


@pytest.mark.parametrize("family", WITH_NORMS)
def test_norms_are_converted_with_their_projections(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of a model are what they were, when its rotation is exchanged and its weights are converted."""
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[family](**TINY | WITH_NORMS[family])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        parameter.data = torch.randn_like(parameter) * 0.3 + ("norm" in name)
    ids = torch.arange(3, 23)[None]
    layout = "half" if family == "cohere" else "interleaved"

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        if family == "cohere":  # its cos has the angle of each pair twice in a row
            cos, sin = (torch.cat((each[..., ::2], each[..., ::2]), -1) for each in (cos, sin))
        return turned_in(layout, q, cos, sin), turned_in(layout, k, cos, sin)

    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        monkeypatch.setattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", rotate)
        assert (model(input_ids=ids, use_cache=False).logits - expected).abs().max() > 1e-2  # unconverted is nonsense
        turned = 4 if "partial_rotary_factor" in WITH_NORMS[family] else None
        model.load_state_dict(convert_layout(model.state_dict(), layout, 8, rotary_dim=turned))
        bound = of_sums(torch.float32, 2 * (2 * 8 + 20), expected)  # in two layers: norms and scores of 8, 20 keys
        torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, expected, rtol=0, atol=bound)


def test_sides_of_other_widths_are_converted_by_a_call_each() -> None:
    """DeepSeek-V2-Lite has q_proj and kv_a_proj_with_mqa; its norm of latents stays. An adapter may be of queries
    alone."""
    sizes = {"q_proj": (2 * 12, 5), "kv_a_proj_with_mqa": (16 + 4, 5), "kv_a_layernorm": (16,)}
    state = {f"{name}.weight": torch.randn(size) for name, size in sizes.items()}
    once = convert_layout(state, "half", 12, rotary_dim=4, first_channel=8, projections=("q_proj",))
    both = convert_layout(once, "half", 20, rotary_dim=4, first_channel=16, projections=("kv_a_proj_with_mqa",))
    for name, width in (("q_proj.weight", 12), ("kv_a_proj_with_mqa.weight", 20)):
        converted = interleaved_to_half(state[name], width, rotary_dim=4, first_channel=width - 4)
        assert torch.equal(both[name], converted)
    assert both["kv_a_layernorm.weight"] is state["kv_a_layernorm.weight"]
    adapter = {"q_proj.lora_A.weight": torch.randn(2, 5), "q_proj.lora_B.weight": torch.randn(24, 2)}
    made = convert_layout(adapter, "interleaved", 12)["q_proj.lora_B.weight"]
    assert torch.equal(made, by_hand(adapter["q_proj.lora_B.weight"], 12, 12, 0))


def test_weights_of_a_byte_per_entry_are_no_packed_ones() -> None:
    """What optimum-quanto keeps of qint8: a number per entry, a scale per row."""
    state = {f"{side}_proj.weight._data": torch.randint(-8, 8, (24, 5)).to(torch.int8) for side in "qk"}
    state |= {f"{side}_proj.weight._scale": torch.rand(24, 1) for side in "qk"}
    converted = convert_layout(state, "interleaved", 12)
    assert all(torch.equal(converted[name], by_hand(x, 12, 12, 0)) for name, x in state.items())


Z = torch.zeros
PAIR, BYTES = {"q_proj.weight": Z(48, 4), "k_proj.weight": Z(24, 4)}, Z(12, 4, dtype=torch.uint8)
GATED = {"q_proj.weight": Z(96, 4), "k_proj.weight": Z(24, 4), "v_proj.weight": Z(24, 4), "o_proj.weight": Z(4, 48)}
UNFIT: list[tuple[dict[str, Tensor], str]] = [
    ({"q_proj.weight._data._data": BYTES}, r"'q_proj.weight._data._data', torch.uint8 \(12, 4\): its channels are not"),
    ({"q_proj.weight": BYTES, "q_proj.weight_scale": Z(1)}, r"'q_proj.weight', torch.uint8 \(12, 4\): its channels ar"),
    ({"k_proj.weight": Z(24, 4)}, "state has 'k_proj', and beside it none of q_proj: both .* module of queries"),
    ({"q_proj.weight": Z(24, 4)}, "state has 'q_proj', and beside it none of k_proj: both sides must be conv"),
    ({"q_norm.weight": Z(12), "qkv.weight": Z(72, 4)}, "'q_norm', and beside it none of q_proj"),
    (PAIR | {"qk_norm.weight": Z(12)}, "state has 'qk_norm.weight' beside q_proj, and projections do not name 'qk_nor"),
    (PAIR | {"q_norm.scale": Z(12)}, r"'q_norm.scale', torch.float32 \(12,\): its .* known are weight, bias, norms.0."),
    (PAIR | {"q_norm.weight": Z(24)}, r"\(24,\), which is not of a head of head_dim = 12 channels nor of all 48"),
    (PAIR | {"k_norm.weight": Z(6, 4)}, r"\(6, 4\), which is not of a head of head_dim = 12 channels nor of"),
    ({"q_proj.qweight": Z(4, 36)}, r"state has 'q_proj.qweight', torch.float32 \(4, 36\): its channels"),
    ({"q_proj.weight": Z(36, 4), "q_proj.weight_scale": Z(3, 1)}, r"which has not one entry for each of 36 channels"),
    ({"q_proj.weight": Z(35, 4)}, r"q_proj.weight must have a multiple of head_dim = 12 entries along axis"),
    ({"fc.weight": Z(4, 4)}, r"state must have a module named q_proj, .* got fc.weight"),
    (GATED, r"'q_proj.weight'.* makes more than the queries that o_proj"),  # Qwen3-Next's makes a gate too
]


@pytest.mark.parametrize(("state", "message"), UNFIT, ids=[row[1][:40] for row in UNFIT])
def test_what_cannot_be_converted_is_named(state: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_layout(state, "interleaved", 12)


@pytest.mark.parametrize("length", [4, 9, 13, 1])
def test_a_line_is_interpolated_between_middles(length: int) -> None:
    table = torch.randn(2 + 9, 3, dtype=torch.float64)
    resized = resize_line(table, length, kept=2)
    assert torch.equal(resized[:2], table[:2])
    for i in range(length):
        place = min(max((i + 0.5) * 9 / length - 0.5, 0.0), 8.0)
        low = min(int(place), 7)
        expected = table[2 + low] * (low + 1 - place) + table[3 + low] * (place - low)
        bound = of_sums(torch.float64, 2, table, score=9)  # places up to 9 are rounded
        torch.testing.assert_close(resized[2 + i], expected, rtol=0, atol=bound)
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
            bound = of_sums(torch.float64, 4 * 4, table, score=h + w)  # places up to 5 are rounded
            torch.testing.assert_close(resized[2 + i * new_w + j], expected, rtol=0, atol=bound)


def test_a_resized_table_is_rounded_once_and_not_resized_is_itself() -> None:
    half = torch.randn(1, 1 + 12, 4).bfloat16()
    for resize in (lambda x: resize_grid(x, (3, 4), (5, 2), kept=1), lambda x: resize_line(x, 7, kept=1)):
        assert torch.equal(resize(half), resize(half.float()).bfloat16())
    assert torch.equal(resize_line(half, 12, kept=1), half)
    assert torch.equal(resize_grid(half, (3, 4), (3, 4), kept=1), half)


MISFITS: list[tuple[Any, str]] = [
    (lambda t: resize_grid(t, (4, 4), (5, 5)), r"kept \+ height width = 0 \+ 4 x 4 = 16 rows, got \(17, 3\)"),
    (lambda t: resize_grid(t, 4, (5, 5), kept=1), r"grid must be \(height, width\), got 4"),
    (lambda t: resize_grid(t, (4, 4), (5, 0), kept=1), r"to\[1\] must be a whole number of at least 1, got 0"),
    (lambda t: resize_grid(t, (4, 4), (5, 5), kept=1, mode="area"), "mode must be 'bicubic' or 'bilinear', got 'area'"),
    (lambda t: resize_line(t, 0), "length must be a whole number of at least 1, got 0"),
    (lambda t: resize_line(t, 4, kept=17), "kept must be a whole number within 0..16, got 17"),
    (lambda t: resize_line(t.long(), 4), r"table must be a floating tensor \(..., rows, dim\), got torch.int64"),
    (
        lambda t: half_to_interleaved(t, 12, rotary_dim=7),
        "rotary_dim must be even and within 2..head_dim - first",
    ),
    (lambda t: interleaved_to_half(t, 12, rotary_dim=12, first_channel=2), "head_dim - first_channel = 10, got 12"),
    (
        lambda t: half_to_interleaved(t, 12, first_channel=11),
        "first_channel must be a whole number within 0..10, got",
    ),
    (lambda t: interleaved_to_half(t, 12, axis=2), "axis must be a whole number within -2..1, got 2"),
]


@pytest.mark.parametrize(("call", "message"), MISFITS, ids=[row[1][:30] for row in MISFITS])
def test_what_does_not_fit_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.randn(17, 3))
