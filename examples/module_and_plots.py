"""The PositionalEncoding module that introductions share, its plots, and a shuffled fox.

1. Its table is posenc.Sinusoidal's.
2. It slices by the size of the *first* axis, so it is right for (tokens, batch, dim) and silently wrong for
   (batch, tokens, dim).
3. Its plots, and what they show: the channels of low index are the fast ones.
4. "The quick brown fox" and "fox brown quick The" are one and the same without positions.

Run: python examples/module_and_plots.py [FOLDER]      (the plots go to FOLDER; they need matplotlib)
"""

import importlib.util
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import posenc
from posenc import Positions

D_MODEL, MAX_LEN = 512, 100
FOX = ("The quick brown fox", "fox brown quick The")


class PositionalEncoding(nn.Module):
    """What the module computes: a table (max_len, 1, d_model), of which x gets the first ``x.size(0)`` rows."""

    def __init__(self, d_model: int, max_len: int = 5000) -> None:
        super().__init__()
        angle = torch.arange(max_len).float()[:, None] * torch.exp(
            torch.arange(0, d_model, 2).float() * (-math.log(10_000.0) / d_model)
        )
        self.register_buffer("pe", torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(0)]


def sinusoid(length: int = MAX_LEN, dtype: torch.dtype = torch.float32) -> Tensor:
    """The table (length, d_model), from posenc."""
    return posenc.Sinusoidal(D_MODEL).table(Positions.arange(length), dtype)[0]


def turn_per_position(channel: int) -> float:
    """Radians that a channel of the table goes on from one position to the next, read off its sine and cosine."""
    sine, cosine = sinusoid(2, torch.float64)[1, channel - channel % 2 :][:2]
    return torch.atan2(sine, cosine).item()


def pooled(sentence: str, scheme: posenc.Scheme, first: nn.Module | None = None, dim: int = 64) -> Tensor:
    """One attention layer with random weights over the words (batch first), averaged over them."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = sorted(FOX[0].split())
    words = torch.randn(len(vocabulary), dim, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    x = words[[vocabulary.index(word) for word in sentence.split()]][None]
    x = x if first is None else first(x)
    with torch.no_grad():
        encoding = scheme(Positions.arange(x.size(1)), dtype=torch.float64)
        query, key, value = (encoding.add(x)[:, None] @ weight for weight in weights)
        return posenc.attention(query, key, value, encoding).mean(2).flatten()


def fox_difference(scheme: posenc.Scheme, first: nn.Module | None = None) -> float:
    """How far apart the two foxes are, as a share of the first one's length."""
    one, other = (pooled(sentence, scheme, first) for sentence in FOX)
    return ((one - other).norm() / one.norm()).item()


def save_plots(folder: Path) -> list[Path]:
    """Single channels as lines, and the whole table as a heat map."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    table = sinusoid().numpy()
    lines, heat = Figure(figsize=(15, 10), layout="constrained"), Figure(figsize=(15, 5), layout="constrained")
    axes = lines.add_subplot()
    for channel in range(0, D_MODEL, 64):
        axes.plot(table[:, channel], label=f"channel {channel}: {turn_per_position(channel):.2g} radians per position")
    axes.set(title="Single channels of the sinusoid", xlabel="position", ylabel="value")
    lines.legend(loc="outside lower center", ncols=4)
    axes = heat.add_subplot()
    image = axes.imshow(table.T, cmap="viridis", aspect="auto")
    axes.set(title="The sinusoid, fastest channels on top", xlabel="position", ylabel="channel")
    heat.colorbar(image, label="value")
    paths = [folder / "channels.png", folder / "heatmap.png"]
    for figure, path in zip((lines, heat), paths, strict=True):
        figure.savefig(path, dpi=80)
    return paths


def main(arguments: list[str] | None = None) -> None:
    torch.manual_seed(0)
    folder = next(iter(sys.argv[1:] if arguments is None else arguments), None)
    module = PositionalEncoding(D_MODEL, MAX_LEN)

    print("1. The table\n")
    off = (module.pe[:, 0] - sinusoid()).abs().max()
    print(
        f"  module against posenc.Sinusoidal({D_MODEL}), {MAX_LEN} positions: at most {off:.0e} apart (float32 angles)"
    )

    print("\n2. Which axis is which? 2 texts of 5 words, all vectors 0, so that what comes out is what was added\n")
    tokens_first, batch_first = torch.zeros(5, 2, D_MODEL), torch.zeros(2, 5, D_MODEL)
    right = torch.equal(module(tokens_first)[:, 0], module.pe[:5, 0])
    print(f"  (tokens, batch, dim): word p gets the vector of position p: {right}")
    added = module(batch_first)
    same = all(torch.equal(added[row], module.pe[row].expand(5, -1)) for row in range(2))
    print(f"  (batch, tokens, dim): every word of text b gets the vector of position b: {same}, and nothing complains")
    encoding = posenc.Sinusoidal(D_MODEL)(Positions.arange(5))
    print(f"  posenc, batch first:  word p gets it: {torch.equal(encoding.add(batch_first)[1], sinusoid(5))}")
    try:
        encoding.add(tokens_first)
    except ValueError as error:
        print(f"  posenc, tokens first: {error}")

    print("\n3. Which channels are fast?\n")
    for channel in range(0, D_MODEL, 64):
        turn = turn_per_position(channel)
        print(
            f"  channel {channel:3}: {turn:.5f} radians per position, "
            f"{(MAX_LEN - 1) * turn / math.tau:7.3f} turns over the plot"
        )
    print("  low index = fast")
    if folder is None:
        print("  for the plots: python examples/module_and_plots.py FOLDER")
    elif importlib.util.find_spec("matplotlib") is None:
        print("  the plots need matplotlib")
    else:
        for path in save_plots(Path(folder)):
            print(f"  wrote {path}")

    print(f'\n4. "{FOX[0]}" and "{FOX[1]}": how far apart?\n')
    print(f"  no positions                      {fox_difference(posenc.NoPE()):8.1e}   indistinguishable")
    buggy = fox_difference(posenc.NoPE(), PositionalEncoding(64).double())
    print(f"  the module, given batch first     {buggy:8.1e}   indistinguishable still")
    both_ways = fox_difference(posenc.ALiBi(1, form="bidirectional"))
    print(f"  ALiBi, bidirectional              {both_ways:8.1e}   blind to direction, and this is a reversal")
    for scheme in (
        posenc.Sinusoidal(64),
        posenc.Learned(4, 64),
        posenc.FourierFeatures(64),
        posenc.ExponentialDecay(64),
        posenc.RoPE(64),
    ):
        print(f"  {type(scheme).__name__:32}  {fox_difference(scheme):8.1e}")


if __name__ == "__main__":
    main()
