"""Converts formulas to MathML, which browsers and screen readers support without a script."""

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert

ROW = re.compile(r"\\\\|\n\s*\n")
PART = re.compile(r"\\qquad(?![a-zA-Z])|\\quad(?![a-zA-Z])")
BREAK = re.compile(r"\\allowbreak(?![a-zA-Z])")
LINES = re.compile(r"\\begin{array}{l}(.*)\\end{array}", re.DOTALL)
FUNCTIONS = ("sin", "cos", "ln", "log", "exp", "tanh")
SYMBOL = re.compile(r"%\s*(\w+):\s*(.+)\n")


def mathml(tex: str, symbols: Mapping[str, str] | None = None) -> str:
    r"""The formula as HTML: a paragraph for each of its rows, whose parts stand side by side as far as there is room.

    Rows are separated by ``\\`` or an empty line, the parts of a row by ``\quad`` or ``\qquad``, and a part may
    continue on a new line at ``\allowbreak``. ``symbols`` are those of controls, such as ``{"dim": "d"}``, or the words
    that one chooses from, ``{"form": "log|power"}``; they can also be written before the formula, one a line: ``% dim:
    d``. Every token that is one gets the attribute ``data-control``, by which the page finds it.
    """
    given = dict(SYMBOL.findall(tex)) | dict(symbols or {})
    tex = SYMBOL.sub("", tex).strip()
    if whole := LINES.fullmatch(tex):
        tex = whole[1]
    controls = {name: words.split("|") for name, words in given.items()}
    return "".join(f"<p>{''.join(_part(part, controls) for part in _split(PART, row))}</p>" for row in _split(ROW, tex))


def _split(separator: re.Pattern[str], tex: str) -> list[str]:
    """The pieces between separators that are not within braces or an environment."""
    pieces, start, depth, at = [], 0, 0, 0
    while at < len(tex):
        if depth == 0 and (found := separator.match(tex, at)):
            pieces.append(tex[start:at])
            start = at = found.end()
            continue
        if tex.startswith(("\\begin", "\\end"), at):
            depth += 1 if tex.startswith("\\begin", at) else -1
        elif tex[at] == "\\":
            at += 1  # an escaped character is no brace
        elif tex[at] in "{}":
            depth += 1 if tex[at] == "{" else -1
        at += 1
    return [piece.strip() for piece in (*pieces, tex[start:]) if piece.strip()]


def _part(tex: str, controls: Mapping[str, Sequence[str]]) -> str:
    first, *others = _split(BREAK, tex)
    # At the beginning of a piece an operator would be a sign, with no space around it.
    pieces = [first, *("{}" + piece for piece in others)]
    return f'<span class="part">{" ".join(_math(piece, controls) for piece in pieces)}</span>'


def _math(tex: str, controls: Mapping[str, Sequence[str]]) -> str:
    made = convert(tex, display="block").replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    root = ElementTree.fromstring(made)
    root.set("display", "inline")
    root.set("displaystyle", "true")
    for row in [*root.iter()]:
        _join(row)
        _space(row)
        if row.tag == "mrow" and row.find("mtable") is not None and row[0].get("fence"):
            row.set("class", "fenced" if len(row) == 3 else "cases")
    for token in root.iter():
        token.text = (token.text or "").replace("\\_", "_")  # as it stands in words
        text = token.text.strip("\N{NO-BREAK SPACE} ")
        if found := [name for name, words in controls.items() if text in words]:
            token.set("data-control", " ".join(found))
    return ElementTree.tostring(root, encoding="unicode")


def _space(row: Element) -> None:
    """Space around the names of functions, as in "a sin x", and none around the bars of |x|."""
    for at, token in reversed([*enumerate(row)]):
        if token.tag == "mo" and token.text == "|":
            token.attrib |= {"lspace": "0", "rspace": "0"}
        elif token.tag == "mi" and token.text in FUNCTIONS:
            before, after = row[at - 1] if at else None, row[at + 1] if at + 1 < len(row) else None
            if after is not None and after.text != "(":
                row.insert(at + 1, Element("mspace", width="0.167em"))
            if before is not None and before.tag not in ("mo", "mspace"):
                row.insert(at, Element("mspace", width="0.167em"))


def _join(row: Element) -> None:
    """Makes one identifier of a word whose letters are one each, so that it is read as a word."""
    if len(row) > 1 and all(letter.tag == "mi" and letter.get("mathvariant") == "normal" for letter in row):
        word = "".join(letter.text or "" for letter in row)
        row.clear()
        ElementTree.SubElement(row, "mi").text = word


def inline(tex: str) -> str:
    """The MathML of a formula within a line. ValueError for a command that is not known."""
    made = convert(tex, display="inline")
    if "\\" in made:  # an unknown command is left as it stands
        raise ValueError(f"the formula {tex!r} has a command that is not understood: {made}")
    return made
