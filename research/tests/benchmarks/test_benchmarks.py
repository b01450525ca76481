import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc.positions.positions import Positions
from posenc.schemes.shaw import Shaw
from posenc_lab.bench import cases
from posenc_lab.bench.cases import build_scheme
from posenc_lab.bench.measure import Inputs, LeftOutError
from research.benchmarks import run
from research.benchmarks.limit import multiply_adds
from research.benchmarks.neighbours import neighbours
from research.benchmarks.run import PeerSettings, compared
from tests.rounding import of_sums

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
SMALL = PeerSettings(**TINY)
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
        *("Other ways to ALiBi", "One token against a cache of 64"),
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
