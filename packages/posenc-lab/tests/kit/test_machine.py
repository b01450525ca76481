from pathlib import Path

import pytest
import torch

from posenc_lab.kit import machine as described
from posenc_lab.kit.machine import machine

CORE = (
    "processor\t: {n}\nmodel name\t: An Example 9000\nphysical id\t: 0\ncore id\t: {core}\nflags\t\t: fpu {flags}\n\n"
)


def told(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The machine whose system says this, or nothing."""
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(described, "CPUINFO", path)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    return machine(torch.device("cpu"))


def test_linux_says_which_processor_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "avx512_bf16 avx avx2 avx512f amx_tile_of_another"
    text = "".join(CORE.format(n=n, core=n // 2, flags=flags) for n in range(4))
    found = told(text, tmp_path, monkeypatch)
    assert found["processor"] == "An Example 9000"
    assert found["vector units"] == "torch uses AVX512; there: avx2, avx512f, avx512_bf16"
    assert (found["cores"], found["physical cores"]) == (4, 2)
    assert found["threads"] == torch.get_num_threads()


def test_what_the_system_does_not_tell_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "abacus64")
    found = told(None, tmp_path, monkeypatch)
    assert found["processor"] == "abacus64"
    assert found["vector units"] == "torch uses AVX512; there: not known"
    assert found["physical cores"] == "not known"


def test_denormal_numbers_are_looked_at() -> None:
    assert machine(torch.device("cpu"))["denormal numbers"] == "kept"
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        assert machine(torch.device("cpu"))["denormal numbers"] == "flushed to zero"
    finally:
        torch.set_flush_denormal(False)
