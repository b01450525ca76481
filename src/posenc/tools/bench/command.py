"""``posenc bench``: times and memory of positional encodings. torch is imported only when it runs."""

import argparse
from functools import partial
from pathlib import Path

from posenc.tools.bench.settings import DTYPES, QUICK, SECTIONS, Settings
from posenc.tools.kit.command import List, add_options, failed, given, names, refused, reported, stdout


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "bench",
        help="measure time and memory of positional encodings",
        description="Times every scheme, backend and other installed library, interleaved with its baseline. Prints "
        "tables, and writes records, bench.md and pictures. Run the same command again to resume. Lists are separated "
        "by commas or spaces.",
        epilog="Sections: " + "; ".join(f"{name}: {about}" for name, about in SECTIONS.items()) + ".",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of results (default: runs/bench, and -mine if --mine, -quick if --quick)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer lengths and rounds, backend auto only, no compilation: minutes"
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("BEFORE", "AFTER"),
        help="measure nothing: of two folders of results of one machine, say what became faster or slower",
    )
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


def settings_of(arguments: argparse.Namespace) -> list[Settings]:
    """The settings for each precision."""
    chosen = {**(QUICK if arguments.quick else {}), **given(arguments, Settings)}
    dtypes = chosen.pop("dtype", [Settings.dtype])
    return [Settings.from_mapping({**chosen, "dtype": dtype}) for dtype in dict.fromkeys(dtypes)]


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark. Exit codes 0: done; 1: interrupted or failed, after partial tables; 2: wrong usage."""
    if arguments.compare:
        return compared(arguments)
    try:
        precisions = settings_of(arguments)
        from posenc.tools.bench.run import bench, check  # imports torch, which wrong arguments need not wait for

        for settings in precisions:
            check(settings)
    except ValueError as error:
        return refused(error, "bench")

    from posenc.tools.bench import report, results, tables  # a missing matplotlib must fail before an hour of timing

    out = arguments.out or Path("runs/bench" + "-mine" * bool(precisions[0].mine) + "-quick" * arguments.quick)
    for settings in precisions:
        folder = out / settings.dtype if len(precisions) > 1 else out
        if code := reported(
            partial(bench, settings, folder), folder, results.check, report.write, tables.show, "bench"
        ):
            return code
    return 0


def compared(arguments: argparse.Namespace) -> int:
    """Prints the changes between two folders. Exit codes 0: done; 2: wrong usage, or incomparable records."""
    told = [*given(arguments, Settings), *(name for name in ("quick", "out") if getattr(arguments, name))]
    if others := [f"--{name.replace('_', '-')}" for name in told]:
        return failed(f"--compare must stand alone, got {', '.join(others)} (see posenc bench --help)", code=2)

    from posenc.tools.bench import compare, tables

    console = stdout()
    try:
        before, after = map(compare.read, arguments.compare)
        tables.printed([compare.environments(before, after)], console)
        tables.printed(compare.compare(before, after), console)
    except ValueError as error:
        return failed(str(error), code=2)
    return 0
