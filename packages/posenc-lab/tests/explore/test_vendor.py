"""What others have written lies in the package as they published it."""

import re
from hashlib import sha256

import pytest

from posenc_lab.explore.page import STATIC

ROWS = re.findall(r"^\| `(.+?)` \| .*?, `(\S+)` \| `(\w{64})` \|$", (STATIC / "vendor/README.md").read_text(), re.M)


def test_every_file_is_listed() -> None:
    listed = {name for file, licence, _ in ROWS for name in (file, licence)}
    assert {path.name for path in (STATIC / "vendor").iterdir()} == listed | {"README.md"}


@pytest.mark.parametrize(("file", "checksum"), [(file, checksum) for file, _, checksum in ROWS])
def test_it_is_unchanged(file: str, checksum: str) -> None:
    assert sha256((STATIC / "vendor" / file).read_bytes()).hexdigest() == checksum
