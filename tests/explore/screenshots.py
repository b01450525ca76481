"""The explorer as the README and the documentation show it: ``python -m tests.explore.screenshots``."""

from pathlib import Path

from posenc.tools.explore.content import content
from tests.explore.browser import chromium, served, watched

IMAGES = Path(__file__).parents[2] / "docs" / "images"

if __name__ == "__main__":
    with served(content()) as address, chromium() as browser:
        for dark in (False, True):
            with watched(browser, width=1100, height=800, dark=dark) as page:
                page.open(f"{address}#view=scores&scheme.tokens=64")
                page.until_drawn("scheme")
                page.page.wait_for_selector(".agreed:not(:empty)", state="attached")
                page.page.evaluate("scrollTo(0, 0)")
                path = IMAGES / f"explorer{'-dark' if dark else ''}.png"
                page.page.screenshot(path=path)
                print(path)
