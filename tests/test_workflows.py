"""The forge's files name what is there: targets of make, tests, Pythons. Nothing here runs them."""

import re
import shlex
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.docs.pages import ROOT, TARGETS

yaml = pytest.importorskip("yaml")

FORGE = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FORGE.glob("workflows/*.yml")}
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def combinations(job: dict[str, Any]) -> list[dict[str, str]]:
    """The values of each run of a job, by name. What is included here never extends another."""
    matrix = job.get("strategy", {}).get("matrix", {})
    axes = {name: values for name, values in matrix.items() if name != "include"}
    return [*(dict(zip(axes, values, strict=True)) for values in product(*axes.values())), *matrix.get("include", [])]


def commands(workflow: dict[str, Any]) -> Iterator[list[str]]:
    """The words of each command of each run, as the shell sees them."""
    for job in workflow["jobs"].values():
        for step, values in product(job.get("steps", []), combinations(job)):
            if "run" in step:
                line = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found, v=values: v[found[1]], step["run"])
                yield shlex.split(line)


COMMANDS = {" ".join(words): words for workflow in WORKFLOWS.values() for words in commands(workflow)}
MADE = {word for words in COMMANDS.values() if words[0] == "make" for word in words[1:] if "=" not in word}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_a_command_names_what_is_there(words: list[str]) -> None:
    assert words[0] in ("make", "python", "gh", "grep", "sed")
    paths = [word for word in words if re.fullmatch(r"(packages|research|tests)/[\w/.-]+|[\w.]+\.(py|txt)", word)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    if words[0] == "make":
        assert [word for word in words[1:] if "=" not in word and word not in TARGETS] == []
    if words[0] == "python":
        assert paths or words[1:3] == ["-m", "pip"] or words[1:4] == ["-I", "-m", "posenc"]


def test_the_forge_asks_all_that_ci_asks_and_more() -> None:
    asked = set(re.findall(r"^make ([\w-]+)", CI, re.M))
    assert {"test", "lint"} <= asked
    assert asked | {"docs", "check-oldest", "wheel"} <= MADE


def test_every_python_that_is_claimed_is_tried() -> None:
    project = (ROOT / "packages" / "posenc" / "pyproject.toml").read_text(encoding="utf-8")
    tried = {values["python"] for values in combinations(WORKFLOWS["tests"]["jobs"]["linux"])}
    assert tried == set(re.findall(r"Python :: (3\.\d+)", project))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_may_only_read(name: str) -> None:
    workflow = WORKFLOWS[name]
    used = [s["uses"] for job in workflow["jobs"].values() for s in [job, *job.get("steps", [])] if "uses" in s]
    for action in used:
        if action.startswith("./"):
            assert (ROOT / action).is_file()
        else:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)
    assert used
    assert workflow["permissions"] == {"contents": "read"}
    writers = [name for name, job in workflow["jobs"].items() if "permissions" in job]
    assert writers == (["release"] if name == "release" else [])


def test_make_runs_what_is_there() -> None:
    """`make bench` and `make gpu` need what no test has."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    files = set(re.findall(r"(?<=PYTHON\) )[\w/]+\.py|(?<=/python )[\w/]+\.py", text))
    modules = {found.replace(".", "/") for found in re.findall(r"-m ((?:research|tests|study|field)\.[\w.]+)", text)}
    places = [ROOT, ROOT / "research", *(ROOT / "packages").iterdir()]
    assert {"research/benchmarks/gpu/run.py", "research/benchmarks/scale.py"} <= files
    assert "research/benchmarks/run" in modules
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert [name for name in modules if not any((place / f"{name}.py").is_file() for place in places)] == []
