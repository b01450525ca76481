"""What the tests of the explorer share."""

from collections.abc import Iterator
from typing import Any

import pytest

from posenc_lab.explore.content import content
from tests.explore import node
from tests.explore.browser import Watched, chromium, sample_content, served, watched


@pytest.fixture(scope="session")
def executable() -> str:
    """A node to run JavaScript with; without one the test is skipped, and says so."""
    found = node.find()
    if found is None:
        pytest.skip("no node to run JavaScript with: pip install playwright brings one")
    return found


@pytest.fixture(scope="session")
def javascript(executable: str) -> Iterator[node.Node]:
    """The explorer's JavaScript, in one process for all tests."""
    with node.Node(executable) as running:
        yield running


@pytest.fixture(scope="session")
def plain() -> dict[str, Any]:
    """The data of a saved page, without schemes or records of the user's."""
    return content(is_saved=True)


@pytest.fixture(scope="module")
def figures(javascript: node.Node, plain: dict[str, Any]) -> node.Node:
    """The explorer's JavaScript with this data; each module says it again, since another may have given others."""
    javascript("content", **plain)
    return javascript


@pytest.fixture(scope="session")
def shown() -> dict[str, Any]:
    return sample_content()


@pytest.fixture(scope="session")
def address(shown: dict[str, Any]) -> Iterator[str]:
    with served(shown) as at:
        yield at


@pytest.fixture(scope="module")  # for longer, and no other test of the process could run a loop of asyncio
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Watched]:
    with watched(browser) as one:
        yield one


@pytest.fixture
def page(tab: Watched) -> Iterator[Watched]:
    """A page that must have logged no error when the test is over."""
    tab.renew()
    yield tab
    assert tab.errors == []
