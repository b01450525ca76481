"""The site is built without a warning; its links lead somewhere, and nothing of it is of another host."""

import re
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import posenc
from posenc.command import cli
from posenc.schemes.catalog import CATALOG
from tests.docs.pages import ROOT
from tests.explore.browser import chromium, executable, watched

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the site is built with Python 3.11 or later")
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "video": "src", "object": "data"}


class Page(HTMLParser):
    """A page of the site: its anchors, where it leads, and what a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.anchors: set[str] = set()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.unnamed: list[str] = []
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        if tag == "link" and given.get("rel") not in ("index", "search", "next", "prev"):
            self.loads.append(given["href"])
        if given.get(LOADED.get(tag, "")):
            self.loads.append(given[LOADED[tag]])
        if (tag == "img" and not given.get("alt")) or (tag == "iframe" and not given.get("title")):
            self.unnamed.append(given.get("src", tag))
        self.loads += re.findall(r"url\(['\"]?([^'\")]+)", given.get("style", ""))


def is_elsewhere(address: str) -> bool:
    """Whether it is of another host."""
    return bool(urlsplit(address).netloc)


def dead(page: Page, site: Path, pages: dict[Path, Page]) -> Iterable[str]:
    """The links of a page that lead nowhere. Of another host's the form is looked at alone."""
    for link in page.leads:
        parts = urlsplit(link)
        if parts.scheme in ("http", "https"):
            if not re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?", parts.netloc) or re.search(r"\s", link):
                yield link
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        there = target.is_file() and target.is_relative_to(site)
        anchors = pages[target].anchors if target in pages else {unquote(parts.fragment)}
        if not there or (parts.fragment and unquote(parts.fragment) not in anchors):
            yield link


@pytest.mark.slow
@pytest.mark.more
def test_the_site(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One build, and all that is asked of it."""
    site = tmp_path / "site"
    assert cli.main(["explore", "--export", str(ROOT / "docs" / "_static" / "explorer.html")]) == 0
    words = "-m sphinx -W --keep-going -q -b html docs".split()  # noqa: SIM905
    built = subprocess.run(
        [sys.executable, *words, str(site)], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert built.returncode == 0, built.stderr  # 1 on any warning
    exported = site / "_static" / "explorer.html"
    pages = {path: Page(path) for path in site.rglob("*.html") if path != exported}
    named = {path.relative_to(site).as_posix(): page for path, page in pages.items()}

    with subtests.test("every page of docs is there, and one for each scheme"):
        for source in (ROOT / "docs").glob("*.md"):
            assert f"{source.stem}.html" in named
        for entry in CATALOG:
            page = named[f"schemes/{entry.name}.html"]
            assert any(entry.variant) or f"posenc.{entry.title}" in page.anchors
            assert (site / "_images" / f"{entry.name}.png").is_file()
            assert (site / "_images" / f"{entry.name}-dark.png").is_file()

    with subtests.test("every public name is documented"):
        anchors = set[str]().union(*(page.anchors for page in pages.values()))
        for name in posenc.__all__:
            value = getattr(posenc, name)
            module = getattr(value, "__module__", "")  # modules have none, but a name
            homes = {f"posenc.{name}", f"module-{getattr(value, '__name__', '')}", f"{module}.{name}"}
            assert homes & anchors, name

    with subtests.test("no link leads nowhere"):
        assert {name: found for name, page in named.items() if (found := list(dead(page, site, pages)))} == {}

    with subtests.test("nothing is loaded from another host"):
        assert {name: found for name, page in named.items() if (found := [*filter(is_elsewhere, page.loads)])} == {}
        for sheet in site.rglob("*.css"):
            text = sheet.read_text(encoding="utf-8")
            assert not [a for a in re.findall(r"(?:url\(|@import\s)['\"]?([^'\")]+)", text) if is_elsewhere(a)], sheet

    with subtests.test("formulas are MathML"):
        for entry in CATALOG:
            if entry.formula:
                text = named[f"schemes/{entry.name}.html"].text
                assert re.search(r'<div class="formula"[^>]*><p><span class="part"><math ', text), entry.name
        assert not [name for name, page in named.items() if "$$" in page.text]

    with subtests.test("pictures and frames have names"):
        assert {name: page.unnamed for name, page in named.items() if page.unnamed} == {}

    if executable():
        with subtests.test("every frame draws its figure, in the state that it is given"), chromium() as browser:
            frames = {load.partition("#")[2] for page in pages.values() for load in page.loads if "#figure=" in load}
            assert len(frames) > len(CATALOG)
            # Of the schemes' pages, which all have the same figure, one in six: test_figures.py has all.
            alike = sorted(state for state in frames if state.startswith("figure=scheme&"))
            with watched(browser) as shown:
                for state in sorted(frames - set(alike)) + alike[::6]:
                    shown.open(f"{exported.as_uri()}#{state}")
                    shown.until_drawn(state.removeprefix("figure=").partition("&")[0])
                    assert shown.page.locator(".error:visible").all_inner_texts() == [], state
                assert shown.errors == []
