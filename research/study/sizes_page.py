"""``python -m study.sizes_page``: docs/study/sizes.md, from records of `study.sizes` and `study.drope`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from posenc.command.files import write_whole
from posenc_lab.kit import style
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.records import Record, read
from posenc_lab.kit.titles import titled
from study.archives import RECORDS, unpack
from study.pages import DOCS, HERE, templates

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
    None for too few of them, where one is missed, and where a number runs to an end."""
    if len(points) < LEAST_POINTS:
        return None
    parameters, tokens, losses = np.array(points).T

    def of(logs: Any) -> Fit:
        floor, *others = np.exp(logs).tolist()
        return Fit(floor, (others[0], others[1]), (others[2], others[3]))

    exact: dict[str, Any] = {"bounds": (-12, 3), "max_nfev": 2000} | dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)
    made = [
        least_squares(lambda x: np.log(of(x).loss(parameters, tokens) / losses), np.log(start), **exact)
        for start in product(losses.min() * np.array([0.3, 0.6, 0.9]), [0.3], [0.2, 0.5], [0.3], [0.2, 0.5])
    ]
    best = min(made, key=lambda each: each.cost)
    is_fit = np.abs(best.fun).max() < MISSED and best.x.min() > -11.9 and best.x.max() < 2.9
    return of(best.x) if is_fit else None


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
    """What the records of all trainings say: by size the parameters and the schemes, the lowest loss first; the points
    of RoPE (parameters, tokens, loss); the least that the match gains, and the most that a shuffled source does."""

    about: Mapping[str, Any] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    points: list[tuple[float, float, float]] = field(default_factory=list)
    fit: Fit | None = None
    match: float = math.inf
    shuffled: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        return list(self.about["scale"]["lengths"])

    @property
    def trained(self) -> int:
        return int(self.about["scale"]["trained"])


def found(records: Sequence[Record]) -> Found:
    """ValueError for records of several plans, scales or texts."""
    made = Found(records[-1] if records else {})
    if len({repr([r[name] for name in ("plan", "scale", "text")]) for r in records}) > 1:
        raise ValueError("sizes must hold the records of one plan, scale and text, got records of several")
    of: dict[tuple[int, str, int, int], dict[str, dict[int, dict[tuple[str, int], float]]]] = {}
    for r in records:
        if r["kind"] == "failed" or "diverged" in r:
            where = f"{label(r['scheme'])} at {r['size']}, seed {r['seed']}"
            made.failed.append(f"{where}: {r.get('why', 'diverged')}")
        elif r["kind"] == "match":
            made.match = min(made.match, mean(r["bits"]))
        elif "length" in r and "undefined" not in r:
            schemes = of.setdefault((r["parameters"], r["size"], r["ratio"], r["tokens"]), {})
            own = schemes.setdefault(r["scheme"], {}).setdefault(r["seed"], {})
            own[r["kind"], r["length"]] = r["right"] if r["kind"] == "retrieval" else mean(r["bits"])
    loss = ("sliding", made.trained) if records else ("", 0)
    every = ((which, schemes.get(ROPE, {}).items()) for which, schemes in of.items())
    ropes = {which: {seed: own[loss] for seed, own in each if loss in own} for which, each in every}
    made.points = [(which[0], which[3], mean(each.values())) for which, each in ropes.items() if each]
    made.fit = fit(made.points)
    for which, schemes in sorted(of.items()):
        parameters, size, ratio, tokens = which
        if ratio != RATIO:
            continue
        made.parameters[size] = parameters
        for scheme, seeds in schemes.items():
            bits = {key: [own[key] for own in seeds.values() if key in own] for own in seeds.values() for key in own}
            pairs = [(own[loss], ropes[which][n]) for n, own in seeds.items() if loss in own and n in ropes[which]]
            speed_ups = [made.fit.speed_up(tokens, *pair) for pair in pairs] if made.fit else []
            made.rows.setdefault(size, []).append(Row(scheme, bits, speed_ups))
            gains = [mean(values) for (kind, _), values in bits.items() if kind == "shuffled"]
            made.shuffled[scheme] = max([made.shuffled.get(scheme, 0.0), *gains])
        made.rows[size].sort(key=lambda row: mean(row.bits.get(loss, [math.inf])))
    return made


def picture(of: Found, dark: bool = False) -> Figure:
    """The speed-up of each scheme at each size, and the use of a far source by distance at the middle size."""
    theme, millions = style.theme(dark), {size: number / 1e6 for size, number in of.parameters.items()}
    with style.context(dark):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for n, scheme in enumerate(sorted({row.scheme for rows in of.rows.values() for row in rows})):
            how: dict[str, Any] = {"color": theme.palette[n % 7], "linestyle": ("-", "--")[n // 7 % 2]}
            how |= {"marker": "osD^vph<>PX"[n % 11], "label": label(scheme)}
            own = {size: row for size, rows in of.rows.items() for row in rows if row.scheme == scheme}
            left.plot([millions[size] for size in own], [row.worth or math.nan for row in own.values()], **how)
            if MIDDLE in own:
                right.plot(of.lengths, [mean(own[MIDDLE].bits.get(("far", n), [math.nan])) for n in of.lengths], **how)
        left.axhspan(*INSIDE, color=theme.grid, alpha=0.5, zorder=0)
        right.axvline(of.trained, color=theme.faint, linestyle=":")
        left.set(xscale="log", yscale="log", title="Effective speed-up over RoPE", xlabel="million parameters")
        title = f"Use of a far source, {millions.get(MIDDLE, 0):.1f} million parameters"
        right.set(xscale="log", title=title, xlabel="bytes of the row", ylabel="bits per byte")
        left.set_xticks([*millions.values()], [f"{n:.1f}" for n in millions.values()])
        right.set_xticks(of.lengths, [f"{n:,}" for n in of.lengths])
        marks = [n for n in (0.1, 0.25, 0.5, 1, 2, 4, 8) if left.get_ylim()[0] <= n <= left.get_ylim()[1]]
        left.set_yticks(marks, [f"{n:g}" for n in marks])
        left.minorticks_off()
        right.minorticks_off()
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=9)
    return figure


def write(docs: Path = DOCS, records: Path = RECORDS) -> None:
    """The page; without records it says that nothing was run, and how to."""
    of = found([r for folder in sorted((records / "sizes").glob("*/")) for r in read(folder)])
    environment = templates()
    environment.filters |= {"label": label}
    known = {"of": of, "dropped": read(records / "drope"), "middle": MIDDLE}
    known["stale"] = of.about.get("plan") != digest_of((HERE / "sizes.md").read_bytes())
    page = environment.get_template("sizes.md.j2").render(**known, matched=MATCHED, limit=SHUFFLED)
    write_whole(docs / "study" / "sizes.md", (page.rstrip() + "\n").encode())
    for dark in (False, True) if of.rows else ():
        write_whole(docs / "images" / f"study-sizes{'-dark' * dark}.png", style.saved(picture(of, dark), dark=dark))


if __name__ == "__main__":
    unpack()
    write()
