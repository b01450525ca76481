import sys

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import posenc
from posenc.tools.bench import cases, peers
from posenc.tools.bench.cases import Inputs, build_scheme, compared
from posenc.tools.bench.measure import LeftOutError, race
from posenc.tools.bench.report import markdown
from posenc.tools.bench.settings import Settings
from posenc.tools.kit.machine import clock_of
from tests.bench.made_up import record
from tests.bench.test_command import TINY
from tests.rounding import of_angles, of_sums
from tests.rows import first_of

SMALL = Settings(**{**TINY, "heads": 3, "head_dim": 16})
LENGTH = 192  # past T5's last bucket and Shaw's window


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", cases.PEER_SCHEMES)
def test_all_ways_compute_the_same_attention(name: str, training: bool) -> None:
    """With the truth of posenc, in outputs and, where the scheme has parameters, in their gradients."""
    built = compared(SMALL, name, LENGTH, training)
    inputs, scheme = Inputs.draw(SMALL, LENGTH, LENGTH, training), build_scheme(name, SMALL, LENGTH)
    expected = inputs.work(
        lambda: posenc.attention(  # type: ignore[arg-type, return-value]
            inputs.query, inputs.key, inputs.value, scheme, is_causal=True, backend="reference"
        ),
        tuple(scheme.parameters()),
    )()
    ways = []
    for way, make in built.makes.items():
        if way != "plain":
            try:
                got = make()()
            except LeftOutError:
                continue
            ways.append(way)
            # Float32 sums of 192 terms of order one, in another order; gradients of parameters sum over all pairs.
            for mine, truth in zip(got, expected, strict=True):
                bound = of_sums(torch.float32, LENGTH, truth, score=8)
                torch.testing.assert_close(mine, truth, rtol=0, atol=bound, msg=lambda m, w=way: f"{w}: {m}")
    assert {"posenc", "mask built in the call"} <= set(ways)
    assert ("mask built ahead" in ways) == (name == "alibi" or (name == "t5" and not training))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize(
    ("name", "way"), first_of([*((name, "eager") for name in cases.PEER_SCHEMES), ("t5", "compiled")])
)
def test_flex_attention_by_hand_computes_the_same(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score function as it is, and one of them compiled, which takes ten seconds."""
    if way == "eager":
        compiled = torch.compile  # which FlexAttention calls as well, where it is not compiled
        monkeypatch.setattr(torch, "compile", lambda f, **how: f if f is flex_attention else compiled(f, **how))
    settings = Settings(**{**TINY, "heads": 3, "head_dim": 16, "compiled": True})
    makes = compared(settings, name, LENGTH, training=False).makes
    (flex,), (masked,) = makes[peers.FLEX]()(), makes["mask built in the call"]()()
    torch.testing.assert_close(flex, masked, rtol=0, atol=of_sums(torch.float32, LENGTH + 16, masked, score=8))


def test_rotations_of_others_are_rotations() -> None:
    """Whatever the layout: of one query and one key at all positions, turned, products depend on the distance alone."""
    query, key = (torch.randn(16).expand(1, 1, 32, 16).clone() for _ in range(2))
    for name, make in peers.rotations(query, key).items():
        try:
            turned = make()()
        except LeftOutError:
            continue
        scores = (turned[0] @ turned[1].mT)[0, 0]
        for distance in (1, 7):
            along = scores.diagonal(distance)
            # Angles of float32 up to 32 rad, in sums of 16 terms of order one.
            torch.testing.assert_close(
                along, along[:1].expand_as(along), rtol=0, atol=of_angles(torch.float32, 32, 16.0), msg=name
            )
        assert float((scores[0, 1:] - scores[0, 0]).abs().max()) > 0.1, name


def test_flex_attention_has_no_backward_pass_on_the_cpu() -> None:
    settings = Settings(**{**TINY, "compiled": True})
    with pytest.raises(LeftOutError, match="FlexAttention has no backward pass on the CPU"):
        compared(settings, "alibi", 64, training=True).makes[peers.FLEX]()


@pytest.mark.more
def test_a_peer_that_is_missing_is_a_dash_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeftOutError, match="No module named 'no_such_peer'"):
        peers.imported("no_such_peer")
    for module in ("transformers", "rotary_embedding_torch", "x_transformers"):
        for name in [name for name in sys.modules if name.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)
    clock = clock_of(torch.device("cpu"))
    (group, _) = cases.rotations(SMALL)
    built = group.build()
    found = race(built.makes, rounds=1, budget=1, clock=clock)["results"]
    for name in ("transformers", "rotary-embedding-torch"):
        assert name.replace("-", "_") in found[name]["left_out"]
    assert found["posenc"]["ratio"]
    reason = found["transformers"]["left_out"]
    page = markdown([record("rope float32", "rope", 16, found, **built.facts)])
    number = page[page.index("| transformers | – (") :][len("| transformers | – (")]
    assert f"({number}) {reason}" in page

    found = race(compared(SMALL, "t5", 64, False).makes, rounds=1, budget=1, clock=clock)["results"]
    assert "x_transformers" in found["x-transformers"]["left_out"]


def test_versions_say_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", ("torch", "no-such-peer"))
    assert peers.versions() == {"torch": str(torch.__version__), "no-such-peer": "not installed"}
