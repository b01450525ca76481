"""Draws figures of the rotate door: the angle of every pair of channels, and its effect on scores.

Angles are read from the scheme's rotation, so scaled and partial variants are drawn as they are.
"""

import copy
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from posenc.arguments import check_type, whole
from posenc.positions.positions import Positions
from posenc.rotation.phases import OfHeads
from posenc.scheme import Scheme
from posenc.schemes.entry import Shape
from posenc_lab.kit import style
from posenc_lab.laws.laws import counterexample, rotary_bound
from posenc_lab.laws.probe import Probe
from posenc_lab.plot import panels
from posenc_lab.plot.panels import Named, Schemes


def rope_rotation(
    schemes: Schemes = ("rope",), *, head_dim: int = 16, length: int = 10, pairs: int = 4, dark: bool = False
) -> Figure:
    """The rotation of the first ``pairs`` pairs of channels at positions 0 .. length - 1, each as an arrow on a circle.

    Pair 0 rotates fastest, by one radian per position. Source: Su et al. 2021, "RoFormer", figure 1.
    """
    whole("pairs", pairs)
    drawn = _named(schemes, head_dim, length)
    angles = [np.angle(turns(each.scheme, length))[:, :pairs] for each in drawn]
    with style.context(dark):
        count = max(found.shape[1] for found in angles)
        size = (2.9 + 0.64 * length, 0.7 + (0.75 + 0.64 * count) * len(drawn))
        figure, axes = panels.panels(len(drawn), 1, size, "RoPE: the turn of each pair of channels")
        for panel, each, found in zip(axes, drawn, angles, strict=True):
            _circles(panel, found, dark)
            for pair, theta in enumerate(found[1]):
                panel.text(length - 0.4, pair, f"{theta:.3g} rad per position", va="center", size=9)
            panel.set(title=each.title, xlabel="position (tokens)")
            panel.set_yticks(range(found.shape[1]), [f"pair {pair}" for pair in range(found.shape[1])])
    return figure


def _circles(axes: Axes, angles: NDArray[np.float64], dark: bool) -> None:
    length, pairs = angles.shape
    paper = style.theme(dark)
    colors = panels.ordered(pairs, dark)
    x, y = np.meshgrid(np.arange(length), np.arange(pairs), indexing="ij")
    axes.grid(False)
    for place, pair in zip(x.ravel(), y.ravel(), strict=True):
        axes.add_patch(Circle((float(place), float(pair)), 0.42, fill=False, edgecolor=paper.faint, linewidth=0.8))
    # The y axis points down, so that pair 0 is at the top; the sign keeps arrows counterclockwise.
    u, v = 0.42 * np.cos(angles), -0.42 * np.sin(angles)
    unit: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "units": "xy", "scale": 1, "width": 0.05}
    shades = [colors[pair] for pair in y.ravel()]
    axes.quiver(x, y, u, v, color=shades, headwidth=3.6, headlength=4, headaxislength=3.6, **unit)
    axes.set(xlim=(-0.55, length - 0.45), ylim=(pairs - 0.45, -0.55), aspect="equal", xticks=range(length))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def rope_decay(
    schemes: Schemes = ("rope",),
    *,
    head_dim: int = 128,
    length: int = 256,
    peak: int = 100,
    draws: int = 512,
    dark: bool = False,
) -> Figure:
    """The bound B(r), which decays with distance, above scores that do not decay.

    Above: B(r) of `posenc_lab.laws`. Below: scores q . k / sqrt(d) of one query and a key that is constructed to
    score highest at distance ``peak``, both of norm sqrt(d); and the mean and standard deviation of the scores of
    Gaussian queries and keys, which are the same at every distance.

    Source: Su et al. 2021, "RoFormer", section 3.4.3 (the bound); Barbero et al. 2025, "Round and Round We Go!",
    propositions 3.1 and 3.2 (why it says little).
    """
    whole("length", length, least=2)
    whole("peak", peak, 0, length - 1)
    whole("draws", draws, least=2)
    drawn = _named(schemes, head_dim, length)
    r = np.arange(length)
    with style.context(dark):
        title = "RoPE: a bound that falls with distance, and scores that need not"
        figure, axes = panels.panels(2, len(drawn), (2.6 + 5.4 * len(drawn) ** 0.8, 6.2), title, share=True)
        ink, orange, blue = (style.theme(dark).palette[index] for index in (0, 1, 2))
        for column, each in enumerate(drawn):
            above, below = axes[column], axes[len(drawn) + column]
            theta = torch.from_numpy(np.angle(turns(each.scheme, 2))[1].copy())
            above.plot(r, panels.numbers(rotary_bound(theta, torch.arange(length))), color=ink)
            above.set(ylim=(0, None), title=f"{each.title}: B(r), a bound, not behaviour")
            built, mean, spread = _counterexample(each.scheme, head_dim, length, peak, draws)
            below.plot(r, built, color=orange, linestyle=panels.DASHES[1], label=f"a key built for distance {peak}")
            below.plot(r, mean, color=blue, label=f"mean of {draws} Gaussian queries and keys")
            words = "± 1 standard deviation of theirs"
            below.fill_between(r, mean - spread, mean + spread, label=words, color=blue, alpha=0.3, linewidth=0)
            below.axvline(peak, color=style.theme(dark).faint, linewidth=1, linestyle=":")
            below.legend(loc="upper right", fontsize=9)
            below.set(title=f"{each.title}: scores", xlabel="distance r = query − key (positions)")
            below.set(xlim=(0, length - 1), ylim=(None, 1.6 * float(built.max())))
            if column == 0:
                above.set_ylabel("B(r) (no unit)")
                below.set_ylabel("score (in logits)")
            above.tick_params(labelbottom=True)
    return figure


# -- the numbers ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def turns(scheme: Scheme, length: int) -> NDArray[np.complex128]:
    """e^(i angle) of every pair of channels at positions 0 .. length - 1, (positions, pairs), of the first head.

    With several coordinates, all of them equal the position. ValueError for a scheme that does not rotate pairs of
    channels, or that rotates queries and keys, or near and distant tokens, differently.
    """
    check_type("scheme", scheme, Scheme)
    whole("length", length)
    positions, axes = Positions.arange(length), panels.axes_of(scheme)
    if axes > 1:
        positions = Positions(positions.coords[..., None].expand(-1, -1, axes))
    rotations: tuple[Any, ...] = scheme.tokens(positions, dtype=torch.float64).rotations
    of_queries, of_keys = (rotations[0].query, rotations[0].key) if len(rotations) == 1 else (None, None)
    if isinstance(of_keys, OfHeads):
        of_keys = of_keys.token_map
    turn = getattr(of_queries, "turn", of_queries)
    if turn is None or not hasattr(turn, "cos") or of_keys is not of_queries:
        raise ValueError("schemes must turn pairs of channels, queries and keys alike, got one that does not")
    if rotations[0].bands:
        raise ValueError("schemes must turn near and far pairs alike, got one that has bands")
    return np.asarray(torch.complex(turn.cos[0, 0].double(), turn.sin[0, 0].double()).numpy())


def _counterexample(
    scheme: Scheme, head_dim: int, length: int, peak: int, draws: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The scores of the constructed key, and the mean and standard deviation of those of Gaussian keys."""
    head_dim = panels.size_of(scheme, "head_dim", head_dim)
    probe = Probe(lambda shape: copy.deepcopy(scheme), Shape(head_dim, 1, head_dim, length))
    found = counterexample(probe, peak, length, draws)
    assert found is not None
    return panels.numbers(found.built * head_dim**0.5), panels.numbers(found.mean), panels.numbers(found.spread)


def _named(schemes: Schemes, head_dim: int, length: int) -> list[Named]:
    whole("length", length, least=2)
    whole("head_dim", head_dim)
    return panels.named(schemes, Shape(head_dim, 1, head_dim, length), doors=("rotate",))
