"""Checks that a folder belongs to a comparison, and finds its checkpoints."""

from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from posenc.command.files import WRITING
from posenc_lab.compare import checkpoint as checkpoints
from posenc_lab.compare import results
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import configured, from_toml
from posenc_lab.kit import saved
from posenc_lab.kit.configuration import differences, fingerprint
from posenc_lab.kit.records import Record, Records

CHECKPOINTS = "checkpoints"
OLD_SUFFIX = ".pt"  # of checkpoints that were pickles
VERSIONS = ("posenc", "torch", "numpy")  # whose versions two measurements must share to be of one comparison


def name_of(scheme: str, seed: int, trial: int | None = None) -> str:
    name = f"{quote(scheme, safe='+')}-{seed}"  # a scheme of the user's own has a path in its name
    return name if trial is None else f"{name}-trial-{trial}"


def made_names(out: Path, config: CompareConfig) -> frozenset[str]:
    """The names of the checkpoints that the comparison in ``out`` makes, by the configuration it saved and by this one.
    Nothing else is ever removed, and nothing at all without a saved configuration."""
    if not (out / saved.FILE).exists():
        return frozenset()
    both = (from_toml(out / saved.FILE), config)
    tried = [None, *range(max(len(each.tune_rates) * max(len(each.tune_multipliers), 1) for each in both))]
    schemes = {scheme for each in both for scheme in each.schemes}
    seeds = {seed for each in both for seed in (*each.seeds, *each.tune_seeds)}
    return frozenset(name_of(*of) for of in product(schemes, seeds, tried))


def _there(out: Path, made: frozenset[str], suffix: str) -> list[Path]:
    """The files among the checkpoints that have one of these names and this suffix."""
    return sorted(path for path in (out / CHECKPOINTS).glob(f"*{suffix}") if path.name.removesuffix(suffix) in made)


def check_folder(out: Path, identity: dict[str, Any], records: Records, made: frozenset[str]) -> None:
    """ValueError, saying what differs, if another comparison has records in ``out``, and, naming the line, for a record
    that is of another. Where nothing was measured, another's checkpoints, of the names ``made``, are removed."""
    there = saved.identity_in(out, configured)
    if len(records):
        saved.require_same(out, there, identity, "comparison")
    elif there and differences(there, identity):
        for checkpoint in _there(out, made, checkpoints.SUFFIX):
            checkpoint.unlink()
    for line, record in records.numbered():
        if of_another := _of_another(record, identity):
            raise ValueError(f"{records.path}, line {line}, is not of this comparison ({of_another}): remove that line")


def _of_another(record: Record, identity: dict[str, Any]) -> str:
    """How a record differs from the comparison of this ``identity``; empty if it belongs to it."""
    if record["kind"] not in results.results_of(identity.get("task", "text")):
        return f"its kind is {record['kind']!r}"
    made_with = {"text_digest": record["text"].get("digest"), **{k: record["versions"].get(k) for k in VERSIONS}}
    if "plan" in record:
        made_with["plan_digest"] = record["plan"]
    try:
        its = configured(record["configuration"]).identity(**made_with)
    except ValueError as error:
        return f"its configuration: {error}"
    here = fingerprint(identity)
    return differences({**its, "fingerprint": record["fingerprint"]}, {**identity, "fingerprint": here})


def clear(out: Path, made: frozenset[str]) -> list[str]:
    """Removes partially written checkpoints. Reports those of an older format, which stay."""
    for stray in _there(out, made, checkpoints.SUFFIX + WRITING):
        stray.unlink()
    old = ", ".join(path.name for path in _there(out, made, OLD_SUFFIX))
    return [f"in {out / CHECKPOINTS}, of an older format, so not read and left as it is: {old}"] if old else []
