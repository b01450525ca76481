"""What the figures of schemes share: named schemes, panels, matrices with a scale, cells with words in them.

Figures are made without pyplot, so making one leaves nothing behind in the process.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from posenc.arguments import check_type, shown, whole
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.positions.visibility import visible
from posenc.scheme import Scheme, with_random_parameters
from posenc.schemes.catalog import catalog, entries_of, scheme_from_names
from posenc.schemes.entry import Shape
from posenc.tools.kit import style

Schemes: TypeAlias = str | Sequence[str] | Mapping[str, Scheme]
"""Names of the catalog (or several joined by ``+``), built for the figure's sizes; or schemes, each with its label."""

SEED = 0  # of whatever a figure draws at random: fresh parameters, embeddings of words, fixed queries


@dataclass(frozen=True)
class Named:
    """A scheme to draw, and what to call it."""

    name: str
    scheme: Scheme
    fresh: bool  # built for this figure, with parameters that nothing has trained

    @property
    def title(self) -> str:
        """Its name, and a warning where nothing has trained its numbers: they are those it begins with, or random."""
        random = any(part.zero_initialized for part in self.scheme.parts)
        return f"{self.name}, {'drawn at random' if random else 'untrained'}" if self.fresh else self.name


def named(schemes: Schemes, shape: Shape, doors: Sequence[str] = ()) -> list[Named]:
    """The schemes to draw; those named are built with parameters that are the same every time.

    Raises ValueError for a name that the catalog does not know, for none at all, and for a scheme that opens none of
    ``doors``.
    """
    if isinstance(schemes, str):
        schemes = (schemes,)
    check_type("schemes", schemes, Sequence, Mapping)
    if isinstance(schemes, Mapping):
        for name, scheme in schemes.items():
            check_type(f"schemes[{name!r}]", scheme, Scheme)
        found = [Named(name, scheme, fresh=False) for name, scheme in schemes.items()]
    else:
        found = []
        for name in schemes:
            entries_of(name)  # a wrong name is said before anything is built
            with fixed_draws():
                scheme = with_random_parameters(scheme_from_names(name, shape))
            found.append(Named(name, scheme, fresh=any(True for _ in scheme.parameters())))
    if not found:
        raise ValueError("schemes must name at least one, got none")
    for each in found:
        if doors and not set(doors) & set(each.scheme.doors):
            able = ", ".join(entry.name for entry in catalog() if set(doors) & set(entry.doors))
            wanted, opens = " or ".join(doors), " and ".join(each.scheme.doors) or "none"
            raise ValueError(f"schemes must open the {wanted} door ({able}), got {each.name!r}, which opens {opens}")
    return found


def hidden(scheme: Scheme, query_positions: Positions, key_positions: Positions, causal: bool | None) -> Tensor:
    """Which keys are left out of a picture, (queries, keys): those after the query where ``causal``; where it is not
    said, for schemes that are ``for_decoders``."""
    seen = visible(query_positions, key_positions, Visibility(scheme.for_decoders if causal is None else causal))
    none = torch.zeros(len(query_positions), len(key_positions), dtype=torch.bool)
    return none if seen is None else ~seen[0]


def check_causal(causal: bool | None) -> None:
    """ValueError for what is not True, False or None."""
    if causal is not None and not isinstance(causal, bool):
        raise ValueError(f"causal must be True, False or None, got {shown(causal)}")


@contextmanager
def fixed_draws() -> Iterator[None]:
    """Parameters made within are the same every time, and PyTorch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        yield


def places(length: int, grid: tuple[int, int] | None = None) -> Positions:
    """Positions 0 .. length - 1, or those of a grid in raster order; the second half is of segment 1. ValueError for
    a length below 2, or a grid that is not two numbers above 0."""
    whole("length", length, least=2)
    if grid is not None:
        check_pair("grid", grid, least=1)
    positions = Positions.arange(length) if grid is None else Positions.grid(*grid)
    tokens = torch.arange(len(positions))
    return positions.with_segment((tokens >= len(positions) // 2).long()[None])


def check_pair(name: str, pair: tuple[int, int], least: int) -> None:
    """ValueError for what are not two whole numbers from ``least`` on, of rows and of columns."""
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise ValueError(f"{name} must be (rows, columns), got {shown(pair)}")
    whole(f"{name}[0]", pair[0], least)
    whole(f"{name}[1]", pair[1], least)


def words_of(sentence: str) -> list[str]:
    """The words of a sentence; ValueError for fewer than two."""
    check_type("sentence", sentence, str)
    words = sentence.split()
    if len(words) < 2:
        raise ValueError(f"sentence must have two words or more, got {sentence!r}")
    return words


def embeddings(words: Sequence[str], dim: int) -> Tensor:
    """A fixed Gaussian vector (1, words, dim) for each word, the same wherever the word stands."""
    generator = torch.Generator().manual_seed(SEED)
    vectors = {word: torch.randn(dim, generator=generator, dtype=torch.float64) for word in dict.fromkeys(words)}
    return torch.stack([vectors[word] for word in words])[None]


def numbers(tensor: Tensor) -> NDArray[np.float64]:
    """The numbers of a tensor, for matplotlib; minus infinity (a key that is never seen) becomes NaN."""
    values: NDArray[np.float64] = tensor.detach().double().cpu().numpy()
    return np.where(np.isneginf(values), np.nan, values)


# -- colours ----------------------------------------------------------------------------------------------------------

SEQUENTIAL: Colormap = matplotlib.colormaps["viridis"]  # lightness rises all the way
NEVER_SEEN = {False: "#c6ccd2", True: "#4a525c"}  # what has no value: in neither of the maps
DIVERGING = {
    False: ("#08306b", "#2b78c5", "#9cc7ea", "#f6f6f6", "#f2b377", "#cf6512", "#6b2503"),
    True: ("#b8dcff", "#5ea4ea", "#2a568a", "#20242b", "#8a5220", "#e88f37", "#ffd9a8"),
}


def diverging(dark: bool) -> Colormap:
    """Blue below, orange above, paper between: told apart by all kinds of colour vision."""
    return LinearSegmentedColormap.from_list("posenc-diverging", DIVERGING[dark])


def ordered(count: int, dark: bool) -> list[tuple[float, float, float, float]]:
    """Colours for lines that have an order, all with a contrast to the paper."""
    low, high = (0.36, 1.0) if dark else (0.0, 0.6)
    shades = SEQUENTIAL(np.linspace(low, high, max(count, 2))[:count])
    return [(float(r), float(g), float(b), float(a)) for r, g, b, a in shades]


DASHES: tuple[style.Dashes, ...] = (style.SOLID, (0, (6, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (1.5, 1.5)))


# -- panels -----------------------------------------------------------------------------------------------------------


def panels(
    rows: int,
    columns: int,
    size: tuple[float, float],
    title: str,
    *,
    share: bool = False,
    used: int | None = None,
    widths: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches with the axes in rows, of which the first ``used`` are kept. Call within
    `style.context`."""
    room = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=size, layout=room)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=share, width_ratios=widths).flat)
    for spare in axes[used:] if used is not None else ():
        spare.remove()
    figure.suptitle(title, x=0.012, ha="left", weight="bold", size=12)
    return figure, axes[:used]


def layout(count: int, most: int = 3) -> tuple[int, int]:
    """Rows and columns for so many panels."""
    columns = min(count, most)
    return -(-count // columns), columns


def scale(values: Iterable[ArrayLike], dark: bool, centre: float | None = None) -> tuple[Colormap, Normalize]:
    """One scale for all these numbers: diverging around ``centre`` if given; else around 0 where they have both signs,
    and sequential where they do not."""
    flat = np.concatenate([np.asarray(v, dtype=float).ravel() for v in values])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    # A sign that only rounding gave does not make numbers signed.
    if centre is not None or min(-low, high) > 1e-9 * max(-low, high):
        middle = centre or 0.0
        reach = max(middle - low, high - middle) or 1.0
        return diverging(dark), Normalize(middle - reach, middle + reach)
    return SEQUENTIAL, Normalize(low, high if high > low else low + 1.0)


def matrix(
    axes: Axes,
    values: ArrayLike,
    colors: tuple[Colormap, Normalize],
    dark: bool,
    *,
    square: bool = True,
    upright: bool = False,
    gaps: bool = False,
    words: Sequence[Sequence[str]] = (),
    size: float = 9,
) -> AxesImage:
    """A matrix as an image, row 0 on top unless ``upright``; NaN in the colour of what is never seen. With
    ``gaps`` there are lines of paper between its cells, and ``words`` stand in them, in black or white."""
    values = np.asarray(values, dtype=float)
    colormap, norm = colors
    axes.grid(False)
    image = axes.imshow(
        values,
        cmap=colormap.with_extremes(bad=NEVER_SEEN[dark]),
        norm=norm,
        aspect="equal" if square else "auto",
        origin="lower" if upright else "upper",
        interpolation="nearest" if max(values.shape) <= 300 else "auto",  # less than a pixel per cell shows moire
    )
    if gaps:
        axes.tick_params(length=0)
        paper = style.theme(dark).background
        for count, line in zip(values.shape, (axes.axhline, axes.axvline), strict=True):
            for edge in range(1, count):
                line(edge - 0.5, color=paper, linewidth=1.5)
    for (i, j), word in np.ndenumerate(np.array(words)):
        color = ink_on(image.to_rgba(np.ma.atleast_1d(np.ma.masked_invalid(values)[i, j]))[0])
        axes.text(j, i, word, ha="center", va="center", size=size, color=color)
    axes.spines[:].set_visible(False)
    axes.locator_params(nbins=5, integer=True, steps=[1, 2, 4, 5, 10])
    return image


def bar(figure: Figure, image: AxesImage, axes: Axes | Sequence[Axes], label: str, **options: Any) -> Axes:
    """A colour bar beside the axes."""
    made = figure.colorbar(image, ax=axes, pad=0.02, **options)
    made.set_label(label, size=10)
    made.outline.set_visible(False)
    made.ax.tick_params(labelsize=9)
    return made.ax


def ink_on(color: Sequence[float]) -> str:
    """Black or white, whichever is read better on this colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#101418" if luminance > 0.18 else "#ffffff"


def frame(axes: Axes, row: float, column: float, height: int, width: int, color: str, linewidth: float = 2.2) -> None:
    """A frame around the cells of a matrix from (row, column) on."""
    box = (column - 0.5, row - 0.5), width, height
    axes.add_patch(Rectangle(*box, fill=False, edgecolor=color, linewidth=linewidth, zorder=4, clip_on=False))


def name_words(axes: Axes, words: Sequence[str], left: bool, lowest: bool) -> None:
    """The words of a sentence along both axes of a matrix: queries down, on the ``left`` panels, and keys across."""
    axes.set_xticks(range(len(words)), words, rotation=45, ha="right", rotation_mode="anchor", size=9)
    axes.set_yticks(range(len(words)), words if left else [""] * len(words), size=9)
    axes.set(ylabel="query" if left else "", xlabel="key" if lowest else "")
