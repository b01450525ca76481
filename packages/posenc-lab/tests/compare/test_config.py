import re
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import configured, from_toml
from posenc_lab.kit import configuration_file
from posenc_lab.kit.configuration import fingerprint


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("steps", 0, "steps must be a whole number of at least 1, got 0"),
        ("steps", "many", "steps must be a whole number of at least 1, got 'many'"),
        ("steps", 1.5, "steps must be a whole number of at least 1, got 1.5"),
        ("steps", 2**31, "steps must be a whole number within 1..2147483647, got 2147483648"),
        ("train_length", 10**30, f"train_length must be a whole number within 4..2147483647, got {10**30}"),
        ("dim", 90, "dim must be a multiple of heads (4), got 90"),
        ("kv_heads", 3, "kv_heads must be a divisor of heads (4), got 3"),
        ("kv_heads", 0, "kv_heads must be a whole number of at least 1, got 0"),
        ("schemes", "rope", "schemes must be a list, got 'rope'"),
        ("schemes", (), "schemes must be one or more different values, got []"),
        ("seeds", [0, 0], "seeds must be one or more different values, got [0, 0]"),
        ("seeds", [-1], "seeds must be a whole number of at least 0, got -1"),
        ("test_lengths", [1, 2], "test_lengths must be a whole number of at least 2, got 1"),
        ("inject", "output", "inject must be 'input' or 'every_layer', got 'output'"),
        ("learning_rate", float("nan"), "learning_rate must be a finite number above 0, got nan"),
        ("warmup", 1.0, "warmup must be at least 0 and below 1, got 1.0"),
        ("windows", 7, "windows must be a whole number of at least 8, got 7"),
        ("copies", ["made"], "copies must be none unless the task is pieces, got ['made']"),
        ("per_layer", 1, "per_layer must be True or False, got 1"),
    ],
)
def test_a_wrong_value_names_the_field_what_was_expected_and_what_came(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CompareConfig(**{field: value})


WRONG = [
    ("# a comment\nstep = 7\n", "line 2: key must be one of the known names, got 'step' (did you mean 'steps'?)"),
    ('"a b" = 7\n', "line 1: key must be one of task, schemes, "),
    ('"st\\u0065p" = 7\n', "lab.toml: key must be one of the known names, got 'step' (did "),
    ("seeds = [\n0]\n[stepz]\nx = 1\n", "line 3: key must be one of "),
    ("seeds = [1]\n  steps = 'many'\n", "line 2: steps must be a whole number of at least 1, got 'many'"),
    ("steps.x = 1", "line 1: steps must be a whole number of at least 1, got {'x': 1}"),
    ("\n\ntest_lengths = [\n  8,\n  1,\n]\n", "line 3: test_lengths must be a whole number of at least 2, got 1"),
    ("learning_rate = 1" + "0" * 400, "line 1: learning_rate must be a finite number above 0, got int"),
    ("heads = 5\ndim = 96", "line 2: dim must be a multiple of heads (5), got 96"),
    ("step =", "line 1, is not TOML: Invalid value (at end of document)"),
    ("steps = 1\r\nsteps = 2\r\n", "line 2, is not TOML: Cannot overwrite a value"),
    ("steps = 1\nlayers = [1,\n2", "line 3, is not TOML: "),
    ("steps = 1\ntask = '\0'\n", "line 2, is not TOML: "),
    ("steps = 1\ntask = '\u00ff'\n", "line 2, is not TOML: 'utf-8' codec can't decode byte 0xff"),
    ("a = " + "[" * 100_000, "lab.toml is not a configuration: nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        from_toml(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_is_not_blamed_for_what_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text("steps = 7\nheads = 5\n")
    with pytest.raises(ValueError, match=r"^steps must be a whole number of at least 1, got 0$"):
        from_toml(path, steps=0)
    with pytest.raises(ValueError, match=r"^dim must be a multiple of heads \(5\), got 96$"):
        from_toml(path)


def test_what_a_saved_configuration_was_made_with_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("steps = 7\nmade_with = 3\n")
    with pytest.raises(ValueError, match=r"config.toml, line 2: made_with must be a table, got 3$"):
        configuration_file.identity_in(tmp_path, configured)


def test_fingerprint_changes_with_what_changes_a_measurement_and_nothing_else() -> None:
    def of(made_with: str = "1", **changes: Any) -> str:
        return fingerprint(CompareConfig(**changes).identity(torch=made_with))

    assert of() == of(schemes=("rope",)) == of(seeds=(5,)) == of(text=("moved.txt",)) == of(kv_heads=4)
    assert len({of(), of("2"), of(steps=3), of(windows=9), of(device="cuda"), of(test_lengths=(64, 128))}) == 6
