"""Libraries of the CPU kernel: built, kept, told apart, proved, taken, and refused in words.

Compilers here are scripts that copy a library which was built before, so nothing is compiled.
"""

import ctypes
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hatch_build
import posenc
from posenc import ALiBi, NoPE, RoPE
from posenc.backends.native import build, library
from posenc.backends.native.build import Level
from posenc.backends.native.library import LoadedLibrary
from posenc.command.cli import main

V3, V4, BASELINE = (next(x for x in build.LEVELS["x86_64"] if x.name == name) for name in ("v3", "v4", "baseline"))
SAID = "posenc's kernel gives wrong answers as built here by {by}: not used ({what})"
NO_LIBRARY = (
    "the CPU kernel has not been built for these sources and this processor: `posenc kernel --build` builds one, if "
    "there is a C++ compiler"
)


@pytest.fixture(scope="session")
def real() -> Path:
    """A library that was built, by `make kernel` or with posenc."""
    for candidate in library.candidates("float"):
        found = library.load(candidate.path)
        if found is not None:
            return found.path
    pytest.skip("there is no library to copy: make kernel builds one")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is built, kept, loaded or proved yet, and the processor is one with AVX-512."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POSENC_NATIVE", raising=False)
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    monkeypatch.setattr(build, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "flags", lambda: V4.needs)
    monkeypatch.setattr(library, "REALS", {torch.float32: "float", torch.float64: "double"})  # for others it is alike
    find = library.find.__wrapped__
    monkeypatch.setattr(library, "find", forgetful := lambda precision: find(precision))
    forgetful.cache_clear = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(library, "_load", library._load.__wrapped__)
    library._WARNINGS_SHOWN.clear()
    monkeypatch.setattr(library, "failures", lambda kernel, precision: ())
    return tmp_path


COPIES = """#!/bin/sh
case "$*" in *--version*) echo "{version}"; exit;; esac
echo "$*" >> {log}
{before}
for to; do case "$to" in -march=*|-DREAL=*|-O*) flags="$flags $to";; esac; done
cp {real} "$to"
echo "$flags" >> "$to"
"""


@pytest.fixture
def compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch, real: Path) -> Callable[..., Path]:
    """Makes a compiler that copies the library, and writes down what it is called with; CXX names it."""

    def make(before: str = "", version: str = "copier 1.0", of: Path | None = None, options: str = "") -> Path:
        log = fresh / "log"
        of = of or real
        text = COPIES.format(version=version, log=shlex.quote(str(log)), before=before, real=shlex.quote(str(of)))
        monkeypatch.setenv("CXX", f"{program(fresh, text)} {options}".strip())
        return log

    return make


def program(folder: Path, text: str) -> str:
    path = folder / "a compiler"
    path.write_text(text)
    path.chmod(0o755)
    return shlex.quote(str(path))


def calls(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def built(*levels: Level, precision: str = "float") -> list[build.Record]:
    """Built with posenc."""
    outcomes = build.build(build.BUILT, [(precision, level) for level in levels])
    assert [one.reason for one in outcomes] == [None] * len(levels)
    records = [build.read(path_of(level, precision)) for level in levels]
    return [record for record in records if record is not None]


def path_of(level: Level, precision: str = "float") -> Path:
    return build.record_path(build.BUILT, precision, level.name, build.identity(precision, level))


def level_in_use(precision: str = "float") -> str | None:
    found = library.find(precision)
    return found.record.level if isinstance(found, LoadedLibrary) else None


def refusal() -> str:
    return str(library.missing(torch.float32))


# --- the processor ----------------------------------------------------------------------------------------------------


def set_cpuinfo(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "cpuinfo").write_text(text)
    monkeypatch.setattr(build, "CPUINFO", folder / "cpuinfo")
    monkeypatch.setattr(build, "flags", build.flags.__wrapped__)
    monkeypatch.setattr(build.sys, "platform", "linux")


@pytest.mark.parametrize(
    ("more", "levels"),
    [
        ((), ["baseline"]),
        (V3.needs - {"fma"}, ["baseline"]),
        (V3.needs, ["v3", "baseline"]),
        (V4.needs, ["v4", "v3", "baseline"]),
        (V4.needs | {"avx512_bf16"}, ["bf16", "v4", "v3", "baseline"]),
        (V4.needs | {"avx512_bf16", "amx_tile", "amx_bf16"}, ["amx", "bf16", "v4", "v3", "baseline"]),
        (V4.needs | {"amx_tile", "amx_bf16"}, ["v4", "v3", "baseline"]),
    ],
)
def test_levels_follow_from_what_linux_lists(
    more: frozenset[str], levels: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = " ".join(["fpu", "sse2", *sorted(more)])
    text = f"processor\t: 0\nmodel name\t: A Processor\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    set_cpuinfo(monkeypatch, tmp_path, text)
    monkeypatch.setattr(build, "machine", lambda: "x86_64")
    assert [level.name for level in build.runnable()] == levels
    assert [level.name for level in build.runnable("float")] == [x for x in levels if x not in ("amx", "bf16")]
    assert build.processor_name() == "A Processor"


# --- building ---------------------------------------------------------------------------------------------------------


def test_it_is_built_once_and_told_of(compiler: Callable[..., Path]) -> None:
    log = compiler()
    (record,) = built(V4)
    assert (record.precision, record.level, record.compiler) == ("float", "v4", "copier 1.0")
    assert {"-march=x86-64-v4", "-DREAL=float", "-O3"} < set(shlex.split(record.command))
    built(V4, V3)
    assert ["-march=x86-64-v3" in call for call in calls(log)] == [False, True]
    names = {path.name for path in build.BUILT.iterdir() if path.suffix != ".json"}
    assert names == {".lock", *(x.file for x in built(V4, V3))}  # nothing half built is left


def test_a_library_of_other_sources_is_not_taken(
    compiler: Callable[..., Path], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    (record,) = built(V4)
    assert level_in_use() == "v4"
    sources = fresh / "sources"
    sources.mkdir()
    for path in build.sources():
        (sources / path.name).write_text(path.read_text())
    monkeypatch.setattr(build, "SOURCES", sources)
    assert level_in_use() == "v4"
    (sources / "call.h").write_text((sources / "call.h").read_text() + "\n")
    assert refusal() == NO_LIBRARY
    built(V3)
    assert not (build.BUILT / record.file).exists()
    assert [path.name.split("-")[2] for path in build.BUILT.glob("*.json")] == ["v3"]


def no_compiler(patch: pytest.MonkeyPatch, folder: Path) -> str:
    patch.setenv("PATH", str(folder))
    patch.delenv("CXX", raising=False)
    return "building it needs a C++ compiler, and none of c++, g++, clang++ was found"


def named(compiler: str, why: str) -> Callable[[pytest.MonkeyPatch, Path], str]:
    def spoil(patch: pytest.MonkeyPatch, folder: Path) -> str:
        (folder / "nothing").write_text("\x7fELF of nothing")
        (folder / "nothing").chmod(0o755)
        patch.setenv("CXX", compiler.format(folder=folder))
        return why.format(folder=folder)

    return spoil


def a_folder_that_cannot_be_written(patch: pytest.MonkeyPatch, folder: Path) -> str:
    patch.setenv("CXX", "true")
    (folder / "file").write_text("")
    patch.setattr(build, "BUILT", folder / "file" / "built")
    return f"{folder / 'file' / 'built'} cannot be written to: "


an_unbalanced_quote = named("g++ 'x", "CXX=g++ 'x cannot be read: No closing quotation")
UNBUILT = [
    no_compiler,
    named("no-such-compiler", "building it needs a C++ compiler, and CXX=no-such-compiler was not found"),
    an_unbalanced_quote,
    named("{folder}/nothing", "{folder}/nothing does not run: "),
    a_folder_that_cannot_be_written,
]


@pytest.mark.parametrize("spoil", UNBUILT)
def test_what_keeps_it_from_being_built_is_said(
    spoil: Callable[[pytest.MonkeyPatch, Path], str], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = spoil(monkeypatch, fresh)
    with pytest.raises(build.UnavailableError) as error:
        build.build(build.BUILT, [("float", V4)])
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "echo 'x.h:9: error: no such vectors' >&2; exit 1",
            "its C++ does not compile here: x.h:9: error: no such vectors",
        ),
        (r"printf 'x.h: error: \253caf\351\273\n' >&2; exit 1", "its C++ does not compile here: x.h: error: �caf�"),
        ("exit 3", "its C++ does not compile here: code 3"),
        ("exit 0", "wrote no library"),
    ],
)
def test_a_level_that_does_not_compile_is_left_out(before: str, message: str, compiler: Callable[..., Path]) -> None:
    compiler(f'case "$*" in *-march=x86-64-v4*) {before};; esac')
    outcomes = build.build(build.BUILT, [("float", V4), ("float", V3)])
    assert [(one.level, one.reason is None) for one in outcomes] == [("v4", False), ("v3", True)]
    assert str(outcomes[0].reason).endswith(message)
    assert level_in_use() == "v3"


def test_a_compiler_that_hangs_is_stopped_with_what_it_has_started(
    compiler: Callable[..., Path], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILER_SECONDS", 0.5)
    compiler(f"sleep 600 & echo $! > {shlex.quote(str(fresh / 'pid'))}; wait")
    (outcome,) = build.build(build.BUILT, [("float", V4)])
    assert outcome.reason == f"{fresh / 'a compiler'} did not finish within 0.5 s"
    started = int((fresh / "pid").read_text())
    try:
        state = Path(f"/proc/{started}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone, or a system without /proc
        state = "Z"
    assert state == "Z"  # ended, and at most not yet waited for


RANK = """
import sys
sys.path.insert(0, {root!r})
import hatch_build
from pathlib import Path
build = hatch_build._module("build")
build.BUILT = Path({built!r})
print(build.build(build.BUILT, [(p, x) for p in ("float", "double") for x in build.LEVELS["x86_64"][2:4]]))
"""


def rank(built: Path) -> "subprocess.Popen[str]":
    """A process that builds, without torch, so at once."""
    text = RANK.format(root=str(Path(hatch_build.__file__).parent), built=str(built))
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_eight_processes_one_builds(compiler: Callable[..., Path], fresh: Path) -> None:
    log = compiler("sleep 0.2")
    ranks = [rank(fresh / "built") for _ in range(8)]
    assert [(process.communicate()[1], process.returncode) for process in ranks] == [("", 0)] * 8
    assert len(calls(log)) == 4
    assert len(list((fresh / "built").glob("*.so"))) == 4


# --- what is kept -----------------------------------------------------------------------------------------------------


def rewritten(**other: object) -> Callable[[build.Record], object]:
    """A record with other fields."""
    return lambda record: path_of(V4).write_text(json.dumps({**record._asdict(), **other}))


def written(text: str) -> Callable[[build.Record], object]:
    return lambda record: path_of(V4).write_text(text)


def library_of(record: build.Record) -> Path:
    return build.BUILT / record.file


def a_pipe(record: build.Record) -> None:
    path_of(V4).unlink()
    os.mkfifo(path_of(V4))


NO_RECORD = "{json.name} is no record of a library: "
NO_FILE = NO_RECORD + "file must be the name of a library in this folder, got "
SPOILED: list[tuple[Callable[[build.Record], object], str]] = [
    (lambda r: library_of(r).write_bytes(library_of(r).read_bytes()[:5000]), "{file.name} is cut short: 5000 bytes of"),
    (lambda r: library_of(r).write_bytes(library_of(r).read_bytes()[:-1] + b"?"), "{file.name} is not what was built"),
    (lambda r: library_of(r).unlink(), "{file.name} is missing"),
    (lambda r: library_of(r).chmod(0o666), "others may write to {file}, so nothing there is trusted"),
    (rewritten(system="Linux riscv64"), "{file.name} is for Linux riscv64, and this is " + build.system()),
    (rewritten(precision="double"), "{file.name} is of double and v4, not what {json.name} says"),
    (rewritten(size="9"), NO_RECORD + "size must be of type int, got '9'"),
    (rewritten(digest=None), NO_RECORD + "digest must be of type str, got None"),
    (rewritten(file=""), NO_FILE + "''"),
    (rewritten(file="../built/attention-"), NO_FILE + "'../built"),
    (rewritten(file="attention-\0"), NO_FILE + "'att"),
    (written('{"precision": "flo'), NO_RECORD),
    (written("[1]"), NO_RECORD),
    (written("[" * 100_000), NO_RECORD),
    (
        written(" " * (build.MAX_FILE_BYTES[".json"] + 1)),
        "{json} has more than " + f"{build.MAX_FILE_BYTES['.json']} bytes",
    ),
    (a_pipe, "{json} is not a regular file"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_a_library_that_is_spoiled_is_refused_in_words(
    spoil: Callable[[build.Record], object],
    message: str,
    compiler: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    compiler()
    record = built(V4, V3)[0]
    message = message.format(file=library_of(record), json=path_of(V4))
    spoil(record)
    assert level_in_use() == "v3"
    warned = capfd.readouterr().err
    assert warned.startswith(f"posenc's kernel: {message}")
    assert warned.count("not used") == 1
    path_of(V3).unlink()
    assert refusal().startswith(message)
    assert refusal().endswith(": `posenc kernel --build` builds one")
    built(V4)
    assert level_in_use() == "v4"  # built anew


def test_a_processor_that_the_system_holds_back_is_not_tried(
    compiler: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux lets a process use a matrix unit when asked to, or not."""
    cdll = ctypes.CDLL

    def held_back(name: str) -> ctypes.CDLL:
        kernel = cdll(name)
        kernel.posenc_usable = lambda: int("-v4-" not in name)
        return kernel

    monkeypatch.setattr(ctypes, "CDLL", held_back)
    compiler()
    (record,) = built(V4)
    assert refusal().startswith(f"{record.file} needs the processor's matrix unit, which the system does not grant")
    built(V3)
    assert level_in_use() == "v3"


def test_a_folder_that_may_not_execute_is_named(
    compiler: Callable[..., Path], fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fresh / "text").write_text("not a library")
    log = compiler(of=fresh / "text")
    built(V4)
    monkeypatch.setattr(library, "executes_nothing", lambda folder: True)
    assert f"cannot be loaded from {build.BUILT}, which is mounted noexec: " in refusal()
    before = len(calls(log))
    capsys.readouterr()
    assert main(["kernel", "--build"]) == 1
    message = f"{fresh / 'cache/posenc'} is mounted noexec: XDG_CACHE_HOME may name another cache"
    assert capsys.readouterr().err == f"posenc: error: the kernel is not built: {message}\n"
    assert len(calls(log)) == before


@pytest.mark.parametrize(
    ("place", "mode", "level"),
    [
        ("cache/posenc", 0o777, None),
        ("cache/posenc", 0o1777, None),
        ("cache", 0o775, None),
        ("cache", 0o1777, "v4"),  # where nobody replaces what is another's
        ("cache", 0o2775, "v4"),  # of a group that has only this user
        ("cache/posenc/attention-*.so", 0o666, None),
        ("cache/posenc/attention-*.json", 0o620, None),
        ("cache/posenc/proof-*", 0o666, "proved again"),
    ],
)
def test_what_others_may_write_in_the_cache_is_not_trusted(
    place: str,
    mode: int,
    level: str | None,
    compiler: Callable[..., Path],
    fresh: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler()
    build.build(library.cache(), [("float", V4)], build.machine_identity())
    assert level_in_use() == "v4"
    (path,) = fresh.glob(place)
    path.chmod(mode)
    monkeypatch.setattr(build, "_is_own_group", lambda number: mode == 0o2775)
    proofs: list[str] = []
    monkeypatch.setattr(library, "failures", lambda kernel, precision: proofs.append(precision) or ())
    assert level_in_use() == ("v4" if level else None)
    assert proofs == (["float"] if level == "proved again" else [])
    if level is None:
        assert (f"others may write to {path}, so nothing there is trusted" in refusal()) == path.is_file()
    if path.is_dir() and level is None:
        with pytest.raises(build.UnavailableError, match=f"others may write to {path}, so nothing there is trusted"):
            library.cache()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_another_user_owns_is_not_trusted(
    kind: str, compiler: Callable[..., Path], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a stranger put a library, with its digest, while the cache was open to all."""
    compiler()
    build.build(library.cache(), [("float", V4)], build.machine_identity())

    def of_another(about: os.stat_result) -> os.stat_result:
        return os.stat_result((*about[:4], 1 + os.getuid(), *about[5:10]))

    if kind == "file":
        fstat = os.fstat
        monkeypatch.setattr(build.os, "fstat", lambda file: of_another(fstat(file)))
        assert refusal().startswith(f"others may write to {fresh / 'cache/posenc/attention-float-v4'}")
    else:
        stat = Path.stat
        monkeypatch.setattr(Path, "stat", lambda path, **how: of_another(stat(path, **how)))
        with pytest.raises(build.UnavailableError, match=f"others may write to {fresh / 'cache/posenc'}, so nothing"):
            library.cache()


# --- nothing is built by a call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "tokens"), [(ALiBi(2), 200), (RoPE(16), 20), (NoPE(), 200), (NoPE(), 3)])
def test_the_first_call_that_would_have_used_a_library_warns_once(
    scheme: posenc.Scheme, tokens: int, compiler: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """And compiles nothing."""
    log = compiler()
    for dtype in (torch.float32, torch.float32, torch.float64):
        q = torch.randn(1, 2, tokens, 16, dtype=dtype)
        posenc.attention(q, q, q, scheme, is_causal=True)
    assert capfd.readouterr().err == f"posenc uses slower backends on this CPU: {NO_LIBRARY}\n"
    assert calls(log) == []


def test_without_a_library_calls_go_another_way_and_explain_says_how_to_have_one(compiler: Callable[..., Path]) -> None:
    compiler()
    q = torch.randn(1, 2, 200, 16)
    explained = posenc.explain(q, q, q, ALiBi(2), is_causal=True)
    assert (explained.backend, explained.refusals["native"]) == ("sdpa", NO_LIBRARY)
    with pytest.raises(ValueError, match="backend 'native' cannot run this: the CPU kernel has not been built"):
        posenc.attention(q, q, q, ALiBi(2), is_causal=True, backend="native")
    with pytest.raises(RuntimeError, match=r"^posenc's kernel cannot run: the CPU kernel has not been built"):
        library.library(torch.float32)


# --- proved before it is used -----------------------------------------------------------------------------------------


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Path]) -> list[str]:
    """Libraries of v4 and v3, of which that of v4 is wrong; whom the proof was asked of."""
    asked: list[str] = []

    def failures(kernel: object, precision: str) -> tuple[str, ...]:
        level = str(getattr(kernel, "_name", "")).rpartition("/")[2].split("-")[2]
        asked.append(level)
        return ("bias: gradient of the key", "clocks", "folds", "planes") if level == "v4" else ()

    compiler()
    built(V4, V3)
    monkeypatch.setattr(library, "failures", failures)
    return asked


def test_a_library_that_is_wrong_is_set_aside_with_one_warning(
    wrong: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    what = "bias: gradient of the key; clocks; folds; and 1 more"
    assert level_in_use() == "v3"
    assert capfd.readouterr().err == SAID.format(by="copier 1.0", what=what) + "\n"
    assert level_in_use() == "v3"  # as another process would ask: what was proved is remembered
    assert wrong == ["v4", "v3"]
    assert capfd.readouterr().err == ""
    path_of(V3).unlink()
    q = torch.randn(1, 2, 200, 16)
    explained = posenc.explain(q, q, q, ALiBi(2), is_causal=True)
    assert explained.backend == "sdpa"
    assert f"gives wrong answers as built by copier 1.0 ({what})" in explained.refusals["native"]


def stop_during_test(ask: Callable[[], object], times: int) -> None:
    """What remains of processes that ended within a proof: that it was begun."""
    write_faults = library._write_faults
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            library, "_write_faults", lambda stamp, faults: library.UNFINISHED in faults and write_faults(stamp, faults)
        )
        for _ in range(times):
            ask()


CRASHED_LIBRARY = (
    "{file}: a self-test of this library crashed or was killed 3 times (`posenc kernel --test` runs it again)"
)


def test_a_library_whose_proof_was_killed_three_times_is_set_aside(
    wrong: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    path_of(V3).unlink()
    stop_during_test(lambda: library.find("float"), 3)
    assert wrong == ["v4"] * 3
    capfd.readouterr()
    found = library.load(path_of(V4))
    assert isinstance(found, LoadedLibrary)
    message = CRASHED_LIBRARY.format(file=found.path.name)
    assert refusal() == f"{message}: `posenc kernel --build` builds one"
    assert capfd.readouterr().err == f"posenc's kernel: {message}: not used\n"
    assert wrong == ["v4"] * 3
    stop_during_test(lambda: library.faults(found, recompute=True), 1)
    assert refusal().startswith(message)
    assert len(library.faults(found, recompute=True)) == 4  # as `posenc kernel --test` asks
    assert "gives wrong answers as built by copier 1.0" in refusal()


@pytest.mark.parametrize("text", ["{}", "[1]", "[" * 100_000, "\xff"])
def test_what_is_no_list_of_words_is_not_remembered(text: str, wrong: list[str]) -> None:
    """A library is not taken for right because what is remembered of it is spoiled."""
    assert level_in_use() == "v3"
    for stamp in library.cache().glob("proof-*"):
        stamp.write_text(text, encoding="latin-1")
    assert level_in_use() == "v3"
    assert wrong == ["v4", "v3"] * 2


def test_a_proof_that_cannot_be_had_is_no_error_of_attention(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def failures(kernel: object, precision: str) -> tuple[str, ...]:
        raise RuntimeError("call.h and operator.py do not say the same of a call")

    monkeypatch.setattr(library, "failures", failures)
    message = "cannot compute its known answers: call.h and operator.py do not say the same of a call"
    assert message in refusal()
    assert message in capfd.readouterr().err
    assert not list(library.cache().glob("proof-*"))  # nothing is remembered


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_builds_for_this_processor(
    compiler: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    log = compiler()
    for name, mtime in {"races-old.json": 0, "races-new.json": time.time()}.items():
        (library.cache() / name).write_text("{}")
        os.utime(library.cache() / name, (mtime, mtime))
    assert main(["kernel", "--build"]) == 0
    assert [path.name for path in library.cache().glob("races-*")] == ["races-new.json"]
    assert capsys.readouterr().out.count("native    used, gives the known answers") == 2
    assert {call[-1].rpartition("/")[2] for call in calls(log)} == {  # which run at once
        "attention-float-native.so",
        "attention-double-native.so",
    }
    assert all("-march=native" in call for call in calls(log))
    assert main(["kernel", "--build"]) == 0
    assert len(calls(log)) == 2
    compiler(options="-O1")
    assert main(["kernel", "--build"]) == 0
    assert len(calls(log)) == 4


def test_the_command_keeps_no_native_library_that_is_wrong(
    compiler: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler()
    monkeypatch.setattr(
        library,
        "failures",
        lambda kernel, precision: () if "-v3-" in kernel._name or precision == "double" else ("functions",),
    )
    assert main(["kernel", "--build"]) == 0
    shown = capsys.readouterr().out
    assert "float, native: not used: wrong answers (functions)\n" in shown
    assert "float, v4: not used: wrong answers (functions)\n" in shown
    assert (level_in_use("float"), level_in_use("double")) == ("v3", "native")
    monkeypatch.setattr(library, "failures", lambda kernel, precision: ("all",))
    for stamp in library.cache().glob("proof-*"):
        stamp.unlink()
    assert main(["kernel", "--build"]) == 1
    assert "float, baseline: wrong answers (all)" in capsys.readouterr().err


# --- where posenc is built --------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the build reads."""
    folder = fresh / "packages/posenc/src/posenc/backends/native"
    folder.mkdir(parents=True)
    for path in (*build.sources(), build.SOURCES / "build.py"):
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(hatch_build, "NATIVE", folder)
    monkeypatch.delenv("POSENC_KERNEL", raising=False)
    return fresh


def hooked(checkout: Path) -> tuple[dict[str, object], list[str]]:
    """What the hook adds to a build, and what it warns of."""
    messages: list[str] = []
    shown: list[str] = []
    app = SimpleNamespace(display_warning=messages.append, display_waiting=shown.append, display_info=shown.append)
    data: dict[str, object] = {"artifacts": []}
    hook = SimpleNamespace(root=str(checkout), target_name="wheel", app=app)
    hatch_build.KernelHook.initialize(hook, "standard", data)
    names = {f"posenc: built attention-{name}" for name in shipped(data)}
    assert shown[0] == "posenc: building the CPU kernel (POSENC_KERNEL=0 builds none)"
    assert names <= set(shown)
    return data, messages


def shipped(data: dict[str, object]) -> list[str]:
    artifacts = data["artifacts"]
    assert isinstance(artifacts, list)
    return sorted({"-".join(str(path).split("-")[1:3]) for path in artifacts})


def test_a_wheel_to_give_away_has_every_level_and_says_where_it_runs(
    compiler: Callable[..., Path], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    monkeypatch.setenv("POSENC_KERNEL", "all")
    data, messages = hooked(checkout)
    assert messages == []
    assert data["pure_python"] is False
    assert str(data["tag"]).startswith("py3-none-")
    assert data["tag"] != "py3-none-any"
    every = build.LEVELS.get(build.platform.machine(), (Level("baseline"),))
    of = {x: [level.name for level in every if x in (level.precisions or build.PRECISIONS)] for x in build.PRECISIONS}
    assert shipped(data) == sorted(f"{precision}-{name}" for precision, names in of.items() for name in names)
    assert isinstance(data["artifacts"], list)
    assert all((checkout / str(path)[1:]).is_file() for path in data["artifacts"])


@pytest.mark.parametrize("spoil", [no_compiler, an_unbalanced_quote])
def test_without_a_compiler_the_wheel_is_pure_and_it_is_said(
    spoil: Callable[[pytest.MonkeyPatch, Path], str], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = spoil(monkeypatch, checkout)
    assert hooked(checkout) == ({"artifacts": []}, [f"posenc's CPU kernel is not built: {why}"])


def test_what_is_built_can_be_said(
    compiler: Callable[..., Path], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    monkeypatch.setenv("POSENC_KERNEL", "0")
    assert hooked(checkout)[1] == ["posenc's CPU kernel is not built: POSENC_KERNEL=0 turns it off"]
    monkeypatch.setenv("POSENC_KERNEL", "baseline")
    assert shipped(hooked(checkout)[0]) == sorted(f"{x}-baseline" for x in build.PRECISIONS)
    monkeypatch.setenv("POSENC_KERNEL", "baseline,v9")
    with pytest.raises(ValueError, match=r"^POSENC_KERNEL must be 0, all, or levels of .*baseline, got 'v9'$"):
        hooked(checkout)


@pytest.mark.skipif(sys.platform != "linux", reason="how Linux names what a wheel runs on")
@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("libc.so.6 libm.so.6 libstdc++.so.6 GLIBC_2.2.5 GLIBC_2.27 GLIBCXX_3.4.22", "manylinux_2_27_{machine}"),
        ("libc.so.6 GLIBC_2.2.5 GLIBC_2.34 GLIBC_2.4", "manylinux_2_34_{machine}"),
        ("libc.so.6 libstdc++.so.6 GLIBC_2.27 GLIBCXX_3.4.30", "linux_{machine}"),  # of a newer C++ than torch asks for
        ("libc.so.6 libfast.so.1 GLIBC_2.27", "linux_{machine}"),  # of a library that a system need not have
        ("libc.musl-x86_64.so.1 libstdc++.so.6", "linux_{machine}"),
    ],
)
def test_the_platform_follows_from_what_a_library_asks_for(text: str, tag: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.so", "other.so")]
    paths[0].write_bytes(b"\x7fELF\0libc.so.6\0GLIBC_2.17\0")
    paths[1].write_bytes(b"\x7fELF\0" + text.replace(" ", "\0").encode() + b"\0")
    assert hatch_build.platform_tag(paths) == tag.format(machine=build.platform.machine())
