"""What is said of a release: its section of the changelog, where the tag, the version and the changelog agree.

python release.py v0.1.0
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?P<date>.*)\n(?P<text>(?:(?!## \[).*\n?)*)", re.M)


def version(source: str) -> str:
    """That of the text of ``src/posenc/__init__.py``, since posenc need not be installed."""
    found = re.search(r'^__version__ = "(.+)"$', source, re.M)
    if found is None:
        raise ValueError('src/posenc/__init__.py must have a line __version__ = "…", got none')
    return found[1]


def notes(changelog: str, tag: str, current: str) -> str:
    """The section of the version that ``tag`` names, without its heading.

    ValueError for a tag that is not ``current`` after a v, and for a section that is not there, has no date or says
    nothing.
    """
    if tag != f"v{current}":
        raise ValueError(f"the tag must be v{current}, since that is the version in src/posenc/__init__.py, got {tag}")
    sections = {found["name"]: found for found in SECTION.finditer(changelog)}
    if current not in sections:
        raise ValueError(f"CHANGELOG.md must have a section [{current}], got {', '.join(sections) or 'none'}")
    found = sections[current]
    if not re.fullmatch(r" - \d{4}-\d\d-\d\d", found["date"]):
        raise ValueError(f"the heading must be ## [{current}] - YEAR-MONTH-DAY, got {found[0].splitlines()[0]}")
    if not found["text"].strip():
        raise ValueError(f"the section [{current}] of CHANGELOG.md must say what changed, got nothing")
    return found["text"].strip() + "\n"


def main(words: Sequence[str]) -> int:
    """Prints the notes. 0: done; 1: something does not agree; 2: wrong use."""
    if len(words) != 1:
        print("usage: python release.py TAG", file=sys.stderr)
        return 2
    source, changelog = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("src/posenc/__init__.py", "CHANGELOG.md")
    )
    try:
        print(notes(changelog, words[0], version(source)), end="")
    except ValueError as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
