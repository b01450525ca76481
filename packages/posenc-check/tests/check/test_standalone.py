"""Scripts: they repeat a finding where there is no posenc, with the subject's files as they stand."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
import torch

from posenc_check import Batch, Layer, NotApplicableError, Subject
from posenc_check.checks import CHECKS
from posenc_check.outcome import Outcome
from posenc_check.repeat import part_of
from posenc_check.standalone import MARK, check_sources, literal, script
from posenc_check.subjects import call_module
from posenc_check.trial import Case, Trial
from tests.check.small_subjects import RIGHT, WRONG, nothing, run_alone
from tests.rows import first_of

BATCH = Batch(ids=[[3, 1, 4, 1]], positions=[[0, 1, 2, 3]])
Project = Callable[..., ModuleType]


def sum_of_outputs(subject: Subject, batch: Batch, power: int = 1) -> Outcome:
    out = subject.run(subject.make(), batch)
    return Outcome(False, "a finding", f"{out.double().pow(power).sum():.12g}")


def passes(subject: Subject, batch: Batch) -> Outcome:
    return Outcome(True, "the same", "the same")


def does_not_apply(subject: Subject, batch: Batch) -> Outcome:
    raise NotApplicableError("there is no GPU")


def trial_of(function: Callable[..., Outcome]) -> Trial:
    return Trial(function.__name__, function, lambda plan: iter(()))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Writes files, and gives the module ``mine``, or that which is named first."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(_name: str = "mine", _package: dict[str, str] | None = None, **files: str) -> ModuleType:
        for name, text in {**files, **(_package or {})}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text), encoding="utf-8")
        importlib.invalidate_caches()
        return importlib.import_module(_name)

    yield written
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


def repeated(subject: Subject, batch: Batch = BATCH, **values: Any) -> str:
    """The script, which came to the same without posenc."""
    made = script(subject, trial_of(sum_of_outputs), Case(batch, values), "a heading\nof two lines")
    heading = "# a heading\n# of two lines\n#\n# To run it: python finding.py\n# It needs torch"
    assert made.startswith(f"{MARK}.\n{heading}")
    assert run_alone(made) == (1, f"expected: a finding\ncame:     {sum_of_outputs(subject, batch, **values).actual}\n")
    return made


def needs(made: str) -> str:
    """What a script says that it needs."""
    return made.partition("# It needs ")[2].partition(".\n")[0]


# -- posenc's part -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", first_of([9, 1]))
def test_every_trial_has_what_it_uses_and_no_name_twice(step: int, tmp_path: Path) -> None:
    trials = {trial.function: trial for entry in CHECKS for trial in entry.trials}
    for function, trial in list(trials.items())[::step]:
        made = script(WRONG, trial, Case(BATCH), "")
        body = ast.parse(made).body
        imported = [node for node in body if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in imported if (node.module or "").startswith("posenc")]
        names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        names += [
            node.targets[0].id
            for node in body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        assert len(names) == len(set(names))
        (tmp_path / f"{function.__name__}.py").write_text(made, "utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--ignore-noqa", "--quiet"]
    found = subprocess.run([*command, "."], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")  # nothing is undefined


def test_it_says_how_it_ended() -> None:
    assert run_alone(script(RIGHT, trial_of(passes), Case(BATCH), "")) == (
        0,
        "expected: the same\ncame:     the same\n",
    )
    assert run_alone(script(RIGHT, trial_of(does_not_apply), Case(BATCH), "")) == (
        2,
        "not applicable: there is no GPU\n",
    )


def test_a_script_has_no_other_kind_of_subject_and_no_other_trial() -> None:
    padding = next(entry for entry in CHECKS if entry.name == "padding")
    plain = script(WRONG, padding.trials[0], Case(Batch([[1, 2]])), "").partition("# -- the subject")[0]
    for held in ("class Rotary(", "class Subject:", "def near(", f"def {padding.trials[0].function.__name__}("):
        assert held in plain
    left_out = ("CHECK = ", "TrialPlan", "class Layer(", "class Bias(", "class Attention(", "def what_padding_holds")
    for left in (*left_out, "def attributes_of"):
        assert left not in plain


# -- the subject's part ------------------------------------------------------------------------------------------------


def test_what_does_not_import_posenc_is_imported_from_where_it_lies(project: Project, tmp_path: Path) -> None:
    mine = project(
        model="""
            def build(): return 3.0
            def call(made, x): return x * made
        """,
        mine="""
            from model import build, call
            from posenc_check import Layer
            subject = Layer(build=build, call=call)
        """,
    )
    made = repeated(mine.subject)
    assert needs(made).startswith("torch, ")
    assert f"model from {tmp_path}" in needs(made)
    assert f"sys.path.insert(0, {str(tmp_path)!r})" in made
    assert "build=part_of('model', 'build')," in made
    assert "\nhold('model'" not in made


def test_a_file_that_imports_posenc_is_held_as_it_stands(project: Project) -> None:
    """Its names may be those of the script, it may call what the script has not, and hold any text."""
    text = '''
        from __future__ import annotations
        import helpers
        from posenc_check import Layer, Rotary, check, conformance_tests

        PADDING = VOCABULARY = 5.0
        TEXT = "a 'b' \\\\ \\n é"


        class Batch:
            """It has a ' of its own, and \'\'\' too."""


        def near(x: Batch) -> NoSuchName:
            return helpers.scaled(x) * PADDING + len(TEXT)


        def build():
            return near


        def call(made, x):
            global VOCABULARY
            VOCABULARY = 7.0
            return made(x) + VOCABULARY


        subject = Layer(build=build, call=call)
        other = Rotary(build=build, call=call)
        test_it = conformance_tests(subject)
        if check(other, checks=[1]).ok if __name__ == "mine_at_work" else False:
            raise AssertionError
    '''
    mine = project(helpers="def scaled(x): return x * 2.0\n", mine=text)
    made = repeated(mine.subject)
    held = next(
        node for node in ast.walk(ast.parse(made)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "hold"
    )
    assert {k.arg: ast.literal_eval(k.value) for k in held.keywords}["text"].strip() == dedent(text).strip()


def test_imports_of_any_form_are_followed(project: Project) -> None:
    mine = project(
        "package.mine",
        {
            "package/__init__": "from .shapes import offset as offset\n",
            "package/shapes": """
            from posenc_check.subjects import VOCABULARY
            def offset(): return 0.25 * VOCABULARY
            def doubled(x): return x * 2
        """,
            "other/plain": "def third(x): return x / 3\n",
            "package/mine": """
            from dataclasses import dataclass
            import package.shapes as forms
            from posenc_check import Layer
            from . import offset, shapes
            from .shapes import *

            @dataclass(frozen=True, kw_only=True)
            class Mine(Layer):
                factor: float = 1.0
                def run(self, made, batch): return super().run(made, batch) * self.factor

            def build(of): return of

            def call(made, x):
                from other.plain import third
                return made(third(forms.doubled(shapes.doubled(doubled(x))))) * offset()

            def thrice(x): return 3 * x

            subject = Mine(build=build, call=call, factor=4.0, options={"of": thrice})
        """,
        },
    )
    made = repeated(mine.subject)
    assert [n for n in ("package", "package.shapes", "package.mine") if f"hold('{n}'" in made] == [
        "package",
        "package.shapes",
        "package.mine",
    ]
    assert "factor=4.0" in made
    assert "options={'of': part_of('package.mine', 'thrice')}" in made


# -- values and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        1e-300,
        float("inf"),
        -float("inf"),
        "a 'b' \"c\"\n\\ é \x00",
        [],
        (),
        (1,),
        {"a": [1.5, (2, None)], 3: {}},
        [*range(5, 90)],
        (*range(9),),
        [1, 2, 3, 4, 5, 6, 7, 8, 10],
        [True] * 10,
        torch.bfloat16,
        torch.device("cuda", 1),
        [nothing, torch.float16],
    ],
)
def test_a_literal_makes_the_value_again(value: object) -> None:
    written = literal(value, "options")
    again = eval(written, {"torch": torch, "part_of": part_of})
    assert (again, type(again)) == (value, type(value))
    assert len(written) < 80


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 1, torch.zeros(1), 1j, [b"bytes"], {"a": len.__self__}])
def test_what_cannot_be_written_is_refused(value: object) -> None:
    subject = Layer(build=nothing, call=call_module, options={"value": value})
    with pytest.raises(ValueError, match=r"^options must be (made of numbers|a function or class at the top level)"):
        check_sources(subject)


def test_what_is_not_at_the_top_of_a_file_is_refused(project: Project) -> None:
    def inside() -> None: ...

    for part in (lambda: 1, inside, torch.nn.Linear(2, 2), project):
        with pytest.raises(ValueError, match=r"^build must be a function or class at the top level of a file, .*got "):
            check_sources(Layer(build=part, call=call_module))
    mine = project(mine="def build(): return 1\nkept = build\ndef build(): return 2\n")
    with pytest.raises(ValueError, match="build must be a function or class at the top level"):
        check_sources(Layer(build=mine.kept, call=call_module))
