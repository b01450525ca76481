"""A window of two: relative positions as the Stanford lecture on positional encoding (XCS224U) draws them.

1. Which of the five learned vectors w_-2 .. w_2 each pair of seven tokens uses, seen from position 4 and position 3.
2. "The rock" early and late in a text: what the two words make of each other, in absolute, frequency-based and relative
   schemes.
3. The two crucial questions: must the set of positions be decided ahead of time, and does the scheme hinder
   generalising to new positions?
4. A correction: it is not higher *positions* that oscillate more often, but lower *channels*.

Run: python examples/window.py
"""

import torch
from torch import Tensor

import posenc
from posenc import Positions

DIM, CONTEXT = 64, 512


def window(positions: Positions, max_distance: int = 2) -> Tensor:
    """Which vector each pair (query, key) uses: -max_distance .. max_distance.

    One channel wide, with the number n as the vector w_n and queries of 1, so that the score *is* the number.
    """
    scheme = posenc.Shaw(head_dim=1, max_distance=max_distance, values=False)
    with torch.no_grad():
        scheme.key_table.copy_(torch.arange(-max_distance, max_distance + 1.0)[:, None])
        ones = torch.ones(1, 1, len(positions), 1)
        logits = posenc.logits(ones, 0 * ones, scheme, query_positions=positions, key_positions=positions)
    return logits[0, 0].round().long()


def schemes() -> dict[str, tuple[str, posenc.Scheme]]:
    """name: (the kind the lecture would call it, the scheme). Learned vectors are as large as those of the words."""
    torch.manual_seed(0)
    learned = posenc.Learned(CONTEXT, DIM)
    torch.nn.init.normal_(learned.weight)
    return {
        "Learned": ("absolute", learned),
        "AbsoluteInAttention": ("absolute", posenc.AbsoluteInAttention(CONTEXT, DIM)),
        "Sinusoidal": ("frequency-based", posenc.Sinusoidal(DIM)),
        "Shaw, window 2": ("relative", posenc.Shaw(DIM, max_distance=2)),
        "TransformerXL": ("relative", posenc.TransformerXL(1, DIM)),
        "RoPE": ("relative", posenc.RoPE(DIM)),
        "ALiBi": ("relative", posenc.ALiBi(1, form="bidirectional")),
    }


def phrase_scores(scheme: posenc.Scheme, position: int) -> Tensor:
    """The four scores among the two words "the rock", the first of which stands at ``position`` (counted from 1)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 2, DIM, generator=generator, dtype=torch.float64)
    to_query, to_key = torch.randn(2, DIM, DIM, generator=generator, dtype=torch.float64) / DIM**0.5
    with torch.no_grad():
        encoding = scheme.double()(Positions.arange(2, start=position - 1), dtype=torch.float64)
        x = encoding.add(x)[:, None]
        return posenc.logits(x @ to_query, x @ to_key, encoding)[0, 0]


def moved(scheme: posenc.Scheme, late: int) -> float:
    """How far the scores within the phrase go, at most, from position 1 to position ``late``."""
    return (phrase_scores(scheme, late) - phrase_scores(scheme, 1)).abs().max().item()


def has_position(scheme: posenc.Scheme, position: int) -> bool:
    """Whether a phrase may stand there."""
    try:
        phrase_scores(scheme, position)
    except posenc.PositionError:
        return False
    return True


def zero_crossings(channel: int, start: int, positions: int = 1000) -> int:
    """How often a channel of the sinusoid changes its sign on the way from ``start``."""
    line = posenc.Sinusoidal(DIM).table(Positions.arange(positions, start=start), torch.float64)[0, :, channel]
    return int((line[1:].sign() != line[:-1].sign()).sum())


def main() -> None:
    print("1. A window of two: the vector of each pair\n")
    tokens = Positions.arange(7, start=1)
    vectors = window(tokens)
    print("  key position   " + "".join(f"{j:5}" for j in range(1, 8)))
    for i in (4, 3):
        print(f"  from {i}: w_      " + "".join(f"{n:+5}" for n in vectors[i - 1].tolist()))
    print(f"  {vectors.unique().numel()} vectors serve all {vectors.numel()} pairs, and any longer text")

    print('\n2. "the rock" at positions 1, 2 and 401, 402\n')
    for start in (1, 401):
        print(f"  vectors at {start}, {start + 1}: {window(Positions.arange(2, start=start)).tolist()}")
    print("\n  the four scores within the phrase, from 1, 2 to 401, 402, change by at most:")
    for name, (kind, scheme) in schemes().items():
        print(f"  {kind:16} {name:20} {moved(scheme, 401):8.1e}")

    print("\n3. The two crucial questions\n")
    print(f"  {'':37}  fixed ahead?  {'position 513':13} {'a million':10} hinders?")
    for name, (kind, scheme) in schemes().items():
        known = [has_position(scheme, position) for position in (513, 1_000_000)]
        words = ["has a place" if yes else "none" for yes in known]
        fixed, hinders = "no" if all(known) else "yes", "yes" if moved(scheme, 401) > 1e-6 else "no"
        print(f"  {kind:16} {name:20}  {fixed:12}  {words[0]:13} {words[1]:11} {hinders}")

    print("\n4. Who oscillates: sign changes over 1000 positions\n")
    print("  channel (sine)       " + "".join(f"{channel:5}" for channel in range(0, DIM, 12)))
    for start in (1, 100_001):
        counts = "".join(f"{zero_crossings(channel, start):5}" for channel in range(0, DIM, 12))
        print(f"  from position {start:6} {counts}")
    print("  the position changes nothing; the channel decides, and the lowest is the fastest")


if __name__ == "__main__":
    main()
