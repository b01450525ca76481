"""Builds the CPU kernel where posenc is built, and where `make` runs this file: into src/posenc/backends/native/built.

Builds the best level of this processor that the compiler knows, since that is quick. POSENC_KERNEL=all builds every
level, for a wheel that is given away; POSENC_KERNEL=v3,baseline these levels, and POSENC_KERNEL=0 none. A processor
without the level of a library does not load it. A wheel with libraries says which platform it runs on. Where there is
no compiler, or it fails, posenc is built without: slower backends run everything.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # make has no need of it
    BuildHookInterface = object

NATIVE = Path(__file__).resolve().parent / "src/posenc/backends/native"
SWITCH = "POSENC_KERNEL"
ALL = "all"
# The libraries that a wheel for Linux may need of the system (PEP 600), and of C++'s the newest that the systems of
# 2018 have, as torch asks for it too.
OF_SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6"}
NEWEST_CXX = (3, 4, 24)


def _module(name: str) -> ModuleType:
    """A file of the kernel's by itself: posenc's package asks for torch, which need not be there."""
    spec = importlib.util.spec_from_file_location(f"posenc_kernel_{name}", NATIVE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel() -> tuple[list[Path], str | None, list[str]]:
    """Builds what is not built yet. Gives the files, the platform's tag, and in words what could not be built.
    ValueError for an unknown level."""
    build = _module("build")
    asked = os.environ.get(SWITCH, "")
    if asked == "0":
        return [], None, [f"{SWITCH}=0 turns it off"]
    known = {level.name: level for level in build.levels()}
    names = asked.split(",") if asked not in ("", ALL) else list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{SWITCH} must be 0, {ALL}, or levels of {', '.join(known)}, got {name!r}")
    try:
        if asked:
            of = ((precision, level) for precision in build.PRECISIONS for level in build.levels(precision))
            outcomes = build.build(build.BUILT, [(precision, level) for precision, level in of if level.name in names])
        else:
            outcomes = build.build_best(build.BUILT, {x: build.runnable(x) for x in build.PRECISIONS})
    except build.UnavailableError as error:
        return [], None, [str(error)]
    reasons = [f"{one.precision}, {one.level}: {one.reason}" for one in outcomes if one.reason]
    files: list[Path] = []
    for one in outcomes:
        if one.reason is None:
            told = build.identity(one.precision, known[one.level])
            path = build.record_path(build.BUILT, one.precision, one.level, told)
            files += [path, path.with_name(build.read(path).file)]
    tag = platform_tag(file for file in files if file.suffix == build.SUFFIX) if files else None
    return files, tag, reasons


def platform_tag(libraries: Iterable[Path]) -> str:
    """What a wheel with these libraries says that it runs on. On Linux with glibc the version is the newest that one of
    them asks for; where they ask for more than PEP 600 allows, it is for systems like this one."""
    if sys.platform == "darwin":
        version = str(sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET") or "11.0").split(".")
        return f"macosx_{version[0]}_{version[1] if len(version) > 1 else 0}_{platform.machine()}"
    contents = [path.read_bytes() for path in libraries]
    # Versions and names stand in a library as text.
    glibc = max((v for content in contents for v in _versions(rb"GLIBC_", content)), default=())
    cxx = max((v for content in contents for v in _versions(rb"GLIBCXX_", content)), default=())
    needed = {
        name.decode() for content in contents for name in re.findall(rb"\0(lib[\w+.-]+\.so[.\d]*)(?=\0)", content)
    }
    if len(glibc) < 2 or cxx > NEWEST_CXX or not needed <= OF_SYSTEM:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"


def _versions(name: bytes, content: bytes) -> list[tuple[int, ...]]:
    return [tuple(map(int, found.split(b"."))) for found in re.findall(rb"\b" + name + rb"([\d.]+\d)\0", content)]


class KernelHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """What hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        # pip shows this with -v.
        self.app.display_waiting(f"posenc: building the CPU kernel ({SWITCH}=0 builds none)")
        files, tag, reasons = kernel()
        for path in files[::2]:
            self.app.display_info(f"posenc: built {path.stem.rpartition('-')[0]}")
        for reason in reasons:
            self.app.display_warning(f"posenc's CPU kernel is not built: {reason}")
        if files and version != "editable":  # which finds them where they are
            build_data["artifacts"] += [f"/{path.relative_to(self.root).as_posix()}" for path in files]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"


if __name__ == "__main__":
    try:
        for said in kernel()[2]:
            print(f"posenc's CPU kernel is not built: {said}")
    except ValueError as error:
        sys.exit(f"posenc: error: {error}")
