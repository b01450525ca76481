"""``posenc plot``: draws figures of schemes as PNG or SVG. matplotlib and torch are imported only when it runs."""

import argparse
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.arguments import check_name, check_type
from posenc.command.options import failed, refused
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

    def parser(self) -> argparse.ArgumentParser:
        """Of the options that follow the figure's name: the arguments of its function, with their defaults."""
        parser = argparse.ArgumentParser(
            f"posenc plot {self.name}",
            description=inspect.getdoc(self.function),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--out", type=Path, metavar="FILE", help="a .png or .svg file (default: FIGURE.png)")
        parser.add_argument("--dark", action="store_true", help="dark background (default: light)")
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name in OPTIONS:
                known = {**OPTIONS[name], "help": f"{OPTIONS[name]['help']} (default: {_default(parameter.default)})"}
                parser.add_argument("--" + name.replace("_", "-"), dest=name, default=argparse.SUPPRESS, **known)
        return parser


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
    Entry("relative_index", "sentences", "the 2N - 1 distances of N tokens and their indices in the table"),
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
    "causal": {"action": argparse.BooleanOptionalAction, "help": "with a causal mask or without"},
    "common": {"action": "store_true", "help": "one axis of biases for all schemes"},
}
"""The command-line options of figures, by argument name. Each figure has its own defaults."""


def _default(value: Any) -> str:
    """A default as it is written on the command line."""
    if isinstance(value, bool) or value is None:
        return {None: "see above", True: "yes", False: "no"}[value]
    if isinstance(value, str):
        return f'"{value}"'
    return " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


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


class _Options(argparse.Action):
    """Parses what follows a figure by its own parser, which needs torch. An unknown figure is refused later."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        entry = next((entry for entry in FIGURES if entry.name == namespace.figure), None)
        namespace.options = entry.parser().parse_args(values) if entry else None


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plot",
        help="draw figures of how the schemes work",
        description="Draws a figure of positional encodings as PNG or SVG. posenc plot FIGURE --help has its options.",
        epilog="figures:\n" + "\n".join(f"  {entry.name:16}  {entry.about}" for entry in FIGURES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("figure", nargs="?", metavar="FIGURE", help="the figure to draw")
    parser.add_argument("options", nargs=argparse.REMAINDER, action=_Options, metavar="...", help="its options")


def run(arguments: argparse.Namespace) -> int:
    """Draws a figure and prints its path. Exit codes 0: done; 1: a package is missing; 2: wrong usage."""
    try:
        if arguments.figure is None:
            raise ValueError(f"FIGURE must be given, one of {', '.join(entry.name for entry in FIGURES)}")
        entry = find(arguments.figure)
        given = {**vars(arguments.options)}
        out, dark = given.pop("out"), given.pop("dark")
        out = out or Path(f"{entry.name}{'-dark' if dark else ''}.png")
        _check_ending(out)
        figure = entry.function(dark=dark, **{n: tuple(v) if n == "grid" else v for n, v in given.items()})
    except ValueError as error:
        return refused(error, "plot")
    except ModuleNotFoundError as error:
        if "pip install" not in str(error):  # the caller explains it
            raise
        return failed(str(error))
    save(figure, out, dark)
    print(out)
    return 0
