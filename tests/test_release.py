"""What a release is made of: notes cut from the changelog, a version that agrees, and a citation like the package."""

import re
import tomllib
from pathlib import Path

import pytest

import posenc
import release

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
CHANGELOG = """# Changelog

## [Unreleased]

- Not out yet.

## [0.2.0] - 2026-12-24

Two lines.

### Added

- A thing, [0.1.0] had none.

## [0.1.0] - 2026-12-01

### Added

- All of it.
"""


def test_notes_are_the_section_of_the_tag_without_its_heading() -> None:
    assert release.notes(CHANGELOG, "v0.2.0", "0.2.0") == "Two lines.\n\n### Added\n\n- A thing, [0.1.0] had none.\n"
    assert release.notes(CHANGELOG, "v0.1.0", "0.1.0") == "### Added\n\n- All of it.\n"
    assert release.notes(CHANGELOG.rstrip(), "v0.1.0", "0.1.0") == "### Added\n\n- All of it.\n"


@pytest.mark.parametrize(
    ("changelog", "tag", "message"),
    [
        (CHANGELOG, "0.1.0", "the tag must be v0.1.0, since that is the version in src/posenc/__init__.py, got 0.1.0"),
        (
            CHANGELOG,
            "v0.2.0",
            "the tag must be v0.1.0, since that is the version in src/posenc/__init__.py, got v0.2.0",
        ),
        ("# Changelog\n", "v0.1.0", "CHANGELOG.md must have a section [0.1.0], got none"),
        (
            CHANGELOG.replace("[0.1.0] -", "[0.1.0rc1] -"),
            "v0.1.0",
            "CHANGELOG.md must have a section [0.1.0], got Unreleased, 0.2.0, 0.1.0rc1",
        ),
        (
            CHANGELOG.replace("[0.1.0] - 2026-12-01", "[0.1.0] - soon"),
            "v0.1.0",
            "the heading must be ## [0.1.0] - YEAR-MONTH-DAY, got ## [0.1.0] - soon",
        ),
        (
            "## [0.1.0] - 2026-12-01\n\n## [0.0.1] - 2026-11-01\n\n- All of it.\n",
            "v0.1.0",
            "the section [0.1.0] of CHANGELOG.md must say what changed, got nothing",
        ),
    ],
)
def test_what_does_not_agree_is_said(changelog: str, tag: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        release.notes(changelog, tag, "0.1.0")


def test_the_version_is_read_without_importing_posenc() -> None:
    assert release.version((ROOT / "src/posenc/__init__.py").read_text(encoding="utf-8")) == posenc.__version__
    said = '^src/posenc/__init__.py must have a line __version__ = "…", got none$'
    with pytest.raises(ValueError, match=said):
        release.version("version = 1\n")


def test_the_command_prints_the_notes_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src" / "posenc").mkdir(parents=True)
    (tmp_path / "src" / "posenc" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.main(["v0.1.0"]) == 0
    assert capsys.readouterr().out == "### Added\n\n- All of it.\n"
    assert release.main(["v0.3.0"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("release: error: the tag must be v0.1.0, ")
    assert release.main([]) == 2
    assert capsys.readouterr().err == "usage: python release.py TAG\n"


def test_the_changelog_has_a_section_to_cut() -> None:
    found = [section["name"] for section in release.SECTION.finditer((ROOT / "CHANGELOG.md").read_text("utf-8"))]
    assert {"Unreleased", posenc.__version__} & set(found)


def test_the_citation_says_what_the_package_says() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (told["title"], told["abstract"], told["license"]) == (
        project["name"],
        project["description"],
        project["license"],
    )
    assert (told["keywords"], told["authors"]) == (project["keywords"], project["authors"])
