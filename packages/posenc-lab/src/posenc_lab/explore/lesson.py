"""Reads the lesson: the text of each step, one source for the page and for the documentation.

The file of a step, ``lesson/NAME.md``, begins with its title. Then come the text, a question that is
answered with the figure, a sentence for each kind of answer, and a sentence that leads to the next step:

    ---
    title: Why a model needs positions
    ---
    One to four short paragraphs, with $mathematics$, and [words]{part=name} that are bound to a part of the picture.

    ## Predict
    What will the picture show, once it is changed in a way that is said?

    - `right`: an answer | why it is so. The page then shows the picture, changed, and says "Right." before this.
    - `some-belief`: another answer | what the picture shows instead.

    ## Question
    One or two sentences.

    - `right`: what the answer shows. The page says "Right." before it.
    - `some-mistake`: what this answer overlooks. The page says "Not yet." before it.

    ## Next
    One sentence.

The figure is ``static/steps/NAME.js``. Its `question.judge` gives the key of an answer, and `predict` is the state of
the picture that was to be predicted.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markupsafe import Markup

from posenc_lab.explore.mathml import inline

FOLDER = Path(__file__).parent / "lesson"
STEPS = ("why", "add", "clockwork", "table", "turn", "bias", "beside", "longer", "stretch", "decide")
ASIDE = {
    "shuffle": "why",
    "segments": "add",
    "decay": "turn",
    "images": "turn",
    "grid": "turn",
    "content": "bias",
    "rescale": "bias",
    "past": "longer",
    "layers": "stretch",
}
"""Side paths, and the step that each belongs to."""

FILE = re.compile(
    r"---\ntitle: (?P<title>[^\n]+)\n---\n(?P<text>.+?)\n"
    r"## Predict\n(?P<predict>.+?)\n(?P<beliefs>(?:\n- `.+?)+)\n\n"
    r"## Question\n(?P<question>.+?)\n(?P<answers>(?:\n- `.+?)+)(?:\n\n## Next\n(?P<next>.+?))?\n*",
    re.DOTALL,
)
ANSWER = re.compile(r"\n- `(?P<key>[a-z-]+)`: (?P<words>[^\n]+(?:\n  [^\n]+)*)")
MATH = re.compile(r"\$([^$\n]+)\$")
PART = re.compile(r"\[([^\]\n]+)\]\{part=([a-z]+)\}")


@dataclass(frozen=True)
class Step:
    """A step as it is written, in Markdown. A side path has the number 0, and ``of`` is the step it belongs to."""

    name: str
    number: int
    of: str
    title: str
    text: str
    question: str
    answers: dict[str, str]
    next: str
    predict: str
    beliefs: dict[str, tuple[str, str]]
    """What may be predicted, in words, and what is said of it when the picture is seen."""


def read(path: Path) -> Step:
    """The step of a file. ValueError with what is wrong in it."""
    found = FILE.fullmatch(path.read_text(encoding="utf-8"))
    if not found:
        raise ValueError(
            f"{path.name} must have its title between lines of ---, a text, ## Predict and ## Question with lists of "
            "answers, and after that nothing but ## Next"
        )
    name = path.stem
    if name not in (*STEPS, *ASIDE):
        raise ValueError(f"{path.name} must be named after one of {', '.join((*STEPS, *ASIDE))}")
    answers = _listed(path, found["answers"])
    beliefs = {key: words.partition(" | ") for key, words in _listed(path, found["beliefs"]).items()}
    if bare := [key for key, (_, bar, _) in beliefs.items() if not bar]:
        raise ValueError(f"{path.name} must have an answer, a bar and its explanation in {bare[0]!r} of ## Predict")
    return Step(
        name=name,
        number=STEPS.index(name) + 1 if name in STEPS else 0,
        of=ASIDE.get(name, ""),
        title=found["title"],
        text=found["text"].strip(),
        question=found["question"].strip(),
        answers=answers,
        next=(found["next"] or "").strip(),
        predict=found["predict"].strip(),
        beliefs={key: (words, why) for key, (words, _, why) in beliefs.items()},
    )


def _listed(path: Path, lines: str) -> dict[str, str]:
    """The sentences of a list, by their keys."""
    found = {one["key"]: " ".join(one["words"].split()) for one in ANSWER.finditer(lines)}
    if "".join(one[0] for one in ANSWER.finditer(lines)) != lines.rstrip("\n"):
        raise ValueError(f"{path.name} must list its answers as lines of - `key`: sentence, a key of small letters")
    if lines and (next(iter(found)) != "right" or len(found) < 3):
        raise ValueError(f"{path.name} must list `right` and then at least two others, got {', '.join(found)}")
    return found


def lesson() -> list[Step]:
    """All steps in their order, then the side paths."""
    return [read(FOLDER / f"{name}.md") for name in (*STEPS, *ASIDE)]


def quiz() -> list[dict[str, Any]]:
    """The questions at the end: {step, words, answers}, the right answer first."""
    found: list[dict[str, Any]] = tomllib.loads((FOLDER / "quiz.toml").read_text(encoding="utf-8"))["question"]
    return found


def scores(step: Step) -> dict[str, list[Any]]:
    """The board at the end of a step, {properties, rows}: a row has its `title`, whether it `is_new`, and for each
    property its verdict, yes, no or partly, and the reason; both are empty where the property comes in a later step."""
    board = tomllib.loads((FOLDER / "scores.toml").read_text(encoding="utf-8"))
    at = {name: number for number, name in enumerate(STEPS, 1)}
    return {
        "properties": board["property"],
        "rows": [
            {
                "title": row["title"],
                "is_new": row["step"] == step.name,
                "cells": [
                    row[one["name"]].partition(": ")[::2] if at[one["step"]] <= step.number else ("", "")
                    for one in board["property"]
                ],
            }
            for row in board["row"]
            if at[row["step"]] <= step.number
        ],
    }


def html(markdown: str) -> Markup:
    """Markdown as HTML, its $mathematics$ as MathML."""
    return Markup(_MARKDOWN.render(markdown))


def html_of_line(markdown: str) -> Markup:
    """The same without a paragraph around it."""
    return Markup(_MARKDOWN.renderInline(markdown))


def _math(state: StateInline, silent: bool) -> bool:
    found = MATH.match(state.src, state.pos)
    if not found:
        return False
    if not silent:
        state.push("math", "", 0).content = found[1]
    state.pos = found.end()
    return True


def _part(state: StateInline, silent: bool) -> bool:
    found = PART.match(state.src, state.pos)
    if not found:
        return False
    if not silent:
        token = state.push("part", "dfn", 0)
        token.content, token.info = found.groups()
    state.pos = found.end()
    return True


def _render_part(renderer: RendererHTML, tokens: Any, at: int, *rest: Any) -> str:
    """Words that light a part of the picture, and can have the focus. The page finds both by the name."""
    return f'<dfn data-part="{tokens[at].info}" tabindex="0">{html_of_line(tokens[at].content)}</dfn>'


def _render_math(renderer: RendererHTML, tokens: Any, at: int, *rest: Any) -> str:
    return inline(tokens[at].content)


_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_MARKDOWN.inline.ruler.before("escape", "math", _math)
_MARKDOWN.add_render_rule("math", _render_math)
_MARKDOWN.inline.ruler.before("link", "part", _part)
_MARKDOWN.add_render_rule("part", _render_part)
