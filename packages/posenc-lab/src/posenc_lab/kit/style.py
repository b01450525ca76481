"""Defines the style of figures: a colour-blind-safe palette, and the same look for a scheme in every figure.

A look is a colour, a marker and a dash pattern, so that no figure depends on colour alone. It depends only on the
scheme's name, not on the other schemes in a figure, so reports can be compared."""

import io
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure

from posenc.arguments import check_flag

# Okabe and Ito's hues, moved in lightness until each colour has a contrast of 3:1 with its background and every pair
# stays apart (CIELAB distance over 20) under simulated protanopia, deuteranopia and tritanopia. The tests measure both.
LIGHT = ("#22272e", "#de6c0a", "#2b95ee", "#1b7a52", "#0a2bb8", "#841205", "#bb5fa7")
DARK = ("#e6e6e6", "#f5b301", "#8fb8ff", "#1fd68a", "#6763f2", "#dd5a28", "#b98bb0")

Dashes = tuple[float, tuple[float, ...]]
SOLID: Dashes = (0, ())
LONG_DASHES: Dashes = (0, (9, 2))
# Short dashes are left to baselines, which are drawn thin beside a scheme's own line.
BASELINE: Dashes = (0, (2.5, 2))

_FOUNDERS = {
    "nope": (0, "o"),
    "cropped": (0, "o"),  # of context extension: the unscaled model
    "sinusoidal": (1, "s"),
    "learned": (6, "D"),
    "rope": (4, "^"),
    "alibi": (3, "v"),
    "shaw": (5, "p"),
    "transformer_xl": (2, "h"),
}
# The palette is smaller than the catalog. These would else look much as schemes that they are often compared with.
_APART = {"t5": 6, "fox": 2, "RoPE in windows with NoPE": 1}
# Of context extension; what follows a comma is a scaling's settings.
_SCALINGS = ("none", "linear", "ntk", "dynamic", "yarn", "llama3", "dynamic_yarn", "base")
_MARKERS = ("P", "d", "<", ">", "8", "*", "H")
_DASHES: tuple[Dashes, ...] = ((0, (5, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (5, 1.2, 1.2, 1.2, 1.2, 1.2)))


@dataclass(frozen=True)
class Theme:
    """The colours of a figure, and the palette of its lines."""

    background: str
    ink: str
    faint: str
    grid: str
    palette: tuple[str, ...]


def theme(dark: bool = False) -> Theme:
    check_flag("dark", dark)
    if dark:
        return Theme("#14171c", "#e4e7eb", "#9aa4b0", "#2c333c", DARK)
    return Theme("#ffffff", "#1f2328", "#656d76", "#e3e6ea", LIGHT)


@dataclass(frozen=True)
class Look:
    """How one scheme is drawn."""

    color: str
    marker: str
    dashes: Dashes


def look(scheme: str, dark: bool = False) -> Look:
    """A scheme's look, from its name alone: a composition has its first part's colour and its second's marker.

    >>> look("rope+alibi").color == look("rope").color, look("rope+alibi").marker == look("alibi").marker
    (True, True)
    """
    palette = theme(dark).palette
    first, *others = scheme.split("+")
    if others:
        return Look(look(first, dark).color, look(others[0], dark).marker, LONG_DASHES)
    if (scaling := scheme.partition(",")[0]) in _SCALINGS:
        number = _SCALINGS.index(scaling)
        return Look(palette[number % len(palette)], "osD^vph"[number % 7], SOLID)
    if scheme in _FOUNDERS:
        index, marker = _FOUNDERS[scheme]
        return Look(palette[index], marker, SOLID)
    # crc32, not hash(): Python salts the latter, and a look must be the same in the next process.
    digest = zlib.crc32(scheme.encode())
    color, digest = palette[_APART.get(scheme, digest % len(palette))], digest // len(palette)
    marker, digest = _MARKERS[digest % len(_MARKERS)], digest // len(_MARKERS)
    return Look(color, marker, _DASHES[digest % len(_DASHES)])


def context(dark: bool = False) -> AbstractContextManager[None]:
    """Matplotlib settings for making *and saving* a figure; the caller's own settings come back on leaving."""
    paper = theme(dark)
    settings = dict(matplotlib.rcParamsDefault)
    # A backend is not a look, and setting one would load or switch it.
    for name in ("backend", "backend_fallback", "interactive", "toolbar"):
        settings.pop(name, None)
    settings |= {
        "figure.facecolor": paper.background,
        "figure.dpi": 100,
        "savefig.dpi": 170,
        "savefig.facecolor": "auto",
        "axes.facecolor": paper.background,
        "axes.edgecolor": paper.faint,
        "axes.labelcolor": paper.ink,
        "axes.titlecolor": paper.ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.labelsize": 11,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": paper.grid,
        "grid.linewidth": 0.8,
        "xtick.color": paper.faint,
        "ytick.color": paper.faint,
        "xtick.labelcolor": paper.ink,
        "ytick.labelcolor": paper.ink,
        "text.color": paper.ink,
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
        "legend.frameon": False,
        "svg.fonttype": "none",
    }
    return matplotlib.rc_context(settings)


def saved(figure: Figure, kind: str = "png", dark: bool = False) -> bytes:
    """The bytes of a PNG or an SVG; the same figure gives the same ones."""
    buffer = io.BytesIO()
    with context(dark), matplotlib.rc_context({"svg.hashsalt": "posenc"}):
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Moves ascending heights to be at least ``gap`` apart, below 1 and, if there is room, above 0.

    Pushing up from the bottom and pushing down from the top both give the gap; so does their mean, which favours
    neither.

    >>> [round(y, 2) for y in apart([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    up, down = list(wanted), list(wanted)
    for i in range(1, len(up)):
        up[i] = max(up[i], up[i - 1] + gap)
    for i in reversed(range(len(down) - 1)):
        down[i] = min(down[i], down[i + 1] - gap)
    middle = [(a + b) / 2 for a, b in zip(up, down, strict=True)]
    lowest = 1 - gap / 2 - (len(middle) - 1) * gap
    return [min(max(y, gap / 2 + i * gap), lowest + i * gap) for i, y in enumerate(middle)]
