"""What the page knows of the schemes: formulas that render, examples that run, options that build, measured laws, and
evidence that says where it is from."""

import ast
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from latex2mathml.converter import convert

import posenc
from posenc import schedules
from posenc.schemes.catalog import CATALOG, entries_of
from posenc.schemes.entry import GIVEN, Entry
from posenc.tools.choose.evidence import Table
from posenc.tools.explore import catalog as explorer
from posenc.tools.explore import data
from posenc.tools.explore.data import __main__ as measuring
from posenc.tools.laws.laws import LAWS, QUESTIONS
from posenc.tools.laws.probe import SHAPE
from tests.laws.audited import audited
from tests.rows import first_of

ROOT = Path(__file__).parents[2]
ENTRIES = pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)

COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)")
COMMANDS = COMMAND.findall(r"""
    \alpha \delta \omega \phi \pi \psi \sigma \tau \theta \zeta \cos \sin \tanh \exp \ln \log \max \min \sum \prod
    \frac \sqrt \cdot \bmod \sim \in \mid \le \ge \leftarrow \mapsto \ldots \lfloor \rfloor \lceil \rceil
    \bigl \bigr \Bigl \Bigr \mathrm \mbox \begin \end \quad \qquad \allowbreak \pm \, \; \{ \} \_ \\
""")
"""Of LaTeX with amsmath, what formulas may use."""


# --- entries --------------------------------------------------------------------------------------------------------


@ENTRIES
def test_a_formula_is_plain_latex_and_becomes_mathml(entry: Entry) -> None:
    assert set(COMMAND.findall(entry.formula)) <= set(COMMANDS)
    assert set(re.findall(r"\\(?:begin|end){(\w+)}", entry.formula)) <= {"array", "cases"}
    found = ElementTree.fromstring(f"<div>{explorer.formula(entry)}</div>")
    text = "".join(found.itertext())
    assert re.sub(r"\s", "", text)
    assert not set(text) & set("\\{}_^") - set(_escaped(entry.formula)) - set("{" if "{cases}" in entry.formula else "")
    assert found.find(".//merror") is None


def _escaped(formula: str) -> list[str]:
    """The characters that a formula shows and LaTeX has another use for."""
    return re.findall(r"\\([{}_])", formula)


def test_a_formula_that_is_not_latex_is_seen() -> None:
    """What the test above goes by."""
    assert "\\unknown" in "".join(ElementTree.fromstring(convert(r"x \unknown y")).itertext())


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


# --- options --------------------------------------------------------------------------------------------------------


DATA = ("cameras", "intrinsics")
"""Arguments that are no options on the page, where cameras are those of the catalog."""


@ENTRIES
def test_the_options_build_what_the_catalog_builds(entry: Entry) -> None:
    options = explorer.options(entry)
    assert [option.name for option in options] == [
        name for name, p in inspect.signature(entry.scheme).parameters.items() if name not in ("args", "kwargs")
    ]
    for option in options:
        assert (option.kind == "choice") == bool(option.choices)
        assert option.kind != "other" or option.name in ("heads", "imaginary", *DATA)
        assert option.required or option.optional or option.default is not None
    grid = explorer.GRIDS[entry.least_axes]
    built = entry.build(replace(SHAPE, max_positions=64, grid=grid))
    data = {
        option.name: getattr(built, option.name)
        for option in options
        if option.name in DATA or isinstance(option.built, dict)
    }
    made = entry.scheme(**{option.name: option.built for option in options if option.built is not None} | data)
    assert repr(made) == repr(built)
    shapes = [{name: value.shape for name, value in scheme.state_dict().items()} for scheme in (made, built)]
    assert shapes[0] == shapes[1]


def test_options_say_how_they_are_chosen() -> None:
    rope, relative = ({o.name: o for o in explorer.options(entries_of(n)[0])} for n in ("rope", "relative_2d"))
    assert rope["layout"].choices == ("half", "interleaved")
    assert (rope["head_dim"].required, rope["head_dim"].kind, rope["head_dim"].default) == (True, "int", None)
    assert (rope["base"].required, rope["base"].kind, rope["base"].default) == (False, "float", 10_000.0)
    assert (rope["rotary_dim"].optional, rope["rotary_dim"].kind) == (True, "int")
    assert (rope["scaling"].kind, rope["allocation"].kind, rope["values"].kind) == ("scaling", "numbers", "bool")
    assert (relative["grid"].kind, relative["grid"].built) == ("grid", [8, 8])


# --- the whole ------------------------------------------------------------------------------------------------------


def test_the_catalog_is_json_and_has_every_scheme() -> None:
    whole = explorer.catalog()
    assert json.loads(json.dumps(whole, allow_nan=False)).keys() == whole.keys()
    assert [entry["name"] for entry in whole["entries"]] == [entry.name for entry in CATALOG]
    for shown, entry in zip(whole["entries"], CATALOG, strict=True):
        assert "<math " in shown["formula"]
        assert shown["doors"] == entry.doors
        assert set(shown["claims"]) == entry.laws
        assert shown["measured"].keys() == whole["laws"].keys() == LAWS.keys() | QUESTIONS.keys()
    assert all(law["head"] and law["says"] for law in whole["laws"].values())


def test_the_catalog_is_made_without_drawing_from_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    explorer.catalog(["learned", "string"])
    assert torch.equal(torch.random.get_rng_state(), before)


OWN = """
import torch
from posenc import Scheme
from posenc.encoding.pieces import Bias, Distance

class Near(Scheme):
    def __init__(self, num_heads: int, slope=0.5, mode: str = "soft", grid=None):
        super().__init__()
        self.num_heads, self.slope = num_heads, slope

    def score(self, query_positions, key_positions, context=None):
        return (Bias(lambda r: -self.slope * r.abs().expand(self.num_heads, *r.shape), Distance("Near")),)
"""


def test_a_scheme_of_ones_own_is_shown_and_held_to_the_laws(tmp_path: Path) -> None:
    file = tmp_path / "near.py"
    file.write_text(OWN)
    rope, near = explorer.catalog(["rope", f"{file}:Near"])["entries"]
    assert rope["measured"] == data.laws()["rope"]
    assert (near["title"], near["signature"], near["doors"]) == (
        "Near",
        "Near(num_heads, slope, mode, grid)",
        ("score",),
    )
    assert [(o["name"], o["kind"], o["built"]) for o in near["options"]] == [
        ("num_heads", "int", 6),
        ("slope", "float", 0.5),
        ("mode", "other", "soft"),
        ("grid", "grid", None),
    ]
    assert (near["formula"], near["example"], near["claims"]) == ("", "", [])
    assert near["measured"]["relative"]["holds"]
    assert near["measured"]["decaying"]["holds"]
    assert not near["measured"]["directed"]["holds"]


def test_what_is_no_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^names must be a sequence of names, got 'rope'$"):
        explorer.catalog("rope")
    with pytest.raises(ValueError, match=r"^names must be of one scheme each, got 'rope\+alibi'$"):
        explorer.catalog(["rope+alibi"])
    with pytest.raises(ValueError, match=r"got 'ropee' \(did you mean 'rope'\?\)"):
        explorer.catalog(["ropee"])


# --- laws -----------------------------------------------------------------------------------------------------------


def test_the_measured_laws_are_of_every_scheme_and_agree_with_the_claims() -> None:
    """``python -m posenc.tools.explore.data`` writes them."""
    measured = data.laws()
    assert list(measured) == [entry.name for entry in CATALOG]
    for entry in CATALOG:
        laws = measured[entry.name]
        assert {law for law in LAWS if laws[law]["holds"]} == entry.laws
        assert all(said.keys() == {"holds", "value", "words", "cell"} and said["words"] for said in laws.values())
        for said in laws.values():
            assert said["cell"].split()[0] == {True: "yes", False: "no", None: "n/a"}[said["holds"]]


@pytest.mark.parametrize(
    "name", first_of(["rope", "sinusoidal", "learned", "lie_re", "alibi", "fire", "shaw", "swin", "cope"])
)
def test_laws_measured_anew_are_as_they_were(name: str) -> None:
    kept, anew = data.laws()[name], data.shown(audited(name))
    assert {law: said["holds"] for law, said in anew.items()} == {law: said["holds"] for law, said in kept.items()}


def test_the_command_writes_what_was_measured_or_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "laws.json"
    file.write_text("{}\n")
    monkeypatch.setattr(measuring, "FILE", file)
    monkeypatch.setattr(measuring, "catalog", lambda: entries_of("nope") + entries_of("alibi"))
    monkeypatch.setattr(measuring, "audit", lambda name: audited(name) if name == "nope" else _stop())
    with pytest.raises(KeyboardInterrupt):
        measuring.main()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["{}\n"]
    monkeypatch.setattr(measuring, "audit", audited)
    measuring.main()
    assert json.loads(file.read_text()) == {name: data.shown(audited(name)) for name in ("nope", "alibi")}
    assert "alibi" in capsys.readouterr().err


def _stop() -> None:
    raise KeyboardInterrupt


# --- schedules ------------------------------------------------------------------------------------------------------


def test_every_family_has_its_schedule_layer_by_layer() -> None:
    families = {family["name"]: family for family in explorer.families()}
    assert families.keys() >= {"gemma3", "smollm3", "cohere2", "gpt_oss", "llama4", "deepseek_v3"}
    for name, family in families.items():
        schedule = getattr(schedules, name)()
        assert sorted(layer for kind in family["kinds"] for layer in kind["layers"]) == list(range(len(schedule)))
        assert repr(eval(family["call"], {"posenc": posenc})) == repr(schedule)
        assert family["title"]
        assert family["does"]
        for kind in family["kinds"]:
            assert f"{kind['scheme']}" in repr(schedule)
            assert kind["window"].replace(",", "") in repr(schedule)
    llama, gemma = families["llama4"]["kinds"], families["gemma3"]["kinds"]
    assert [(kind["names"], kind["keys"], kind["chunk"]) for kind in llama] == [
        (["rope"], None, 8192),
        (["query_scale"], None, None),
    ]
    assert [(kind["keys"], kind["layers"][:2]) for kind in gemma] == [(1024, [0, 1]), (None, [5, 11])]


# --- evidence -------------------------------------------------------------------------------------------------------

EVIDENCE = explorer.evidence()


def cells(page: str) -> list[dict[tuple[str, str], str]]:
    """The tables of a page, each cell by the first cell of its row and the head of its column, in either order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    tables = []
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip(" *") for cell in line.strip("|\n").split("|")] for line in lines.splitlines())
        table = {}
        for row in rows:
            for column, value in zip(head[1:], row[1:], strict=False):
                table[row[0], column] = table[column, row[0]] = value
        tables.append(table)
    return tables


@pytest.mark.parametrize("one", EVIDENCE, ids=lambda one: one.name)
def test_evidence_says_where_it_is_from(one: Table) -> None:
    assert all((one.title, one.measured, one.shows, one.heads))
    assert all(row.label and (row.schemes or one.name.startswith("study_")) for row in one.rows)  # a schedule is none
    if one.name.startswith("study_"):  # tests/test_study.py
        return
    if one.url:
        assert re.fullmatch(r"https://[\w./-]+", one.url)
        assert not one.doc
        return
    printed = {
        (row.label, head): figure for row in one.rows for head, figure in zip(one.heads, row.figures, strict=True)
    }
    assert any(printed.items() <= table.items() for table in cells(one.doc))
    assert one.command in (ROOT / one.doc).read_text(encoding="utf-8").replace(" \\\n   ", "")


def test_names_of_evidence_are_its_own_and_questions_are_answered() -> None:
    assert len({one.name for one in EVIDENCE}) == len(EVIDENCE)
    assert {one.question for one in EVIDENCE} == {"length", "far", "order", "images", "cost", "stretch", "distance"}


def test_evidence_without_a_source_or_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = EVIDENCE[0]
    with pytest.raises(
        ValueError, match=r"^alibi_length: must have rows, a source, and a url or a command with its page$"
    ):
        replace(good, url="")
    unknown = replace(good, rows=(replace(good.rows[0], schemes=("ropee",)),))
    monkeypatch.setattr(explorer, "tables", lambda: (unknown,))
    with pytest.raises(ValueError, match=r"^alibi_length: schemes must be names of the catalog, got ropee$"):
        explorer.evidence()
    with pytest.raises(ValueError, match=r"^alibi_length: sinusoidal must have 5 figures, got 4$"):
        replace(good, rows=(replace(good.rows[0], figures=good.rows[0].figures[:4]),))
