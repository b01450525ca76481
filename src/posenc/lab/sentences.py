"""What the numbers say, in words: made from a summary, with ties called ties, and nothing said that is not in it."""

from posenc.lab.summary import Estimate, Summary
from posenc.lab.task import listed
from posenc.lab.tasks.text import TIE_AT_ONE_SEED


def observed(summary: Summary) -> list[str]:
    """What was seen at the training length, at the longest length, of the use of more context, and what diverged."""
    trained, longest = summary.train_length, max(summary.lengths("sliding"), default=0)
    found = [_order(summary, trained, f"At the training length of {trained:,} tokens")]
    if longest > trained:
        found.append(_order(summary, longest, f"At {longest:,} tokens, {longest / trained:g}× the training length"))
        found.append(_use_of_context(summary, longest))
    for scheme in summary.schemes:
        if words := summary.diverged(scheme):
            rest = "what is shown of it is from its other seeds" if summary.measured(scheme) else "it was not tested"
            found.append(f"{scheme} {words}: its loss was no longer a number, so {rest}.")
    return [sentence for sentence in found if sentence]


def best(summary: Summary, kind: str, length: int) -> tuple[str, ...]:
    """The schemes with the lowest loss (or the highest accuracy): the best mean first, then those whose paired
    difference to it is a tie."""
    means = {s: e.mean for s in summary.schemes if (e := summary.bits(kind, s, length)) and e.finite}
    order = sorted(means, key=means.__getitem__, reverse=summary.task.score == "accuracy")
    gaps = {s: summary.difference(kind, s, order[0], length) for s in order[1:]}
    return (*order[:1], *(s for s, gap in gaps.items() if gap and gap.tie))


def marked(summary: Summary, kind: str, length: int) -> tuple[str, ...]:
    """The best that a table marks; none where there is nothing to be better than."""
    several = sum(summary.bits(kind, scheme, length) is not None for scheme in summary.schemes) > 1
    return best(summary, kind, length) if several else ()


def verdict(difference: Estimate) -> str:
    """A paired difference in a word."""
    if not difference.finite:
        return "not finite"
    return "tie" if difference.tie else "lower" if difference.mean < 0 else "higher"


def how_to_read(summary: Summary) -> list[str]:
    trained = summary.train_length
    over = summary.over("windows of text")
    return [
        "Lower is better. Bits per byte: how many bits the model needs, on average, for the next byte of text that it "
        "was not trained on. One token is one byte.",
        "Sliding windows score the same bytes at every length, so only the context before them differs. Separate "
        "windows score every byte, also the first ones of a window, which have next to no context: their loss falls "
        "with the length for that reason alone (the early-token curse).",
        f"Dashed: the same model on the same bytes, shown only the last {trained:,} tokens. A scheme below its dashed "
        "line makes use of the longer context; one above it is confused by it.",
        f"Bars are 95 % bootstrap intervals over {over}. All schemes read the same windows, so two bars that overlap "
        "may still be apart: the paired differences decide.",
        "A gap whose interval holds zero is called a tie."
        + (
            f" With one seed, gaps under {TIE_AT_ONE_SEED:.2f} bits are called ties: a convention, about the seed "
            "noise others have published at a similar size."
            if summary.one_seed()
            else ""
        ),
    ]


def not_concluded(summary: Summary) -> list[str]:
    c = summary.configuration
    sizes = [e for s in summary.schemes if (e := summary.number("training", s, "parameters"))]
    # To two digits: 370,000.
    size = f"about {float(f'{max(sizes):.2g}'):,.0f} parameters" if sizes else "few parameters"
    found = [
        f"This is a small model ({size}) trained briefly ({c.get('steps', 0):,} steps) on one text. The order of the "
        "schemes can differ in a larger model, after longer training, and on another text.",
        "A loss that stays low past the training length does not show that the model uses the far context: a scheme "
        "that looks only nearby has that too. The dashed lines and the final tokens tell the two apart.",
        "Undefined is not a high loss: the scheme has no such positions, and no number stands for that.",
        "Speed and memory are those of this machine and this size of model. Tokens per second also count whatever else "
        f"the machine was doing; step times were taken in turns with {summary.timed_against}'s, which evens that out.",
    ]
    if any(map(summary.diverged, summary.schemes)):
        found.append(
            "A training that diverged shows that the learning rate was too high for it here, not that the scheme "
            "cannot be trained."
        )
    if one_seed := summary.one_seed():
        unsaid = "cover the choice of text, and say nothing of how much another training would differ."
        found.insert(1, f"{one_seed} {unsaid}")
    return found


def _order(summary: Summary, length: int, where: str) -> str:
    first, *ties = best(summary, "sliding", length) or ("",)
    if not first:
        return ""
    bits = {s: e for s in summary.schemes if (e := summary.bits("sliding", s, length))}
    if ties:
        low = listed(f"{s} ({bits[s].mean:.2f})" for s in (first, *ties))
        words = f"{where}, {low} bits per byte tie for the lowest loss"
    elif len(bits) > 1:
        words = f"{where}, {first} has the lowest loss, {bits[first].mean:.2f} bits per byte"
    else:
        words = f"{where}, {first} has a loss of {bits[first].mean:.2f} bits per byte"
    above = {s: e.mean - bits[first].mean for s, e in bits.items() if e.finite and s not in (first, *ties)}
    parts = [listed(f"{s} is {gap:.2f} above" for s, gap in sorted(above.items(), key=lambda item: item[1]))]
    parts += [f"{s} is not finite" for s, e in bits.items() if not e.finite]
    parts += [f"{s} is {summary.end(s, 'sliding')}" for s in summary.schemes if summary.undefined(s, length, "sliding")]
    absent = [s for s in summary.schemes if s not in bits and not summary.no_value(s, length, "sliding")]
    parts += [f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not measured there"] if absent else []
    return "; ".join([words, *filter(None, parts)]) + "."


def _use_of_context(summary: Summary, length: int) -> str:
    """Whether what lies further back than the training length helps: against the truncated baseline, same bytes."""
    effects = {s: summary.difference("sliding", s, s, length, kind_of_other="truncated") for s in summary.schemes}
    said: dict[str, list[str]] = {
        "lowers the loss of {}": [],
        "leaves the loss of {} as it is": [],
        "raises the loss of {}": [],
    }
    lowers, leaves, raises = said.values()
    for scheme, effect in effects.items():
        if effect and effect.finite:
            # One model against itself: the noise between seeds has no part in it. What prints as 0.00 is no effect.
            if effect.low <= 0 <= effect.high or abs(effect.mean) < 0.005:
                leaves.append(scheme)
            else:
                (lowers if effect.mean < 0 else raises).append(f"{scheme} by {abs(effect.mean):.2f}")
    words = "; ".join(form.format(listed(schemes)) for form, schemes in said.items() if schemes)
    start = f"Seeing {length:,} tokens rather than only the last {summary.train_length:,}"
    return f"{start} {words} (bits per byte)." if words else ""
