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


@pytest.mark.parametrize("kind", BY_LENGTH)
def test_in_transformers_a_long_row_turns_its_short_neighbour_otherwise(kind: str) -> None:
    """It takes the longest row of the batch for all: what a short text says then depends on its neighbours."""
    short, long = 40, 4 * TRAINED
    ids = torch.arange(long).expand(2, -1)  # of the first row, the last tokens are padding
    alone = theirs(kind)(torch.arange(short)[None])
    assert float((theirs(kind)(ids)[:1, :short] - alone).abs().max()) > 0.1
    mask = torch.arange(long) < torch.tensor([[short], [long]])
    near(ours(kind, Positions.padded(mask))[:1, :short], alone)


def test_in_transformers_a_text_turns_as_the_longest_one_before_it() -> None:
    """Dynamic scaling keeps the frequencies of the longest text so far for all that are above the trained length."""
    model, ids = theirs("dynamic"), torch.arange(2 * TRAINED)[None]
    fresh = model(ids)
    model(torch.arange(5 * TRAINED)[None])
    assert float((model(ids) - fresh).abs().max()) > 0.1
    near(ours("dynamic", Positions.arange(2 * TRAINED)), fresh)


def test_in_transformers_one_mscale_alone_is_passed_over() -> None:
    """DeepSeek's own code has 1 for the other where mscale is given alone, and so do we."""
    of_length = {"factor": 40.0, "original_max_position_embeddings": TRAINED}
    for more in ({"mscale": 0.707}, {"mscale_all_dim": 0.707}):
        _, factor = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](configuration("yarn", **of_length, **more), "cpu")
        assert factor == pytest.approx(0.1 * math.log(40) + 1)
        assert YaRN(40, TRAINED, **more).magnitude != pytest.approx(factor)


def test_in_transformers_truncate_is_passed_over_where_layers_differ() -> None:
    """It is looked for outside of the layer type's own parameters."""
    inner = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    config = transformers.Gemma3TextConfig(
        head_dim=HEAD_DIM, rope_parameters={"full_attention": inner, "sliding_attention": inner}
    )
    nested, _ = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", layer_type="full_attention")
    theta = frequencies(HEAD_DIM, 10_000.0)
    close(YaRN(32, 4096, truncate=True)(theta)[0], nested, 10_000.0)
    flat, _ = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](configuration("yarn", **{**inner, "rope_type": "yarn"}), "cpu")
    close(YaRN(32, 4096, truncate=False)(theta)[0], flat, 10_000.0)
    assert float((nested / flat - 1).abs().max()) > 0.1


def test_in_transformers_a_ramp_turned_about_divides_every_pair() -> None:
    """Where even the slowest pair turns often in the trained text, none needs to be stretched."""
    base, trained = 10.0, 2**20
    config = configuration("yarn", base, factor=4.0, original_max_position_embeddings=trained)
    divided, _ = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    theta = frequencies(HEAD_DIM, base)
    close(theta / 4, divided, base)
    close(YaRN(4, trained)(theta)[0], theta, base)


def test_in_transformers_phi_moe_never_takes_its_long_list() -> None:
    """Past the trained length its factor of cos and sin is the long one, its frequencies stay those of the short."""
    module = pytest.importorskip("transformers.models.phimoe.modeling_phimoe")
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 4.0, "short_mscale": 1.25, "long_mscale": 1.5}
    config = transformers.PhimoeConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        rope_parameters={**rope, "original_max_position_embeddings": TRAINED, **BOTH},
    )
    model, short = module.PhimoeRotaryEmbedding(config), BOTH["short_factor"]
    right = LongRoPE(**BOTH, original_length=TRAINED, attention_factor=(1.25, 1.5))
    stuck = LongRoPE(short, short, TRAINED, attention_factor=(1.25, 1.5))
    for length in (TRAINED, TRAINED + 1):
        cos = model(torch.zeros(1), torch.arange(length)[None])[0][..., : HEAD_DIM // 2]
        found = [RoPE(HEAD_DIM, scaling=scaling)(Positions.arange(length)).cos_sin()[0] for scaling in (right, stuck)]
        near(found[1], cos)
        assert (float((found[0] - cos).abs().max()) > 0.1) == (length > TRAINED)
