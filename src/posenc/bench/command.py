"""``posenc bench``: what position costs, and what it costs elsewhere. torch is imported when it runs, not before."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from posenc.arguments import check_choice, check_flag, number, shown, whole

SECTIONS = {
    "price": "time of attention with each scheme and backend, over plain causal attention",
    "growth": "time and peak memory against length",
    "rope": "the rotation of queries and keys, over cloning them",
    "peers": "ALiBi, T5 and Shaw's keys, beside masks, FlexAttention and x-transformers",
    "decode": "one token against a cache, over the same without positions",
}
AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Settings:
    """What one benchmark is. Checked when it is made: a wrong value is a ValueError that names its option."""

    only: tuple[str, ...] = tuple(SECTIONS)
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    schemes: tuple[str, ...] = ()  # none: every one
    backends: tuple[str, ...] = ()  # none: auto, and every one that can
    dtype: str = "float32"
    device: str = "cpu"
    rounds: int = 11
    # Seconds: the rounds of one group stop after ``budget``, and a call that would last over ``longest`` is left out.
    budget: float = 30.0
    longest: float = 60.0
    compiled: bool = True  # competitors that exist only compiled take part
    heads: int = 8
    head_dim: int = 64
    rotated: tuple[int, ...] = (4, 16, 2048, 64)
    rotated_dtypes: tuple[str, ...] = ("float32", "bfloat16")
    peer_lengths: tuple[int, ...] = (2048, 4096)
    cache: int = 16384

    def __post_init__(self) -> None:
        for item in fields(self):
            fine = isinstance(getattr(self, item.name), tuple) or not isinstance(item.default, tuple)
            self._require(item.name, fine, "a tuple")
        self._require("only", bool(self.only), "at least one of " + ", ".join(SECTIONS))
        for name in self.only:
            self._require("only", name in tuple(SECTIONS), f"of {', '.join(SECTIONS)}", name)
        self._require("lengths", bool(self.lengths), "at least one length")
        for length in self.lengths:
            fine = type(length) is int and length >= 64 and length & (length - 1) == 0
            self._require("lengths", fine, "powers of two from 64 on", length)
        for name in ("rounds", "heads", "head_dim", "cache"):
            whole(f"--{name}", getattr(self, name))
        for name in ("budget", "longest"):
            number(f"--{name}", getattr(self, name), above=0)
        check_flag("--compiled", self.compiled)
        self._require("device", isinstance(self.device, str), "a name, as cuda:1")
        for dtype in (self.dtype, *self.rotated_dtypes):
            check_choice("--dtype", dtype, DTYPES)
        self._require("rotated", len(self.rotated) == 4, "(batch, heads, tokens, head_dim)")
        for name in ("rotated", "peer_lengths"):
            for size in getattr(self, name):
                whole(f"--{name}", size)
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))

    def _require(self, name: str, fine: bool, expected: str, got: object = None) -> None:
        if not fine:
            found = getattr(self, name) if got is None else got
            raise ValueError(f"--{name} must be {expected}, got {shown(found)}")

    def identity(self) -> dict[str, Any]:
        """What all records of a folder share: every choice that changes a measurement that is in two of them."""
        chosen = ("only", "lengths", "schemes")
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if k not in chosen}


QUICK: dict[str, Any] = {
    "lengths": (512, 2048),
    "rounds": 5,
    "budget": 1.0,
    "longest": 2.0,
    "backends": (AUTO,),
    "compiled": False,
    "peer_lengths": (1024,),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``bench`` to the commands."""
    defaults = Settings()
    parser = commands.add_parser(
        "bench",
        help="what position costs in time and memory",
        description="Times every scheme, backend and installed peer in turns with what it is compared with, prints "
        "tables, and writes records, bench.md and pictures. Run again to resume. Lists take commas or spaces.",
        epilog="Sections: " + "; ".join(f"{name}: {about}" for name, about in SECTIONS.items()) + ".",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of results (default: runs/bench, or runs/bench-quick if --quick)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer lengths and rounds, auto alone, nothing compiled: minutes"
    )
    _add_list(parser, "only", _names, f"sections to measure: {', '.join(SECTIONS)} (default: all)")
    _add_list(
        parser, "lengths", _whole_numbers, f"powers of two (default: {_listed(defaults.lengths)}; quick: 512,2048)"
    )
    _add_list(parser, "schemes", _names, "names of the catalog, joined by + to compose, or shaw_keys (default: all)")
    _add_list(parser, "backends", _names, "auto, or names of backends (default: auto and all; quick: auto)")
    parser.add_argument("--dtype", choices=DTYPES, default=defaults.dtype, help="of queries, keys and values")
    parser.add_argument("--device", default=defaults.device, help="cpu, cuda, cuda:1 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of a group (default: 11; quick: 5)")


def _add_list(parser: argparse.ArgumentParser, name: str, kind: Callable[[str], list[Any]], about: str) -> None:
    parser.add_argument(f"--{name}", nargs="+", type=kind, metavar=name.upper().rstrip("S"), help=about)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in _names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers, got {text!r}") from None


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The benchmark that the command line asks for."""
    given: dict[str, Any] = {**QUICK} if arguments.quick else {}
    for item in fields(Settings):
        value = getattr(arguments, item.name, None)
        if isinstance(value, list):  # a list for each word of the command line
            value = tuple(dict.fromkeys(one for several in value for one in several))
            if not value:  # which would be all of them
                raise ValueError(f"--{item.name} must be at least one, got none")
        if value is not None:
            given[item.name] = value
    return replace(Settings(), **given)


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes. 0: done; 1: interrupted or failed, with what there is written; 2: wrong use."""
    try:
        settings = settings_of(arguments)
        from posenc.bench.run import bench, check  # not before: a wrong number need not wait for torch

        check(settings)
    except ValueError as error:
        return _failed(f"{error} (see posenc bench --help)", code=2)

    from rich.console import Console

    from posenc.bench import tables
    from posenc.figures import bench as pictures  # before an hour of timing: drawing must be possible
    from posenc.lab.progress import for_console
    from posenc.lab.records import read

    out = arguments.out or Path("runs/bench-quick" if arguments.quick else "runs/bench")
    stopped = ""
    progress = for_console(Console(stderr=True))
    try:
        records = bench(settings, out, progress)
    except (KeyboardInterrupt, OSError, RuntimeError) as error:
        if not progress.begun:
            raise
        records = read(out)
        stopped = "interrupted" if isinstance(error, KeyboardInterrupt) else " ".join(str(error).split())
        stopped += f": {len(records)} records are kept in {out}; the same command resumes"
    if records:
        path = tables.write(records, out, pictures.write(records, out))
        console = Console(width=None if sys.stdout.isatty() else 120)
        tables.show(records, console)
        console.print(f"{'Partial tables' if stopped else 'The tables'}: {path}", highlight=False, soft_wrap=True)
    return _failed(stopped) if stopped else 0


def _failed(line: str, code: int = 1) -> int:
    print(f"posenc: error: {line}", file=sys.stderr)
    return code
