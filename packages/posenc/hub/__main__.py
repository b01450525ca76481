"""Writes the rotation as a repository that the package `kernels` loads: `python packages/posenc/hub FOLDER`.

Both of its variants, for CUDA and for the CPU, are the same files: `rotary.py` of this folder, and the kernel and its
launch out of the library. It needs no compiler, no torch and none of posenc.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parent / "src" / "posenc"
NAME, VERSION = "posenc-rotary", 1
VARIANTS = ("cuda", "cpu")


def write(folder: Path) -> None:
    """Writes the repository into ``folder``, which must be new, empty, or written by this before."""
    if folder.exists() and not (folder / "build").is_dir() and any(folder.iterdir()):
        raise SystemExit(f"{folder} must be new or empty, or have been written by this before")
    of_library = (LIBRARY / "rotation" / "kernel.py", LIBRARY / "rotation" / "launch.py")
    release = re.search(r'__version__ = "(.*)"', (LIBRARY / "__init__.py").read_text())
    assert release is not None
    for backend in VARIANTS:
        variant = folder / "build" / f"torch-{backend}"
        shutil.rmtree(variant, ignore_errors=True)
        variant.mkdir(parents=True)
        shutil.copy(HERE / "rotary.py", variant / "__init__.py")
        for file in of_library:
            shutil.copy(file, variant)
        told = {
            "id": f"{NAME.replace('-', '_')}_{backend}_{VERSION}_posenc_{release[1].replace('.', '_')}",
            "name": NAME,
            "version": VERSION,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (variant / "metadata.json").write_text(json.dumps(told, indent=2) + "\n")
    shutil.copy(HERE / "README.md", folder)
    shutil.copy(HERE.parent / "LICENSE", folder)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]))
    print(f"Written: {sys.argv[1]}")
