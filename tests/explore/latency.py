"""How long a step of each figure's sliders takes in the browser: ``python -m tests.explore.latency``.

Sliders of sizes are set to their ends first, so that a matrix is at its largest. Then every slider is dragged over its
range in steps, a step a frame. Printed with the table is where it was measured.
"""

import sys
from statistics import median

import torch

from posenc.tools.kit.machine import machine
from tests.explore.browser import FIGURES, chromium, sample_content, served, watched

HEAD = "| figure | sizes | slowest slider | computing and drawing, ms: median (slowest) | to the screen, ms: median |"

# What makes a picture larger.
SIZES = (
    "length",
    "tokens",
    "size",
    "positions",
    "distances to",
    "up to distance",
    "dim",
    "head_dim",
    "rows",
    "columns",
)

DRAG = """async ([figure, control, count]) => {
    const section = document.querySelector(`[data-figure="${figure}"]`);
    const inputs = [...section.querySelectorAll('.controls input[type=range]')];
    const input = inputs[control];
    if (!input) return null;
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    const from = window.posenc.timings[figure].length;
    const [low, high] = [Number(input.min), Number(input.max)];
    for (let n = 1; n <= count; n++) {
        input.value = low + ((high - low) * n) / count;
        input.dispatchEvent(new Event("input"));
        await frame();
        await frame();
    }
    const name = input.closest("label").querySelector("span").firstChild.textContent.trim();
    return { name, steps: window.posenc.timings[figure].slice(from) };
}"""


def rows() -> list[str]:
    found = []
    with served(sample_content()) as address, chromium() as browser:
        for figure in FIGURES:
            with watched(browser) as page:
                page.open(f"{address}#figure={figure}")
                page.until_drawn(figure)
                sliders = page.page.locator(f'[data-figure="{figure}"] .controls label:has(input[type=range])')
                sizes = []
                for n in range(sliders.count()):
                    name = sliders.nth(n).locator("span").first.inner_text().rsplit(" ", 1)[0].strip()
                    if name in SIZES:
                        sliders.nth(n).locator("input").focus()
                        page.page.keyboard.press("End")
                        page.page.wait_for_timeout(300)
                        sizes.append(sliders.nth(n).locator("span").first.inner_text().strip())
                slowest = None
                for n in range(sliders.count()):
                    dragged = page.page.evaluate(DRAG, [figure, n, 40])
                    if not dragged or not dragged["steps"] or dragged["name"] in SIZES:
                        continue
                    work = [step["compute"] + step["draw"] for step in dragged["steps"]]
                    screen = [step["step"] for step in dragged["steps"]]
                    one = (median(work), max(work), median(screen), dragged["name"])
                    slowest = max(slowest or one, one)
                if slowest:
                    work, most, screen, name = slowest
                    words = ", ".join(sizes) or "as it opens"
                    found.append(f"| `{figure}` | {words} | {name} | {work:.0f} ({most:.0f}) | {screen:.0f} |")
                    print(found[-1], file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    table = "\n".join([HEAD, "|---" * 5 + "|", *rows()])
    about = machine(torch.device("cpu"))
    with chromium() as browser:
        version = browser.version
    print(f"{table}\n\n{about['cores']} cores of {about['processor']}, {about['system']}, Chromium {version}")
