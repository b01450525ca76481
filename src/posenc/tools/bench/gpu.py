"""Runs benchmarks on a CUDA device, and writes them and the outcome of tests as JSON and as a page: ``make gpu``.

python -m posenc.tools.bench.gpu --tests runs/gpu/tests.xml --out runs/gpu

The outcome of the tests is read from pytest's file. Attention with schemes is timed relative to
`scaled_dot_product_attention` and to FlexAttention without a score_mod; rotation is timed relative to a copy.
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from posenc import compat
from posenc.tools.bench import cases
from posenc.tools.bench.cells import PHASES, SPREAD, Table
from posenc.tools.bench.measure import Clock, Inputs, LeftOutError, Make, Work, race
from posenc.tools.bench.run import check
from posenc.tools.bench.settings import Settings
from posenc.tools.kit.command import SCHEMES, List, Parser, failed, given, stdout, whole_numbers
from posenc.tools.kit.files import write_whole
from posenc.tools.kit.machine import clock_of, machine, version_of, versions
from posenc.tools.kit.report import Cell, as_markdown
from posenc.tools.kit.turns import ratios

Record = Mapping[str, Any]

FILE, DATA = "gpu.md", "gpu.json"
DEFAULTS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "bfloat16",
    "lengths": (4096, 8192, 16384, 32768, 65536),
    "schemes": ("alibi", cases.SHAW_KEYS, "shaw", "relative_1d", "transformer_xl"),
    "rounds": 7,
    "rotated": (4, 16, 16384, 64),  # larger than a GPU's caches
}
BARE = "FlexAttention without a score"
FLEX = "flex"
COPY = "copy into place"  # shows the memory bandwidth
COMPILATIONS = 256
OUTCOMES = ("tests", "failures", "errors", "skipped")


def report(settings: Settings, tests: Path | None, clock: Clock, say: Callable[[str], None]) -> dict[str, Any]:
    """The contents of the page, as plain data."""
    device = torch.device(settings.device)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    about = {
        "settings": settings.to_dict(),
        "versions": versions() | {"triton": version_of("triton"), "CUDA": torch.version.cuda or "none"},
        "machine": machine(device) | {"capability": ".".join(map(str, capability)) or "none"},
        "tests": None if tests is None else outcome(tests),
    }
    attention = []
    for length, phase, scheme in itertools.product(settings.lengths, cases.PHASES, settings.schemes):
        say(f"{phase}, {scheme}, {length:,} tokens")
        attention.append(_attention(settings, scheme, length, phase, clock))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # returns cached memory, so that the next scheme can use it
    rotation = []
    for group in cases.rotations(settings):
        say(group.kind)
        built = group.build()
        measured = race(built.makes, rounds=settings.rounds, budget=settings.budget, clock=clock, seed=group.kind)
        rotation.append({"kind": group.kind, **built.facts, **measured})
    return {**about, "attention": attention, "rotation": rotation}


def outcome(path: Path) -> dict[str, int]:
    """The numbers of tests, failures, errors and skips in pytest's JUnit file.

    ValueError for another file.
    """
    try:
        suites = ElementTree.parse(path).getroot().iter("testsuite")
        found = [{name: int(suite.attrib[name]) for name in OUTCOMES} for suite in suites]
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise ValueError(f"{path} must be what pytest --junitxml writes, got {error}") from None
    return {name: sum(suite[name] for suite in found) for name in OUTCOMES}


def _attention(settings: Settings, scheme: str, length: int, phase: str, clock: Clock) -> dict[str, Any]:
    """Plain attention, FlexAttention without a score_mod, the scheme with auto's backend, and in FlexAttention."""
    inputs = Inputs.draw(settings, length, length, phase == "training")
    taken = cases.explained(cases.build_scheme(scheme, settings, length), scheme, inputs)
    makes: dict[str, Make] = {cases.PLAIN: inputs.plain}
    ways = [taken.backend]
    if settings.compiled:
        makes[BARE] = partial(_bare, inputs)
        ways = list(dict.fromkeys((taken.backend, FLEX)))
    makes |= {way: partial(cases.attention_work, settings, scheme, length, inputs, way) for way in ways}
    timing: dict[str, Any] = {"rounds": settings.rounds, "budget": settings.budget, "memory": inputs.query.device}
    with compat.compilations(COMPILATIONS):
        measured = race(makes, clock=clock, seed=f"{phase}, {scheme}, {length}", **timing)
    for result in measured["results"].values():
        bare = measured["results"].get(BARE, {})
        if "seconds" in result and "seconds" in bare:
            result["ratio_to_flex"] = list(ratios(result["seconds"], bare["seconds"]))
    named = {"phase": phase, "scheme": scheme, "length": length, "auto": taken.backend, "why": taken.why}
    return named | measured


def _bare(inputs: Inputs) -> Work:
    """FlexAttention with a causal block mask, made before, and no score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask

    if inputs.query.device.type == "cpu":
        raise LeftOutError("FlexAttention is measured on CUDA alone")
    tokens, device = inputs.query.size(2), str(inputs.query.device)
    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device=device)

    def attend() -> Tensor:
        return _compiled()(inputs.query, inputs.key, inputs.value, block_mask=seen)

    return inputs.work(attend)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


# -- the page ---------------------------------------------------------------------------------------------------------


def page(found: Record) -> str:
    """The tables of a report, in Markdown."""
    made = [_environment(found)]
    for phase in dict.fromkeys(record["phase"] for record in found["attention"]):
        words = PHASES[phase].capitalize()
        made += [_over(found, phase, f"{words}, over scaled_dot_product_attention", "ratio")]
        made += [_over(found, phase, f"{words}, over {BARE}", "ratio_to_flex")]
        made += [_plain(found, phase, words)]
    made.append(_rotation(found))
    return "# posenc on a GPU\n\n" + "\n".join(as_markdown(table) for table in made if table.rows)


def _environment(found: Record) -> Table:
    tests = found["tests"]
    told = "not run" if tests is None else ", ".join(f"{tests[name]} {name}" for name in OUTCOMES)
    about = found["settings"]
    shape = f"1 × {about['heads']} × length × {about['head_dim']}, {about['dtype']}, causal"
    rows = [("tests that need a GPU", told), ("tensors", shape)]
    rows += [(name, str(value)) for name, value in {**found["machine"], **found["versions"]}.items()]
    return Table("Environment", "", ("what", "with"), [*rows])


def _over(found: Record, phase: str, title: str, ratio: str) -> Table:
    mine = [record for record in found["attention"] if record["phase"] == phase]
    lengths = sorted({record["length"] for record in mine})
    lead = f"The median, {SPREAD}. Bold: what auto takes."
    table = Table(title, lead, ("scheme", "backend", *(f"{length:,}" for length in lengths)))

    def form(record: Record, way: str) -> str:
        if ratio not in record["results"][way]:
            return table.dash(f"{BARE} was left out")
        median, low, high = record["results"][way][ratio]
        return f"{median:.2f} ± {(high - low) / 2:.2f}"

    for scheme in dict.fromkeys(record["scheme"] for record in mine):
        of_scheme = {record["length"]: record for record in mine if record["scheme"] == scheme}
        ways = dict.fromkeys(way for record in of_scheme.values() for way in record["results"])
        for way in ways:
            if way not in (cases.PLAIN, BARE):
                groups = map(of_scheme.get, lengths)
                cells = [(table.cell(each, way, form), way == (each or {}).get("auto")) for each in groups]
                table.rows.append((scheme, way, *(Cell(told, mark="best" if auto else "") for told, auto in cells)))
    return table


def _plain(found: Record, phase: str, words: str) -> Table:
    """The milliseconds of both baselines, which have no positions."""
    firsts = reversed(found["attention"])  # the first group of each length is shown; every group measures them
    mine = {record["length"]: record for record in firsts if record["phase"] == phase}
    table = Table(f"{words}, ms", "", ("what", *(f"{length:,}" for length in sorted(mine))))

    def form(record: Record, way: str) -> str:
        return f"{1e3 * statistics.median(record['results'][way]['seconds']):.2f}"

    for way in (cases.PLAIN, BARE):
        table.rows.append((way, *(table.cell(mine[length], way, form) for length in sorted(mine))))
    return table


def _rotation(found: Record) -> Table:
    lead = f"Queries and keys, {' × '.join(map(str, found['settings']['rotated']))}. Bandwidth: read and written once."
    table = Table("Rotation, over a copy", lead, ("precision", "what", "GB/s", "share of a copy's bandwidth"))
    for record in found["rotation"]:
        copy = record["results"][COPY]
        for what, result in record["results"].items():
            cells: Sequence[str]
            if "seconds" in result and "seconds" in copy:
                rate = record["bytes"] / statistics.median(result["seconds"]) / 1e9
                share = statistics.median(copy["seconds"]) / statistics.median(result["seconds"])
                cells = (f"{rate:.0f}", f"{share:.0%}")
            else:
                cells = (table.dash(result.get("left_out", f"{COPY} was left out")), "")
            table.rows.append((record["kind"].partition(" ")[2], what, *cells))
    return table


# -- the command ------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes 0: measured, and the tests passed; 1: no device, or tests failed, after writing; 2: wrong usage."""
    parser = Parser(prog="python -m posenc.tools.bench.gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of gpu.json and gpu.md")
    parser.add_argument("--tests", type=Path, help="what pytest --junitxml wrote")
    left = argparse.SUPPRESS  # to the defaults above
    parser.add_argument("--schemes", default=left, **SCHEMES)
    parser.add_argument("--lengths", default=left, nargs="+", type=whole_numbers, action=List, help="powers of two")
    parser.add_argument("--rounds", default=left, type=int, help="rounds of a group at least")
    parser.add_argument("--device", default=left, help="cuda, cuda:1")
    arguments: argparse.Namespace = parser.parse_args(words)
    try:
        settings = Settings.from_mapping({**DEFAULTS, **given(arguments, Settings)})
        if settings.device.startswith("cuda") and not torch.cuda.is_available():
            return failed(f"torch {torch.__version__} sees no CUDA device")
        check(settings)
        console = stdout()
        say = partial(console.print, highlight=False)
        found = report(settings, arguments.tests, clock_of(torch.device(settings.device)), say)
    except ValueError as error:
        return failed(str(error), code=2)
    write_whole(arguments.out / DATA, (json.dumps(found, indent=1) + "\n").encode())
    write_whole(arguments.out / FILE, page(found).encode())
    say(f"The page: {arguments.out / FILE}")
    tests = found["tests"]
    return 0 if tests is None or not (tests["failures"] or tests["errors"]) else failed("tests failed")


if __name__ == "__main__":
    sys.exit(main())
