"""Converts formulas to MathML, which browsers and screen readers support without a script."""

import re

from latex2mathml.converter import convert


def mathml(tex: str) -> str:
    """The MathML of a formula, with a block for each of its lines."""
    lines = [line.strip() for line in re.split(r"\\\\\s*\n|\n\s*\n", tex.strip())]
    return "".join(convert(line, display="block") for line in lines if line)


def inline(tex: str) -> str:
    """The MathML of a formula within a line. ValueError for a command that is not known."""
    made = convert(tex, display="inline")
    if "\\" in made:  # an unknown command is left as it stands
        raise ValueError(f"the formula {tex!r} has a command that is not understood: {made}")
    return made
