"""Scripts: they repeat a finding where there is no posenc, hold no more than they need, and say what came."""

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

from posenc.conformance import Batch, Layer, Subject
from posenc.conformance.outcome import Outcome
from posenc.conformance.standalone import MARK, check_sources, literal, script
from posenc.conformance.trial import Case, Trial
from tests.conformance.small import RIGHT, WRONG, nothing, run_alone

BATCH = Batch(ids=[[3, 1, 4, 1]], positions=[[0, 1, 2, 3]])
Project = Callable[..., ModuleType]


def sum_of_outputs(subject: Subject, batch: Batch, power: int = 1, **others: Any) -> Outcome:
    out = subject.run(subject.make(), batch)
    return Outcome(False, "a finding", f"{out.double().pow(power).sum():.12g}")


TRIAL = Trial("sum", sum_of_outputs, lambda plan: iter(()))


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
    """The script, which came to the same without posenc, and imports nothing that it does not use."""
    made = script(subject, TRIAL, Case(batch, values), "a heading\nof two lines")
    assert made.startswith(f"{MARK}\n# a heading\n# of two lines\n\n")
    assert run_alone(made) == (1, f"expected: a finding\ncame:     {sum_of_outputs(subject, batch, **values).came}\n")
    nodes = list(ast.walk(ast.parse(made)))
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", None) != "__future__":
            assert names.issuperset(alias.asname or alias.name.split(".")[0] for alias in node.names)
    return made


def defined(made: str) -> set[str]:
    """What a script has at its top level."""
    body = ast.parse(made).body
    return {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def methods(made: str, name: str) -> set[str]:
    (found,) = (n for n in ast.parse(made).body if isinstance(n, ast.ClassDef) and n.name == name)
    return {n.name for n in found.body if isinstance(n, ast.FunctionDef)}


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_it_runs_in_an_empty_folder_without_posenc(tmp_path: Path) -> None:
    path = tmp_path / "finding.py"
    path.write_text("import sys\nsys.modules['posenc'] = None\n" + script(WRONG, TRIAL, Case(BATCH), ""), "utf-8")
    done = subprocess.run([sys.executable, "-I", path.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[1] == f"came:     {sum_of_outputs(WRONG, BATCH).came}"
    assert (done.returncode, done.stderr) == (1, "")


def test_it_holds_nothing_that_is_not_used() -> None:
    made = repeated(RIGHT)
    kinds = {"Batch", "Subject", "_Heads", "Rotary", "Outcome", "NotApplicableError"}
    assert defined(made) == {*kinds, "attend", "nothing", "rotate", "sum_of_outputs"}
    assert "posenc" not in made.removeprefix(MARK)
    assert methods(made, "Rotary") == {"rotate", "partial"}
    assert "relative" not in made  # a claim that this trial does not read
    assert 'options={"base": 500.0}' in made.replace("'", '"')
    assert "causal: bool = False" in made
    assert "max_positions" not in made


def test_it_is_short_and_tidy() -> None:
    made = repeated(RIGHT)
    modules = [line.split()[1] for line in made.splitlines() if line.startswith("from ")]
    assert len(modules) == len(set(modules))
    assert '"""' not in made.replace('"""The subject cannot take part in a trial: the message says why."""', "")
    assert "\n\n\n\n" not in made
    assert ":\n\n" not in made
    assert max(map(len, made.splitlines())) <= 120


def test_what_does_not_import_posenc_is_imported_from_where_it_lies(project: Project, tmp_path: Path) -> None:
    mine = project(
        model="""
            def build(): return 3.0
            def call(made, x): return x * made
        """,
        mine="""
            from model import build, call
            from posenc.conformance import Layer
            subject = Layer(build=build, call=call)
        """,
    )
    made = repeated(mine.subject)
    assert "from model import build, call" in made
    assert f"sys.path.insert(0, {str(tmp_path)!r})  # where model lies" in made
    assert "def build" not in made


def test_what_is_installed_is_imported() -> None:
    subject = Layer(
        build=torch.nn.Linear, call=torch.nn.Linear.__call__, options={"in_features": 32, "out_features": 2}
    )
    with pytest.raises(ValueError, match="call must be a function or class at the top level"):
        check_sources(subject)
    made = repeated(Layer(build=torch.nn.Linear, call=apply, options=subject.options))
    assert "from torch.nn.modules.linear import Linear" in made
    assert "sys.path" not in made


def apply(made: Any, x: torch.Tensor) -> torch.Tensor:
    return made(x)


def test_of_a_file_that_imports_posenc_it_holds_what_is_used(project: Project) -> None:
    mine = project(
        helpers="SCALE = 2.0\ndef scaled(x): return x * SCALE\n",
        mine="""
            import functools
            import math as maths
            import helpers
            from posenc.conformance import Layer, Rotary
            from posenc.conformance import check as run_the_checks

            FIRST, SECOND = 5.0, 7.0; THIRD = [FIRST]; THIRD.append(SECOND)  \x0c
            FACTORS = {}
            FACTORS["one"] = 1.0
            FACTORS.update(two=2.0)
            UNUSED = {"three": 3.0}
            UNUSED["four"] = 4.0
            try:
                from no_such_module import PI
            except ImportError:
                PI = maths.pi


            def loud(function):
                @functools.wraps(function)
                def wrapped(*given):
                    return function(*given)

                return wrapped


            # left out with what it is about
            def unused(): return UNUSED


            def build():
                return FIRST * FACTORS["one"] * FACTORS["two"] * len(THIRD)


            @loud
            def call(made, x):
                "It is documented."
                global SECOND
                SECOND += 1.0  # kept
                return helpers.scaled(x) * made * PI + SECOND


            subject = Layer(build=build, call=call)
            if __name__ == "__main__":
                FIRST = run_the_checks(subject)
        """,
    )
    made = script(mine.subject, TRIAL, Case(BATCH), "")
    mine.SECOND = 7.0
    came = sum_of_outputs(mine.subject, BATCH).came
    assert run_alone(made) == (1, f"expected: a finding\ncame:     {came}\n")
    mine.SECOND = 7.0
    assert {"loud", "build", "call"} <= defined(made)
    for gone in ("unused", "UNUSED", "left out", "documented", "run_the_checks", "__main__"):
        assert gone not in made
    assert "SECOND += 1.0  # kept" in made
    assert made.index("FACTORS = {}") < made.index('FACTORS["one"]') < made.index("FACTORS.update")
    assert "@loud\ndef call" in made


def test_what_sets_torch_up_is_held(project: Project) -> None:
    mine = project(
        mine="""
            import torch
            from posenc.conformance import Layer
            torch.set_default_dtype(torch.float64)
            def build(): return None
            def call(made, x): return x * torch.ones(x.size(-1)) * 0.1
            subject = Layer(build=build, call=call)
        """
    )
    try:
        assert "torch.set_default_dtype(torch.float64)" in repeated(mine.subject)
    finally:
        torch.set_default_dtype(torch.float32)


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_that_two_files_have_are_told_apart(project: Project) -> None:
    mine = project(
        model="class Attention:\n    def __call__(self, x): return x + 1\n",
        mine="""
            from typing import Callable
            from model import Attention
            from posenc.conformance import Layer

            PADDING = 0.5
            VOCABULARY: "Batch" = 3


            class Batch:
                size: "NotApplicableError | None" = None


            class NotApplicableError(Exception):
                pass


            def replace(x: "Batch") -> Callable:
                return x * PADDING


            def field(x): return replace(x) + VOCABULARY


            def sum(x): return field(x) + len([near for near in "ab"])


            def batch(): return Attention(), Batch(), NotApplicableError


            def subject(made, x):
                outcome = sum(x)
                return made[0](outcome)


            layer = Layer(build=batch, call=subject)
        """,
    )
    made = repeated(mine.layer)
    assert {"Batch", "NotApplicableError", "replace", "field"} <= defined(made)  # the subject keeps its names
    assert {"Batch_of_subjects", "sum_of_mine", "batch_of_mine", "subject_of_mine"} <= defined(made)
    assert "from dataclasses import dataclass, field as field_of_dataclasses" in made
    assert "x: 'Batch'" in made or 'x: "Batch"' in made
    assert "call=subject_of_mine," in made
    assert "Callable_of" not in made  # that of typing is that of collections.abc


def test_a_name_that_is_local_is_left_alone(project: Project) -> None:
    mine = project(
        mine="""
            import contextlib
            from posenc.conformance import Layer

            def error(x=1.0): return x + 0.5  # a name that the script has for itself
            def near(): return error()
            count = 0

            def by_argument(error, *batch, outcome=near(), **subject):
                return error + outcome + len(batch) + len(subject)
            def by_loop():
                for error in range(3): pass
                return error
            def by_with():
                with contextlib.nullcontext(4.0) as error: return error
            def by_match():
                match [5.0, 6.0, {"a": 7.0}]:
                    case [error, *batch, {"a": outcome, **subject}] if not subject: return error + batch[0] + outcome
            def by_handler():
                try: raise ValueError("8")
                except ValueError as error: return float(str(error))
            def by_walrus(): return [outcome for n in range(2) if (error := n + 9.0)] if (outcome := 1) else error
            def by_comprehension(): return sum([error for error in range(4)]) + error(10.0)
            def by_import():
                import math as error
                return error.pi
            def by_lambda(): return (lambda error: error + 1)(11.0) + (lambda n: error(n))(12.0)
            def by_inner():
                def error(): return 13.0
                class batch: outcome = 14.0
                return error() + batch.outcome
            def by_global():
                global count
                count += 1
                return error(count) - count

            class Held:
                outcome = error(15.0)
                def subject(self): return self.outcome + error(16.0)

            def build():
                parts = [by_argument(1.0, 2.0, batch=3.0), by_loop(), by_with(), by_match(), by_handler()]
                parts += [len(by_walrus()), by_comprehension(), by_import(), by_lambda(), by_inner(), by_global()]
                return sum(parts) + Held().subject()
            def call(made, x): return x * made
            layer = Layer(build=build, call=call)
        """
    )
    made = repeated(mine.layer)
    assert "error_of_mine" in defined(made)
    assert "for error in range(3)" in made
    assert mine.build() == pytest.approx(
        1.0
        + 1.5
        + 1
        + 1
        + 2
        + 4.0
        + 18.0
        + 8.0
        + 2
        + 6
        + 10.5
        + 3.141592653589793
        + 12.0
        + 12.5
        + 27.0
        + 0.5
        + 15.5
        + 16.5
    )


def test_annotations_in_quotes_and_in_the_future(project: Project) -> None:
    mine = project(
        mine="""
            from __future__ import annotations
            from typing import TYPE_CHECKING
            from posenc.conformance import Layer
            if TYPE_CHECKING:
                from jaxtyping import Float
            class Config: width = 2.0
            def build(width: "Config | None" = None) -> Config: return Config()
            def call(made: Config, x: Float[Tensor, "rows tokens dim"]) -> not_defined: return x * made.width
            subject = Layer(build=build, call=call)
        """
    )
    made = repeated(mine.subject)
    assert made.index("from __future__ import annotations") < made.index("import inspect")
    assert "class Config" in made


def test_imports_of_any_form_are_followed(project: Project) -> None:
    mine = project(
        "package.mine",
        {
            "package/__init__": "from .shapes import offset as offset\n",
            "package/shapes": """
            from posenc.conformance.subjects import VOCABULARY
            def offset(): return 0.25 * VOCABULARY
            def doubled(x): return x * 2
        """,
            "other/plain": "def third(x): return x / 3\n",
            "package/all_of_it": """
            import posenc.conformance
            def halved(x): return x / 2
            def minus(x): return x - 1
        """,
            "package/mine": """
            import collections.abc
            import collections as things
            import os.path
            import torch.nn.functional as F
            import posenc.conformance
            import posenc.conformance as checks
            from posenc import conformance
            from . import offset, shapes
            from .all_of_it import *
            from package.shapes import doubled as twice

            class Mine(checks.Layer):
                def content(self, batch):
                    return posenc.conformance.subjects.Layer.content(self, batch).abs()

            class Error(conformance.NotApplicableError): pass

            def build(): return things.OrderedDict(a=offset())

            def call(made, x):
                from other.plain import third
                assert isinstance(made, collections.abc.Mapping) and os.path.sep and Error
                return F.relu(third(minus(halved(twice(shapes.doubled(x)))))) * made["a"]

            subject = Mine(build=build, call=call)
        """,
        },
    )
    made = repeated(mine.subject)
    assert "posenc" not in made.removeprefix(MARK)
    assert "def twice" not in made
    assert "class Mine(Layer)" in made
    assert "from other.plain import third" in made


# -- classes -----------------------------------------------------------------------------------------------------------

MODULE = """
    import torch
    from torch import nn
    from posenc.conformance import Layer

    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.constant_(self.weight, 3.0)

        def extra_repr(self):
            return "an override of what torch calls"

    class Net(Base):
        unused = 1

        # what it is about
        @property
        def scale(self):
            '''Of two.'''
            return self._scale(2.0)

        def _scale(self, by):
            return self.weight * by

        def bias(self):
            return self.helper() + Other().public()

        def forward(self, x):
            return x * self.scale{more}

        def helper(self):
            return 1.0

        @torch.no_grad()
        def decorated(self):
            return self.weight

    class Other:
        def public(self): return self._private()
        def _private(self): return 1.0

    def call(made, x): return made(x)
    subject = Layer(build=Net, call=call, jitter=0.25)
"""


def test_of_a_class_it_holds_what_may_be_called(project: Project) -> None:
    made = repeated(project(mine=MODULE.replace("{more}", "")).subject)
    assert methods(made, "Base") == {"__init__", "reset_parameters", "extra_repr"}
    assert methods(made, "Net") == {"scale", "_scale", "forward", "decorated"}
    assert "Other" not in defined(made)
    assert "# what it is about" in made
    assert "Of two" not in made


def test_what_a_method_calls_is_held_with_it(project: Project) -> None:
    made = repeated(project(mine=MODULE.replace("{more}", " + self.bias()")).subject)
    assert methods(made, "Net") == {"scale", "_scale", "forward", "decorated", "bias", "helper"}
    assert methods(made, "Other") == {"public", "_private"}


def test_where_names_are_made_up_everything_may_be_called(project: Project) -> None:
    made = repeated(project(mine=MODULE.replace("{more}", " + getattr(self, 'bi' + 'as')()")).subject)
    assert methods(made, "Net") == {"scale", "_scale", "forward", "decorated", "bias", "helper"}


def test_a_class_of_subjects_of_ones_own(project: Project) -> None:
    mine = project(
        mine="""
            from dataclasses import dataclass
            from posenc.conformance import Layer

            @dataclass(frozen=True, kw_only=True)
            class Doubled(Layer):
                factor: float = 2.0
                def run(self, made, batch): return super().run(made, batch) * self.factor

            def build(of): return of
            def call(made, x): return made(x)
            def thrice(x): return 3 * x
            subject = Doubled(build=build, call=call, factor=4.0, options={"of": thrice})
        """
    )
    made = repeated(mine.subject)
    assert "factor=4.0" in made
    assert "options={'of': thrice}" in made


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
    written = literal(value, "options", lambda part: part.__name__)
    again = eval(written, {"torch": torch, "nothing": nothing})
    assert (again, type(again)) == (value, type(value))
    assert len(written) < 80


def test_a_nan_is_written_too() -> None:
    assert literal([float("nan")], "options", str) == '[float("nan")]'


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 1, torch.zeros(1), 1j, [b"bytes"], {"a": print.__self__}])
def test_what_cannot_be_written_is_refused(value: object) -> None:
    subject = Layer(build=nothing, call=apply, options={"value": value})
    with pytest.raises(ValueError, match=r"^options must be (made of numbers|a function or class at the top level)"):
        check_sources(subject)


def test_what_is_not_at_the_top_of_a_file_is_refused(project: Project) -> None:
    def inside() -> None: ...

    for part in (lambda: 1, inside, torch.nn.Linear(2, 2), project):
        with pytest.raises(ValueError, match=r"^build must be a function or class at the top level of a file, .*got "):
            check_sources(Layer(build=part, call=apply))
    mine = project(mine="def build(): return 1\nkept = build\ndef build(): return 2\n")
    with pytest.raises(ValueError, match="build must be a function or class at the top level"):
        check_sources(Layer(build=mine.kept, call=apply))


def test_what_has_no_file_is_refused() -> None:
    made = ModuleType("typed_in")
    exec("import posenc.conformance\ndef build(): return 1", vars(made))
    made.build.__module__ = "__main__"
    main, sys.modules["__main__"] = sys.modules["__main__"], made
    try:
        with pytest.raises(ValueError, match="typed_in has no file that can be read, so that no script can repeat"):
            check_sources(Layer(build=made.build, call=apply))
    finally:
        sys.modules["__main__"] = main


def test_an_import_of_posenc_within_a_function_is_refused(project: Project) -> None:
    mine = project(
        mine="""
            from posenc.conformance import Layer
            def build():
                from posenc.conformance.subjects import attend
                return attend
            def call(made, x): return x
            subject = Layer(build=build, call=call)
        """
    )
    with pytest.raises(
        ValueError, match=r"^mine\.build imports posenc\.conformance\.subjects, .*: import it at the top"
    ):
        check_sources(mine.subject)


def test_every_trial_can_be_made_a_script() -> None:
    from posenc.conformance.checks import CHECKS

    for trial in {trial.function: trial for entry in CHECKS for trial in entry.trials}.values():
        ast.parse(script(WRONG, trial, Case(BATCH), ""))  # or what it uses is not plain
