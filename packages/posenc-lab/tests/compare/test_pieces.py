"""Pieces: that rows are as they say, and that the use of the source is what is gained from it and from nothing else."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from posenc_lab.compare.compare import compare
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.pictures import FIGURES, begins
from posenc_lab.compare.pieces import COPY, PIECE, SHUFFLED, SOURCE, Pieces, Sourced
from posenc_lab.compare.report import html, observed, terminal_table
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.tasks import configured
from posenc_lab.kit.records import Record
from tests.compare.test_compare import Interrupting
from tests.compare.tiny_comparison import untimed

TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "batch_size": 4, "windows": 8, "steps": 4}
CPU = torch.device("cpu")


def write(folder: Path, name: str, size: int, seed: int) -> Path:
    """Letters and spaces by chance: of 16 of them hardly any stand twice."""
    folder.mkdir(exist_ok=True)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz \n", dtype=np.uint8)
    (folder / name).write_bytes(np.random.default_rng(seed).choice(letters, size).tobytes())
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., CompareConfig]:
    """A tiny comparison of pieces of 16 bytes."""
    for n in range(10):
        write(tmp_path / "text", f"{n}.txt", 6_000, n)

    def made(**changes: Any) -> CompareConfig:
        given = {"task": "pieces", "text": (str(tmp_path / "text"),), "train_length": 64, "test_lengths": (64, 200)}
        return configured({**given, "schemes": ("alibi",), **TINY, **changes})

    return made


def test_a_piece_stands_twice_in_a_row_at_a_drawn_gap(config: Any) -> None:
    """In training and in tuning; gaps are from a piece to all of the row."""
    loaded = Pieces().load(config(tune=True))
    for draw in (loaded.train, loaded.tuning):
        gaps = []
        for row in draw(np.random.default_rng(0), 200, 65):
            text = row.tobytes()
            copy = next(at for at in range(34, 50) if text.find(text[at : at + 16]) < at)
            gaps.append(copy - text.find(text[copy : copy + 16]))
        assert 16 <= min(gaps) < 20 < 40 < max(gaps) <= 49


def test_rows_differ_in_the_source_alone(config: Any) -> None:
    """Each model of a test sees the same row with the source far, near, shuffled or not there, and at all lengths the
    same copy after the same last bytes."""
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            seen.append(tokens.clone())
            return torch.zeros(*tokens.shape, 256)

    tester = Pieces().load(config()).evaluator(Watching(), CPU, lambda tokens: None)
    assert isinstance(tester, Sourced)
    pieces, ends = torch.from_numpy(tester._pieces.astype(np.int64)), []
    for length in (64, 200):
        far = length - 21
        for kind, gap, source in (("far", far, SOURCE), ("near", 21, SOURCE), ("shuffled", far, SHUFFLED)):
            seen.clear()
            record = tester.measure(kind, length)
            assert (record["gap"], record["bits"], record["without"]) == (gap, [0.0] * 8, 8.0)
            begin = length - 15 - gap
            with_source = next(rows for rows in seen if bool((rows[:, begin : begin + 16] == pieces[source]).all()))
            assert bool((with_source[:, -15:] == pieces[COPY][:, :15]).all())  # the last byte is only predicted
            ends.append(with_source[:, -20:])
    assert all(bool((end == ends[0]).all()) for end in ends)
    assert bool((pieces[SHUFFLED].sort(1)[0] == pieces[SOURCE].sort(1)[0]).all())
    assert bool((pieces[SOURCE] == pieces[COPY]).all())


class Copying(nn.Module):
    """Expects, ``gap`` bytes after a byte, the one that follows it, and is right with a probability of a half."""

    def __init__(self, gap: int) -> None:
        super().__init__()
        self.gap = gap

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 256)
        for n in range(self.gap - 1, tokens.size(1)):
            logits[range(len(tokens)), n, tokens[:, n + 1 - self.gap]] = math.log(255)
        return logits


def test_the_use_of_the_source_is_the_loss_without_it_less_that_with_it(config: Any) -> None:
    """Of a model that copies from one distance: at that distance alone, 1 bit a byte instead of log2 510 or, where it
    expects a wrong byte that happens to be right, 1."""
    loaded = Pieces().load(config())
    tester = loaded.evaluator(Copying(200 - 21), CPU, lambda tokens: None)
    far, near, shuffled = (tester.measure(kind, 200) for kind in ("far", "near", "shuffled"))
    assert far["with_source"] == pytest.approx(1.0, abs=1e-5)
    assert far["without"] == near["without"] == pytest.approx(near["with_source"])
    assert np.mean(far["bits"]) == pytest.approx(far["without"] - 1, abs=1e-5)
    assert 0.9 * math.log2(510) < far["without"] <= math.log2(510) + 1e-5
    assert near["bits"] == [0.0] * 8
    assert abs(np.mean(shuffled["bits"])) < 1
    assert tester.measure("sliding", 200)["tokens"] == 100
    match = [tester.measure("match", length)["bits"] for length in (64, 200)]
    right = 8 + math.log2(math.exp(8.0) / (math.exp(8.0) + 255))
    assert np.array(match) == pytest.approx(np.full((2, 8), right), abs=1e-5)  # by construction, at every length
    other: Any = loaded.evaluator(Copying(21), CPU, lambda tokens: None)
    seen = other._match.tokens
    assert other.measure("match", 200)["bits"] == match[1]
    assert other._match.tokens == seen > 0  # passed once for all models
    assert loaded.probe is not None
    assert loaded.probe(Copying(21), CPU) == pytest.approx(loaded.probe(Copying(64 - 21), CPU), rel=0.2)
    assert loaded.probe(Copying(60), CPU) == 0


def test_natural_copies_are_pairs_of_files_and_other_text_is_refused(config: Any, tmp_path: Path) -> None:
    """Sources and copies in turn: here a copy is its source in capitals."""
    for n in range(4):
        path = write(tmp_path / "made", f"{n}.txt", PIECE * 20, 100 + n) / f"{n}.txt"
        sources = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, PIECE)
        path.write_bytes(b"".join(source.tobytes() + source.tobytes().upper() for source in sources))
    told = config(train_length=4 * PIECE, test_lengths=(4 * PIECE,), copies=(str(tmp_path / "made"),))
    loaded = Pieces().load(told)
    for row in loaded.train(np.random.default_rng(0), 20, 4 * PIECE + 1):
        upper = "".join(filter(str.isupper, row.tobytes().decode()))
        assert upper.lower() in "".join(filter(str.isalpha, row.tobytes().decode()))
    pieces = loaded.evaluator(Copying(1), CPU, lambda tokens: None)._pieces  # type: ignore[attr-defined]
    assert [copy.tobytes() for copy in pieces[COPY]] == [source.tobytes().upper() for source in pieces[SOURCE]]
    assert loaded.digest != Pieces().load(config(train_length=4 * PIECE, test_lengths=(4 * PIECE,))).digest
    bits = np.random.default_rng(0).choice(np.frombuffer(b"01", dtype=np.uint8), 20_000)
    (tmp_path / "bits.txt").write_bytes(bits.tobytes())
    with pytest.raises(ValueError, match="text must have pieces of 16 bytes that differ, got windows without any"):
        Pieces().load(config(text=(str(tmp_path / "bits.txt"),)))
    with pytest.raises(ValueError, match="copies must be of files, folders or globs that match some, got 'nowhere'"):
        Pieces().load(config(train_length=4 * PIECE, test_lengths=(4 * PIECE,), copies=("nowhere",)))
    (tmp_path / "made" / "0.txt").write_bytes(b"a line\n")
    with pytest.raises(ValueError, match="copies must be several files of pairs of 96 bytes and nothing else, got "):
        Pieces().load(told)


def test_a_comparison_records_when_the_use_begins_also_if_it_was_stopped(config: Any, tmp_path: Path) -> None:
    whole = compare(config(schemes=("alibi", "learned")), tmp_path / "whole")
    (use, _) = (record["use"] for record in whole if record["kind"] == "training")
    assert [step for step, _ in use] == [1, 2, 3, 4]
    with pytest.raises(KeyboardInterrupt):
        compare(config(schemes=("alibi", "learned")), tmp_path / "out", Interrupting(2))
    assert untimed(compare(config(schemes=("alibi", "learned")), tmp_path / "out")) == untimed(whole)
    assert Summary(whole).undefined("learned", 200, "far").startswith("Learned encodes positions")


def begun(*use: tuple[int, float | None]) -> Record:
    made = {"kind": "training", "scheme": "rope", "seed": 0, "use": use, "fingerprint": "f"}
    return {**made, "configuration": {"task": "pieces", "schemes": ["rope"], "seeds": [0]}}


@pytest.mark.parametrize(
    ("use", "step"),
    [
        ([(1, 0.0), (2, 0.1), (3, 0.5), (4, 0.1)], 2),
        ([(1, 0.2), (2, 0.3), (3, 0.05), (4, 0.5), (5, 0.5), (6, 0.5), (7, 0.0)], 4),  # and need not stay
        ([(1, 0.2), (2, 0.3)], None),
        ([(1, 0.2), (2, None), (3, 0.2), (4, 0.2)], None),
        ([], None),
    ],
)
def test_the_use_begins_where_it_is_high_three_times_in_a_row(
    use: list[tuple[int, float | None]], step: int | None
) -> None:
    assert Summary([begun(*use)]).begun("rope") == {0: step}


@pytest.mark.parametrize(
    ("match", "shuffled", "failing"), [(7.9, -0.0104, 0), (3.9, 0.0, 1), (7.9, 0.1, 1), (2, 0.3, 2)]
)
def test_a_control_that_fails_is_said(match: float, shuffled: float, failing: int) -> None:
    training = begun((1, 0.2), (2, 0.2), (3, 0.2))
    kinds = {"far": 0.3, "near": 0.4, "match": match, "shuffled": shuffled}
    about = {**training["configuration"], "train_length": 64, "test_lengths": [64]}
    training = {**training, "configuration": about}
    tests = [{**training, "kind": k, "length": 64, "bits": [mean - 0.2, mean + 0.22]} for k, mean in kinds.items()]
    said = observed(Summary([training, *tests]))
    low, high = begins(Summary([training, *tests])).axes[0].get_ylim()
    assert low < 0.1 < high  # the line is there
    fails = "from the source: this control fails for RoPE, whose numbers say nothing of far tokens."
    assert sum(sentence.endswith(fails) for sentence in said) == failing
    assert str(terminal_table([training, *tests]).caption).count(fails) == failing
    assert not re.search(r"[-−]0\.0+\b", html([training, *tests], {name: {False: b"", True: b""} for name in FIGURES}))
    assert any(sentence.endswith("of each seed: RoPE 1.") for sentence in said)
    assert any("use of the source in bits per byte: 0.31 with RoPE" in sentence for sentence in said)
