"""``posenc bench``: times and memory of positional encodings. torch is imported only when it runs."""

import argparse
from functools import partial
from pathlib import Path

from posenc.command.options import refused
from posenc_lab.bench.settings import DTYPES, QUICK, REGRET, Settings
from posenc_lab.kit.command import List, add_options, given, names, reported


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "bench",
        help="measure time and memory of positional encodings",
        description="Times attention with every scheme and backend, interleaved with plain causal attention, or your "
        "own attention and posenc's, once their outputs agree. Prints tables, and writes records, and "
        "bench.md. Run the same command again to resume. Lists are separated by commas or spaces.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of results (default: runs/bench, and -mine if --mine, -regret, -quick)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer lengths and rounds, backend auto only: minutes")
    parser.add_argument(
        "--dtype",
        nargs="+",
        type=names,
        action=List,
        default=argparse.SUPPRESS,
        metavar="DTYPE",
        help=f"dtype of queries, keys and values: {', '.join(DTYPES)} (default: float32); several get a folder each",
    )
    add_options(parser, Settings)


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark. Exit codes 0: done; 1: interrupted or failed, after partial tables; 2: wrong usage."""
    try:
        asked = given(arguments, Settings)
        chosen = {**(REGRET if asked.get("regret") else {}), **(QUICK if arguments.quick else {}), **asked}
        dtypes = chosen.pop("dtype", [Settings.dtype])
        precisions = [Settings.from_mapping({**chosen, "dtype": dtype}) for dtype in dict.fromkeys(dtypes)]
        from posenc_lab.bench import run as runs  # imports torch, which wrong arguments need not wait for

        for settings in precisions:
            runs.check(settings)
    except ValueError as error:
        return refused(error, "bench")

    from posenc_lab.bench import tables  # a missing package must fail before an hour of timing

    out = arguments.out or Path(
        "runs/bench"
        + "-mine" * bool(precisions[0].mine)
        + "-regret" * precisions[0].regret
        + "-quick" * arguments.quick
    )
    for settings in precisions:
        folder = out / settings.dtype if len(precisions) > 1 else out
        measure = partial(runs.bench, settings, folder)
        if code := reported(measure, folder, runs.check_record, tables.write, tables.show, "bench"):
            return code
    return 0
