"""The records that ship with the explorer: summaries of the study's, and of what was measured beside it."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc_lab.choose.evidence import TEXTS as CLAIMED
from posenc_lab.explore import data
from posenc_lab.explore.records import summarised
from posenc_lab.extend.settings import CROPPED
from posenc_lab.extend.summary import MIN_PIECES
from study.devices import on_cpu
from study.findings import HERE, Part, Text, contrasts, key, label, signed

FILE = Path(data.__path__[0]) / "records.json"
OF_TEXTS = {**CLAIMED, "larger": CLAIMED["python"]}
"""What each text of the study is, in words."""

EXTENDED = (
    "make smollm2; posenc extend smollm2 --scalings none,yarn,linear,ntk,dynamic --factor 2 --lengths 4096,8192,12288 "
    "--windows 4 --final 512"
)


def shipped(texts: Sequence[Text], recall: Part, titles: Mapping[str, str]) -> str:
    """The file: a line for each set of records."""
    lines = (json.dumps(each, ensure_ascii=False, allow_nan=False) for each in _sets(texts, recall, titles))
    return '{"records": [\n' + ",\n".join(lines) + "\n]}\n"


def _sets(texts: Sequence[Text], recall: Part, titles: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for of in texts:
        size = re.search(r"[\d,]+ bytes", str(of.summary.records[-1]["text"]["about"]))
        source = f"{OF_TEXTS[of.name]}{f' ({size[0]})' if size else ''}"
        yield _one(titles[of.name], _summarised(of) | {"source": source}, verdicts(of))
    yield _one("Puzzle: recall", _summarised(recall), _described(recall))
    few = f"Undecided: four pieces of text are too few for a verdict, which needs {MIN_PIECES}."
    yield _one("SmolLM2-135M, extended", extension(tomllib.loads((HERE / "extend.toml").read_text())), few, EXTENDED)


def _summarised(of: Part) -> dict[str, Any]:
    """The summary of a part; its costs are those of the CPU, as other backends need other memory."""
    made = of.summary.records
    return summarised(made) | {"costs": summarised(on_cpu(made) or made)["costs"]}


def _one(name: str, found: Mapping[str, Any], verdict: str, command: str = "make study") -> dict[str, Any]:
    """A summary under its name, with schemes named as the study's tables have them."""
    told = {**found, "schemes": [key(scheme) for scheme in found["schemes"]]}
    told["seeds"] = _labelled(found["seeds"])
    # Times of steps are left out: the machine had other work at the time.
    told["costs"] = _labelled({s: {**cost, "step": None, "seconds": None} for s, cost in found["costs"].items()})
    told["measures"] = [
        {**measure, "curves": _labelled(measure["curves"]), "baselines": _labelled(measure["baselines"])}
        for measure in found["measures"]
    ]
    return {"name": name, "shipped": True, "verdict": verdict, "command": command, **rounded(told)}


def _labelled(of: Mapping[str, Any]) -> dict[str, Any]:
    return {key(scheme): value for scheme, value in of.items()}


def extension(given: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of extend.toml as a summary. The plain model at its trained length is what longer texts are compared
    with."""
    curves = {scheme: [_point(*numbers) for numbers in each] for scheme, each in given["curves"].items()}
    cropped = curves["none"][given["lengths"].index(given["trained"])]
    measure = {"kind": "final", "lengths": given["lengths"], "curves": curves, "baselines": {CROPPED: cropped}}
    named = {"task": "extend", "trained": given["trained"], "schemes": list(curves), "source": given["source"]}
    return {**named, "against": "", "left_out": 0, "seeds": {}, "steps": 0, "measures": [measure], "costs": {}}


def _point(mean: float | None = None, half: float = 0.0) -> list[Any]:
    return [None, None, None, "missing"] if mean is None else [mean, mean - half, mean + half, ""]


def verdicts(of: Text) -> str:
    """What the study's tests say of a text, in words; that there are none where there are none."""
    if of.name not in CLAIMED:
        return _described(of)
    told: dict[str, list[str]] = {}
    for each in contrasts(of):
        if each.found and each.verdict:
            pair = " minus ".join(map(label, each.claim["contrast"]))
            said = f"{signed(each.found.mean)} at {each.claim['length']:,} ({each.verdict})"
            told.setdefault(pair, []).append(said)
    clauses = (f"{pair} is {' and '.join(said)}" for pair, said in told.items())
    return f"Tested, with Holm's correction: {'; '.join(clauses)}."


def _described(of: Part) -> str:
    return f"Described, not tested: all {of.planned} trainings are there."


def rounded(value: Any) -> Any:
    """Numbers with six significant digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
