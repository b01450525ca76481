import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import posenc
from posenc.positions.positions import Positions
from posenc.schemes.shaw import Shaw
from posenc_lab.bench import cases
from posenc_lab.bench.cases import build_scheme
from posenc_lab.bench.measure import Inputs, LeftOutError
from research.benchmarks import peers, run
from research.benchmarks.limit import multiply_adds
from research.benchmarks.neighbours import neighbours
from research.benchmarks.run import Sizes, compared
from tests.rounding import of_angles, of_sums
from tests.rows import first_of

TINY: dict[str, Any] = {
    "rounds": 1,
    "budget": 0.01,
    "compiled": False,
    "heads": 3,
    "head_dim": 16,
    "rotated": (1, 2, 16, 8),
    "rotated_lengths": (64,),
    "busy_lengths": (64,),
    "products": (16,),
    "peer_lengths": (64,),
    "cache": 64,
}
SMALL = Sizes(**TINY)
LENGTH = 192  # past T5's last bucket and Shaw's window


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", run.PEER_SCHEMES)
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
    ("name", "way"), first_of([*((name, "eager") for name in run.PEER_SCHEMES), ("t5", "compiled")])
)
def test_flex_attention_by_hand_computes_the_same(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score function as it is, and one of them compiled, which takes ten seconds."""
    if way == "eager":
        compiled = torch.compile  # which FlexAttention calls as well, where it is not compiled
        monkeypatch.setattr(torch, "compile", lambda f, **how: f if f is flex_attention else compiled(f, **how))
    settings = Sizes(**TINY | {"compiled": True})
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
    settings = Sizes(**TINY | {"compiled": True})
    with pytest.raises(LeftOutError, match="FlexAttention has no backward pass on the CPU"):
        compared(settings, "alibi", 64, training=True).makes[peers.FLEX]()


def test_the_command_measures_prints_and_writes_every_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("transformers", "rotary_embedding_torch", "x_transformers"):
        for name in [name for name in sys.modules if name.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(run, "QUICK", TINY)
    assert run.main(["--quick", "--schemes", "nope,alibi", "--out", str(tmp_path)]) == 0
    shown, page = capsys.readouterr().out, (tmp_path / "bench.md").read_text(encoding="utf-8")
    for title in (
        *("Environment", "RoPE on queries and keys", "RoPE in attention: forward", "Busy neighbours: a training step"),
        *("Other ways to alibi", "One token against a cache of 64"),
    ):
        assert title in shown
        assert f"## {title}\n" in page
    assert "No module named 'x_transformers.x_transformers'" in page  # a peer that is missing is a dash with the reason
    assert "share of peak" in page
    records = json.loads((tmp_path / "bench.json").read_text())
    assert [r["others"] is None for r in records if r["kind"].startswith("busy")] == [True, True]
    assert all(r["results"][r["baseline"]]["ratio"] == [1, 1, 1] for r in records)
    assert (tmp_path / "peers.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "speed"], "--only must name rope, busy, peers, decode, got 'speed'"),
        (["--schemes", "roap"], "got 'roap' (did you mean 'rope'?)"),
        (["--device", "abacus"], "device must be one that is here, got 'abacus'"),
    ],
)
def test_a_wrong_value_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run.main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("scheme", cases.all_schemes())
def test_every_scheme_decodes(scheme: str) -> None:
    built = run.decoded(SMALL, scheme)
    (plain,), (ours,) = (built.makes[name]()() for name in ("plain", "posenc"))
    assert plain.shape == ours.shape == (1, 3, 1, 16)
    if scheme == "nope":
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("training", [False, True])
def test_positions_that_are_bound_once_are_bound_before_the_call(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[str] = []
    binding = cases.bound

    def count(scheme: Any, name: str, *rest: Any) -> Any:
        bound.append(name)
        return binding(scheme, name, *rest)

    inputs = Inputs.draw(SMALL, 64, 64, training)
    monkeypatch.setattr(cases, "bound", count)
    answers = []
    for once, expected in ((True, 1), (False, 3)):
        bound.clear()
        work = cases.attention_work(SMALL, "rope_interleaved", 64, inputs, "auto", once)
        answers += [work() for _ in range(3)]
        assert len(bound) == expected
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0])


def test_ways_learn_nothing_where_they_are_bound_once() -> None:
    for way in (*run.ROTATED.values(), *run.DISTURBED.values()):
        assert not way.once or not list(build_scheme(way.scheme, SMALL, 64).parameters())


@pytest.mark.parametrize(("training", "pair", "met"), [(False, 2, 2), (True, 7, 4 + 3)])
def test_multiply_adds_are_those_of_loops(training: bool, pair: int, met: int) -> None:
    heads, tokens, dim, window = 3, 11, 4, 2  # farther distances have the vector of the window's
    pairs, query = tokens * (tokens + 1) // 2, torch.zeros(1, heads, tokens, dim)
    assert multiply_adds(None, query, training, computed=0.5) == heads * pairs * dim * pair / 2
    meetings = sum(len({min(i - j, window) for j in range(i + 1)}) for i in range(tokens))
    found = multiply_adds(Shaw(dim, window)(Positions.arange(tokens)), query, training)
    assert found == heads * dim * (pairs * pair + met * meetings)


def test_there_is_a_neighbour_for_each_core_and_none_after_an_error() -> None:
    found: list[int] = []

    def interrupted() -> None:
        with neighbours(2) as processes:
            found.extend(processes)
            assert len(set(found)) == 2
            assert all(map(runs, found))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not any(map(runs, found))


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
