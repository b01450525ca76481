"""``posenc extend``: measures context extension of a pretrained model. torch is imported only when it runs."""

import argparse
from pathlib import Path

from posenc.command.options import refused
from posenc_lab.extend.settings import Extension
from posenc_lab.kit.command import add_options, given, reported


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "extend",
        help="measure context extension of a pretrained model",
        description="Applies scalings such as YaRN to the rotary frequencies of a Hugging Face language model and "
        "measures it beyond its trained length: bits per byte of the same final tokens, compared with the unscaled "
        "model on cropped text, and loss by position. Writes records and a report. Run the same command again to "
        "resume. Lists are separated by commas or spaces.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "model", metavar="MODEL", help="smollm2 (after make smollm2), a checkpoint folder, a .gguf file, or a hub name"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/extend"), help="folder of results (default: %(default)s)"
    )
    add_options(parser, Extension)


def run(arguments: argparse.Namespace) -> int:
    """Runs the measurements. Exit codes 0: done; 1: interrupted or failed, after a partial report; 2: wrong usage."""
    try:
        settings = Extension.from_mapping({**given(arguments, Extension), "model": arguments.model})
    except ValueError as error:
        return refused(error, "extend")

    from posenc_lab.extend import report, summary  # a missing matplotlib must fail before an hour of measuring
    from posenc_lab.extend.run import extend  # imports torch, which wrong arguments need not wait for

    return reported(
        lambda progress: extend(settings, arguments.out, progress),
        arguments.out,
        summary.check,
        report.write,
        lambda records, console: console.print(report.terminal_table(records)),
        "extend",
    )
