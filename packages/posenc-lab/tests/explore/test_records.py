"""Records on the page: read as posenc's reports read them."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.compare.summary import Summary as Compared
from posenc_lab.explore import data
from posenc_lab.explore.content import content
from posenc_lab.explore.records import measures, summary
from posenc_lab.extend.summary import Summary as Extended
from posenc_lab.kit.records import read
from tests.compare import synthetic_records


def written(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def extension() -> list[dict[str, Any]]:
    """A made-up extension: three scalings, four terms of text, and one number that was not finite."""
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
    return made


def test_curves_are_those_of_the_report(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", synthetic_records.records(seeds=(0, 1)))
    found, report = summary(folder), Compared(read(folder))
    sliding = found["measures"][0]
    assert (sliding["kind"], found["trained"]) == ("sliding", synthetic_records.TRAIN_LENGTH)
    assert (found["seeds"], found["steps"]) == (dict.fromkeys(synthetic_records.SCHEMES, 2), 400)
    assert found["source"].startswith("poems: 1,234,567 bytes")
    for scheme in report.schemes:
        for length, point in zip(sliding["lengths"], sliding["curves"][scheme], strict=True):
            value = report.bits("sliding", scheme, length)
            assert point == ([value.mean, value.low, value.high, ""] if value else [None, None, None, "undefined"])
        assert found["costs"][scheme]["step"] == report.number("speed", scheme, "step_ratio")
    assert sliding["curves"]["learned"][-1][3] == "undefined"


def test_an_extension_has_the_cropped_text_beside_it(tmp_path: Path) -> None:
    found, report = summary(written(tmp_path / "run", extension())), Extended(extension())
    (final,) = found["measures"]
    cropped = report.cropped()
    assert cropped is not None
    assert final["baselines"] == {"cropped": [*cropped, ""]}
    assert "cropped" not in final["curves"]
    assert final["curves"]["ntk"][2] == [None, None, None, "not finite"]


# --- what ships -------------------------------------------------------------------------------------------------------


def test_what_ships_has_the_form_of_a_summary_and_is_small(tmp_path: Path) -> None:
    form = summary(written(tmp_path / "run", synthetic_records.records(seeds=(0, 1)))).keys()
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


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"records must be folders of posenc compare or posenc extend, .*; got .*none"):
        content(records=[tmp_path / "none"])
    with pytest.raises(ValueError, match="holds nothing that posenc compare or posenc extend measured"):
        summary(written(tmp_path / "bench", []))
