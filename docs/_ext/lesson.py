"""The lesson of the explorer as pages, docs/learn/NAME.md: made of the same text when the site is built.

The picture of a page is seen where the figure cannot run: on paper, and without JavaScript.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from posenc_lab.explore.lesson import PART, STEPS, Step, lesson

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "learn"
PICTURES = DOCS / "images" / "lesson"
LINK = re.compile(r"\[[a-z]+\]\(((?:\.\./)*)learn/index\.md#([a-z]+)\)")
PAGE = """# {title}

{text}

```{{image}} ../images/lesson/{name}.png
:alt: {title}
:class: only-light still
```

```{{image}} ../images/lesson/{name}-dark.png
:alt: {title}
:class: only-dark still
```

```{{explorer}} {name}
```

## Predict

{predict}

<details>
<summary>What the picture shows</summary>

{beliefs}

</details>

## Question

{question}

<details>
<summary>The answer, and what other answers overlook</summary>

{answers}

</details>

{onward}
"""
LISTED = """
{links}

```{{toctree}}
:hidden:

{names}
```
"""


def heading(step: Step) -> str:
    return f"{step.number}. {step.title}" if step.number else step.title


def link(step: Step) -> str:
    return f"[{heading(step)}]({step.name}.md)"


def page(step: Step, steps: list[Step]) -> str:
    """The page of a step, as Markdown."""
    for name in (f"{step.name}.png", f"{step.name}-dark.png"):
        if not (PICTURES / name).is_file():
            raise ExtensionError(f"{PICTURES / name} is not there: python -m tests.explore.screenshots makes it")
    near = {
        "Back": [one for one in steps if one.name == step.of],
        "Side path": [one for one in steps if one.of and step.name in (one.of, STEPS[-1])],
        "Next": [one for one in steps if step.number and one.number == step.number + 1],
    }
    onward = [f"{word}: {link(one)}" for word, found in near.items() for one in found]
    beliefs = "\n".join(f"- *{words}* {why}" for words, why in step.beliefs.values())
    return PAGE.format(
        predict=step.predict,
        beliefs=beliefs,
        title=heading(step),
        name=step.name,
        # The picture of the page has no parts to light, and another step is another page.
        text=re.sub(r"\(#step=([a-z]+)\)", r"(\1.md)", PART.sub(r"\1", step.text)),
        question=step.question,
        answers="\n".join(f"- {words}" for words in step.answers.values()),
        onward="\n\n".join(filter(None, [step.next, *onward])),
    )


def write(app: Sphinx) -> None:
    """Writes the pages that are not there or not as the text is, and removes those of steps that are no more."""
    steps = lesson()
    pages = {PAGES / f"{step.name}.md": page(step, steps) for step in steps}
    for file in {*PAGES.glob("*.md")} - {*pages, PAGES / "index.md"}:
        file.unlink()
    for file, text in pages.items():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def listed(app: Sphinx, docname: str, source: list[str]) -> None:
    """In the site docs/learn/index.md leads to the pages. So do links to its parts, ``[turn](learn/index.md#turn)``,
    which have the titles of the steps."""
    steps = lesson()
    headings = {step.name: heading(step) for step in steps}
    source[0] = LINK.sub(lambda found: f"[{headings[found[2]]}]({found[1]}learn/{found[2]}.md)", source[0])
    if docname == "learn/index":
        links = "\n".join(f"- {link(step)}" for step in steps)
        source[0] += LISTED.format(links=links, names="\n".join(step.name for step in steps))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("source-read", listed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
