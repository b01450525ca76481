"""The house's docstrings as reStructuredText.

They are plain text: an indented block is a formula or code, ``Shapes:``, ``Errors:`` and ``Source:`` begin what is said
of these, a single backtick names something of the library, and |x| and q_i are mathematics.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

HEADS = ("Shapes", "Errors", "Source", "Sources", "Bytes", "Example")
SECTION = re.compile(rf"({'|'.join(HEADS)}): (.*)")
MARKUP = re.compile(r"(``.+?``|`[^`]+`|(?<![\w*])\*\*?\w(?:[^*]*[\w.])?\*\*?(?![\w*]))")  # code, names and *emphasis*


def plain(text: str) -> str:
    """With what reStructuredText would read as markup escaped, but for code, names and emphasis."""
    parts = MARKUP.split(text)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"([|*\\])", r"\\\1", parts[n])
        parts[n] = re.sub(r"(\w)_(?!\w)", r"\1\\_", parts[n])  # q_ would be a link
    return "".join(parts)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring, as reStructuredText."""
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
        found = SECTION.match(line)
        if found:
            section = True
            out += ["", f":{found[1]}: {plain(found[2])}"]
        elif section:
            out.append("    " + plain(line.strip()))
        else:
            out.append(plain(line))
    return out


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What autodoc calls with the lines of each docstring, to be changed in place."""
    if name.partition(".")[0] == "posenc":
        lines[:] = restructured(lines)


def public(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element) -> nodes.Element | None:
    """Where a name is documented that was not found where it stands: ``posenc.positions.positions.Positions`` as
    ``posenc.Positions``, `Finding` as ``posenc.tools.laws.probe.Finding``."""
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
