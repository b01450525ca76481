"""The trained models of the page: what their files hold, and that JavaScript computes what posenc does."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc_lab.explore.models import FOLDER, decoder, header, quantised, weights_of
from posenc_lab.explore.models import weights as weights_in
from tests.explore.node import Node

HEADER = header()
NAMES = list(HEADER["models"])
LONGEST = 200  # bytes of a random text: past the length of training
YARN = {"kind": "yarn", "factor": 4, "original_length": 128}
MODELS = [*((name, None) for name in NAMES), ("rope", YARN)]


def of_posenc(name: str, scaling: Any) -> Any:
    return decoder(name, scaling and posenc.YaRN(scaling["factor"], scaling["original_length"]))


def attention(model: Any, tokens: Tensor) -> Tensor:
    """The weights of the last token, (layers, heads, tokens), by the dense definition."""
    projected: list[tuple[Tensor, Tensor]] = []
    for block in model.trunk.blocks:
        block.attention.register_forward_pre_hook(
            lambda layer, given: projected.append(
                tuple(
                    project(given[0]).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
                    for project in (layer.query, layer.key)
                )
            )
        )
    model(tokens)
    encoding = model.trunk.position(posenc.Positions.arange(tokens.size(1)), dtype=torch.float64)
    return torch.stack([posenc.logits(q, k, encoding)[0, :, -1].softmax(-1) for q, k in projected])


def texts(seed: int, count: int) -> list[list[int]]:
    """Random bytes; of a text some begin as the one before, of which the page keeps what it has read."""
    draw, made = random.Random(seed), [[0]]
    for _ in range(count):
        length = draw.randint(1, LONGEST)
        begun = made[-1][: draw.randint(0, length)] if draw.random() < 0.5 else []
        made.append(begun + [draw.randrange(256) for _ in range(length - len(begun))])
    return made[1:]


@pytest.mark.parametrize(("name", "scaling"), MODELS, ids=[f"{name}{'-yarn' * bool(s)}" for name, s in MODELS])
@torch.no_grad()
def test_a_model_is_that_of_posenc(name: str, scaling: Any, figures: Node) -> None:
    """On 12 texts for each of five, 60 in all: both round in doubles, so they differ by no more than float32 does from
    float64 in posenc, times the ratio of their precisions, 2^-29, and a margin of 16 for sums in another order."""
    double = of_posenc(name, scaling)
    single = of_posenc(name, scaling).float()
    rounding, apart = 0.0, 0.0
    for n, text in enumerate(texts(NAMES.index(name), 12)):
        tokens = torch.tensor([text])
        wanted = double(tokens)[0]
        rounding = max(rounding, (single(tokens)[0].double() - wanted).abs().max().item())
        found = figures("read", name=name, bytes=text, scaling=scaling)
        apart = max(apart, (found["logits"] - wanted).abs().max().item())
        if n % 4 == 0:
            torch.testing.assert_close(
                found["weights"], attention(of_posenc(name, scaling), tokens), rtol=0, atol=1e-12
            )
    assert 0 < rounding < 1e-2
    assert apart <= 16 * 2.0**-29 * rounding


@pytest.mark.parametrize("name", NAMES)
def test_the_file_of_a_model(name: str) -> None:
    """Small, at int8 as good as in float, and broken past its training where the figure says so."""
    assert (FOLDER / f"{name}.bin").stat().st_size <= 450_000
    bits = HEADER["models"][name]["bits"]
    assert set(bits["int8"]) == {"64", "128", "256", "512", "1024"}
    for length, before in bits["float"].items():
        assert abs(bits["int8"][length] - before) <= 0.02
    grows = bits["int8"]["512"] - bits["int8"]["128"]
    assert (grows > 1) if name in ("nope", "rope") else abs(grows) < 0.1


def test_weights_are_a_scale_times_a_whole_number() -> None:
    """A row's largest weight is exact, others are at most half a step of it off; what is no matrix stays as it is."""
    model = decoder("t5").float()
    model.trunk.position.weight.data.normal_()
    model.head.weight.data.normal_()
    found = weights_in(*quantised(model))
    step = model.head.weight.data.abs().amax(1, keepdim=True) / 127
    off = (found["head.weight"] - model.head.weight.data).abs() / step
    assert 0.4 < off.max() <= 0.5 + 127 * 2.0**-22
    assert torch.equal(found["trunk.position.weight"].float(), model.trunk.position.weight.data)
    assert quantised(model)[0] == HEADER["models"]["t5"]["parameters"]
    assert len(weights_of("t5")) == len(quantised(model)[1])


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ValueError, match="name must be one of nope, rope, alibi, t5, got 'fire'"):
        decoder("fire")
