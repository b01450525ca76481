"""Configurations in TOML files: what is saved is read again. See test_config.py for wrong ones."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from posenc_lab.kit import configuration_file
from posenc_lab.kit.configuration import Configuration, differences, option


@dataclass(frozen=True)
class Choices(Configuration):
    EXTENSIBLE = ("names",)

    count: int | None = option(None)
    share: float = option(1e-5)
    names: tuple[str, ...] = option(("a",))


MADE_WITH = {"torch": "2.0", "source of my.py:Mine": "0f", "machine": {"vector units": 'avx2, "there"', "memory": None}}


def test_what_is_saved_is_read_again_in_tables_and_without_nulls(tmp_path: Path) -> None:
    configuration_file.save(tmp_path, Choices(names=("ü\n", "b")), MADE_WITH)
    text = (tmp_path / "config.toml").read_text(encoding="utf-8")
    assert text.startswith("share = 1e-05\nnames = [")
    assert text.endswith(
        '\n[made_with]\ntorch = "2.0"\n"source of my.py:Mine" = "0f"\n'
        '\n[made_with.machine]\n"vector units" = "avx2, \\"there\\""\n'
    )
    there = configuration_file.identity_in(tmp_path, Choices.from_mapping)
    assert there["machine"] == {"vector units": 'avx2, "there"'}
    here = Choices().identity(**MADE_WITH)
    assert "names" not in here
    assert differences(there, here) == ""
    configuration_file.require_same(tmp_path, there, here, "run")


def test_what_differs_is_named_in_tables_too(tmp_path: Path) -> None:
    configuration_file.save(tmp_path, Choices(), MADE_WITH)
    there = configuration_file.identity_in(tmp_path, Choices.from_mapping)
    here = Choices(count=3).identity(**{**MADE_WITH, "machine": {"vector units": "none"}})
    said = """holds another run, with count None there and 3 here, vector units 'avx2, "there"' there and 'none' here"""
    with pytest.raises(ValueError, match=said + ": give another folder"):
        configuration_file.require_same(tmp_path, there, here, "run")


def test_a_folder_without_a_configuration_has_no_identity(tmp_path: Path) -> None:
    assert configuration_file.identity_in(tmp_path, Choices.from_mapping) == {}
    with pytest.raises(ValueError, match=r"holds records but no config\.toml to tell of what: give another folder"):
        configuration_file.require_same(tmp_path, {}, Choices().identity(), "run")
