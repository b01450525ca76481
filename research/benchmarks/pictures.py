"""Draws other ways to the same attention beside posenc's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc_lab.bench.tables import Record, of, schemes
from posenc_lab.kit import style
from posenc_lab.kit.interleaving import Spread
from posenc_lab.kit.titles import titled

Block: TypeAlias = Mapping[str, Mapping[str, Spread | None]]
"""Rows of dots: for each series, the value of each row's name."""

PHASES = {"forward": "forward", "training": "training step"}

# In inches, so that rows and labels have the same size in every picture.
ROW, LABEL, NUMBER, AXIS, TOP, BOTTOM = 0.25, 2.0, 0.85, 4.2, 0.95, 0.62


def peers(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """Other ways to the same attention at the longest length, a block per scheme."""
    found = of(records, "peers")
    length = max((record["length"] for record in found), default=0)
    found = [record for record in found if record["length"] == length]
    blocks: dict[str, dict[str, dict[str, Spread | None]]] = {}
    for scheme in schemes(found):
        mine = [record for record in found if record["scheme"] == scheme]
        blocks[titled(scheme)] = {
            words: {n: _ratio(r, n) for r in of(mine, f"peers {phase}") for n in r["results"] if n != r["baseline"]}
            for phase, words in PHASES.items()
        }
    return _dots(blocks, f"Other ways, at {length:,} tokens", "time over plain causal attention", dark)


def _dots(blocks: Mapping[str, Block], title: str, xlabel: str, dark: bool) -> Figure | None:
    """Draws blocks of rows, one per name, with a dot for each series and its number beside it. Bars are intervals. A
    block may have a title."""
    names = {header: dict.fromkeys(n for each in block.values() for n in each) for header, block in blocks.items()}
    rows = sum(len(each) + bool(header) for header, each in names.items())
    if not rows:
        return None
    paper = style.theme(dark)
    series = list(dict.fromkeys(label for block in blocks.values() for label in block))
    looks = dict(zip(series, ((paper.palette[4], "o"), (paper.palette[1], "s")), strict=False))
    width, height = LABEL + AXIS + NUMBER * len(series) + 0.15, TOP + ROW * rows + BOTTOM
    ends = [end for block in blocks.values() for each in block.values() for v in each.values() for end in v or ()]
    with style.context(dark):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((LABEL / width, BOTTOM / height, AXIS / width, ROW * rows / height))
        figure.text(0.12 / width, 1 - 0.2 / height, title, size=12, weight="bold", va="top")
        axes.set_xscale("log")
        _ratio_axis(axes, ends)
        axes.axvline(1, color=paper.faint, linewidth=1, zorder=1)
        axes.set(ylim=(rows - 0.5, -0.5), xlabel=xlabel)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        across = axes.get_yaxis_transform()
        columns = {label: 1 + NUMBER * (index + 1) / AXIS for index, label in enumerate(series)}
        words: dict[str, Any] = {"ha": "right", "size": 9, "transform": across}
        for label, (color, _) in looks.items():
            head = label.replace(" ", "\n")
            axes.text(columns[label], -0.6, head, color=color, va="bottom", weight="bold", linespacing=0.95, **words)
        labels: list[str] = []
        for header, block in blocks.items():
            labels += [header] if header else []
            for name in names[header]:
                row = len(labels)
                labels.append(name)
                for index, (label, (color, marker)) in enumerate(looks.items()):
                    value = block.get(label, {}).get(name)
                    shown = _times(value[0]) if value else "–"
                    axes.text(columns[label], row, shown, color=color, va="center", **words)
                    if value:
                        aside = row + 0.16 * (2 * index - len(series) + 1)
                        axes.plot(value[1:], (aside, aside), color=color, linewidth=1.4, solid_capstyle="butt")
                        axes.plot(value[0], aside, marker, color=color, markersize=5.5, label=f"{name}, {label}")
        axes.set_yticks(range(rows), labels)
        axes.tick_params(axis="y", length=0)
        for tick in axes.get_yticklabels():
            tick.set_fontweight("bold" if tick.get_text() in blocks else "normal")
    return figure


def _ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    """Sets up a logarithmic axis of ratios that includes 1, with ticks at 1, 2, 5, 10, .."""
    low, high = min([1.0, *values]) / 1.08, max([1.5, *values]) * 1.12
    steps = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5)]
    if high / low < 6:
        steps = [0.25, 0.5, 0.7, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5]
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator([step for step in steps if low <= step <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))


def _times(value: float) -> str:
    """A ratio with at most three digits."""
    return f"{value:.2f}×" if value < 10 else f"{value:,.0f}×"


def _ratio(record: Record, name: str) -> Spread | None:
    given = record["results"].get(name, {}).get("ratio")
    return tuple(given) if given and all(map(math.isfinite, given)) else None
