"""The explorer as the README and the documentation show it, and the figure of each step of the lesson:
``python -m tests.explore.screenshots [STEP ...]``. Look at each."""

import io
import sys
from pathlib import Path

from PIL import Image

from posenc.tools.explore.content import content
from posenc.tools.explore.lesson import lesson
from tests.explore.browser import Watched, chromium, served, watched

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def kept(png: bytes, path: Path) -> None:
    """In 256 colours, a third of the bytes."""
    path.parent.mkdir(exist_ok=True)
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(path, optimize=True)
    print(path)


def explorer(page: Watched, address: str) -> bytes:
    page.open(f"{address}#view=scores&scheme.tokens=64")
    page.until_drawn("scheme")
    page.page.wait_for_selector(".agreed:not([hidden]):not(:empty)", state="attached")
    page.page.evaluate("scrollTo(0, 0)")
    return page.page.screenshot()


def step(page: Watched, address: str, name: str) -> bytes:
    """The picture of a step as it opens."""
    page.open(f"{address}#step={name}")
    page.until_drawn(name)
    return page.page.locator(".step .picture").screenshot()


if __name__ == "__main__":
    steps = sys.argv[1:] or [one.name for one in lesson()]
    with served(content()) as address, chromium() as browser:
        for end, dark in (("", False), ("-dark", True)):
            with watched(browser, width=1100, height=800, dark=dark) as page:
                if not sys.argv[1:]:
                    kept(explorer(page, address), IMAGES / f"explorer{end}.png")
                for name in steps:
                    kept(step(page, address, name), IMAGES / "lesson" / f"{name}{end}.png")
