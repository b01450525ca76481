"""The explorer in a real browser: Debian's chromium, or another, through Playwright."""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import posenc
from posenc_lab.explore.content import content
from posenc_lab.explore.page import STATIC
from posenc_lab.explore.show import seen
from tests.compare import synthetic_records

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

# Views are lists of figures in views.js; the file of a figure has its name.
VIEWS = re.findall(r'^        name: "([a-z]+)"', (STATIC / "views.js").read_text(encoding="utf-8"), re.MULTILINE)
FIGURES = re.findall(r'"posenc/(?:figures|steps)/([\w-]+)\.js"', (STATIC / "views.js").read_text(encoding="utf-8"))

# Without these chromium asks its maker's hosts for updates and the like.
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--force-color-profile=srgb",
)

SIZE: ViewportSize = {"width": 1200, "height": 900}


def executable() -> str | None:
    """A chromium of this machine's, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def sample_content() -> dict[str, Any]:
    """What pages are tested with: a scheme as `posenc_lab.show` has it, and the records of a made-up comparison."""
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(json.dumps(record) + "\n" for record in synthetic_records.records(seeds=(0, 1)))
        (Path(folder) / "records.jsonl").write_text(text)
        found = content(records=[Path(folder)])
    found["records"][0]["name"] = "runs/made-up"
    return {**found, "seen": [seen(posenc.Sandwich(4), "sandwich")]}


@contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=QUIET)
        yield browser
        browser.close()


@contextmanager
def served(content: dict[str, Any]) -> Iterator[str]:
    """The address of a server that shows this."""
    import uvicorn

    from posenc_lab.explore.server import application

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(content), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join(timeout=10)
    listening.close()


class Watched:
    """A page whose errors and requests are kept."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def renew(self) -> None:
        """As a new page is, but for the code that it has compiled, which takes most of a page's time. What gives a
        page a script of its own to begin with needs a new one."""
        self.page.goto("about:blank")
        self.page.unroute_all()
        self.page.emulate_media(media="null")
        self.page.set_viewport_size(SIZE)
        self.page.mouse.move(0, 0)
        self.errors.clear()
        self.requests.clear()

    def open(self, address: str) -> None:
        """Opens an address, anew even where only what follows the "#" differs."""
        self.page.goto("about:blank")
        self.page.goto(address)

    def show(self, address: str, figure: str, state: str = "") -> None:
        """Opens a figure alone, in a state, and waits until it is drawn."""
        self.open(f"{address}#figure={figure}{state and f'&{state}'}")
        self.until_drawn(figure)

    def until_drawn(self, *figures: str) -> None:
        """Waits until these figures were drawn, each brought into sight before. AssertionError with what one says in
        their place."""
        for figure in figures:
            section = self.page.locator(f'[data-figure="{figure}"]')
            section.scroll_into_view_if_needed()
            self.page.wait_for_function(
                """name => window.posenc.drawn.has(name)
                    || !document.querySelector(`[data-figure="${name}"] .error`).hidden""",
                arg=figure,
                timeout=30_000,
            )
            drawn = self.page.evaluate("name => window.posenc.drawn.has(name)", figure)
            assert drawn, f"{figure} was not drawn: {section.locator('.error').inner_text()} {self.errors}"

    def shown(self) -> list[str]:
        """The figures that the page has."""
        return self.page.locator("[data-figure]").evaluate_all("all => all.map(one => one.dataset.figure)")


@contextmanager
def watched(
    browser: Browser, width: int = SIZE["width"], height: int = SIZE["height"], dark: bool = False
) -> Iterator[Watched]:
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        device_scale_factor=1,
    )
    yield Watched(context.new_page())
    context.close()


def violations(page: Watched) -> list[str]:
    """What axe's rules of accessibility find wrong on a page."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{found['id']}: {found['help']}: " + "; ".join(node["html"][:150] for node in found["nodes"][:4])
        for found in Axe().run(page.page).response["violations"]
    ]
