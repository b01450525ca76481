"""Builds the CPU kernel where posenc is built, and where `make` runs this file: into src/posenc/backends/native/built.

A wheel gets a library for each level of processor, and with them the platform that it runs on; an editable install
the best level of this processor alone, since that is quick. POSENC_KERNEL=0 builds none, and POSENC_KERNEL=v3,baseline
these levels. Where there is no compiler, or it fails, posenc is built without: it has other ways to run everything.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # make has no need of it
    BuildHookInterface = object

NATIVE = Path(__file__).resolve().parent / "src/posenc/backends/native"
SWITCH = "POSENC_KERNEL"


def _module(name: str) -> ModuleType:
    """A file of the kernel's by itself: posenc's package asks for torch, which need not be there."""
    spec = importlib.util.spec_from_file_location(f"posenc_kernel_{name}", NATIVE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel(every_level: bool) -> tuple[list[Path], str | None, list[str]]:
    """Builds what is not built yet. Gives the files, the platform's tag, and in words what could not be built.
    ValueError for a level that there is not."""
    build, processor = _module("build"), _module("processor")
    asked = os.environ.get(SWITCH, "")
    if asked == "0":
        return [], None, [f"{SWITCH}=0 turns it off"]
    wanted = []
    for precision in build.PRECISIONS:
        levels = processor.levels(precision)
        if asked:
            known = {level.name: level for level in processor.levels()}
            for name in asked.split(","):
                if name not in known:
                    raise ValueError(f"{SWITCH} must be 0 or levels of {', '.join(known)}, got {name!r}")
            levels = [level for level in levels if level.name in asked.split(",")]
        elif not every_level:
            levels = processor.runnable(precision)[:1]
        wanted += [(precision, level) for level in levels]
    try:
        outcomes = build.build(build.BUILT, wanted)
    except build.UnavailableError as error:
        return [], None, [str(error)]
    reasons = [f"{one.precision}, {one.level}: {one.reason}" for one in outcomes if one.reason]
    failed = {(one.precision, one.level) for one in outcomes if one.reason}
    files: list[Path] = []
    for precision, level in wanted:
        if (precision, level.name) not in failed:
            path = build.record_path(build.BUILT, precision, level.name, build.identity(precision, level))
            files += [path, path.with_name(build.read(path).file)]
    tag = build.platform_tag(file for file in files if file.suffix == ".so") if files else None
    return files, tag, reasons


class KernelHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """What hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        files, tag, reasons = kernel(every_level=version != "editable")
        for reason in reasons:
            self.app.display_warning(f"posenc's CPU kernel is not built: {reason}")
        if files and version != "editable":  # which finds them where they are
            build_data["artifacts"] += [f"/{path.relative_to(self.root).as_posix()}" for path in files]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"


if __name__ == "__main__":
    try:
        for said in kernel(every_level=False)[2]:
            print(f"posenc's CPU kernel is not built: {said}")
    except ValueError as error:
        sys.exit(f"posenc: error: {error}")
