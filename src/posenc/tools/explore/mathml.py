"""Formulas as MathML, which browsers draw and screen readers say without a script."""

import re

from latex2mathml.converter import convert


def mathml(tex: str) -> str:
    """One formula, or several lines of it, each a block of its own; nothing for an empty one."""
    lines = [line.strip() for line in re.split(r"\\\\\s*\n|\n\s*\n", tex.strip())]
    return "".join(convert(line, display="block") for line in lines if line)
