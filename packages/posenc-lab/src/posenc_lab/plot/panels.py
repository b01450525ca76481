"""Shared code of the figures: builds schemes by name, and draws panels and matrices with a colour scale.

Figures are made without pyplot, so they leave no global state behind.
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
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from posenc.arguments import check_type, shown, whole
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility, visible
from posenc.scheme import Scheme, with_random_parameters
from posenc.schemes.catalog import catalog, entries_of, scheme_from_names
from posenc.schemes.entry import Shape
from posenc_lab.kit import style
from posenc_lab.kit.titles import titled

Schemes: TypeAlias = str | Sequence[str] | Mapping[str, Scheme]
"""Catalog names (or compositions such as rope+alibi), built for the figure's sizes; or schemes by label."""

SEED = 0  # of everything random in a figure: new parameters, word embeddings, fixed queries


@dataclass(frozen=True)
class Named:
    """A scheme to draw, and what to call it."""

    name: str
    scheme: Scheme
    fresh: bool  # built for this figure, with untrained parameters

    @property
    def title(self) -> str:
        """The name, marked "untrained" for new parameters, or "drawn at random" if they would start at zero."""
        random = any(part.zero_initialized for part in self.scheme.parts)
        name = titled(self.name)
        return f"{name}, {'drawn at random' if random else 'untrained'}" if self.fresh else name


def named(schemes: Schemes, shape: Shape, doors: Sequence[str] = ()) -> list[Named]:
    """The schemes to draw. Schemes given by name are built with fixed random parameters.

    Raises ValueError for an unknown name, for no scheme, and for a scheme that opens none of ``doors``.
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
            entries_of(name)  # refuses an unknown name before anything is built
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
    """The mask (queries, keys) of keys that are not drawn: those after the query if ``causal``. None: causal if the
    scheme is for decoders."""
    seen = visible(query_positions, key_positions, Visibility(scheme.for_decoders if causal is None else causal))
    none = torch.zeros(len(query_positions), len(key_positions), dtype=torch.bool)
    return none if seen is None else ~seen[0]


def size_of(scheme: Scheme, name: str, default: int) -> int:
    """The ``dim``, ``head_dim`` or ``num_heads`` that a scheme was built for; ``default`` if it has none."""
    return next((size for part in scheme.parts if (size := getattr(part, name, None))), default)


def axes_of(scheme: Scheme) -> int:
    """The fewest coordinates per token that the catalog's schemes in it accept."""
    return max((e.least_axes for e in catalog() for part in scheme.parts if isinstance(part, e.scheme)), default=1)


def check_causal(causal: bool | None) -> None:
    """ValueError unless causal is True, False or None."""
    if causal is not None and not isinstance(causal, bool):
        raise ValueError(f"causal must be True, False or None, got {shown(causal)}")


@contextmanager
def fixed_draws() -> Iterator[None]:
    """Seeds PyTorch's generator within the block, and restores its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        yield


def places(length: int, grid: tuple[int, int] | None = None) -> Positions:
    """Positions 0 .. length - 1, or those of a grid in raster order; the second half is in segment 1. ValueError for
    a length below 2, or an invalid grid."""
    whole("length", length, least=2)
    if grid is not None:
        if not isinstance(grid, Sequence) or len(grid) != 2:
            raise ValueError(f"grid must be (rows, columns), got {shown(grid)}")
        for n, side in enumerate(grid):
            whole(f"grid[{n}]", side)
    positions = Positions.arange(length) if grid is None else Positions.grid(*grid)
    tokens = torch.arange(len(positions))
    return positions.with_segment((tokens >= len(positions) // 2).long()[None])


def words_of(sentence: str) -> list[str]:
    """The words of a sentence; ValueError for fewer than two."""
    check_type("sentence", sentence, str)
    words = sentence.split()
    if len(words) < 2:
        raise ValueError(f"sentence must have two words or more, got {sentence!r}")
    return words


def embeddings(words: Sequence[str], dim: int) -> Tensor:
    """Fixed Gaussian embeddings (1, words, dim); equal words have equal vectors."""
    generator = torch.Generator().manual_seed(SEED)
    vectors = {word: torch.randn(dim, generator=generator, dtype=torch.float64) for word in dict.fromkeys(words)}
    return torch.stack([vectors[word] for word in words])[None]


def numbers(tensor: Tensor) -> NDArray[np.float64]:
    """A tensor as a float64 array for matplotlib; minus infinity (a masked key) becomes NaN."""
    values: NDArray[np.float64] = tensor.detach().double().cpu().numpy()
    return np.where(np.isneginf(values), np.nan, values)


# -- colours ----------------------------------------------------------------------------------------------------------

SEQUENTIAL: Colormap = matplotlib.colormaps["viridis"]  # monotone in lightness
NEVER_SEEN = {False: "#c6ccd2", True: "#4a525c"}  # for masked keys; a colour that is in neither map
DIVERGING = {
    False: ("#08306b", "#2b78c5", "#9cc7ea", "#f6f6f6", "#f2b377", "#cf6512", "#6b2503"),
    True: ("#b8dcff", "#5ea4ea", "#2a568a", "#20242b", "#8a5220", "#e88f37", "#ffd9a8"),
}


def diverging(dark: bool) -> Colormap:
    """Blue below the centre, orange above it, the background between; safe for colour blindness."""
    return LinearSegmentedColormap.from_list("posenc-diverging", DIVERGING[dark])


def ordered(count: int, dark: bool) -> list[tuple[float, float, float, float]]:
    """Colours for an ordered set of lines, all with enough contrast to the background."""
    low, high = (0.36, 1.0) if dark else (0.0, 0.6)
    shades = SEQUENTIAL(np.linspace(low, high, max(count, 2))[:count])
    return [(float(r), float(g), float(b), float(a)) for r, g, b, a in shades]


DASHES: tuple[style.Dashes, ...] = (style.SOLID, (0, (6, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (1.5, 1.5)))
MAX_HEADS = len(DASHES)  # in one figure


def head_lines(count: int, dark: bool) -> list[Line2D]:
    """The legend entries of the first ``count`` heads."""
    looks = zip(ordered(MAX_HEADS, dark), DASHES, range(1, count + 1), strict=False)
    return [Line2D([], [], color=color, linestyle=dashes, label=f"head {head}") for color, dashes, head in looks]


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
    """A figure of ``size`` inches and its axes, row by row; only the first ``used`` are kept. Call within
    `style.context`."""
    room = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=size, layout=room)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=share, width_ratios=widths).flat)
    for spare in axes[used:] if used is not None else ():
        spare.remove()
    figure.suptitle(title, x=0.012, ha="left", weight="bold", size=12)
    return figure, axes[:used]


def layout(count: int, most: int = 3) -> tuple[int, int]:
    """The rows and columns for ``count`` panels."""
    columns = min(count, most)
    return -(-count // columns), columns


def scale(values: Iterable[ArrayLike], dark: bool, centre: float | None = None) -> tuple[Colormap, Normalize]:
    """One colour scale for all values: diverging around ``centre`` if given; else diverging around 0 if they have both
    signs, and sequential if not."""
    flat = np.concatenate([np.asarray(v, dtype=float).ravel() for v in values])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    # A sign due to rounding alone does not count.
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
    """Draws a matrix as an image, with row 0 at the top unless ``upright``, and NaN in `NEVER_SEEN`. ``gaps`` separates
    the cells by lines; ``words`` are written into them, in black or white."""
    values = np.asarray(values, dtype=float)
    colormap, norm = colors
    axes.grid(False)
    image = axes.imshow(
        values,
        cmap=colormap.with_extremes(bad=NEVER_SEEN[dark]),
        norm=norm,
        aspect="equal" if square else "auto",
        origin="lower" if upright else "upper",
        interpolation="nearest" if max(values.shape) <= 300 else "auto",  # cells smaller than a pixel would show moire
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
    """Draws a colour bar beside the axes."""
    made = figure.colorbar(image, ax=axes, pad=0.02, **options)
    made.set_label(label, size=10)
    made.outline.set_visible(False)
    made.ax.tick_params(labelsize=9)
    return made.ax


def ink_on(color: Sequence[float]) -> str:
    """Black or white, whichever has more contrast to the colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#101418" if luminance > 0.18 else "#ffffff"


def frame(axes: Axes, row: float, column: float, height: int, width: int, color: str, linewidth: float = 2.2) -> None:
    """Draws a frame around ``height`` x ``width`` cells of a matrix, starting at (row, column)."""
    box = (column - 0.5, row - 0.5), width, height
    axes.add_patch(Rectangle(*box, fill=False, edgecolor=color, linewidth=linewidth, zorder=4, clip_on=False))
