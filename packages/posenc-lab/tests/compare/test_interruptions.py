"""What must not happen: a kill costs a record that was there, damage is not seen, data is run as code."""

import json
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from posenc_lab.compare.compare import compare
from posenc_lab.kit.records import FILE, read
from tests.compare.tiny_comparison import small_config, untimed, write_text


@pytest.mark.more
def test_killed_at_anything_it_does_to_a_file(tmp_path: Path) -> None:
    """Again and again, a little further on each time, so that every kind of moment is met: half of a configuration, a
    checkpoint or a record is written, or all of it and not yet known to be on the disk, or not yet in its place."""
    text, out = write_text(tmp_path / "text"), tmp_path / "out"
    command = [sys.executable, "-m", "tests.compare.interruptions", str(text), str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    *killed, (code, _) = ended = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(ended) > 10
    assert code == 0
    assert {code for code, _ in killed} == {-signal.SIGKILL}
    for (_, before), (_, after) in pairwise(ended):
        assert after[: len(before)] == before
    config = small_config(text, schemes=("nope", "learned"), steps=3, test_lengths=(8, 32))
    assert untimed(read(out)) == untimed(compare(config, tmp_path / "whole"))
    assert not [path for path in out.rglob("*") if path.suffix == ".writing" or path.parent.name == "checkpoints"]


ANOTHER = "is not of this comparison "
DAMAGED = [  # a line, what stands there, what then stands there, and what is said
    (9, '"kind": "', '"kind": "x', ANOTHER + "(its kind is 'x"),
    (2, '"fingerprint": "', '"fingerprint": "x', ANOTHER + "(fingerprint 'x"),
    (2, '"digest"', '"digests"', ANOTHER + "(text_digest None there and '"),
    (2, '"steps": 1', '"steps": 0', ANOTHER + "(its configuration: steps must be a whole number of at "),
    (2, '"steps": 1', '"steps": 4', ANOTHER + "(steps 4 there and 1 here): remove that line"),
]


def test_records_of_something_else_are_named_with_their_line_and_stay(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"), schemes=("nope",), steps=1)
    compare(config, tmp_path / "out")
    file = tmp_path / "out" / FILE
    lines = file.read_text().split("\n")
    for number, there, then, message in DAMAGED:
        changed = list(lines)
        at = 0 if there in lines[0] else number - 1  # what all records share stands first
        changed[at] = lines[at].replace(there, then)
        assert changed != lines
        file.write_text("\n".join(changed))
        with pytest.raises(ValueError, match=f"{re.escape(str(file))}, line {number}[,:] {re.escape(message)}"):
            compare(config, tmp_path / "out")
        assert file.read_text() == "\n".join(changed)
    earlier = re.sub('"kind": "[a-z_]*"', '"kind": "by_position"', lines[8])  # of a version that measured more
    file.write_text("\n".join([*lines[:-1], earlier, ""]))
    assert compare(config, tmp_path / "out")[-1]["kind"] == "by_position"


# What loads code along with data, or is made to.
LOADER = re.compile(
    r"^\s*(import|from) (c?pickle|cloudpickle|dill|joblib|marshal|shelve)\b"
    r"|\b(torch|np|numpy)\.load\(|from (torch|numpy) import .*\bload\b",
    re.M,
)


def test_nothing_in_posenc_loads_a_pickle() -> None:
    """But tensors that a check has written to memory itself."""
    sources = {path: path.read_text("utf-8") for path in Path(__file__).parents[3].glob("*/src/**/*.py")}
    assert len(sources) > 50
    found = {path.name for path, source in sources.items() if LOADER.search(source)}
    assert found == {"modules.py"}
