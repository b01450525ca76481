"""The tables of a report, as rows of formatted text."""

import shlex
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any, TypeAlias

from posenc.tools.compare.config import CompareConfig
from posenc.tools.compare.summary import Record, Summary
from posenc.tools.kit.records import made_with

# The measurement shown in the tables: it scores the same bytes at every length.
KIND = "sliding"


def command(summary: Summary) -> str:
    """The command that repeats this comparison."""
    given = dict(summary.configuration)
    given |= {"schemes": list(summary.schemes), "seeds": sorted({seed for _, seed in summary.trainings})}
    words = ["posenc", "compare"]
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, list):
            # A file name may contain a comma, so texts are separated by spaces.
            items = [str(item) for item in value]
            default = next(field.default for field in fields(CompareConfig) if field.name == name)
            none = [option, "none"] if default else []  # an empty list must override a default
            words += [option, *(items if name == "text" else [",".join(items)])] if items else none
        elif value not in (None, ""):
            words += [option, str(value)]
    return shlex.join(words)


def page(summary: Summary) -> dict[str, Any]:
    """The template variables of a task in bits."""
    return {
        "rows": [row(summary, scheme) for scheme in summary.schemes],
        "differences": differences(summary),
        "matrices": matrices(summary),
        "means": means(summary),
    }


Best: TypeAlias = Callable[[Summary, str, int], Collection[str]]
"""(summary, kind, length) -> the schemes that a table marks."""


def row(summary: Summary, scheme: str, measured: str = KIND, best: Best = Summary.best) -> dict[str, Any]:
    """A formatted row of the main table, for one kind of measurement."""

    def formatted(kind: str, name: str, form: str, scale: float = 1) -> str:
        absent = "diverged" if kind == "training" and summary.diverged(scheme) else "missing"
        return summary.shown(kind, scheme, name, form, scale) or absent

    lengths = summary.test_lengths
    return {
        "scheme": scheme,
        "parameters": formatted("training", "parameters", "{:,.0f}"),
        "position_parameters": formatted("training", "position_parameters", "{:,.0f}"),
        "tokens_per_second": formatted("training", "tokens_per_second", "{:,.0f}"),
        "step": formatted("speed", "step_ratio", "{:.2f}×"),
        "step_range": "–".join(
            filter(None, (summary.shown("speed", scheme, end, "{:.2f}") for end in ("low", "high")))
        ),
        "memory": formatted("training", "peak_bytes", "{:,.0f} MB", 1e-6),
        "bits": [(*cell(summary, measured, scheme, n), scheme in best(summary, measured, n)) for n in lengths],
        "end": summary.end(scheme, measured),
        "diverged": summary.diverged(scheme),
        "why": next((why for n in lengths if (why := summary.undefined(scheme, n, measured))), ""),
    }


def cell(summary: Summary, kind: str, scheme: str, length: int) -> tuple[str, str]:
    """A mean and its interval, or one word for why there is none."""
    value = summary.bits(kind, scheme, length)
    if value is None:
        return summary.no_value(scheme, length, kind) or "missing", ""
    return (f"{value.mean:.3f}", f"{value.low:.2f}–{value.high:.2f}") if value.finite else ("not finite", "")


def differences(summary: Summary) -> list[dict[str, Any]]:
    """Paired differences of every other scheme from the reference, with verdicts."""
    rows = []
    for scheme in summary.schemes:
        if scheme == summary.reference:
            continue
        gaps = [summary.difference(KIND, scheme, summary.reference, length) for length in summary.test_lengths]
        cells = [gap(summary, KIND, scheme, summary.reference, length) for length in summary.test_lengths]
        rows.append({"scheme": scheme, "cells": cells, "seeds": max((g.seeds for g in gaps if g), default=0)})
    return rows


def gap(summary: Summary, kind: str, scheme: str, other: str, length: int) -> tuple[str, str, str]:
    """A paired difference, its interval and the verdict, or one word for why there is none."""
    value = summary.difference(kind, scheme, other, length)
    if value is None:
        both = [cell(summary, kind, name, length)[0] for name in (scheme, other)]
        return next((word for word in ("diverged", "undefined") if word in both), "missing"), "", ""
    if not value.finite:
        return "not finite", "", ""
    mean, interval = f"{value.mean:+.3f}", f"{value.low:+.3f} to {value.high:+.3f}"
    return mean.replace("-", "−"), interval.replace("-", "−"), summary.verdict(value)


def matrices(summary: Summary) -> list[dict[str, Any]]:
    """The differences between all pairs, at the training length and at the longest."""
    lengths = dict.fromkeys((summary.train_length, max(summary.lengths(KIND), default=0)))
    return [found for n in lengths if (found := matrix(summary, KIND, n, f"At {n:,} {summary.task.lengths}"))]


def matrix(summary: Summary, kind: str, length: int, title: str) -> dict[str, Any]:
    """The differences between all pairs of schemes measured at a length; empty for fewer than two schemes."""
    schemes = [scheme for scheme in summary.schemes if summary.bits(kind, scheme, length)]
    rows = [
        (one, [gap(summary, kind, one, other, length) if one != other else ("", "", "") for other in schemes])
        for one in schemes
    ]
    return {"title": title, "schemes": schemes, "rows": rows} if schemes[1:] else {}


def means(summary: Summary) -> list[dict[str, Any]]:
    """The means behind the other figures, by length."""
    kinds = {"windows": "separate windows", "truncated": "truncated", "final_tokens": "final tokens"}

    def at(kind: str, scheme: str, length: int) -> tuple[str, str]:
        return cell(summary, kind, scheme, length) if length in summary.lengths(kind) else ("–", "")

    return [
        {"scheme": scheme, "what": what, "cells": [at(kind, scheme, n) for n in summary.test_lengths]}
        for kind, what in kinds.items()
        for scheme in summary.schemes
    ]


def environment(summary: Summary) -> list[tuple[str, str]]:
    """The text, versions and machine that the records were made with."""
    labels = {"about": "text", "digest": "digest of the text"}

    def facts(record: Record) -> dict[str, Any]:
        parts = [record.get(part) or {} for part in ("text", "versions", "machine")]
        return {labels.get(name, name): value for part in parts for name, value in part.items()}

    return made_with(summary.records, facts)
