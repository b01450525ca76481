"""What stands in the documentation as code runs: each page from top to bottom, in a folder and a namespace of its own.

A block that begins with ``# my.py`` is that file too. One that ends with ``# ValueError: words`` raises it. One that
cannot run has ``<!-- not run: why -->`` before it.
"""

import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot

from posenc.command import cli
from tests.docs.pages import PAGES, TARGETS, Block, blocks, patched
from tests.docs.presupposed import PRESUPPOSED

WITH_CODE = [page for page in PAGES if blocks(page, "python")]
COMMANDS = [
    pytest.param(words, id=f"{block.place}-{' '.join(words[:4])}")
    for page in PAGES
    for block in blocks(page, "console")
    for words in block.commands
]
QUICK = ("laws", "plot", "schemes")
# They compile, load transformers, or form a group of processes.
LONG = ("choose.md", "in-your-model.md", "huggingface.md", "patched-model.md", "rl-padding.md", "ddp-and-fsdp.md")
WEEKLY = ("onnx.md",)  # as test_export.py, which `make check` runs, exports the same
NEEDED = {"onnx.md": ("onnx", "onnxscript", "onnxruntime")}  # packages that are for some Pythons only
PRINTED = ("getting-started.md", "huggingface.md", "extend.md")  # all that their blocks print stands in them


def marks(name: str) -> list[pytest.MarkDecorator]:
    """When a page is run."""
    return [pytest.mark.more] * (name in LONG) + [pytest.mark.survey] * (name in WEEKLY)


def run(block: Block, names: dict[str, Any]) -> None:
    """Runs it in the current folder; a diff is applied. AssertionError where it does not raise what it says."""
    if block.kind == "diff":
        before, after = re.findall(r"^(?:---|\+\+\+) (.+)$", block.text, re.M)
        Path(after).write_text(patched(Path(before).read_text(encoding="utf-8"), block.text), encoding="utf-8")
        return
    if block.file:
        Path(block.file).write_text(block.text, encoding="utf-8")
        sys.modules.pop(Path(block.file).stem, None)
    code = compile("\n" * (block.line - 1) + block.text, block.place, "exec")
    raises = re.search(r"^# (\w+): (.*)\Z", block.text.rstrip(), re.M)
    error = getattr(builtins, raises[1], None) if raises else None
    if raises and isinstance(error, type) and issubclass(error, Exception):
        with pytest.raises(error, match=re.escape(raises[2].strip())):
            exec(code, names)
    else:
        exec(code, names)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, from which modules are imported; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # of torch's exporter, as the next
@pytest.mark.filterwarnings("ignore:# The axis name. past will not be used:UserWarning")
@pytest.mark.filterwarnings("ignore:posenc.huggingface.patch had put:UserWarning")  # which the page speaks of
@pytest.mark.parametrize("page", [pytest.param(p, id=p.name, marks=marks(p.name)) for p in WITH_CODE])
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDED.get(page.name, ()):
        pytest.importorskip(package)
    printed = []
    with torch.random.fork_rng(), torch.enable_grad():  # which a page may turn off
        names = {"__name__": "__main__", **(PRESUPPOSED[page.name]() if page.name in PRESUPPOSED else {})}
        capsys.readouterr()
        for block in blocks(page, "python", "diff"):
            if block.reason is None:
                run(block, names)
                printed.append(capsys.readouterr().out)
    pyplot.close("all")
    if page.name in PRINTED or page.parent.name == "recipes":
        assert [said for said in printed if said not in page.read_text(encoding="utf-8")] == []
    if page.name == "huggingface.md":
        _check_huggingface(names)
    for words in [words for block in blocks(page, "console") for words in block.commands]:
        if words[0] == "posenc" and words[1] in QUICK and block_runs(words):
            assert cli.main(words[1:]) == 0, words


def block_runs(words: list[str]) -> bool:
    """Whether a quick command is quick: of schemes that it names."""
    return "--schemes" in words or words[1] == "schemes"


def _check_huggingface(names: dict[str, Any]) -> None:
    assert all(torch.equal(names["back"][name], x) for name, x in names["model"].state_dict().items())
    assert names["line"].shape == (2 + 2048, 8)
    assert names["grid"].shape == (1 + 16 * 24, 8)
    assert names["cos"].shape == (1, 16, 128)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_exists_with_its_options(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        assert [word for word in arguments if "=" not in word and word not in TARGETS] == []
    elif Path(program).name == "posenc":
        parser, _ = cli._parsers()
        parser.parse_args(arguments)  # exits where it does not take them
    else:
        assert Path(program).name in ("pip", "python", "pytest", "pre-commit", "jupyter", "torchrun"), (
            f"unknown program: {words}"
        )
