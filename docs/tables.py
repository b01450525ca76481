"""``python docs/tables.py`` writes tables: of schemes, in docs/schemes.md, from the catalog; of kinds, in
docs/design.md, from the backends, and of the files that a call visits; in docs/choose.md, of what `posenc choose`
recommends, of the study and of digits."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import torch

import posenc
from posenc.backends.call import Backend
from posenc.backends.choose import BACKENDS
from posenc.encoding.terms import Term
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Law
from posenc_lab.choose import evidence
from posenc_lab.choose.questions import Answer, answers

ROOT = Path(__file__).parents[1]

# The laws shown in the table of all schemes; the table of laws lists every one.
MAIN = (
    Law.RELATIVE,
    Law.ABSOLUTE,
    Law.DIRECTED,
    Law.MONOTONE,
    Law.DECAYING,
    Law.EXTENSIBLE,
    Law.LENGTH_FREE,
    Law.ORDER_FREE,
)


# Those that most released models use, or that papers compare with.
COMMON = ("rope", "alibi", "t5", "sinusoidal", "learned", "nope", "shaw", "axial_rope", "mrope", "mla")


def _common_first() -> list[Entry]:
    rank = {name: number for number, name in enumerate(COMMON)}
    return sorted(CATALOG, key=lambda entry: rank.get(entry.name, len(rank)))


def _table(*rows: tuple[str, ...]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _doors(entry: Entry) -> str:
    return ", ".join(entry.doors) or "none"


def _word(law: Law) -> str:
    return law.replace("_", "-")


def _kinds() -> str:
    """Which backend supports which kind of term; `posenc.explain` says on which conditions."""
    told = [backend for backend in BACKENDS if backend.kinds is not None]
    kinds = dict.fromkeys(kind for backend in told for kind in backend.kinds or ())
    return _table(
        ("runs", *(f"`{kind.__name__}`" for kind in kinds)),
        *((f"`{backend.name}`", *(_supported(backend, kind) for kind in kinds)) for backend in told),
    )


def _supported(backend: Backend, kind: type[Term]) -> str:
    return ("some" if (backend.kinds or {})[kind] else "yes") if backend.supports(kind) else "no"


NAMES = [*(entry.title for entry in CATALOG), "Schedule", "YaRN", "NTKAware", "DynamicNTK"]
CALL = re.compile(rf"(\b(?:{'|'.join(sorted(NAMES, key=len, reverse=True))})\b(?:\([^)]*\))?|extent=)")


def _choices() -> str:
    """What `posenc choose` recommends, and on what evidence: its strength, and where it stands."""
    found: dict[str, evidence.PublishedTable | evidence.Statement] = {each.name: each for each in evidence.tables()}
    found |= {each.name: each for each in evidence.statements()}

    def code(words: str) -> str:
        return CALL.sub(r"`\1`", words)

    def ground(name: str) -> str:
        of = found[name]
        if of.url:
            return f"[{of.source}]({of.url})" + ", second-hand" * of.second_hand
        if isinstance(of, evidence.PublishedTable):
            return f"[{of.title}]({Path(of.doc).relative_to('docs')})"
        return f"`{of.command}`"

    def grounds(names: Sequence[str]) -> str:
        """Each strength, the strongest first, with what has it."""
        each = {strength: [n for n in names if found[n].strength == strength] for strength in evidence.STRENGTHS}
        return "; ".join(f"**{strength}**: {'; '.join(map(ground, of))}" for strength, of in each.items() if of)

    def both(answer: Answer) -> str:
        instead = (f"; for {code(what)} instead, {grounds(names)}" for what, names in answer.instead.items())
        return grounds(answer.rests_on) + "".join(instead)

    rows = [(a.case, code(a.begin), both(a), code(a.compare_with)) for a in answers()]
    return _table(("your case", "start with", "evidence", "compare with"), *rows)


def _strengths() -> str:
    return _table(("strength", "what it means"), *((f"**{name}**", says) for name, says in evidence.STRENGTHS.items()))


def _study() -> str:
    """What the study has found of each scheme on Python's packages: the loss, and what far text is worth."""
    found = {each.name: each for each in evidence.tables()}
    of, far = found["study_python"], found["study_python_far"]
    rows = [
        (row.label, *(figure.partition(" ±")[0] for figure in row.figures), *worth.figures)
        for row, worth in zip(of.rows, far.rows, strict=True)
    ]
    return _table(("scheme, in the study", *of.heads, *far.heads), *rows)


def _images() -> str:
    """The shares of right answers on digits."""
    (of,) = (each for each in evidence.tables() if each.name == "digits")
    return _table(("scheme", *of.heads), *((row.label, *row.figures) for row in of.rows))


def _rooms() -> str:
    """The files that a call of attention visits, in the order in which it first enters them: the first call of a plan,
    and every later one, forward and backward."""
    query, key, value = (torch.ones(1, 2, 64, 16, requires_grad=True) for _ in range(3))

    def attend() -> None:
        out = posenc.attention(query, key, value, encoding, is_causal=True, backend="native")
        assert isinstance(out, torch.Tensor)
        out.sum().backward()

    encoding = posenc.RoPE(16)(posenc.Positions.arange(64))
    attend()  # what is found once in a process, such as the kernel's library
    encoding = posenc.RoPE(16)(posenc.Positions.arange(64))
    return _table(
        ("call", "files, in the order in which they are entered"),
        *((name, _visited(attend)) for name in ("the first of a plan", "every later one")),
    )


def _visited(call: Callable[[], None]) -> str:
    """The files of posenc that a call enters, forward and backward."""
    home, found = Path(posenc.__file__).parent, []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(home) and file not in found:
            found.append(file)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return ", ".join(f"`{file.relative_to(home).with_suffix('')}`" for file in found)


def tables() -> dict[str, list[str]]:
    """Each file's tables, as Markdown."""
    claims = {entry.name: ", ".join(_word(law) for law in MAIN if law in entry.laws) for entry in CATALOG}
    return {
        "docs/design.md": [_kinds(), _rooms()],
        "docs/choose.md": [_choices(), _strengths(), _study(), _images()],
        "docs/schemes.md": [
            _table(
                ("scheme", "doors", "what it does", "limits"),
                *((f"`{entry.signature}`", _doors(entry), entry.does, entry.limits) for entry in _common_first()),
            ),
            _table(
                ("scheme", "properties (each is tested)", "learned", "cost"),
                *((f"`{entry.title}`", claims[entry.name], entry.learned, entry.cost) for entry in _common_first()),
            ),
            _table(
                ("law", "meaning", "schemes"),
                *(
                    (_word(law), law.meaning, ", ".join(entry.title for entry in CATALOG if law in entry.laws))
                    for law in Law
                ),
            ),
        ],
    }


def written(text: str, table: str) -> str:
    """The text with ``table`` in place of the table that has the same header. ValueError where there is none."""
    head = table.partition("\n")[0]
    before, found, after = text.partition(f"{head}\n")
    if not found:
        raise ValueError(f"text must have a table with the head {head!r}, got none")
    rows = after.splitlines(keepends=True)
    end = next((number for number, row in enumerate(rows) if not row.startswith("|")), len(rows))
    return before + table + "".join(rows[end:])


if __name__ == "__main__":
    for name, parts in tables().items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        for part in parts:
            text = written(text, part)
        path.write_text(text, encoding="utf-8")
