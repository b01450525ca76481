"""The directive ``{explorer} NAME``: a figure of the explorer in the page, and a link to it where there are no frames.

The explorer is one file, which `make docs` exports before the site is built: docs/_static/explorer.html. A script
beside it gives the frames the colours of their page and the height of what they show.
"""

import html
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from posenc_lab.explore.page import STATIC

EXPORT = Path(__file__).parents[1] / "_static" / "explorer.html"
ADDRESS = re.compile(r"(?P<figure>[\w-]+)(?P<state>(&[\w.-]+=[\w.,:%+-]+)*)")
FIGURE = re.compile(r'from "posenc/figures/([a-z0-9-]+)\.js"')
TITLE = re.compile(r'^    title:\s*"([^"]+)"', re.MULTILINE)
FRAME = """<iframe class="explorer" src="{address}" title="Explorer: {title}" loading="lazy"></iframe>
<p class="explorer-link">{link}</p>
"""
FIGURE_LINK = '<a href="{address}">Open “{title}” in the explorer</a>'
LESSON_LINK = '<a class="button" href="{address}">Open the lesson</a> There the figure checks your answer.'


class Explorer(SphinxDirective):
    """``{explorer} clocks&clocks.dim=64``: a figure, and its controls that do not stand at their defaults. What is in
    its body is for readers of the file itself, and not shown."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        found = ADDRESS.fullmatch(name)
        if not found:
            raise self.error(f"explorer must name a figure, with its state after '&', got {name!r}")
        modules = {path.stem: path for folder in ("figures", "steps") for path in (STATIC / folder).glob("*.js")}
        if found["figure"] not in modules:
            raise self.error(f"explorer must name one of {', '.join(sorted(modules))}, got {found['figure']!r}")
        module = modules[found["figure"]]
        if not EXPORT.is_file():
            raise ExtensionError(
                f"{self.env.docname}: the explorer's figure {name!r} needs {EXPORT}, which is not there: "
                "`make docs` writes it, by `posenc explore --export`"
            )
        text = module.read_text(encoding="utf-8")
        if shared := FIGURE.search(text):  # a side path around a figure that has its title
            text += modules[shared[1]].read_text(encoding="utf-8")
        titled = TITLE.search(text)
        if not titled:
            raise ExtensionError(f"{module} must have its title in quotes, in a line of its own, got none")
        page = self.env.app.builder.get_target_uri(self.env.docname)
        address = relative_uri(page, "_static/explorer.html") + "#figure=" + name
        shown = {"address": html.escape(address), "title": html.escape(titled[1])}
        # A step's figure is framed alone; the button leads to the whole step, which checks an answer.
        is_step = module.parent.name == "steps"
        link = LESSON_LINK.format(address=shown["address"].replace("#figure=", "#step=")) if is_step else None
        frame = FRAME.format(**shown, link=link or FIGURE_LINK.format(**shown))
        return [nodes.raw("", frame, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("explorer", Explorer)
    app.add_js_file("explorer.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
