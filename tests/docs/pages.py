"""The pages of the documentation as texts: their blocks of code, and what they name."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "research/benchmarks", "docs", "docs/recipes")
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>.*?) -->\s*)?^(?P<fence>`{3,})(?P<kind>\S*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.S | re.M,
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page: of which kind, from which line on, and why it is not run, where it is not."""

    page: Path
    line: int
    kind: str
    text: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if its first line says so."""
        found = re.match(r"# ([\w-]+\.py)\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command that it has, without prompts and comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for words in (shlex.split(line.removeprefix("$ "), comments=True) for line in lines) if words]


def blocks(page: Path, *kinds: str) -> list[Block]:
    """Those of some kinds, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("fence")) + 2, found["kind"], found["text"], found["reason"])
        for found in FENCE.finditer(text)
        if found["kind"] in kinds
    ]


def patched(text: str, diff: str) -> str:
    """A file after a unified diff of it. AssertionError for lines that are not where the diff says."""
    lines, offset = text.splitlines(), 0
    for start, old, new, hunk in re.findall(r"^@@ -(\d+),(\d+) \+\d+,(\d+) @@\n((?:[ +-].*\n?)+)", diff, re.M):
        before, after = ([line[1:] for line in hunk.splitlines() if line[0] in kind] for kind in (" -", " +"))
        assert (len(before), len(after)) == (int(old), int(new))
        first = int(start) - 1 + offset
        assert lines[first : first + len(before)] == before
        lines[first : first + len(before)] = after
        offset += len(after) - len(before)
    return "\n".join(lines) + "\n"
