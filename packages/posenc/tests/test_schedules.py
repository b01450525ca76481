"""Ready schedules are those of the models, layer by layer, and say so in words."""

from typing import Any

import pytest
import torch

from posenc import Chunk, Llama3, Positions, RoPE, Schedule, schedules

TOKENS = 40  # past the windows below


def of_layers(schedule: Schedule) -> list[tuple[bool, int | Chunk | None]]:
    """Whether each layer rotates, and its window."""
    found = []
    for scheme, window in schedule:
        assert window is None or isinstance(window, int | Chunk)
        found.append(("rotate" in scheme.doors, window))
    return found


# -- beside transformers -----------------------------------------------------------------------------------------------


def llama4() -> tuple[Any, Schedule]:
    transformers = pytest.importorskip("transformers")
    scaling = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 64}
    rope = {"rope_type": "llama3", "rope_theta": 500_000.0, **scaling}
    sizes = {"hidden_size": 32, "vocab_size": 16, "num_attention_heads": 2, "head_dim": 16, "num_key_value_heads": 1}
    more = {"intermediate_size": 8, "intermediate_size_mlp": 8, "num_local_experts": 2, "pad_token_id": 0}
    config = transformers.Llama4TextConfig(**sizes, **more, num_hidden_layers=9, rope_parameters=rope)
    model = transformers.Llama4TextModel(config)
    return model, schedules.llama4(9, 16, scaling=Llama3(16, 64, high_freq_factor=1))


def test_every_layer_of_llama_4_is_as_in_transformers() -> None:
    """Its chunks, whether it rotates, and by which angles; tests/huggingface has the other schedules."""
    model, schedule = llama4()
    angles = model.rotary_emb(torch.zeros(1), torch.arange(TOKENS)[None])  # complex numbers
    assert len(schedule) == len(model.layers)
    for (scheme, window), kind, layer in zip(schedule, model.config.layer_types, model.layers, strict=True):
        assert window == (Chunk(model.config.attention_chunk_size) if kind == "chunked_attention" else None)
        assert isinstance(scheme, RoPE) == bool(layer.self_attn.use_rope)
        if isinstance(scheme, RoPE):
            for found, expected in zip(
                scheme(Positions.arange(TOKENS)).cos_sin(), (angles.real, angles.imag), strict=True
            ):
                torch.testing.assert_close(found, expected, rtol=0, atol=TOKENS * 16 * torch.finfo(torch.float32).eps)


def test_the_queries_of_llama_4_grow_where_it_does_not_rotate() -> None:
    """As its attention has it: 1 + attn_scale log1p(floor((p + 1) / floor_scale))."""
    pytest.importorskip("transformers")
    model, _ = llama4()
    attention = model.layers[3].self_attn
    schedule = schedules.llama4(4, 16, query_length=5, query_strength=attention.attn_scale)
    query = torch.ones(1, 2, TOKENS, 16)
    found, _ = schedule[3][0](Positions.arange(TOKENS)).rotate(query, query)
    expected = 1 + attention.attn_scale * torch.log1p(torch.floor((torch.arange(TOKENS) + 1.0) / 5))
    torch.testing.assert_close(found[0, 0, :, 0], expected)
    assert attention.attn_temperature_tuning
    assert (attention.floor_scale, attention.attn_scale) == (8192, 0.1)  # what `llama4` has where nothing is said
    assert schedules.llama4(4, 16, query_length=None)[3][0].doors == ()
    assert "QueryScale('llama4'" in repr(schedules.llama4(4))


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
        ([1, 1, 1, 0], r"nope_layers must be a list of distinct layer numbers, not of flags, got \[1, 1, 1"),
        ([True, False], r"nope_layers\[0\] must be a whole number within 0..3, got True"),
        ([4], r"nope_layers\[0\] must be a whole number within 0..3, got 4"),
        (3, "nope_layers must be numbers of layers, got 3"),
        ("3", "nope_layers must be numbers of layers, got '3'"),
        (torch.tensor(3), r"nope_layers must be numbers of layers, got torch.int64 \(\)"),
    ],
)
def test_flags_are_not_taken_for_numbers(nope_layers: Any, message: str) -> None:
    for made in (schedules.smollm3, schedules.cohere2, schedules.llama4):
        with pytest.raises(ValueError, match=message):
            made(4, 8, nope_layers=nope_layers)
