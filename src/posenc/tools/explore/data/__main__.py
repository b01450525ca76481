"""``python -m posenc.tools.explore.data``: measures every law on every scheme, into ``laws.json`` beside this."""

import json
from pathlib import Path

from rich.console import Console

from posenc.schemes.catalog import catalog
from posenc.tools.explore.data import shown
from posenc.tools.kit.files import require_writable, write_whole
from posenc.tools.kit.progress import for_console
from posenc.tools.laws.table import audit

FILE = Path(__file__).with_name("laws.json")


def main() -> None:
    """Writes the file once everything is measured; if interrupted, the old file remains."""
    require_writable(FILE)
    found = {}
    with for_console(Console(stderr=True)) as progress:
        progress.begin(len(catalog()))
        for entry in catalog():
            progress.advance(0, entry.name)
            found[entry.name] = shown(audit(entry.name))
            progress.advance(1, entry.name)
    # One line per finding keeps diffs readable.
    schemes = ",\n".join(f"{json.dumps(name)}: {_lines(laws)}" for name, laws in found.items())
    write_whole(FILE, f"{{\n{schemes}\n}}\n".encode())


def _lines(laws: dict[str, dict[str, object]]) -> str:
    lines = (
        f"  {json.dumps(law)}: {json.dumps(said, ensure_ascii=False, allow_nan=False)}" for law, said in laws.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    main()
