"""Ready schedules are those of the models, layer by layer, and say so in words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import posenc
from posenc import NoPE, Positions, RoPE, Schedule, YaRN, schedules
from posenc.models import Decoder

TOKENS = 40  # past the windows below


def of_layers(schedule: Schedule) -> list[tuple[bool, int | None]]:
    """Whether each layer rotates, and its window."""
    found = []
    for scheme, window in schedule:
        assert window is None or isinstance(window, int)
        found.append(("rotate" in scheme.doors, window))
    return found


# -- beside transformers -----------------------------------------------------------------------------------------------


def tiny(name: str, layers: int, width: int, **more: Any) -> Any:
    """A small model of theirs, made of its configuration's own defaults but for sizes."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 2 * width, "intermediate_size": 8, "vocab_size": 16, "num_attention_heads": 2}
    config = getattr(transformers, f"{name}Config")(
        **sizes, num_key_value_heads=1, num_hidden_layers=layers, pad_token_id=0, **more
    )
    return getattr(transformers, f"{name}Model")(config)


def gemma3() -> tuple[Any, Schedule]:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    }
    model = tiny("Gemma3Text", 13, 16, head_dim=16, sliding_window=9, rope_parameters=rope)
    return model, schedules.gemma3(13, 16, window=9)


def smollm3() -> tuple[Any, Schedule]:
    rope = {"rope_type": "default", "rope_theta": 5_000_000.0}
    return tiny("SmolLM3", 9, 16, rope_parameters=rope), schedules.smollm3(9, 16)


def cohere2() -> tuple[Any, Schedule]:
    rope = {"rope_type": "default", "rope_theta": 50_000.0}
    model = tiny("Cohere2", 9, 16, sliding_window=9, rope_parameters=rope)
    return model, schedules.cohere2(9, 16, window=9)


def gpt_oss() -> tuple[Any, Schedule]:
    model = tiny("GptOss", 5, 64, head_dim=64, num_local_experts=2)
    return model, schedules.gpt_oss(5)


@pytest.mark.parametrize("made", [gemma3, smollm3, cohere2, gpt_oss])
def test_every_layer_is_as_in_transformers(made: Callable[[], tuple[Any, Schedule]]) -> None:
    """Its window, whether it rotates, and by which angles."""
    model, schedule = made()
    ids = torch.arange(TOKENS)[None]
    assert len(schedule) == len(model.layers)
    for (scheme, window), layer in zip(schedule, model.layers, strict=True):
        attention = layer.self_attn
        assert getattr(attention, "sliding_window", None) == window
        rotates = bool(getattr(attention, "use_rope", True))
        if made is cohere2:  # whose attention rotates where there is a window
            rotates = attention.sliding_window is not None
        assert ("rotate" in scheme.doors) == rotates
        if not rotates:
            continue
        kind = [attention.layer_type] if made is gemma3 else []
        theirs = model.rotary_emb(torch.zeros(1), ids, *kind)
        for found, expected in zip(scheme(Positions.arange(TOKENS)).cos_sin(), theirs, strict=True):
            pairs = found.size(-1)
            expected = expected[..., ::2] if made is cohere2 else expected[..., :pairs]
            torch.testing.assert_close(found, expected, rtol=0, atol=TOKENS * 16 * torch.finfo(torch.float32).eps)


# -- in words ----------------------------------------------------------------------------------------------------------


def test_layers_are_named_for_what_they_have() -> None:
    assert of_layers(schedules.smollm3(4, 8, nope_layers=[0, 3])) == [
        (False, None),
        (True, None),
        (True, None),
        (False, None),
    ]
    assert of_layers(schedules.cohere2(3, 8, nope_layers=[1], window=7)) == [(True, 7), (False, None), (True, 7)]
    assert of_layers(schedules.gpt_oss(3, 8, global_layers=[], window=7)) == [(True, 7)] * 3
    assert of_layers(schedules.gemma3(2, 8, global_layers=range(2))) == [(True, None)] * 2


@pytest.mark.parametrize(
    ("nope_layers", "message"),
    [
        ([1, 1, 1, 0], r"nope_layers must name each layer once: it is a list of numbers, not of flags, got \[1, 1, 1"),
        ([True, False], r"nope_layers\[0\] must be a whole number within 0..3, got True"),
        ([4], r"nope_layers\[0\] must be a whole number within 0..3, got 4"),
        (3, "nope_layers must be numbers of layers, got 3"),
        ("3", "nope_layers must be numbers of layers, got '3'"),
    ],
)
def test_flags_are_not_taken_for_numbers(nope_layers: Any, message: str) -> None:
    for made in (schedules.smollm3, schedules.cohere2):
        with pytest.raises(ValueError, match=message):
            made(4, 8, nope_layers=nope_layers)


def test_a_schedule_says_its_layers_bases_scalings_and_windows() -> None:
    yarn, near = RoPE(64, base=1e6, scaling=YaRN(4, 4096)), RoPE(64)
    said = repr(
        Schedule([(near, 128), (near, 128), (near, 128), (yarn, None), (NoPE(), None), (near, 128), (near, (2, 1))])
    )
    assert said == (
        "Schedule(\n"
        "  layers 0-2, 5: RoPE(64, base=10000.0, layout='half', rotary_dim=64, axes=1), window of 128 keys\n"
        "  layer 3: RoPE(64, base=1000000.0, layout='half', rotary_dim=64, axes=1, "
        "scaling=YaRN(factor=4.0, original_length=4096)), whole text\n"
        "  layer 4: NoPE() (no position), whole text\n"
        "  layer 6: RoPE(64, base=10000.0, layout='half', rotary_dim=64, axes=1), window (2, 1)\n"
        ")"
    )


@torch.no_grad()
def test_a_decoder_takes_one() -> None:
    model = Decoder(11, 16, 4, 2, position=schedules.cohere2(4, 8, window=3)).eval()
    tokens = torch.arange(10)[None]
    cache = posenc.models.KVCache()
    steps = torch.cat([model(tokens[:, :7], cache=cache), model(tokens[:, 7:], cache=cache)], 1)
    torch.testing.assert_close(steps, model(tokens), rtol=1e-4, atol=1e-5)
