import re
from pathlib import Path
from typing import Any

import pytest

from posenc.lab.config import CompareConfig, fingerprint, saved_identity


def test_test_lengths_follow_the_training_length() -> None:
    assert CompareConfig(train_length=100).test_lengths == (50, 100, 200, 400, 800)
    assert CompareConfig(test_lengths=(512, 64)).test_lengths == (64, 512)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("steps", 0, "steps must be at least 1, got 0"),
        ("steps", "many", "steps must be a whole number, got 'many'"),
        ("steps", True, "steps must be a whole number, got True"),
        ("steps", 1.5, "steps must be a whole number, got 1.5"),
        ("dim", 90, "dim must be a multiple of heads (4), got 90"),
        ("kv_heads", 3, "kv_heads must be a divisor of heads (4), got 3"),
        ("kv_heads", 0, "kv_heads must be at least 1, got 0"),
        ("schemes", "rope", "schemes must be a list, got 'rope'"),
        ("schemes", (), "schemes must be one or more different values, got []"),
        ("seeds", [0, 0], "seeds must be one or more different values, got [0, 0]"),
        ("seeds", [-1], "seeds must be at least 0 and below 2**31 each, got [-1]"),
        ("seeds", [2**31], "seeds must be at least 0 and below 2**31 each, got [2147483648]"),
        ("test_lengths", [1, 2], "test_lengths must be at least 2 each, got [1, 2]"),
        ("inject", "output", "inject must be input or every_layer, got 'output'"),
        ("learning_rate", 0.0, "learning_rate must be above 0, got 0.0"),
        ("learning_rate", float("nan"), "learning_rate must be a finite number, got nan"),
        ("learning_rate", float("inf"), "learning_rate must be a finite number, got inf"),
        ("warmup", 1.0, "warmup must be at least 0 and below 1, got 1.0"),
        ("windows", 7, "windows must be at least 8, got 7"),
        ("per_layer", 1, "per_layer must be true or false, got 1"),
    ],
)
def test_a_wrong_value_names_the_field_what_was_expected_and_what_came(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CompareConfig(**{field: value})


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text('steps = 7\nlearning_rate = 1\nschemes = ["rope", "rope+alibi"]\n')
    config = CompareConfig.from_toml(path, steps=9)
    assert (config.steps, config.learning_rate, config.schemes) == (9, 1.0, ("rope", "rope+alibi"))


def test_an_unknown_key_names_the_closest_known(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text("step = 7\n")
    with pytest.raises(ValueError, match=r"lab.toml has an unknown key 'step': did you mean steps\?"):
        CompareConfig.from_toml(path)
    path.write_text("step =")
    with pytest.raises(ValueError, match=r"lab.toml is not a TOML file: "):
        CompareConfig.from_toml(path)


def test_saved_configuration_is_read_as_the_same(tmp_path: Path) -> None:
    config = CompareConfig(text=('a "quoted" name.txt', "ü\\n.txt"), learning_rate=1e-5, kv_heads=2, seeds=(3, 4))
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml({"torch": "2.0"}), encoding="utf-8")
    assert CompareConfig.from_toml(path) == config
    assert saved_identity(path) == config.identity(torch="2.0")


def test_fingerprint_changes_with_what_changes_a_measurement_and_nothing_else() -> None:
    def of(made_with: str = "1", **changes: Any) -> str:
        return fingerprint(CompareConfig(**changes).identity(torch=made_with))

    assert of() == of(schemes=("rope",)) == of(seeds=(5,)) == of(text=("moved.txt",)) == of(kv_heads=4)
    assert len({of(), of("2"), of(steps=3), of(windows=9), of(device="cuda"), of(test_lengths=(64, 128))}) == 6
