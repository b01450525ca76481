"""Tuning as a report shows it: what every trial gave, and what fewer trials would have given."""

from math import comb
from typing import Any

from posenc.lab.summary import Record, Summary
from posenc.lab.task import listed

BUDGETS = (1, 5, 10, 15)  # of trials, and on in steps of the last difference


def of_scheme(summary: Summary, scheme: str) -> list[Record]:
    """A scheme's trials in their order; of one that was made again, the latest."""
    found = {
        (r.get("seed"), r.get("trial")): r
        for r in summary.records
        if r.get("kind") == "trial" and r["scheme"] == scheme
    }
    return list(found.values())


def tuned(summary: Summary) -> str:
    """In a sentence, how the schemes were tuned; empty where nothing is known of any."""
    trained = [s for s in summary.schemes if summary.of("training", s)]
    counts = {s: len(of_scheme(summary, s)) for s in trained if any(r.get("tuned") for r in summary.of("training", s))}
    without = [scheme for scheme in trained if scheme not in counts]
    rate = summary.configuration.get("learning_rate")
    if trained and not counts:
        return (
            f"No scheme was tuned: all were trained with one learning rate{f', {rate:g}' if rate else ''}, and their "
            "order can be an artefact of it. In one comparison T5 moved from tenth of eleven to tied first when its "
            "table learned 30 times faster."
        )
    parts = []
    for count in dict.fromkeys(counts.values()):
        whose = [scheme for scheme, its in counts.items() if its == count]
        names = (
            "Every scheme was" if len(whose) == len(trained) else f"{listed(whose)} {'were' if whose[1:] else 'was'}"
        )
        parts.append(f"{names} tuned with {count} trial{'s' * (count != 1)}")
    if without:
        were, stand = ("were", "they stand") if without[1:] else ("was", "it stands")
        parts.append(f"{listed(without)} {were} not tuned, and where {stand} can be an artefact of the learning rate")
    return f"{'; '.join(parts)}." if parts else ""


def expected_best(bits: list[float], count: int) -> float:
    """The mean, over all draws of ``count`` of these values without replacement, of the lowest (Dodge et al. 2019,
    "Show Your Work: Improved Reporting of Experimental Results", there with replacement).

    The i-th of n values in rising order is the lowest of C(n - i, count - 1) of the C(n, count) draws.

    >>> expected_best([3.0, 1.0, 2.0], 2)  # 1, 1 and 2
    1.3333333333333333

    Raises ValueError unless count is 1 to the number of values.
    """
    if not 1 <= count <= len(bits):
        raise ValueError(f"count must be 1 to {len(bits)}, got {count}")
    n = len(bits)
    ways = [comb(n - i, count - 1) for i in range(1, n + 1)]
    return sum(value * way for value, way in zip(sorted(bits), ways, strict=True)) / comb(n, count)


def page(summary: Summary) -> dict[str, Any]:
    """The tables of trials: every one, by scheme and setting, and the best expected of fewer."""
    found = {scheme: of_scheme(summary, scheme) for scheme in summary.schemes}
    most = max(map(len, found.values()), default=0)
    budgets = [k for k in (*BUDGETS, *range(20, most + 5, 5)) if k <= most]
    return {
        "trials": [line for scheme, each in found.items() for line in _lines(scheme, each)],
        "budgets": budgets,
        "expected": [(scheme, _expected(each, budgets)) for scheme, each in found.items() if each],
    }


def _lines(scheme: str, records: list[Record]) -> list[dict[str, Any]]:
    """A line for each trial, by learning rate and multiplier, with the best marked."""
    best = min((r["bits"] for r in records if _learned(r)), default=None)

    def number(record: Record, name: str, form: str) -> str:
        return form.format(record[name]) if record.get(name) is not None else "–"

    return [
        {
            "scheme": scheme,
            "learning_rate": number(record, "learning_rate", "{:g}"),
            "multiplier": number(record, "multiplier", "{:g}"),
            "bits": number(record, "bits", "{:.3f}") if _learned(record) else "diverged",
            "longest": number(record, "longest", "{:.3f}"),
            "seconds": number(record, "seconds", "{:.1f}"),
            "best": _learned(record) and record["bits"] == best,
        }
        for record in sorted(records, key=lambda r: (r.get("learning_rate") or 0, r.get("multiplier") or 0))
    ]


def _expected(records: list[Record], budgets: list[int]) -> list[str]:
    """The expected best of as many trials as each budget has. What diverged counts as the worst that did not, or a draw
    in which all diverged would have no best."""
    learned = [float(r["bits"]) for r in records if _learned(r)]
    if not learned:
        return ["diverged"] * len(budgets)
    bits = learned + [max(learned)] * (len(records) - len(learned))
    return [f"{expected_best(bits, k):.3f}" if k <= len(bits) else "–" for k in budgets]


def _learned(record: Record) -> bool:
    return record.get("bits") is not None and not record.get("diverged")
