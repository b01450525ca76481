"""The catalog: it finds every scheme, entries are true of their schemes, and the documentation shows what they say."""

import ast
import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import posenc
from docs import tables
from posenc import Positions
from posenc.encoding.context import projected_at_random
from posenc.schemes.catalog import CATALOG, entries_in
from posenc.schemes.entry import FORMULA, GIVEN, Entry, Law, Shape
from tests.rows import in_one_test

TESTS = Path(__file__).parents[1]
SHAPE = Shape(dim=72, num_heads=12, head_dim=6, max_positions=64, num_kv_heads=4)
ENTRIES = in_one_test(CATALOG)


# --- found ----------------------------------------------------------------------------------------------------------


def test_catalog_files_oracles_and_public_names_are_of_the_same_schemes() -> None:
    names = {entry.name for entry in posenc.catalog()}
    assert len(names) == len(CATALOG)
    schemes = Path(posenc.__file__).parent / "schemes"
    files = {entry.name for entry in CATALOG if not any(entry.variant)}
    assert {path.stem for path in schemes.glob("*.py")} == files | {
        "__init__",
        "catalog",
        "entry",
        "indexer",
        "user_code",
    }
    assert {path.stem for path in (TESTS / "oracles").glob("*.py")} >= names
    classes = {value for value in map(posenc.__getattr__, posenc.__all__) if isinstance(value, type)}
    public = {scheme for scheme in classes if issubclass(scheme, posenc.Scheme) and scheme is not posenc.Scheme}
    assert public == {entry.scheme for entry in CATALOG}


SCHEME = """
from posenc import Scheme
from posenc.schemes.entry import Entry, Law

class {title}(Scheme):
    def __init__(self, slope, *, power=1):
        super().__init__()

    def {door}(self, positions, dtype=None):
        raise NotImplementedError

ENTRY = Entry("{name}", {title}, "no paper", frozenset({{Law.RELATIVE}}), "none", lambda shape: {title}(1))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of two files with a scheme, and one without."""
    folder = tmp_path / "some_schemes"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "helpers.py").write_text("ANGLE = 0.1\n")
    (folder / "a_turn.py").write_text(SCHEME.format(title="ATurn", name="a_turn", door="rotation"))
    (folder / "vectors.py").write_text(SCHEME.format(title="Vectors", name="vectors", door="table"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("some_schemes")
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_schemes"]:
        del sys.modules[name]


def test_a_file_is_all_that_a_scheme_needs_to_be_found(package: ModuleType) -> None:
    found = entries_in(package)
    assert [(entry.name, entry.doors) for entry in found] == [("vectors", ("add",)), ("a_turn", ("rotate",))]
    assert [entry.signature for entry in found] == ["Vectors(slope)", "ATurn(slope)"]


def test_an_entry_of_another_name_than_its_file_is_refused(package: ModuleType) -> None:
    file = Path(package.__path__[0]) / "another.py"
    file.write_text(SCHEME.format(title="Vectors", name="vectors", door="table"))
    importlib.invalidate_caches()
    with pytest.raises(
        ValueError, match=r"^ENTRY of some_schemes\.another must be named like its file, got 'vectors'$"
    ):
        entries_in(package)


# --- true -----------------------------------------------------------------------------------------------------------


@ENTRIES
def test_an_entry_is_true_of_the_scheme_it_builds(entry: Entry) -> None:
    scheme = entry.build(SHAPE)
    assert type(scheme) is entry.scheme
    assert entry.scheme.__name__ in posenc.__all__
    assert any(entry.variant) or entry.scheme.__module__ == f"posenc.schemes.{entry.name}"
    assert entry.doors == scheme.doors
    assert entry.name.replace("_", "") == re.sub("[ -]", "", entry.title).lower()
    assert all((entry.paper, entry.cost, entry.learned, entry.does, entry.limits, entry.avoid))
    assert (entry.learned == "nothing") <= (Law.PARAMETER_FREE in entry.laws)


@ENTRIES
def test_a_scheme_is_built_for_as_many_axes_as_it_says(entry: Entry) -> None:
    """With the channels of every axis in pairs."""
    taken = []
    for grid in (None, (3, 4), (2, 3, 4)):
        shape = Shape(dim=24, num_heads=2, head_dim=12, max_positions=8, grid=grid)
        places = torch.zeros(1, 2, shape.axes, dtype=torch.int64)
        positions = Positions(places if shape.axes > 1 else places[..., 0]).with_segment(torch.zeros(1, 2).long())
        try:
            encoding = entry.build(shape)(positions)
            if encoding.wanted:
                encoding = encoding.with_projected(projected_at_random(encoding.wanted, torch.ones(1, 2, 24)))
            posenc.logits(*torch.ones(2, 1, 2, 2, 12), encoding if encoding.banded else encoding.pairs)
        except ValueError:
            continue
        taken.append(shape.axes)
    blind = Law.ORDER_FREE in entry.laws
    assert taken == ([1, 2, 3] if blind else {"one": [1], "two": [2], "three": [3], "any": [1, 2, 3]}[entry.axes])


@pytest.mark.parametrize("law", ["beautiful", None])
def test_a_law_that_there_is_not_is_refused(law: object) -> None:
    with pytest.raises(ValueError, match=rf"^laws must be some of relative, absolute, .*, order_free, got {law!r}$"):
        replace(CATALOG[0], laws=CATALOG[0].laws | {law})


def test_a_law_is_a_word_with_a_meaning() -> None:
    assert Law("length_free") is Law.LENGTH_FREE == "length_free" == f"{Law.LENGTH_FREE}"
    assert all(law == law.name.lower() and law.meaning for law in Law)


@ENTRIES
def test_what_learns_nothing_is_a_formula(entry: Entry) -> None:
    """But for cameras, which are given as a table."""
    assert (Law.PARAMETER_FREE in entry.laws) == (entry.laws >= FORMULA or entry.name == "cameras")


# --- shown ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tables.tables())
def test_the_documentation_shows_what_the_catalog_says(name: str) -> None:
    """`python docs/tables.py` writes it."""
    text = (tables.ROOT / name).read_text(encoding="utf-8")
    for table in tables.tables()[name]:
        assert name in ("docs/design.md", "docs/choose.md") or all(
            entry.title in table or entry.signature in table for entry in CATALOG
        )
        assert f"\n\n{table}\n" in text


def test_a_table_takes_the_place_of_the_one_with_the_same_head() -> None:
    old = "Before.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\nAfter.\n"
    new = "| a | b |\n|---|---|\n| 5 | 6 |\n"
    assert tables.written(old, new) == "Before.\n\n| a | b |\n|---|---|\n| 5 | 6 |\n\nAfter.\n"
    with pytest.raises(ValueError, match=r"^text must have a table with the head '\| a \| b \|', got none$"):
        tables.written("Before.\n", new)


@ENTRIES
def test_an_example_runs_and_gives_what_a_layer_needs(entry: Entry) -> None:
    assert f"posenc.{entry.scheme.__name__}(" in entry.example
    assert 1 <= len(entry.example.splitlines()) <= 3
    names: dict[str, Any] = {}
    exec(GIVEN, names)
    q, x = names["q"], names["x"]
    *before, last = ast.parse(entry.example).body
    exec(compile(ast.Module(before, []), entry.name, "exec"), names)
    if isinstance(last, ast.Expr):
        out = eval(compile(ast.Expression(last.value), entry.name, "eval"), names)
        assert out.shape == q.shape
    else:
        exec(compile(ast.Module([last], []), entry.name, "exec"), names)
        out = names["x"]
        assert out.shape == x.shape
        assert not torch.equal(out, x)
    assert out.isfinite().all()


@ENTRIES
def test_an_address_is_whole(entry: Entry) -> None:
    assert not entry.url or re.fullmatch(r"https://(arxiv\.org/abs/\d{4}\.\d{5}|[a-z./-]+\d*)", entry.url)
    assert entry.url or entry.paper in ("no paper", "Inkling 2026", "Mistral Large 4, 2026", "DeepSeek-V4, 2026")
    assert len({other.url for other in CATALOG if other.paper == entry.paper}) == 1
