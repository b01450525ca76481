"""Draws every figure anew and keeps its picture: ``python -m tests.explore.pictures [FIGURE ...]``. Look at each."""

import io
import sys

from PIL import Image

from tests.explore.browser import FIGURES, chromium, sample_content, served, watched
from tests.explore.test_page import PICTURES, drawn

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with served(sample_content()) as address, chromium() as browser:
        for figure in sys.argv[1:] or FIGURES:
            with watched(browser) as page:
                page.open(f"{address}#figure={figure}&theme=light")
                page.until_drawn(figure)
                png = drawn(page, figure)
            image = Image.open(io.BytesIO(png)).convert("RGB")
            # Twice the height that the test compares at: a row more or less would shift all others.
            image = image.resize((480, 2 * max(1, round(240 * image.height / image.width))), Image.Resampling.BOX)
            image.quantize(256).save(PICTURES / f"{figure}.png", optimize=True)
            print(figure)
