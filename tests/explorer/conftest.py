"""What the tests of the explorer share."""

from collections.abc import Iterator

import pytest

from tests.explorer import node


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
