"""The house's docstrings as reStructuredText.

They are plain text: an indented block is a formula or code, ``Shapes:``, ``Errors:`` and ``Source:`` begin what is said
of these, a single backtick names something of the library, and |x| and q_i are mathematics. Parameters are a list, each
with its name in double backticks. Sentences "Returns ..." and "Raises ValueError ..." become fields of their own.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

HEADS = ("Returns", "Raises", "Shapes", "Errors", "Source", "Sources", "Bytes", "Example")
SECTION = re.compile(rf"({'|'.join(HEADS)}): (.*)")
MARKUP = re.compile(r"(``.+?``|`[^`]+`|(?<![\w*])\*\*?\w(?:[^*]*[\w.])?\*\*?(?![\w*]))")  # code, names and *emphasis*


ITEM = re.compile(r"- ``(\w+)``(?P<shape>[^:`]*): (?P<words>.*)")
FIELD = re.compile(r"(?:^|(?<=[.)`] ))(?P<verb>Raises|Returns) (?P<words>.*?[.])(?= [A-Z`]|$)")
RAISED = re.compile(r"(?P<error>\w+(?:Error|Exception))(?:, naming the argument,)? (?P<words>.*)")


def plain(text: str) -> str:
    """With what reStructuredText would read as markup escaped, but for code, names and emphasis."""
    parts = MARKUP.split(text)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"([|*\\])", r"\\\1", parts[n])
        parts[n] = re.sub(r"(\w)_(?!\w)", r"\1\\_", parts[n])  # q_ would be a link
    return "".join(parts)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def parted(lines: list[str]) -> list[str]:
    """The lines with each sentence on what is returned or raised as a section of its own, after its paragraph."""
    out: list[str] = []
    paragraph: list[str] = []
    is_prose = True
    for line in [*lines, ""]:
        is_prose = (is_prose or not line.strip()) and not SECTION.match(line) and not ITEM.match(line)
        if is_prose and line.strip() and not line.startswith((" ", ">>>", "...")):
            paragraph.append(line)
            continue
        text = " ".join(paragraph)
        if found := list(FIELD.finditer(text)):
            rest = FIELD.sub("", text).split()
            paragraph = [" ".join(rest)] if rest else []
            paragraph += [f"{each['verb']}: {each['words']}" for each in found]
        out += [*paragraph, line]
        paragraph = []
    return out[:-1]


def field(head: str, words: str) -> str:
    """The beginning of a field, as Sphinx names those of parameters, results and errors."""
    if head == "Returns":
        return f":returns: {plain(words)}"
    raised = RAISED.match(words) if head in ("Errors", "Raises") else None
    return f":raises {raised['error']}: {plain(raised['words'])}" if raised else f":{head}: {plain(words)}"


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring, as reStructuredText."""
    lines = parted(lines)
    out: list[str] = []
    literal = section = False
    for n, line in enumerate(lines):
        if not line.strip():
            out.append("")
            section = False
            continue
        begins = n > 0 and not lines[n - 1].strip() and indent(line) >= 4
        if literal and indent(line) >= 4:
            out.append(line)
            continue
        literal = begins
        if literal:
            out += [".. code-block:: text", "", line]
            continue
        item, found = ITEM.match(line), SECTION.match(line)
        if item:
            out += [] if section else [""]
            section = True
            shape = f"{plain(item['shape'].strip())}: " if item["shape"].strip() else ""
            out.append(f":param {item[1]}: {shape}{plain(item['words'])}")
        elif found:
            section = True
            out += ["", field(found[1], found[2])]
        elif section:
            out.append("    " + plain(line.strip()))
        elif line.startswith((">>>", "...")):
            out.append(line)
        else:
            out.append(plain(line))
    return out


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What autodoc calls with the lines of each docstring, to be changed in place."""
    if name.partition(".")[0] == "posenc":
        lines[:] = restructured(lines)


def public(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element) -> nodes.Element | None:
    """Where a name is documented that was not found where it stands: ``posenc.positions.positions.Positions`` as
    ``posenc.Positions``, `Finding` as ``posenc_lab.laws.probe.Finding``."""
    if node.get("refdomain") != "py":
        return None
    python, target = env.domains.python_domain, str(node.get("reftarget"))
    names = [f"posenc.{target}"]
    if "." not in target or target.startswith("posenc."):
        names += [f"{module}.{target.rpartition('.')[2]}" for module in ("posenc", *python.modules)]
    full = next((name for name in names if name in python.objects), None)
    if full is None:
        return None
    found = python.objects[full]
    return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, text, full)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("missing-reference", public)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
