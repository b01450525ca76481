"""The explorer as the README and the documentation show it, and the figure of each step of the lesson:
``python -m tests.explore.screenshots [STEP ...]``. Look at each."""

import io
import math
import sys
from pathlib import Path

from PIL import Image

from posenc_lab.explore.content import content
from posenc_lab.explore.lesson import lesson
from tests.explore.browser import Watched, chromium, served, watched

IMAGES = Path(__file__).parents[4] / "docs" / "images"


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
    picture = page.page.locator(".picture").first.bounding_box()
    assert picture
    whole = {"x": 0.0, "y": 0.0, "width": 1100.0, "height": picture["y"] + picture["height"]}
    return page.page.screenshot(full_page=True, clip=whole)  # type: ignore[arg-type]


def step(page: Watched, address: str, name: str) -> bytes:
    """The picture of a step as it opens, and what is drawn beneath it."""
    page.open(f"{address}#step={name}")
    page.until_drawn(name)
    page.page.add_style_tag(content=".step .controls, .step .copy, .going-on { display: none }")
    drawn = page.page.locator(".step > .figure .picture, .step > .figure .beneath:has(svg, canvas)")
    boxes = drawn.evaluate_all("all => all.map(one => one.getBoundingClientRect().toJSON())")
    top, height = math.floor(boxes[0]["top"]), math.ceil(boxes[-1]["bottom"]) - math.floor(boxes[0]["top"])
    whole = {"x": boxes[0]["x"], "y": top + page.page.evaluate("scrollY"), "width": boxes[0]["width"], "height": height}
    return page.page.screenshot(full_page=True, clip=whole)  # type: ignore[arg-type]


if __name__ == "__main__":
    steps = sys.argv[1:] or [one.name for one in lesson()]
    with served(content()) as address, chromium() as browser:
        for end, dark in (("", False), ("-dark", True)):
            with watched(browser, width=1100, height=800, dark=dark) as page:
                if not sys.argv[1:]:
                    kept(explorer(page, address), IMAGES / f"explorer{end}.png")
                for name in steps:
                    kept(step(page, address, name), IMAGES / "lesson" / f"{name}{end}.png")
