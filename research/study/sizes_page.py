"""``python -m study.sizes_page``: docs/study/sizes.md, from records of `study.sizes` and `study.drope`."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from posenc.command.files import write_whole
from posenc_lab.kit import style
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.records import Record, read
from posenc_lab.kit.titles import titled
from study.archives import RECORDS, unpack

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RATIO, MIDDLE, ROPE = 20, "3m", "rope"
LEAST_POINTS, MISSED = 6, 0.02  # of a fit of five numbers: how many it needs, and by which share it may miss one
INSIDE = (0.25, 2.0)  # speed-ups among the tokens that RoPE was trained on
WORTH = (0.9, 1.1)
MATCHED, SHUFFLED = 4.0, 0.1  # bits that the controls must gain at least, and at most
LABELS = {
    "windows": "RoPE in windows with NoPE",
    "rope_500k": "RoPE, base 500,000",
    "key_offset": "RoPE with the partial key offset",
}


def label(scheme: str) -> str:
    return LABELS.get(scheme) or titled(scheme)


@dataclass(frozen=True)
class Fit:
    """The loss E + A N^-a + B D^-b of RoPE at N million parameters and D hundred million tokens."""

    floor: float
    of_size: tuple[float, float]
    of_tokens: tuple[float, float]

    def loss(self, parameters: Any, tokens: Any) -> Any:
        (a, alpha), (b, beta) = self.of_size, self.of_tokens
        return self.floor + a * (parameters / 1e6) ** -alpha + b * (tokens / 1e8) ** -beta

    def speed_up(self, tokens: float, loss: float, of_rope: float) -> float:
        """How many tokens RoPE needs for a loss, over ``tokens``, where it has the loss ``of_rope`` with as many;
        infinite where no number of tokens is enough."""
        b, beta = self.of_tokens
        left = b * (tokens / 1e8) ** -beta + loss - of_rope
        return (left / b) ** (-1 / beta) * 1e8 / tokens if left > 0 else math.inf


def fit(points: Sequence[tuple[float, float, float]]) -> Fit | None:
    """By least squares of the logarithm of the loss over points (parameters, tokens, loss), from several beginnings;
    None for too few of them, and where one is missed."""
    if len(points) < LEAST_POINTS:
        return None
    parameters, tokens, losses = np.array(points).T

    def of(x: Any) -> Fit:
        return Fit(math.exp(x[0]), (math.exp(x[1]), math.exp(x[2])), (math.exp(x[3]), math.exp(x[4])))

    starts = [
        [math.log(share * min(losses)), math.log(0.3), math.log(alpha), math.log(0.3), math.log(beta)]
        for share in (0.3, 0.6, 0.9)
        for alpha in (0.2, 0.5)
        for beta in (0.2, 0.5)
    ]
    options: dict[str, Any] = {"bounds": (-12, 3), "xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 2000}
    made = [
        least_squares(lambda x: np.log(of(x).loss(parameters, tokens)) - np.log(losses), start, **options)
        for start in starts
    ]
    best = min(made, key=lambda each: each.cost)
    return of(best.x) if np.abs(best.fun).max() < MISSED else None


@dataclass(frozen=True)
class Row:
    """A scheme at a size: the bits of each seed by kind and length, and the speed-up of each seed."""

    scheme: str
    bits: Mapping[tuple[str, int], Sequence[float]]
    speed_ups: Sequence[float] = ()

    def cell(self, kind: str, length: int, form: str = "{:.3f}") -> str:
        values = self.bits.get((kind, length))
        return form.format(mean(values)).replace("-", "−") if values else "–"

    @property
    def worth(self) -> float | None:
        """The geometric mean of the speed-ups of all seeds; infinite where a loss is out of reach."""
        return math.exp(mean(map(math.log, self.speed_ups))) if self.speed_ups else None

    @property
    def speed_up(self) -> str:
        if self.worth is None or math.isinf(self.worth):
            return "–" if self.worth is None else "out of reach"
        return f"{self.worth:.2f}" if INSIDE[0] <= self.worth <= INSIDE[1] else f"{self.worth:.2g}, outside"

    @property
    def verdict(self) -> str:
        """Against RoPE, by all of three seeds."""
        if self.worth is None or len(self.speed_ups) < 3 or self.scheme == ROPE:
            return ""
        if min(self.speed_ups) > 1 and self.worth >= WORTH[1]:
            return "worth more"
        return "worth less" if max(self.speed_ups) < 1 and self.worth <= WORTH[0] else "no answer"

    def carries(self, lengths: Sequence[int], trained: int) -> str:
        """The longest length at which the far source is of half the use that it has at the trained length."""
        use = {n: mean(self.bits["far", n]) for n in lengths if ("far", n) in self.bits}
        if use.get(trained, 0) < SHUFFLED:
            return "does not look back"
        far = [n for n in lengths if n >= trained and n in use]
        fails = next((n for n in far if use[n] < max(use[trained] / 2, SHUFFLED)), None)
        return f"{far[-1]:,}" if fails is None else f"{far[far.index(fails) - 1]:,}"


@dataclass
class Found:
    """What the records of all trainings say, at each size the schemes with the lowest loss first."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    points: list[tuple[float, float, float]] = field(default_factory=list)
    fit: Fit | None = None
    lengths: Sequence[int] = ()
    trained: int = 0
    match: float = math.inf
    shuffled: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    plans: set[str] = field(default_factory=set)


def found(records: Sequence[Record]) -> Found:
    """ValueError for records of several scales or texts."""
    made = Found()
    if not records:
        return made
    if len({(repr(r["scale"]), repr(r["text"])) for r in records}) > 1:
        raise ValueError("sizes must hold the records of one scale and text, got records of several")
    made.about, scale = records[-1], records[-1]["scale"]
    made.lengths, made.trained = scale["lengths"], scale["trained"]
    made.plans = {r["plan"] for r in records}
    bits: dict[tuple[str, int], dict[str, dict[int, dict[tuple[str, int], float]]]] = {}
    tokens: dict[tuple[str, int], tuple[float, float]] = {}
    for r in records:
        where = f"{label(r['scheme'])} at {r['size']}, seed {r['seed']}"
        tokens[r["size"], r["ratio"]] = r["parameters"], r["tokens"]
        made.parameters[r["size"]] = r["parameters"]
        if r["kind"] == "failed" or "diverged" in r:
            made.failed.append(f"{where}: {r.get('why', 'diverged')}")
        elif r["kind"] == "match":
            made.match = min(made.match, mean(r["bits"]))
        elif "length" in r and "undefined" not in r:
            value = r["right"] if r["kind"] == "retrieval" else mean(r["bits"])
            own = bits.setdefault((r["size"], r["ratio"]), {}).setdefault(r["scheme"], {}).setdefault(r["seed"], {})
            own[r["kind"], r["length"]] = value
    loss = ("sliding", made.trained)
    for which, schemes in bits.items():
        if ropes := [own[loss] for own in schemes.get(ROPE, {}).values() if loss in own]:
            made.points.append((*tokens[which], mean(ropes)))
    made.fit = fit(made.points)
    for (size, ratio), schemes in sorted(bits.items(), key=lambda item: made.parameters[item[0][0]]):
        if ratio != RATIO:
            continue
        for scheme, seeds in schemes.items():
            every = {key: [own[key] for own in seeds.values() if key in own] for own in seeds.values() for key in own}
            beside = {seed: own[loss] for seed, own in schemes.get(ROPE, {}).items() if loss in own}
            pairs = [(own[loss], beside[seed]) for seed, own in seeds.items() if loss in own and seed in beside]
            ups = [made.fit.speed_up(tokens[size, ratio][1], *pair) for pair in pairs] if made.fit else []
            made.rows.setdefault(size, []).append(Row(scheme, every, ups))
            worst = max((mean(v) for (kind, _), v in every.items() if kind == "shuffled"), default=0.0)
            made.shuffled[scheme] = max(made.shuffled.get(scheme, 0.0), worst)
        made.rows[size].sort(key=lambda row: mean(row.bits.get(loss, [math.inf])))
    return made


def picture(of: Found, dark: bool = False) -> Figure:
    """The speed-up of each scheme at each size, and the use of a far source by distance at the middle size."""
    with style.context(dark):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        sizes = [size for size in of.parameters if size in of.rows]
        for n, scheme in enumerate(sorted({row.scheme for size in sizes for row in of.rows[size]})):
            colour = style.theme(dark).palette[n % len(style.LIGHT)]
            how: dict[str, Any] = {
                "color": colour,
                "marker": "osD^vph<>PX"[n % 11],
                "linestyle": ("-", "--")[n // 7 % 2],
            }
            own = {size: row for size in sizes for row in of.rows[size] if row.scheme == scheme}
            worth = [(of.parameters[size] / 1e6, row.worth) for size, row in own.items()]
            points = [(size, value) for size, value in worth if value and math.isfinite(value)]
            if points:
                left.plot(*zip(*sorted(points), strict=True), label=label(scheme), **how)
            if MIDDLE in own:
                uses = [(length, mean(own[MIDDLE].bits.get(("far", length), [math.nan]))) for length in of.lengths]
                right.plot(*zip(*uses, strict=True), label=label(scheme), **how)
        left.axhspan(*INSIDE, color=style.theme(dark).grid, alpha=0.5, zorder=0)
        left.set(xscale="log", yscale="log", title="Effective speed-up over RoPE", xlabel="million parameters")
        right.axvline(of.trained, color=style.theme(dark).faint, linestyle=":")
        right.set(
            xscale="log",
            title=f"Use of a far source, bits per byte, {of.parameters.get(MIDDLE, 0) / 1e6:.1f} million",
            xlabel="bytes of the row",
        )
        millions = [of.parameters[size] / 1e6 for size in sizes]
        left.set_xticks(millions, [f"{n:.1f}" for n in millions])
        right.set_xticks(of.lengths, [f"{n:,}" for n in of.lengths])
        marks = [n for n in (0.1, 0.25, 0.5, 1, 2, 4, 8) if left.get_ylim()[0] <= n <= left.get_ylim()[1]]
        left.set_yticks(marks, [f"{n:g}" for n in marks])
        for axes in (left, right):
            axes.minorticks_off()
        figure.legend(*right.get_legend_handles_labels(), loc="outside right center", fontsize=9)
    return figure


def write(docs: Path = DOCS, records: Path = RECORDS) -> None:
    """The page; without records it says that nothing was run, and how to."""
    of = found([r for folder in sorted((records / "sizes").glob("*/")) for r in read(folder)])
    dropped = read(records / "drope")
    plan = (HERE / "sizes.md").read_text()
    environment = Environment(  # of Markdown, in which nothing is to be escaped
        loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"label": label, "mean": mean}
    known = {"of": of, "plan": re.sub(r"^#", "##", plan, flags=re.MULTILINE), "dropped": dropped}
    stale = of.plans - {digest_of(plan.encode())}
    page = environment.get_template("sizes.md.j2").render(
        **known, stale=stale, matched=MATCHED, limit=SHUFFLED, middle=MIDDLE
    )
    write_whole(docs / "study" / "sizes.md", (page.rstrip() + "\n").encode())
    for dark in (False, True) if of.rows else ():
        write_whole(docs / "images" / f"study-sizes{'-dark' * dark}.png", style.saved(picture(of, dark), dark=dark))


if __name__ == "__main__":
    unpack()
    write()
