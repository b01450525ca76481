"""The catalog: it finds every scheme, entries are true of their schemes, and the documentation shows what they say."""

import functools
import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import posenc
from docs import tables
from posenc import Positions
from posenc.encoding.features import projected_at_random
from posenc.scheme import Composition, with_random_parameters
from posenc.schemes.catalog import CATALOG, entries_in
from posenc.schemes.entry import FORMULA, Entry, Law, Shape
from tests.cases import CASES
from tests.rows import in_one_test
from tests.schemes.test_laws import SHAPE, segments

TESTS = Path(__file__).parents[1]
ENTRIES = in_one_test(CATALOG)


# --- found ----------------------------------------------------------------------------------------------------------


def test_catalog_files_oracles_and_public_names_are_of_the_same_schemes() -> None:
    names = {entry.name for entry in posenc.catalog()}
    assert len(names) == len(CATALOG)
    schemes = Path(posenc.__file__).parent / "schemes"
    files = {entry.name for entry in CATALOG if not any(entry.variant)}
    assert {path.stem for path in schemes.glob("*.py")} == files | {"__init__", "catalog", "entry", "own"}
    assert {path.stem for path in (TESTS / "oracles").glob("*.py")} >= names
    classes = {value for value in map(posenc.__getattr__, posenc.__all__) if isinstance(value, type)}
    public = {scheme for scheme in classes if issubclass(scheme, posenc.Scheme) and scheme is not posenc.Scheme}
    assert public == {entry.scheme for entry in CATALOG}


def missing(entry: Entry) -> list[str]:
    """What a scheme still needs beside its own file, in the words of CONTRIBUTING.md."""
    name, title, kind = entry.name, entry.title, entry.scheme.__name__
    home = "rope" if any(entry.variant) else name
    needed = (
        (f"tests/oracles/{name}.py", "CASES"),
        (f"tests/mutants/{name}.py", "MUTANTS"),
        ("src/posenc/__init__.py", f"    from posenc.schemes.{home} import {kind} as {kind}\n"),
        ("src/posenc/__init__.py", f'    "{kind}": "schemes.{home}",\n'),
        ("src/posenc/tools/explore/static/math/catalog.js", f"    {name}: {kind},\n"),
        ("src/posenc/tools/explore/data/laws.json", f'\n"{name}": {{'),
        ("docs/schemes.md", f"| `{title}"),
    )
    return [f"{path}: {line.strip()}" for path, line in needed if line not in _text(TESTS.parent / path)]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_nothing_that_a_scheme_needs_is_missing() -> None:
    assert [line for entry in CATALOG for line in missing(entry)] == []


def test_of_a_scheme_that_is_one_file_all_else_is_missing() -> None:
    found = missing(replace(CATALOG[0], name="a_turn", scheme=Composition))
    assert [line.partition(":")[0] for line in found] == [
        "tests/oracles/a_turn.py",
        "tests/mutants/a_turn.py",
        "src/posenc/__init__.py",
        "src/posenc/__init__.py",
        "src/posenc/tools/explore/static/math/catalog.js",
        "src/posenc/tools/explore/data/laws.json",
        "docs/schemes.md",
    ]
    contributing = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for line in found:
        path = line.partition(":")[0].replace("a_turn", "<name>")
        assert path.rpartition("tools/")[2] in contributing  # a tool's is named within its package


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


@ENTRIES
def test_an_oracles_cases_are_of_its_scheme(entry: Entry) -> None:
    cases = importlib.import_module(f"tests.oracles.{entry.name}").CASES
    assert cases
    assert {type(CASES[name].scheme()) for name in cases} == {entry.scheme}


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
def test_segments_are_needed_by_the_schemes_that_say_so(entry: Entry) -> None:
    positions = segments(replace(entry, needs_segments=False), Positions.arange(3))
    if not entry.needs_segments:
        entry.build(SHAPE)(positions)
        return
    with pytest.raises(ValueError, match=f"^{entry.title} needs positions with a segment per token"):
        entry.build(SHAPE)(positions)
    entry.build(SHAPE)(segments(entry, positions))


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


@in_one_test((entry, causal) for entry in CATALOG for causal in (True, False))
@torch.no_grad()
def test_what_is_for_decoders_hides_later_keys_or_rewards_them_or_takes_them_for_nearer(
    entry: Entry, causal: bool
) -> None:
    """By the scores of equal tokens in a line without a causal mask, those of the query in the middle. Only the last
    channel is not 0, which turns too little to come round."""
    tokens, heads, axes = 25, 4, entry.least_axes
    line = torch.zeros(1, tokens, axes, dtype=torch.int64)
    line[..., -1] = torch.arange(tokens)
    at = Positions(line if axes > 1 else line[..., 0]).with_segment(torch.zeros(1, tokens).long())
    grid = None if axes == 1 else (*[1] * (axes - 1), tokens)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        scheme = with_random_parameters(entry.build(Shape(8 * heads, heads, 8, tokens, causal=causal, grid=grid)))
    encoding = scheme(at, dtype=torch.float64)
    x = torch.zeros(1, tokens, heads, 8, dtype=torch.float64)
    x[..., -1] = 2
    x = encoding.add(x.flatten(-2))
    if encoding.wanted:
        encoding = encoding.with_projected(projected_at_random(encoding.wanted, x))
    q = x.unflatten(-1, (heads, 8)).transpose(1, 2)
    scores = posenc.logits(q, q, encoding)[0, :, tokens // 2]
    behind, own, ahead = scores[:, : tokens // 2].flip(-1), scores[:, [tokens // 2]], scores[:, tokens // 2 + 1 :]
    hides = bool(ahead.isneginf().all())
    rises, falls = ((torch.cat((own, side), 1).diff(dim=1)) for side in (ahead, behind))
    rewards = bool((rises > 0).all() and (falls < 0).all())
    takes_for_nearer = bool((ahead == own).any()) and not bool((behind == own).any())
    assert scheme.for_decoders == (hides or rewards or takes_for_nearer)
    assert (posenc.NoPE() + scheme).for_decoders == scheme.for_decoders
    assert entry.for_decoders <= scheme.for_decoders


def test_the_doors_are_found_without_drawing_from_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    assert {door for entry in CATALOG for door in entry.doors} == {"add", "rotate", "score", "value"}
    assert torch.equal(torch.random.get_rng_state(), before)


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
    """`make tables` writes it."""
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
