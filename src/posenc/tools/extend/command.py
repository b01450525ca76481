"""``posenc extend``: what a scaling does to a real model's context. torch is imported when it runs, not before."""

import argparse
from pathlib import Path

from posenc.tools.extend.settings import Extension
from posenc.tools.kit.command import add_options, failed, given, measured, stdout, words


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "extend",
        help="stretch a real model's context, and see what that did",
        description="Puts scalings on the rotary frequencies of a language model of transformers and measures it past "
        "its trained length: bits per byte of the same final tokens, loss by position, a passkey and an item of a list "
        "by depth and length, beside the plain model on cropped text. Writes records and a report. Run again to resume "
        "it. Lists take commas or spaces.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "model", metavar="MODEL", help="smollm2 (make smollm2), a folder of a checkpoint, a .gguf file, or a hub name"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/extend"), help="folder of results (default: %(default)s)"
    )
    add_options(parser, Extension)


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes. 0: done; 1: interrupted or failed, with what there is written; 2: wrong use."""
    try:
        settings = Extension.from_mapping({**given(arguments, Extension), "model": arguments.model})
        from posenc.tools.extend.resolve import check  # not before: a wrong number need not wait for torch
        from posenc.tools.extend.run import extend

        check(settings)
    except ValueError as error:
        return failed(f"{error} (see posenc extend --help)", code=2)

    from posenc.tools.extend import report, results  # before an hour of passes: drawing must be possible

    out = arguments.out
    try:
        records, stopped = measured(lambda progress: extend(settings, out, progress), out, results.check)
    except ValueError as error:  # refused before the first pass
        return failed(f"{error} (see posenc extend --help)", code=2)
    if records:
        try:
            path = report.write(records, out)
        except (KeyboardInterrupt, OSError) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else words(error)
            return failed(f"{stopped + '; ' if stopped else ''}no report could be written: {why}; records are kept")
        console = stdout()
        console.print(report.terminal_table(records))
        console.print(f"{'A partial' if stopped else 'The'} report: {path}", highlight=False, soft_wrap=True)
    return failed(stopped) if stopped else 0
