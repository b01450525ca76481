"""``posenc plot``: draws figures of schemes as PNG or SVG. matplotlib and torch are imported only when it runs."""

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.arguments import check_name, check_type
from posenc.command.options import failed
from posenc_lab.kit.command import SCHEMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Entry:
    """One figure: the function ``posenc_lab.plot.<home>.<name>``, with one line about it."""

    name: str
    home: str
    about: str

    @property
    def function(self) -> Callable[..., "Figure"]:
        return getattr(importlib.import_module(f"posenc_lab.plot.{self.home}"), self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        """The arguments that the command line can set, with their defaults."""
        parameters = inspect.signature(self.function).parameters
        return {name: parameter.default for name, parameter in parameters.items() if name in OPTIONS}


FIGURES = (
    Entry("overview", "overview", "a small panel for each scheme of a family: its effect on every pair of tokens"),
    Entry("lines", "vectors", "single dimensions of the added vectors, against position"),
    Entry("table", "vectors", "heat map of the table of added vectors"),
    Entry(
        "similarity", "vectors", "cosine similarity of the vectors of all positions; 'minilm' is a real model's table"
    ),
    Entry("bias", "pairs", "matrices of the bias added to the scores (or the factor), per head"),
    Entry("bias_by_distance", "pairs", "the bias against distance, all schemes on common axes"),
    Entry("shaw_window", "sentences", "Shaw: the vector used by each pair of words, and where distances are clipped"),
    Entry("attention", "sentences", "attention weights on a sentence, without positions and with them"),
    Entry("rope_rotation", "rotations", "RoPE: the rotation of each pair of channels, position by position"),
    Entry("rope_decay", "rotations", "RoPE: the bound decays with distance; scores need not"),
    Entry("relative_index", "relative", "the 2N - 1 distances of N tokens and their indices in the table"),
)

_NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
_NUMBERS: dict[str, Any] = {"type": int, "metavar": "N", "nargs": "+"}

OPTIONS: dict[str, dict[str, Any]] = {
    "schemes": SCHEMES,
    "family": {"metavar": "FAMILY", "help": "family of schemes: add, rotate, bands, score or content"},
    "sentence": {"metavar": "WORDS", "help": "the words to draw, in quotes"},
    "length": {**_NUMBER, "help": "positions, the largest distance, or the trained length"},
    "dim": {**_NUMBER, "help": "width of the model"},
    "num_heads": {**_NUMBER, "help": "heads to build the schemes for"},
    "head_dim": {**_NUMBER, "help": "width of a head"},
    "dimensions": {**_NUMBERS, "help": "which dimensions of the vectors, from 0"},
    "pairs": {**_NUMBER, "help": "how many pairs of channels, from the first"},
    "max_distance": {**_NUMBER, "help": "Shaw's window to either side"},
    "positions": {**_NUMBERS, "help": "words to highlight, from 1"},
    "grid": {"type": int, "nargs": 2, "metavar": ("ROWS", "COLUMNS"), "help": "tokens in rows and columns"},
    "peak": {**_NUMBER, "help": "the distance at which the constructed key scores highest"},
    "draws": {**_NUMBER, "help": "how many Gaussian queries and keys"},
    "causal": {
        "action": argparse.BooleanOptionalAction,
        "help": "with a causal mask or without (default: as each scheme is meant to be used)",
    },
    "common": {"action": "store_true", "help": "one axis of biases for all schemes"},
}
"""The command-line options of figures, by argument name. Each figure has its own defaults."""


class _Help(argparse.Action):
    """Prints the help of all figures or, after the name of a figure, of that one with its defaults."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        name = getattr(namespace, "figure", None)
        if name is None:
            parser.print_help()
        else:
            try:
                entry = find(name)
            except ValueError as error:
                parser.error(str(error))
            of_one = argparse.ArgumentParser(
                f"{parser.prog} {name}",
                description=inspect.getdoc(entry.function),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            _add_general(of_one)
            _add_options(of_one, entry.defaults)
            of_one.print_help()
        parser.exit()


def find(name: str) -> Entry:
    """The figure of that name. ValueError, with the known names, for an unknown one."""
    check_type("figure", name, str)
    known = {entry.name: entry for entry in FIGURES}
    check_name("figure", name, list(known))
    return known[name]


def save(figure: "Figure", path: Path, dark: bool = False) -> None:
    """Writes a PNG or an SVG, by the file's suffix; the same figure gives the same bytes. ValueError for another
    suffix."""
    from matplotlib.figure import Figure

    from posenc.command.files import write_whole
    from posenc_lab.kit.style import saved

    check_type("figure", figure, Figure)
    check_type("path", path, Path)
    _check_ending(path)
    write_whole(path, saved(figure, path.suffix[1:].lower(), dark))


def _check_ending(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--out must end in .png or .svg, got {str(path)!r}")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plot",
        help="draw figures of how the schemes work",
        description="Draws a figure of positional encodings as PNG or SVG. posenc plot --list lists the figures; "
        "posenc plot FIGURE --help shows the options of one with their defaults.",
        add_help=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("-h", "--help", action=_Help, help="show this; after FIGURE, its options and defaults")
    parser.add_argument("figure", nargs="?", metavar="FIGURE", help="the figure to draw: see --list")
    parser.add_argument("--list", action="store_true", help="list every figure, with its options and their defaults")
    _add_general(parser)
    _add_options(parser.add_argument_group("options of figures", "Their defaults: posenc plot FIGURE --help"), OPTIONS)


def _add_general(parser: argparse.ArgumentParser) -> None:
    """Adds the options that every figure has."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="a .png or .svg file (default: FIGURE.png)")
    parser.add_argument("--dark", action="store_true", help="dark background (default: light)")


def _add_options(parser: argparse._ActionsContainer, names: Mapping[str, Any]) -> None:
    """Adds the options of these names, with the defaults that ``names`` gives."""
    for name in names:
        known = dict(OPTIONS[name])
        if names is not OPTIONS:
            known["help"] += f" (default: {_default(names[name])})"
        parser.add_argument("--" + name.replace("_", "-"), dest=name, default=argparse.SUPPRESS, **known)


def _default(value: Any) -> str:
    """A default as it is written on the command line."""
    if value is None:
        return "see above"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f'"{value}"'
    return " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def run(arguments: argparse.Namespace) -> int:
    """Draws a figure and prints its path. Exit codes 0: done; 1: a package is missing; 2: wrong usage."""
    try:
        if arguments.list:
            width = max(len(entry.name) for entry in FIGURES)
            for entry in FIGURES:
                print(f"{entry.name:{width}}  {entry.about}\n{'':{width}}  {_given(entry.defaults)}")
            return 0
        entry, options = _asked(arguments)
        out = arguments.out or Path(f"{entry.name}{'-dark' if arguments.dark else ''}.png")
        _check_ending(out)
        figure = entry.function(dark=arguments.dark, **options)
    except ValueError as error:
        return failed(f"{error} (see posenc plot --list)", code=2)
    except ModuleNotFoundError as error:
        if "pip install" not in str(error):  # the caller explains it
            raise
        return failed(str(error))
    save(figure, out, arguments.dark)
    print(out)
    return 0


def _asked(arguments: argparse.Namespace) -> tuple[Entry, dict[str, Any]]:
    if arguments.figure is None:
        raise ValueError(f"figure must be one of {', '.join(entry.name for entry in FIGURES)}, got none")
    entry = find(arguments.figure)
    options = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    for name in options:
        if name not in entry.defaults:
            raise ValueError(f"{entry.name} takes {_flags(entry.defaults)}, got {_flags([name])}")
    if "grid" in options:
        options["grid"] = tuple(options["grid"])
    return entry, options


def _given(defaults: Mapping[str, Any]) -> str:
    """The options of a figure with their defaults; options without a default value are in brackets."""
    return " ".join(
        f"[{flag}]" if value is None or isinstance(value, bool) else f"{flag} {_default(value)}"
        for flag, value in ((_flags([name]), value) for name, value in defaults.items())
    )


def _flags(names: Iterable[str]) -> str:
    return " ".join("--" + name.replace("_", "-") for name in names)
