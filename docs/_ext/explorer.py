"""The directive ``{explorer} NAME``: a figure of the explorer in the page, and a link to it where there are no frames.

The explorer is one file, which `make docs` exports before the site is built: docs/_static/explorer.html.
"""

import html
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

EXPORT = Path(__file__).parents[1] / "_static" / "explorer.html"
FRAME = """<iframe class="explorer" src="{address}" title="Explorer: {title}" loading="lazy"></iframe>
<p class="explorer-link"><a href="{address}">Open the explorer at “{title}”</a></p>
"""


class Explorer(SphinxDirective):
    """``{explorer} alibi-slopes``, with words for a title in its body; without them the name is the title."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if not re.fullmatch(r"[\w-]+(&[\w.-]+=[\w.,+-]+)*", name):
            raise self.error(f"explorer must name a figure, with its state after '&', got {name!r}")
        if not EXPORT.is_file():
            raise ExtensionError(
                f"{self.env.docname}: the explorer's figure {name!r} needs {EXPORT}, which is not there: "
                "`make docs` writes it, by `posenc explore --export`"
            )
        title = " ".join(self.content) or name.partition("&")[0]
        page = self.env.app.builder.get_target_uri(self.env.docname)
        address = relative_uri(page, "_static/explorer.html") + "#figure=" + name
        frame = FRAME.format(address=html.escape(address), title=html.escape(title))
        return [nodes.raw("", frame, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("explorer", Explorer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
