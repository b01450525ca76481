"""``posenc plot``: the figures of schemes, by name, as PNG or SVG.

matplotlib and torch are imported when a figure is drawn, so that ``posenc --help`` answers at once.
"""

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.arguments import check_name, check_type
from posenc.tools.kit.command import SCHEMES, failed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Entry:
    """One figure: the function ``posenc.tools.plot.<home>.<name>``, and what it shows in a line."""

    name: str
    home: str
    about: str

    @property
    def function(self) -> Callable[..., "Figure"]:
        return getattr(importlib.import_module(f"posenc.tools.plot.{self.home}"), self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        """The arguments that the command line can give it, with their defaults."""
        parameters = inspect.signature(self.function).parameters
        return {name: parameter.default for name, parameter in parameters.items() if name in OPTIONS}


FIGURES = (
    Entry("overview", "overview", "every scheme of a family in a small panel: what it does to two tokens"),
    Entry("lines", "vectors", "single dimensions of the added vectors, over positions"),
    Entry("table", "vectors", "heat map of the table of added vectors"),
    Entry(
        "similarity", "vectors", "cosine of every two positions' vectors; the scheme 'minilm' is a real model's table"
    ),
    Entry("bias", "pairs", "matrices of what is added to the score, or multiplies it, per head"),
    Entry("bias_by_distance", "pairs", "the same as lines against distance, scheme by scheme on common axes"),
    Entry("shaw_window", "sentences", "Shaw: which vector each pair of words uses, and where the window clips"),
    Entry("distance_aware_factor", "pairs", "DA-Transformer: the family f(R; v) and its bounds"),
    Entry("transformer_xl_terms", "sentences", "Transformer-XL: the four terms of a score on a sentence"),
    Entry("attention", "sentences", "attention on a sentence without positions and with them"),
    Entry("rope_rotation", "rotations", "RoPE: the turn of each pair of channels, position by position"),
    Entry("rope_phases", "rotations", "RoPE: the angle of every pair at every position"),
    Entry("rope_decay", "rotations", "RoPE: the bound that falls with distance, and scores that need not"),
    Entry("spectrum", "spectra", "wavelengths of rotary pairs before and after scalings, against the trained length"),
    Entry("relative_index", "grids", "the 2N - 1 distances of N tokens and their indices in the table"),
    Entry("relative_to_absolute", "grids", "how products with 2N - 1 distances become scores of N keys"),
    Entry("offsets_2d", "grids", "row and column offsets of every pixel from one of them"),
)

_NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
_NUMBERS: dict[str, Any] = {"type": int, "metavar": "N", "nargs": "+"}
_PLACE: dict[str, Any] = {"type": int, "nargs": 2, "metavar": ("ROW", "COLUMN")}

OPTIONS: dict[str, dict[str, Any]] = {
    "schemes": SCHEMES,
    "family": {"metavar": "FAMILY", "help": "which schemes: add, rotate, bands, score or content"},
    "sentence": {"metavar": "WORDS", "help": "the words to draw, in quotes"},
    "length": {**_NUMBER, "help": "positions, the largest distance, or the trained length"},
    "dim": {**_NUMBER, "help": "width of the model"},
    "num_heads": {**_NUMBER, "help": "heads to build the schemes for"},
    "head_dim": {**_NUMBER, "help": "width of a head"},
    "dimensions": {**_NUMBERS, "help": "which dimensions of the vectors, from 0"},
    "pairs": {**_NUMBER, "help": "how many pairs of channels, from the first"},
    "max_distance": {**_NUMBER, "help": "Shaw's window to either side"},
    "positions": {**_NUMBERS, "help": "which words to frame, from 1"},
    "grid": {**_PLACE, "metavar": ("ROWS", "COLUMNS"), "help": "tokens in rows and columns"},
    "pixel": {**_PLACE, "help": "the pixel that offsets are counted from, from 0"},
    "peak": {**_NUMBER, "help": "the distance that the key is built for"},
    "draws": {**_NUMBER, "help": "how many Gaussian queries and keys"},
    "v": {"type": float, "nargs": "+", "metavar": "V", "help": "values of DA-Transformer's v"},
    "w": {"type": float, "metavar": "W", "help": "DA-Transformer's weight of the distance"},
    "scalings": {
        "nargs": "+",
        "metavar": "NAME",
        "help": "linear, ntk, dynamic, yarn, llama3, proportional or longrope:FILE",
    },
    "base": {"type": float, "metavar": "B", "help": "base of the rotary frequencies"},
    "factor": {"type": float, "metavar": "S", "help": "wanted length by trained length"},
    "causal": {
        "action": argparse.BooleanOptionalAction,
        "help": "no key after its query, or every key; left out: as each scheme is made for",
    },
    "common": {"action": "store_true", "help": "one axis of biases for all schemes"},
}
"""What figures can be given on the command line, by the name of their argument. Each figure has defaults of its own."""


class _Help(argparse.Action):
    """Help for all figures at once, or for the one that was named before it, which knows its options' defaults."""

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
    """The figure of that name; ValueError, naming those there are, for another."""
    check_type("figure", name, str)
    known = {entry.name: entry for entry in FIGURES}
    check_name("figure", name, list(known))
    return known[name]


def save(figure: "Figure", path: Path, dark: bool = False) -> None:
    """Writes a PNG or an SVG, by the file's ending; the same figure gives the same bytes.

    Raises ValueError for another ending.
    """
    from matplotlib.figure import Figure

    from posenc.tools.kit.files import write_whole
    from posenc.tools.kit.style import saved

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
        help="draw how the schemes work",
        description="Draws a figure of positional encodings as PNG or SVG. posenc plot --list names the figures, and "
        "posenc plot FIGURE --help the options of one with its defaults.",
        add_help=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("-h", "--help", action=_Help, help="this; after the name of a figure, its options and defaults")
    parser.add_argument("figure", nargs="?", metavar="FIGURE", help="which figure: see --list")
    parser.add_argument("--list", action="store_true", help="name every figure, and its options with their defaults")
    _add_general(parser)
    _add_options(parser.add_argument_group("options of figures", "Their defaults: posenc plot FIGURE --help"), OPTIONS)


def _add_general(parser: argparse.ArgumentParser) -> None:
    """What every figure takes."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="a .png or .svg file (default: FIGURE.png)")
    parser.add_argument("--dark", action="store_true", help="light on dark (default: dark on light)")


def _add_options(parser: argparse._ActionsContainer, names: Mapping[str, Any]) -> None:
    """The options of these names; with their defaults where names have some."""
    for name in names:
        known = dict(OPTIONS[name])
        if names is not OPTIONS:
            known["help"] += f" (default: {_default(names[name])})"
        parser.add_argument("--" + name.replace("_", "-"), dest=name, default=argparse.SUPPRESS, **known)


def _default(value: Any) -> str:
    """A default as the command line would be given it."""
    if value is None:
        return "see above"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f'"{value}"'
    return " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def run(arguments: argparse.Namespace) -> int:
    """Draws the figure asked for, writes it and says where. 0 done, 1 something is not installed, 2 wrong use."""
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
        if "pip install" not in str(error):  # a plain one is for the caller to explain
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
    for name in ("grid", "pixel"):
        if name in options:
            options[name] = tuple(options[name])
    return entry, options


def _given(defaults: Mapping[str, Any]) -> str:
    """The options of a figure with their defaults, as one would type them; in brackets what has none to type."""
    return " ".join(
        f"[{flag}]" if value is None or isinstance(value, bool) else f"{flag} {_default(value)}"
        for flag, value in ((_flags([name]), value) for name, value in defaults.items())
    )


def _flags(names: Iterable[str]) -> str:
    return " ".join("--" + name.replace("_", "-") for name in names)
