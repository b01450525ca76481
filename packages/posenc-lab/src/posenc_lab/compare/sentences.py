"""Writes the sentences of a report from a summary, with verdicts only where there are enough seeds."""

from posenc_lab.compare import trials
from posenc_lab.compare.summary import Estimate, Summary
from posenc_lab.compare.task import listed
from posenc_lab.kit.statistics import LEAST_SEEDS


def observed(summary: Summary) -> list[str]:
    """The preface, the results at the training length and at the longest length, the use of context, and divergence."""
    trained, longest = summary.train_length, max(summary.lengths("sliding"), default=0)
    found = [*preface(summary), _order(summary, trained, f"At the training length of {trained:,} bytes")]
    if longest > trained:
        found.append(_order(summary, longest, f"At {longest:,} bytes, {longest / trained:g}× the training length"))
        found.append(_use_of_context(summary, longest))
    for scheme in summary.schemes:
        if words := summary.diverged(scheme):
            rest = "its results are from the other seeds" if summary.measured(scheme) else "it was not tested"
            found.append(f"{scheme} {words}: its loss was no longer finite, so {rest}.")
    return [sentence for sentence in found if sentence]


def preface(summary: Summary) -> list[str]:
    """How the schemes were tuned, and whether there are enough seeds."""
    if not any(map(summary.measured, summary.schemes)):
        return []
    few = summary.few_seeds()
    most = max(len(summary.measured(scheme)) for scheme in summary.schemes)
    planned = len({seed for _, seed in summary.trainings})
    seeds = f"results of {most} of {planned} seeds" if most < planned else "one seed" if most == 1 else f"{most} seeds"
    verdicts = ""
    if most < LEAST_SEEDS:
        verdicts = f"This comparison has {seeds}, so there are no verdicts: they need at least {LEAST_SEEDS} seeds."
    elif few:
        verdicts = f"There are no verdicts on {listed(few)}: they need at least {LEAST_SEEDS} seeds."
    return [sentence for sentence in (trials.tuned(summary), verdicts) if sentence]


def how_to_read(summary: Summary) -> list[str]:
    trained = summary.train_length
    over = summary.over("windows of text")
    return [
        "Lower is better. Bits per byte is the average loss on the next byte of held-out text, in bits.",
        "Sliding windows score the same bytes at every length, so only the context before them differs. Separate "
        "windows score every byte. The first bytes of a window have almost no context, so the loss decreases with the "
        "length for that reason alone (the early-token curse).",
        "Final bytes are the last of a window, the same at every length. Dashed: the same bytes, each predicted "
        f"from exactly the {trained:,} bytes before it. A scheme below its dashed line uses the longer context; one "
        "above it is harmed by it.",
        f"Bars are 95 % intervals over {over} (Student's t). All schemes are tested on the same windows, so schemes "
        "whose bars overlap may still differ: see the paired differences.",
        *how_verdicts_are_made(summary),
    ]


def how_verdicts_are_made(summary: Summary) -> list[str]:
    """The meaning of "lower", "tied" and the best at a length; nothing where there are no verdicts."""
    margin, enough = summary.task.margin, summary.enough_seeds()
    made = [
        "Lower or higher: the 95 % interval of the paired difference excludes zero. Tied: its 90 % interval lies "
        f"within ±{margin:g}, so a difference that matters is ruled out. Within the margin: both. Undecided: neither; "
        "more seeds or windows could decide.",
        "The best at a length are the schemes that no other is shown to beat. All pairs are tested with Holm's "
        "correction: among equal schemes, one is excluded in at most 5 % of comparisons.",
    ]
    return made if enough[1:] else made[: len(enough)]


def of_few_seeds(summary: Summary) -> list[str]:
    """The limits of intervals over few seeds."""
    few = summary.few_seeds()
    alone = [scheme for scheme in few if len(summary.measured(scheme)) == 1]
    found = []
    if alone:
        tested = [scheme for scheme in summary.schemes if summary.measured(scheme)]
        whose = "" if len(alone) == len(tested) else f" of {listed(alone)}"
        found.append(
            f"The results{whose} are of one seed: the intervals cover the choice of examples, but not the variance "
            "between training runs."
        )
    if few != tuple(alone):
        found.append(
            "Two seeds hardly measure the variance between training runs: in about one of ten pairs of equal schemes "
            "the interval excludes zero."
        )
    return found


def not_concluded(summary: Summary) -> list[str]:
    c = summary.configuration
    sizes = [e for s in summary.schemes if (e := summary.number("training", s, "parameters"))]
    # To two digits: 370,000.
    size = f"about {float(f'{max(sizes):.2g}'):,.0f} parameters" if sizes else "few parameters"
    found = [
        f"This is a small model ({size}) trained briefly ({c.get('steps', 0):,} steps) on one text. The order of the "
        "schemes may differ in a larger model, after longer training, or on another text.",
        "A low loss beyond the training length does not show that the model uses the far context: a scheme that "
        "attends only to near bytes has it too. Compare the final bytes with their dashed lines.",
        "Undefined does not mean a high loss: the scheme does not define positions there.",
        f"Speed and memory are of this machine and this model size; step times are interleaved with "
        f"{summary.timed_against}'s, so the load of the machine cancels.",
    ]
    if any(map(summary.diverged, summary.schemes)):
        found.append(
            "Divergence shows that the learning rate was too high here, not that the scheme cannot be trained."
        )
    found[1:1] = of_few_seeds(summary)
    return found


def _order(summary: Summary, length: int, where: str) -> str:
    bits = {s: e for s in summary.schemes if (e := summary.bits("sliding", s, length))}
    finite = {s: e.mean for s, e in bits.items() if e.finite}
    if not finite:
        return ""
    best = summary.best("sliding", length)
    order = sorted(finite, key=finite.__getitem__)
    if best:
        lowest, judged = finite[best[0]], [s for s in order if bits[s].judged]
        among = "" if len(judged) == len(order) else f" among those with {LEAST_SEEDS} seeds"
        if best[1:]:
            low = listed(f"{s} ({finite[s]:.2f})" for s in best)
            words = f"{where}, no scheme is shown to beat any of {low} bits per byte{among}"
        else:
            words = f"{where}, {best[0]} has the lowest loss{among}, {lowest:.2f} bits per byte"
        parts = [listed(f"{s} is {finite[s] - lowest:.2f} above" for s in judged if s not in best)]
        parts += [f"{s} has {finite[s]:.2f} with too few seeds" for s in order if s not in judged]
    elif len(finite) > 1:
        words = f"{where}, bits per byte are {listed(f'{finite[s]:.2f} with {s}' for s in order)}"
        parts = []
    else:
        words, parts = f"{where}, {order[0]} has a loss of {finite[order[0]]:.2f} bits per byte", []
    parts += [f"{s} is not finite" for s, e in bits.items() if not e.finite]
    parts += [f"{s} is {summary.end(s, 'sliding')}" for s in summary.schemes if summary.undefined(s, length, "sliding")]
    absent = [s for s in summary.schemes if s not in bits and not summary.no_value(s, length, "sliding")]
    parts += [f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not measured"] if absent else []
    return "; ".join([words, *filter(None, parts)]) + "."


def _use_of_context(summary: Summary, length: int) -> str:
    """Whether context beyond the training length helps, compared with the truncated baseline on the same bytes."""
    effects = {s: e for s in summary.schemes if (e := gain_of_context(summary, s, length)) and e.finite}
    grouped: dict[str, list[str]] = {}
    for scheme, effect in effects.items():
        verdict = summary.verdict(effect)
        if not verdict:
            without = " (no verdict)" if summary.enough_seeds() else ""  # else said of all
            form, words = f"changes the loss of {{}}{without}", f"{scheme} by {_signed(effect.mean)}"
        elif verdict in ("tied", "undecided"):
            form = "does not change the loss of {}" if verdict == "tied" else "has an undecided effect on {}"
            words = scheme
        else:
            side, _, small = verdict.partition(", ")
            form = "lowers the loss of {}" if side == "lower" else "raises the loss of {}"
            words = f"{scheme} by {abs(effect.mean):.2f}{f' ({small})' if small else ''}"
        grouped.setdefault(form, []).append(words)
    words = "; ".join(form.format(listed(schemes)) for form, schemes in sorted(grouped.items()))
    start = f"A context of {length:,} bytes instead of {summary.train_length:,} for the final bytes"
    return f"{start} {words} (bits per byte)." if words else ""


def gain_of_context(summary: Summary, scheme: str, length: int) -> Estimate | None:
    """Bits per byte of the final bytes with a context of ``length``, minus those with the training length."""
    return summary.difference("final_tokens", scheme, scheme, length, "truncated", summary.train_length)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
