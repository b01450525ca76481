"""Draws the pictures of a benchmark from its records: times relative to a baseline, and growth."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from posenc.tools.bench.cases import PLAIN
from posenc.tools.bench.cells import Record, amount, of, schemes, with_auto
from posenc.tools.kit import style
from posenc.tools.kit.turns import Spread

Block: TypeAlias = Mapping[str, Mapping[str, Spread | None]]
"""Rows of dots: for each series, the value of each row's name."""

Panel: TypeAlias = tuple[str, str, Mapping[str, Mapping[int, float]]]
"""A title, the label of the y axis, and the lines by name, each with values by length."""

PHASES = {"forward": "forward", "training": "training step"}

# In inches, so that rows and labels have the same size in every picture.
ROW, LABEL, NUMBER, AXIS, TOP, BOTTOM = 0.25, 2.0, 0.85, 4.2, 0.95, 0.62


def price(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """Ratios to plain attention at the longest length that most schemes were measured at, a row per scheme."""
    length, found = _at_common_length(with_auto(records, "price"))
    block = {
        words: {r["scheme"]: _ratio(r, r["auto"]) for r in of(found, f"price {phase}")}
        for phase, words in PHASES.items()
    }
    return _dots({"": block}, f"The price of position at {length:,} tokens", "time over plain causal attention", dark)


def price_by_length(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """The same ratios against length, a line per scheme."""
    panels = [
        _ratios(words, [(r["scheme"], r, r["auto"]) for r in with_auto(records, f"price {phase}")])
        for phase, words in PHASES.items()
    ]
    return _curves(panels, "The price of position against length", dark, _times)


def growth(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """Time and peak memory against length, a line per scheme and one for plain attention."""
    panels: list[Panel] = []
    for measured, words in (("seconds", "time (ms)"), ("peak_bytes", "peak memory (MiB)")):
        for phase, step in PHASES.items():
            groups: dict[str, dict[int, list[float]]] = {}
            for record in with_auto(records, f"price {phase}", f"growth {phase}"):
                for line, name in ((PLAIN, record["baseline"]), (record["scheme"], record["auto"])):
                    if value := amount(record, name, measured):
                        groups.setdefault(line, {}).setdefault(record["length"], []).append(value)
            # Plain attention was measured in the group of every scheme.
            medians = {name: {n: statistics.median(v) for n, v in line.items()} for name, line in groups.items()}
            panels.append((step, words, medians))
    return _curves(panels, "Time and memory against length", dark, lambda value: f"{value:,g}")


def rope(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """Rotations over cloning, a row per way and a mark per precision."""
    block = {
        record["kind"].partition(" ")[2]: {name: _ratio(record, name) for name in record["results"]}
        for record in of(records, "rope")
    }
    return _dots({"": block}, "RoPE on queries and keys", "time over cloning both", dark)


def peers(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """Other ways to the same attention at the longest length, a block per scheme."""
    length, found = _at_common_length(of(records, "peers"))
    blocks: dict[str, dict[str, dict[str, Spread | None]]] = {}
    for scheme in schemes(found):
        mine = [record for record in found if record["scheme"] == scheme]
        blocks[scheme] = {
            words: {n: _ratio(r, n) for r in of(mine, f"peers {phase}") for n in r["results"] if n != r["baseline"]}
            for phase, words in PHASES.items()
        }
    return _dots(blocks, f"Other ways, at {length:,} tokens", "time over plain causal attention", dark)


def decode(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """One token against a cache, a row per scheme."""
    found = of(records, "decode")
    block = {"one token": {record["scheme"]: _ratio(record, "posenc") for record in found}}
    title = f"One token against a cache of {max((record['length'] for record in found), default=0):,}"
    return _dots({"": block}, title, "time over the same without positions", dark)


def mine(records: Sequence[Record], dark: bool = False) -> Figure | None:
    """Anyone's attention and posenc's over plain attention against length, a line each."""
    panels = [
        _ratios(words, [(name, r, name) for r in of(records, f"mine {phase}") for name in ("posenc", "mine")])
        for phase, words in PHASES.items()
    ]
    scheme = next(iter(schemes(of(records, "mine"))), "")
    return _curves(panels, f"An attention of one's own beside posenc's {scheme}", dark, _times)


FIGURES: dict[str, Callable[[Sequence[Record], bool], Figure | None]] = {
    draw.__name__: draw for draw in (price, price_by_length, growth, rope, peers, decode, mine)
}


# -- drawing ----------------------------------------------------------------------------------------------------------


def _ratios(title: str, values: Iterable[tuple[str, Record, str]]) -> Panel:
    """A panel of ratios to plain attention: of each line's name, a record, and the competitor in it."""
    lines: dict[str, dict[int, float]] = {}
    for line, record, name in values:
        if ratio := _ratio(record, name):
            lines.setdefault(line, {})[record["length"]] = ratio[0]
    return title, "time over plain attention", lines


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


def _curves(panels: Sequence[Panel], title: str, dark: bool, form: Callable[[float], str]) -> Figure | None:
    """Draws panels in two columns: lines against length on logarithmic axes, each named at its end."""
    panels = [panel for panel in panels if panel[2]]  # an interrupted benchmark may lack some
    lengths = sorted({x for *_, lines in panels for line in lines.values() for x in line})
    if not lengths:
        return None
    most = max(len(lines) for *_, lines in panels)
    rows, tall = (len(panels) + 1) // 2, max(2.4, 0.17 * most)
    left, wide, right, above, below = 0.85, 2.9, 1.75, 0.4, 0.75
    width, height = 2 * (left + wide + right), 0.4 + rows * (above + tall + below)
    with style.context(dark):
        figure = Figure(figsize=(width, height))
        figure.text(0.12 / width, 1 - 0.2 / height, title, size=12, weight="bold", va="top")
        for index, (header, ylabel, lines) in enumerate(panels):
            row, column = divmod(index, 2)
            x, y = left + column * (left + wide + right), height - 0.4 - (row + 1) * (above + tall + below) + below
            axes = figure.add_axes((x / width, y / height, wide / width, tall / height))
            axes.set(xscale="log", yscale="log", xlabel="length (tokens)", ylabel=ylabel)
            axes.set_title(header, size=10.5)
            axes.xaxis.set_major_locator(FixedLocator([float(x) for x in lengths]))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlim(lengths[0] / 1.1, lengths[-1] * 1.1)
            for name, line in lines.items():
                look, points = _look(name, dark), zip(*sorted(line.items()), strict=True)
                (drawn,) = axes.plot(*points, color=look.color, linestyle=look.dashes, marker=look.marker, label=name)
                drawn.set(linewidth=3 if name == PLAIN else 1.3, markersize=4.5)
            if form is _times:
                _ratio_axis(axes, [value for line in lines.values() for value in line.values()], vertical=True)
            else:
                axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: form(y)))
                axes.yaxis.set_minor_formatter(NullFormatter())
            _name_ends(axes, lines, 0.165 / tall, dark)
    return figure


def _name_ends(axes: Axes, lines: Mapping[str, Mapping[int, float]], gap: float, dark: bool) -> None:
    """Writes the name of each line on the right, connected to its end; names that would overlap are moved apart."""
    axes.set_ylim(axes.get_ylim())  # fixes the limits, which the positions below depend on
    place, last = axes.transScale + axes.transLimits, max(x for line in lines.values() for x in line)
    ends = sorted((tuple(place.transform((max(line), line[max(line)])))[::-1], name) for name, line in lines.items())
    heights = style.apart([y for (y, _), _ in ends], gap)
    for ((y, x), name), height in zip(ends, heights, strict=True):
        color, across = _look(name, dark).color, axes.transAxes
        early = ":" if max(lines[name]) < last else "-"
        axes.plot((x + 0.015, 1.04), (y, height), early, color=color, linewidth=0.7, transform=across, clip_on=False)
        axes.text(1.05, height, name, transform=across, color=color, va="center", size=8.5)


def _look(name: str, dark: bool) -> style.Look:
    return style.Look(style.theme(dark).faint, "", style.SOLID) if name == PLAIN else style.look(name, dark)


def _ratio_axis(axes: Axes, values: Sequence[float], vertical: bool = False) -> None:
    """Sets up a logarithmic axis of ratios that includes 1, with ticks at 1, 2, 5, 10, .."""
    low, high = min([1.0, *values]) / 1.08, max([1.5, *values]) * 1.12
    steps = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5)]
    if high / low < 6:
        steps = [0.25, 0.5, 0.7, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5]
    axis = axes.yaxis if vertical else axes.xaxis
    (axes.set_ylim if vertical else axes.set_xlim)(low, high)
    axis.set_major_locator(FixedLocator([step for step in steps if low <= step <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))


def _times(value: float) -> str:
    """A ratio with at most three digits."""
    return f"{value:.2f}×" if value < 10 else f"{value:,.0f}×"


def _ratio(record: Record, name: str) -> Spread | None:
    given = record["results"].get(name, {}).get("ratio")
    return tuple(given) if given and all(map(math.isfinite, given)) else None


def _at_common_length(records: Sequence[Record]) -> tuple[int, list[Record]]:
    """The longest length with results of at least half as many schemes as any has, and the records of it."""
    count = Counter(
        record["length"]
        for record in records
        if any("ratio" in result for name, result in record["results"].items() if name != record["baseline"])
    )
    most = max(count.values(), default=0)
    length = max((length for length, n in count.items() if 2 * n >= most), default=0)
    return length, [record for record in records if record["length"] == length]
