"""Draws the figure of scalings: the wavelengths of rotary pairs before and after them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from posenc.arguments import check_name, check_type, number, shown, whole
from posenc.rotation.phases import frequencies
from posenc.rotation.scalings import LongRoPE, Scaling
from posenc.tools.kit import style
from posenc.tools.kit.scalings import NAMED, factors_of
from posenc.tools.plot import panels

Scalings: TypeAlias = str | Sequence[str] | Mapping[str, Scaling]
"""Names, built for the figure's lengths; or scalings by label."""

MARKERS = ("o", "s", "^", "D", "v", "P")


def spectrum(
    scalings: Scalings = ("linear", "ntk", "yarn", "llama3"),
    *,
    head_dim: int = 128,
    base: float = 10_000.0,
    length: int = 4096,
    factor: float = 4.0,
    dark: bool = False,
) -> Figure:
    """The wavelength of every pair of channels before and after scalings, and the divisor of its frequency.

    ``length`` is the trained length, and the wanted length is ``factor`` times that. Scalings that depend on the text's
    length are drawn at the wanted length, where "dynamic" equals "ntk". Pairs whose wavelength exceeds the trained
    length make no full turn in training, so longer texts have new angles, unless their frequency is divided by the
    factor.

    ``scalings`` are names (linear, ntk, dynamic, yarn, dynamic_yarn, llama3, proportional with a quarter of the
    pairs, and longrope:FILE, a JSON file with the lists short_factor and long_factor), or scalings by their labels.
    Source: Peng et al. 2023, "YaRN", section 3.2, for wavelengths against the trained length.
    """
    whole("length", length, least=2)
    factor, base = number("factor", factor, above=1), number("base", base, above=1)
    if whole("head_dim", head_dim, least=4) % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    wanted = factor * length
    chosen = _named(scalings, factor, length, head_dim // 2)
    drawn = {name: _scaled(each, head_dim, base, wanted) for name, each in chosen.items()}
    theta = panels.numbers(frequencies(head_dim, base))
    pairs = np.arange(len(theta))
    with style.context(dark):
        title = f"Rotary wavelengths, scaled from {length:,} to {wanted:,.0f} tokens"
        figure, (above, below) = panels.panels(2, 1, (8.6, 7.8), title, share=True)
        paper = style.theme(dark)
        for axes in (above, below):  # where the unscaled wavelength equals the trained length
            axes.axvline(_meets(base, head_dim, length), color=paper.faint, linewidth=1, linestyle=(0, (1.5, 1.5)))
        above.plot(pairs, 2 * math.pi / theta, color=paper.ink, linewidth=3, label="no scaling")
        for n, (name, (found, magnitude)) in enumerate(drawn.items()):
            color = paper.palette[1 + n % (len(paper.palette) - 1)]
            look: dict[str, Any] = {
                "color": color,
                "linestyle": panels.DASHES[n % len(panels.DASHES)],
                "marker": MARKERS[n % len(MARKERS)],
                "markevery": (2 + 3 * n, max(1, len(pairs) // 6)),
            }
            with np.errstate(divide="ignore"):
                wavelength = np.where(found > 0, 2 * math.pi / found, np.nan)
                divided = np.where(found > 0, theta / found, np.nan)
            still = int((found == 0).sum())
            words = f"{name}" + (f", cos and sin × {magnitude:.3g}" if magnitude != 1 else "")
            above.plot(pairs, wavelength, **look)
            below.plot(pairs, divided, label=words + (f", {still} pairs do not turn" if still else ""), **look)
        _lengths(above, length, wanted)
        past = int((2 * math.pi / theta > length).sum())
        above.set(yscale="log", ylabel="wavelength (tokens per turn)", ylim=(2 * math.pi / 1.6, None))
        above.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        above.set_title(f"thick: no scaling; {past} of {len(pairs)} pairs do not come round in {length:,} tokens")
        below.axhline(factor, color=paper.faint, linewidth=1)
        below.annotate(
            f"divided by {factor:g}: no angle beyond those of training", (0, factor), (4, 4),
            textcoords="offset points", color=paper.faint, size=9,
        )  # fmt: skip
        below.set(ylabel="frequency divided by", xlabel="pair of channels (index; 0 turns fastest)")
        below.set_yscale("log", base=2)
        low, high = below.get_ylim()
        below.set(ylim=(min(low, 0.93), high * factor**0.12), xlim=(-0.5, len(pairs) - 0.5))
        below.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        below.set_title("by what each pair is divided; right of the dotted line, pairs that do not come round")
        below.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, fontsize=9, handlelength=4)
        above.tick_params(labelbottom=True)
    return figure


def _meets(base: float, head_dim: int, length: int) -> float:
    """The fractional index of the pair whose wavelength is ``length``."""
    return head_dim * math.log(length / (2 * math.pi)) / (2 * math.log(base))


def _lengths(axes: Axes, trained: int, wanted: float) -> None:
    """Draws a line at both lengths, labelled on the left, where all wavelengths are short."""
    ink = axes.yaxis.label.get_color()
    for length, words, dashes in ((trained, "trained", style.SOLID), (wanted, "wanted", style.BASELINE)):
        axes.axhline(length, color=ink, linewidth=1, linestyle=dashes)
        place: dict[str, Any] = {"textcoords": "offset points", "size": 9, "color": ink}
        axes.annotate(f"{words}: {length:,.0f} tokens", (0, length), (4, 3), **place)


def _scaled(scaling: Scaling, head_dim: int, base: float, wanted: float) -> tuple[NDArray[np.float64], float]:
    """The scaled frequencies theta at the wanted length, and the factor of cos and sin."""
    theta = frequencies(head_dim, base)
    lengths = [torch.tensor([[wanted]], dtype=torch.float64)] if getattr(scaling, "needs_lengths", False) else []
    found, magnitude = scaling(theta, *lengths)
    return panels.numbers(found[0] if found.dim() == 2 else found), float(magnitude)


def _named(scalings: Scalings, factor: float, length: int, pairs: int) -> dict[str, Scaling]:
    if isinstance(scalings, str):
        scalings = (scalings,)
    check_type("scalings", scalings, Sequence, Mapping)
    if isinstance(scalings, Mapping):
        for name, scaling in scalings.items():
            if not callable(scaling):
                raise ValueError(f"scalings[{name!r}] must be a scaling such as YaRN(4.0, 4096), got {shown(scaling)}")
        found = dict(scalings)
    else:
        found = {}
        for name in scalings:
            check_type("scalings", name, str)
            if name.startswith("longrope:"):
                lists = factors_of(name.removeprefix("longrope:"), pairs, "longrope:FILE")
                found["longrope"] = LongRoPE(*lists, length, factor)
                continue
            check_name("scalings", name, list(NAMED), ", longrope:FILE")
            found[name] = NAMED[name](factor, length)
    if not found:
        raise ValueError("scalings must name at least one, got none")
    return found
