"""``python -m posenc_lab.explore.data``: measures every law on every scheme, into ``laws.json`` beside this."""

import json
import sys
from pathlib import Path

from posenc.command.files import require_writable, write_whole
from posenc.command.progress import for_stream
from posenc.schemes.catalog import catalog
from posenc_lab.explore.data import shown
from posenc_lab.laws.table import audit

FILE = Path(__file__).with_name("laws.json")


def main() -> None:
    """Writes the file once everything is measured; if interrupted, the old file remains."""
    require_writable(FILE)
    found = {}
    with for_stream(sys.stderr) as progress:
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
