"""Formulas become MathML when the site is built, so that a page needs no script and no network to show them."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

from posenc_lab.explore import mathml as explore


def mathml(latex: str, display: str) -> str:
    """The MathML of a formula. ExtensionError for one that cannot be read to its end."""
    try:
        made = explore.mathml(latex) if display == "block" else explore.inline(latex)
    except Exception as error:  # it has an error of its own for each thing that can be wrong
        raise ExtensionError(f"the formula {latex!r} is not understood: {type(error).__name__} {error}") from error
    if "\\" in made:  # an unknown command is left as it stands
        raise ExtensionError(f"the formula {latex!r} has a command that is not understood: {made}")
    return made


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula" tabindex="0" role="group">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
