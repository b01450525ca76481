"""Records on the page: read as posenc's reports read them, in Python and, where they are dropped in, in JavaScript."""

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from posenc.tools.compare.compare import compare
from posenc.tools.compare.summary import Summary as Compared
from posenc.tools.explore import data
from posenc.tools.explore.content import content
from posenc.tools.explore.records import measures, summary
from posenc.tools.extend.summary import Summary as Extended
from posenc.tools.kit.files import WORDS
from posenc.tools.kit.records import read
from posenc.tools.kit.statistics import wilson
from tests.compare import made_up, test_accuracy, test_trials
from tests.compare.small import small_config, write_text
from tests.explore.node import Node

# The longest computation on either side is the quantile of Student's t: a continued fraction of 200 levels, of about
# ten roundings each. Sums are of fewer numbers. Relative to the largest number of a point:
ROUNDING = 200 * 10 * sys.float_info.epsilon


def written(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def extension() -> list[dict[str, Any]]:
    """A made-up extension: three scalings, four pieces of text, puzzles, and one number that was not finite."""
    about = {
        "configuration": {"scalings": ["none", "yarn", "ntk"], "lengths": [64, 128, 256], "trained_length": 128},
        "fingerprint": "0123",
        "time": "2026-01-02T03:04:05+00:00",
        "text": {"about": "poems"},
        "model": "m",
        "card": "Nothing is said.",
        "versions": {},
        "machine": {},
    }
    made = []
    for shift, scheme in enumerate(("none", "yarn", "ntk", "cropped")):
        for length in (64, 128, 256) if scheme != "cropped" else (128,):
            for seed in range(4):
                bits: float | None = 1 + 0.1 * shift + 0.2 * seed * (length / 128) ** 0.5
                bits = None if (scheme, length, seed) == ("ntk", 256, 1) else bits
                key = {"kind": "final", "scheme": scheme, "seed": seed, "length": length}
                made.append({**key, "bits": bits, "tokens": 8, "file": "a poem", "byte": 0, **about})
    puzzle = {"kind": "passkey", "scheme": "yarn", "length": 256, "bits": 1.0, "tokens": 250, "depth": 50}
    made += [{**puzzle, "seed": seed, "found": int(seed > 0), **about} for seed in range(3)]
    return made


def said_once() -> list[dict[str, Any]]:
    """Records of two runs, as they are written: what those of a run share stands in a line of its own."""
    made: list[dict[str, Any]] = []
    for name, seeds in (("a", (9,)), ("b", (0, 1))):
        records = [{**record, "fingerprint": name} for record in made_up.records(seeds=seeds)]
        shared = ("configuration", "text", "versions", "machine", "fingerprint")
        made.append({"about": name, **{each: records[0][each] for each in shared}})
        made += [{**{k: v for k, v in record.items() if k not in shared}, "about": name} for record in records]
    return made


FOLDERS = {
    "one seed": lambda: made_up.records(),
    "three seeds": lambda: made_up.records(seeds=(0, 1, 2)),
    "one diverged": lambda: made_up.diverge(made_up.records(seeds=(0, 1)), "rope"),
    "right answers": lambda: test_accuracy.records("classify", (0, 1, 2)),
    "some seeds solve it": test_accuracy.bimodal,
    "single answers": lambda: test_accuracy.records("digits"),
    "tuned": lambda: test_trials.tuned("nope", "rope"),
    "tried, not trained": lambda: [
        {**r, "configuration": {**r["configuration"], "schemes": ["nope"]}}
        for r in test_trials.tuned("nope", "rope")
        if r["scheme"] == "nope" or r["kind"] == "trial"
    ],
    "said once": said_once,
    "another reference": lambda: [
        {
            **{name: value for name, value in r.items() if name != "relative_to"},
            "configuration": {**r["configuration"], "reference": "rope"},
        }
        for r in made_up.records()
        if r["kind"] != "speed"
    ],
    "cut short": lambda: made_up.records()[:31],
    "of two runs": lambda: [{**r, "fingerprint": "old", "seed": 9} for r in made_up.records()[:4]] + made_up.records(),
    "extension": extension,
}


def assert_agree(ours: Any, theirs: Any, where: str = "") -> None:
    """The same names, words and numbers."""
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for name in ours:
            assert_agree(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(ours, list) and len(ours) == 4 and isinstance(ours[3], str) and not isinstance(ours[0], str):
        assert ours[3] == theirs[3], where
        within = (
            ROUNDING * max(abs(number) for number in ours[:3] if number is not None) if ours[0] is not None else 0.0
        )
        for mine, its in zip(ours[:3], theirs[:3], strict=True):
            assert_number(mine, its, within, where)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for n, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            assert_agree(mine, its, f"{where}[{n}]")
    elif isinstance(ours, float):
        assert_number(ours, theirs, ROUNDING * abs(ours), where)
    else:
        assert ours == theirs, where


def assert_number(mine: float | None, its: float | None, within: float, where: str) -> None:
    assert (mine is None) == (its is None), where
    if mine is not None and its is not None:
        assert abs(mine - its) <= within, f"{where}: {mine} and {its}"


@pytest.mark.parametrize("what", FOLDERS)
def test_javascript_and_python_say_the_same(what: str, javascript: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", FOLDERS[what]())
    text = (folder / "records.jsonl").read_text()
    theirs = javascript("records", name=str(folder), text=text, measures=measures())
    assert_agree(json.loads(json.dumps(summary(folder))), theirs)


def test_an_interval_has_95_of_100_cases(javascript: Node, tmp_path: Path) -> None:
    """Values of which Student's printed tables say the end: 0.5 and 1/(2 sqrt(7)) of error, and t of 7 degrees."""
    about = made_up.records()[0]
    kept = {name: about[name] for name in ("fingerprint", "time", "configuration", "text", "versions", "machine")}
    key = {"kind": "sliding", "scheme": "nope", "length": 128, "tokens": 8, "seed": 0}
    folder = written(tmp_path / "run", [{**kept, **key, "bits": [0.0, 1.0] * 4}])
    text = (folder / "records.jsonl").read_text()
    half = 2.3646 / (2 * 7**0.5)
    for found in (summary(folder), javascript("records", name="a", text=text, measures=measures())):
        assert found["measures"][0]["curves"]["nope"][0][:3] == pytest.approx([0.5, 0.5 - half, 0.5 + half], abs=1e-4)


@pytest.mark.more
def test_they_say_the_same_of_a_real_run(javascript: Node, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    compare(small_config(write_text(tmp_path / "text"), steps=2, seeds=(0, 1)), folder)
    text = (folder / "records.jsonl").read_text()
    assert text.startswith('{"about": ')
    theirs = javascript("records", name=str(folder), text=text, measures=measures())
    found = summary(folder)
    assert [measure["kind"] for measure in found["measures"]] == ["sliding", "windows", "final_tokens"]
    assert_agree(json.loads(json.dumps(found)), theirs)


def test_curves_are_those_of_the_report(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", made_up.records(seeds=(0, 1)))
    found, report = summary(folder), Compared(read(folder))
    sliding = found["measures"][0]
    assert (sliding["kind"], found["trained"]) == ("sliding", made_up.TRAIN_LENGTH)
    assert (found["seeds"], found["steps"]) == (dict.fromkeys(made_up.SCHEMES, 2), 400)
    assert found["source"].startswith("poems: 1,234,567 bytes")
    for scheme in report.schemes:
        for length, point in zip(sliding["lengths"], sliding["curves"][scheme], strict=True):
            value = report.bits("sliding", scheme, length)
            assert point == ([value.mean, value.low, value.high, ""] if value else [None, None, None, "undefined"])
        assert found["costs"][scheme]["step"] == report.number("speed", scheme, "step_ratio")
    assert sliding["curves"]["learned"][-1][3] == "undefined"


def test_the_truncated_baseline_is_one_number_beside_the_final_tokens(tmp_path: Path) -> None:
    records = made_up.diverge(made_up.records(seeds=(0, 1)), "rope")
    records = [r for r in records if (r["kind"], r["scheme"]) != ("truncated", "alibi")]
    found, report = summary(written(tmp_path / "run", records)), Compared(records)
    sliding, _, final = found["measures"]
    assert sliding["baselines"] == {}
    assert list(final["baselines"]) == list(made_up.SCHEMES)
    for scheme in ("nope", "learned", "rope"):
        value = report.bits("truncated", scheme, made_up.TRAIN_LENGTH)
        assert value
        assert final["baselines"][scheme] == [value.mean, value.low, value.high, ""]
    assert final["baselines"]["alibi"] == [None, None, None, "missing"]
    none = summary(written(tmp_path / "none", [r for r in records if r["kind"] != "truncated"]))
    assert [measure["baselines"] for measure in none["measures"]] == [{}] * 3


def test_an_extension_has_the_cropped_text_beside_it(tmp_path: Path) -> None:
    found, report = summary(written(tmp_path / "run", extension())), Extended(extension())
    final, passkey = found["measures"]
    cropped = report.cropped()
    assert cropped is not None
    assert final["baselines"] == {"cropped": [*cropped, ""]}
    assert "cropped" not in final["curves"]
    assert passkey["baselines"] == {}
    assert final["curves"]["ntk"][2] == [None, None, None, "not finite"]
    assert passkey["curves"]["yarn"] == [[*wilson(2, 3), ""]]
    assert passkey["curves"]["none"] == [[None, None, None, "missing"]]


def test_of_puzzles_the_share_that_was_found_is_drawn(javascript: Node, tmp_path: Path) -> None:
    javascript("content", **content(records=[written(tmp_path / "run", extension())]))
    final, passkey = (javascript("figure", name="length-curves", state={"measure": n})["says"] for n in ("0", "1"))
    assert "bits per byte at 256 tokens shown, lower is better" in final
    assert "share found at 256 tokens shown, higher is better: none missing, yarn 0.667, ntk missing" in passkey


# --- what ships -------------------------------------------------------------------------------------------------------


def test_the_records_of_the_user_stand_before_those_that_ship(tmp_path: Path) -> None:
    shipped = data.records()
    assert shipped
    first, *rest = content(records=[written(tmp_path / "run", made_up.records())])["records"]
    assert (first["name"], rest) == (str(tmp_path / "run"), shipped)


def test_what_ships_has_the_form_of_a_summary_and_is_small(tmp_path: Path) -> None:
    form = summary(written(tmp_path / "run", made_up.records(seeds=(0, 1)))).keys()
    shipped = data.records()
    assert len({each["name"] for each in shipped}) == len(shipped)
    for each in shipped:
        assert each.keys() - form == {"shipped", "verdict", "command"}, each["name"]
        assert form - each.keys() == set()
        assert each["source"]
        assert each["verdict"]
        assert each["task"] in measures()
        for measure in each["measures"]:
            assert list(measure["curves"]) == each["schemes"]
            points = [point for curve in measure["curves"].values() for point in curve]
            assert all(len(curve) == len(measure["lengths"]) for curve in measure["curves"].values())
            assert all(point[3] or point[1] <= point[0] <= point[2] for point in points)
    assert files(data).joinpath("records.json").stat().st_size < 300_000  # type: ignore[attr-defined]


def test_every_set_that_ships_is_drawn_with_its_source(javascript: Node) -> None:
    javascript("content", **content())
    for n, each in enumerate(data.records()):
        for measure in range(len(each["measures"])):
            state = {"records": str(n), "measure": str(measure)}
            drawn = javascript("figure", name="length-curves", state=state)
            assert drawn["says"].startswith(f"{each['name']}, ")
        assert javascript("figure", name="length-cost", state={"records": str(n)})["says"].startswith(each["name"])


def test_seeds_steps_and_text_are_said_and_what_they_decide(javascript: Node, tmp_path: Path) -> None:
    def said(seeds: tuple[int, ...]) -> str:
        found = summary(written(tmp_path / "run", made_up.records(seeds=seeds)))
        return str(javascript("source", set=found))

    text = "poems: 1,234,567 bytes in 3 files, 123,456 held out (whole files)"
    assert said((0,)) == f"Your records: 1 seed, 400 steps, {text}. Undecided: a verdict needs 3 seeds."
    assert said((0, 1, 2)).endswith("The report that posenc compare wrote beside the records has the verdicts.")
    few = {**data.records()[0], "seeds": {"rope": 2, "nope": 10}, "schemes": ["rope", "nope"]}
    assert javascript("source", set=few).startswith("Measured for this page: 2 to 10 seeds, ")


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"records must be folders of posenc compare or posenc extend, .*; got .*none"):
        content(records=[tmp_path / "none"])
    with pytest.raises(ValueError, match="holds nothing that posenc compare or posenc extend measured"):
        summary(written(tmp_path / "bench", []))


BROKEN = {  # a line, and what Python and JavaScript say of it
    "{": ("Expecting property name", "line 2, is not a record (it is not JSON)"),
    "[]": ("not an object", "line 2, is not a record (not an object)"),
    '{"kind": "sliding"}': ("scheme is missing", "line 2, is not a record (scheme is missing)"),
    '{"about": "a", "kind": "sliding"}': (
        "no line before it says what about 'a' is",
        "line 2, is not a record (no line before it says what about 'a' is)",
    ),
    '{"about": ["a"], "kind": "sliding"}': ("about must be text", "line 2, is not a record (about must be text)"),
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_line_that_is_no_record_is_named(line: str, javascript: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", made_up.records()[:1])
    with (folder / "records.jsonl").open("a") as file:
        file.write(line + "\n")
    python, words = BROKEN[line]
    with pytest.raises(ValueError, match=rf"line 2, is not a record \({python}"):
        summary(folder)
    with pytest.raises(AssertionError) as refused:
        javascript("records", name="a", text=(folder / "records.jsonl").read_text(), measures=measures())
    assert f"a, {words}" in str(refused.value)


WRONG: dict[str, dict[str, Any]] = {
    "bits must be a list of finite numbers and nulls": {"bits": ["1"]},
    "length must be a whole number": {"length": 0.5},
    "seed must be a whole number": {"seed": "0"},
    "configuration must be an object": {"configuration": 5},
    "task must be": {"configuration": {"task": "chess"}},
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_results_are_named(words: str, javascript: Node, tmp_path: Path) -> None:
    """In the same words by both."""
    record = next(record for record in made_up.records() if record["kind"] == "sliding")
    folder = written(tmp_path / "run", [{**record, **WRONG[words]}])
    with pytest.raises(ValueError, match=words):
        summary(folder)
    with pytest.raises(AssertionError, match=words):
        javascript("records", name="a", text=(folder / "records.jsonl").read_text(), measures=measures())


RIGHT: dict[Any, Any] = {
    str: "a",
    bool: True,
    int: 1,
    float: 0.5,
    float | None: None,
    dict: {},
    list[int]: [1],
    list[float]: [0.5],
    list[float | None]: [None],
    list[tuple[int, float]]: [[1, 0.5]],
}
"""What `require` takes for each kind."""


@pytest.mark.parametrize("task", measures())
def test_whatever_is_missing_or_wrong_is_named(task: str, javascript: Node, tmp_path: Path) -> None:
    """In the same words by both, for every kind of record and all that must stand in it."""
    right = {WORDS[kind]: value for kind, value in RIGHT.items()}
    about: dict[str, Any] = {"scalings": []} if task == "extend" else {"task": task}
    every = measures()
    known = every[task]
    for kind, results in known["results"].items():
        must = {"scheme": "text", "fingerprint": "text", "time": "text", **known["every"], **results}
        filled: dict[str, Any] = {name: right[words] for name, words in must.items()}
        whole = {"kind": kind, **filled, "configuration": about}
        for name, words in must.items():
            if name == "configuration":  # without which it would be of another task
                continue
            without = {each: value for each, value in whole.items() if each != name}
            for record, said in ((without, "is missing"), ({**whole, name: [{}]}, f"must be {words}")):
                folder = written(tmp_path / "run", [record])
                with pytest.raises(ValueError, match=rf"line 1, is not a record \({name} {said}"):
                    summary(folder)
                with pytest.raises(AssertionError, match=rf"line 1, is not a record \({name} {said}\)"):
                    javascript("records", name="a", text=json.dumps(record) + "\n", measures=every)


def test_a_measurement_that_is_repeated_is_named(javascript: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", made_up.records()[:1] * 2)
    with pytest.raises(ValueError, match="it repeats the measurement of line 1"):
        summary(folder)
    with pytest.raises(AssertionError, match="it repeats the measurement of line 1"):
        javascript("records", name="a", text=(folder / "records.jsonl").read_text(), measures=measures())


def test_a_last_line_that_was_cut_off_is_left_out(javascript: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", made_up.records())
    whole = summary(folder)
    path = folder / "records.jsonl"
    path.write_text(path.read_text() + '{"kind": "sli')
    assert summary(folder) == whole
    theirs = javascript("records", name=str(folder), text=path.read_text(), measures=measures())
    assert_agree(json.loads(json.dumps(whole)), theirs)
