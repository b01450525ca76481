"""Scalings give the frequencies that transformers gives, and where that is at fault, what it should have given."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import (
    DynamicNTK,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    Positions,
    Proportional,
    RoPE,
    YaRN,
)
from posenc.rotation.phases import frequencies

transformers = pytest.importorskip("transformers")
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")

TRAINED, HEAD_DIM = 96, 64


def configuration(
    kind: str, base: float = 10_000.0, head_dim: int = HEAD_DIM, length: int = TRAINED, **parameters: Any
) -> Any:
    parameters = {"rope_type": kind, "rope_theta": base, **parameters}
    return transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=length,
        rope_parameters=parameters,
    )


def close(found: Tensor, theirs: Tensor, base: float) -> None:
    """But for float32: theirs is base to the power of a rounded exponent, so some ln base units off, and a ramp over
    such frequencies by ten times as much, where it divides by as much as 40."""
    units = 16 * (1 + math.log(base)) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found.double(), theirs.double(), rtol=units, atol=0)


def lists(pairs: int) -> dict[str, list[float]]:
    return {
        "short_factor": [1 + 0.01 * k for k in range(pairs)],
        "long_factor": [1 + 0.5 * k**1.5 for k in range(pairs)],
    }


OF_YARN: list[dict[str, Any]] = [
    {},
    {"truncate": False},
    {"beta_fast": 24.0, "beta_slow": 0.7},
    {"attention_factor": 1.0},
    {"mscale": 0.707, "mscale_all_dim": 0.5},
    {"mscale": 1.0, "mscale_all_dim": 1.0, "truncate": False},
]


@pytest.mark.parametrize(
    ("base", "head_dim", "share"),
    [
        (1000.0, 64, 1.0),
        (1000.0, 80, 0.25),
        (10_000.0, 128, 1.0),
        (10_000.0, 80, 0.75),
        (500_000.0, 64, 0.25),
        (500_000.0, 128, 1.0),
    ],
)
def test_frequencies_are_those_of_transformers(base: float, head_dim: int, share: float) -> None:
    rotary_dim = int(head_dim * share)
    theta = frequencies(rotary_dim, base)

    def compare(ours: Any, kind: str, length: int | None = None, width: int = rotary_dim, **parameters: Any) -> None:
        config = configuration(kind, base, head_dim, partial_rotary_factor=share, **parameters)
        theirs, factor = rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        lengths = [] if length is None else [torch.tensor([[length]], dtype=torch.float64)]
        found, found_factor = ours(frequencies(width, base), *lengths)
        close(found if length is None else found[0], theirs, base)
        assert found_factor == pytest.approx(factor, rel=1e-12)

    for s in (1.0, 2.0, 40.0):
        compare(PositionInterpolation(s), "linear", factor=s)
        for trained in (TRAINED, 4096, 32768):
            of_length = {"factor": s, "original_max_position_embeddings": trained}
            for more in OF_YARN:
                compare(YaRN(s, trained, **more), "yarn", **of_length, **more)
            for high in (4.0, 1.0):
                bounds = {"low_freq_factor": 1.0, "high_freq_factor": high}
                compare(Llama3(s, trained, **bounds), "llama3", **of_length, **bounds)
        for length in (1, TRAINED - 1, TRAINED, TRAINED + 1, 5 * TRAINED):
            compare(DynamicNTK(s, TRAINED), "dynamic", length, factor=s)
            both = lists(len(theta))
            of_list: dict[str, Any] = {"factor": s, "original_max_position_embeddings": TRAINED}
            compare(LongRoPE(**both, original_length=TRAINED, factor=s), "longrope", length, **both, **of_list)
        compare(Proportional(share, s), "proportional", width=head_dim, factor=s)  # all channels: p-RoPE


# -- their models, text by text ----------------------------------------------------------------------------------------

BOTH = lists(HEAD_DIM // 2)
BY_LENGTH = {
    "dynamic": ({"factor": 4.0}, DynamicNTK(4, TRAINED)),
    "longrope": (
        {"factor": 4.0, "original_max_position_embeddings": TRAINED, **BOTH},
        LongRoPE(**BOTH, original_length=TRAINED, factor=4),
    ),
}


def theirs(kind: str) -> Any:
    """A rotary module of theirs as it is when a model is made: position_ids (rows, tokens) to cos of each pair."""
    module = llama.LlamaRotaryEmbedding(configuration(kind, **BY_LENGTH[kind][0]))
    return lambda ids: module(torch.zeros(1), ids)[0][..., : HEAD_DIM // 2]


def ours(kind: str, positions: Positions) -> Tensor:
    return RoPE(HEAD_DIM, scaling=BY_LENGTH[kind][1])(positions).cos_sin()[0]


def near(one: Tensor, other: Tensor) -> None:
    """cos of angles up to 5 times the trained length, as frequencies in float32 give it."""
    units = 5 * TRAINED * (1 + math.log(10_000)) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(one, other, rtol=0, atol=units)


@pytest.mark.parametrize("kind", BY_LENGTH)
@pytest.mark.parametrize("length", [1, TRAINED - 1, TRAINED, TRAINED + 1, 5 * TRAINED])
def test_one_text_turns_as_in_a_fresh_model_of_transformers(kind: str, length: int) -> None:
    ids = torch.arange(length)[None]
    near(ours(kind, Positions.arange(length)), theirs(kind)(ids))
