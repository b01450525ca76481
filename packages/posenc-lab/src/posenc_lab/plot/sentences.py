"""Draws figures of pairs of tokens: Shaw's vector of each, attention weights on a sentence, and indices of a table."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import posenc
from posenc.arguments import shown, whole
from posenc.encoding.context import projected_at_random
from posenc.encoding.terms import gives_weights
from posenc.lowering.distances import Block
from posenc.lowering.forms import bucket
from posenc.positions.positions import Positions
from posenc.schemes.entry import Shape
from posenc.schemes.relative_1d import Relative1D
from posenc.schemes.relative_2d import Relative2D
from posenc.schemes.shaw import Shaw
from posenc_lab.kit import style
from posenc_lab.plot import panels
from posenc_lab.plot.panels import Schemes


def shaw_window(
    sentence: str = "the rock rolled down the steep hill",
    *,
    max_distance: int = 2,
    positions: Sequence[int] = (3, 4),
    dark: bool = False,
) -> Figure:
    """Shaw's window on a sentence: which of the 2k + 1 vectors each pair of query and key uses.

    The rows of ``positions``, counted from 1, are framed. All distances beyond ``max_distance`` words share a vector.

    Source: Shaw, Uszkoreit & Vaswani 2018, section 3.2.
    """
    words = panels.words_of(sentence)
    n, k = len(words), whole("max_distance", max_distance)
    some = isinstance(positions, Sequence) and all(type(p) is int and 1 <= p <= n for p in positions)
    if not some:
        raise ValueError(f"positions must be some of 1 to {n}, the words of the sentence, got {shown(positions)}")
    offsets = shaw_offsets(n, k)
    with style.context(dark):
        title = f"Shaw: the vector of each pair, with a window of {k}"
        figure, (panel,) = panels.panels(1, 1, (2.1 + 0.68 * n, 1.5 + 0.44 * n), title)
        shades = panels.diverging(dark)(np.linspace(0.12, 0.88, 2 * k + 1))
        colors = ListedColormap(shades), BoundaryNorm(np.arange(-k - 0.5, k + 1), 2 * k + 1)
        vectors = [[f"$w_{{{c:+d}}}$" if c else "$w_0$" for c in row] for row in offsets]
        panels.matrix(panel, offsets, colors, dark, square=False, gaps=True, words=vectors, size=13)
        for position in positions:
            panels.frame(panel, position - 1, 0, 1, n, style.theme(dark).ink)
        panel.set_xticks(range(n), [f"{word}\n{i}" for i, word in enumerate(words, 1)], size=10)
        panel.set_yticks(range(n), [f"{word}  {i}" for i, word in enumerate(words, 1)], size=10)
        panel.set(xlabel="key: word and position", ylabel="query: word and position")
    return figure


@panels.fixed_draws()
def shaw_offsets(length: int, max_distance: int) -> NDArray[np.int64]:
    """The number, from -k to k, of the vector that Shaw's scheme uses for each pair, (queries, keys)."""
    scheme = Shaw(1, max_distance)
    positions, zeros = Positions.arange(length), torch.zeros(1, 1, length, 1)
    (term,) = scheme.value(positions, positions)
    _, index = bucket(term, Block(zeros, zeros, positions, positions, 1.0))
    return np.asarray(index[0].numpy() - max_distance)


def attention(
    sentence: str = "the dog saw the cat",
    schemes: Schemes = ("nope", "sinusoidal", "rope", "alibi"),
    *,
    dim: int = 64,
    num_heads: int = 8,
    head_dim: int = 32,
    causal: bool | None = None,
    dark: bool = False,
) -> Figure:
    """The attention weights of the first head on a sentence, for each scheme; "nope" has no positions.

    Word embeddings and projections are fixed and Gaussian. Without positions and without a causal mask, a repeated word
    has equal rows and gets equal weights at each place; its columns are framed. By default, only schemes for decoders
    have a causal mask; ``causal`` applies one to all schemes or to none. Schemes given by name are built for decoders
    if ``causal`` is True.
    """
    panels.check_causal(causal)
    words = panels.words_of(sentence)
    positions = panels.places(len(words))
    drawn = panels.named(schemes, Shape(dim, num_heads, head_dim, len(words), causal=causal is True))
    weights, less = [], []  # less: schemes whose rows need not sum to 1
    masks = [panels.hidden(each.scheme, positions, positions, causal) for each in drawn]
    with torch.no_grad():
        for each, mask in zip(drawn, masks, strict=True):
            encoding = each.scheme(positions, dtype=torch.float64)
            x = encoding.add(panels.embeddings(words, dim))
            encoding = encoding.with_projected(projected_at_random(encoding.wanted, x, seed=panels.SEED))
            query, key = _projected(x, num_heads, head_dim)
            scores = posenc.logits(query, key, encoding, is_causal=bool(mask.any()))[0, 0]
            scores = scores.masked_fill(mask, -torch.inf)
            if gives_weights(encoding.score_terms):
                less.append(each.name)
                weights.append(panels.numbers(scores.exp()))
            else:
                weights.append(panels.numbers(scores.softmax(-1)))
    twice = [j for j, word in enumerate(words) if words.count(word) > 1]
    rows, columns = panels.layout(len(drawn), most=2)
    colors = panels.SEQUENTIAL, Normalize(0.0, max(float(w.max()) for w in weights))
    with style.context(dark):
        side = 0.8 + 0.5 * len(words)
        size = (1.7 + side * columns, 0.9 + side * rows)
        figure, axes = panels.panels(rows, columns, size, "Attention on a sentence", used=len(drawn))
        for index, (panel, one, values, mask) in enumerate(zip(axes, drawn, weights, masks, strict=True)):
            shares = np.where(mask, "", [[f"{weight:.2f}".lstrip("0") for weight in row] for row in values])
            drawn_weights = np.where(mask, np.nan, values)
            image = panels.matrix(panel, drawn_weights, colors, dark, gaps=True, words=shares.tolist())
            for j in twice:
                panels.frame(panel, 0, j, len(words), 1, style.theme(dark).palette[1])
            same = [np.allclose(values[:, j], values[:, words.index(words[j])]) for j in twice]
            panel.set_title(one.title + (": equal where framed" if same and all(same) else ""))
            left, lowest = index % columns == 0, index + columns >= len(drawn)
            panel.set_xticks(range(len(words)), words, rotation=45, ha="right", rotation_mode="anchor", size=9)
            panel.set_yticks(range(len(words)), words if left else [""] * len(words), size=9)
            panel.set(ylabel="query" if left else "", xlabel="key" if lowest else "")
        sums = "less than 1" if len(less) == len(drawn) else "; ".join(["1", *(f"of {name} to less" for name in less)])
        panels.bar(figure, image, axes, f"attention weight (rows sum to {sums})", shrink=0.7)
        if twice:
            figure.supxlabel("framed: the places of a word that stands twice", x=0.012, ha="left", size=9)
    return figure


def _projected(x: Tensor, num_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Fixed Gaussian projections of x to queries and keys (1, heads, words, head_dim)."""
    generator = torch.Generator().manual_seed(panels.SEED + 1)
    width = x.size(-1)
    drawn = torch.randn(2, width, num_heads * head_dim, generator=generator, dtype=torch.float64) * width**-0.5
    query, key = ((x @ matrix).unflatten(-1, (num_heads, head_dim)).transpose(1, 2) for matrix in drawn)
    return query, key


def relative_index(*, length: int = 4, dark: bool = False) -> Figure:
    """The 2N - 1 distances of N tokens, their indices in the table, and the index of every pair."""
    index = relative_indices(length)
    distances = list(range(1 - length, length))
    with style.context(dark):
        side = max(3.0, 0.62 * length + 0.9)
        figure, (left, right) = panels.panels(1, 2, (side + 5.0, side + 1.1), f"Relative positions of {length} tokens")
        colors = _by_distance(length, dark)
        rows = np.array(distances)[:, None] * np.ones((1, 3))
        words = [[str(i), _signed(d), f"d(i, i{_plus(d)})"] for i, d in enumerate(distances)]
        panels.matrix(left, rows, colors, dark, square=False, gaps=True, words=words, size=10)
        left.set_xticks(range(3), ["index in\nthe table", "distance\n(tokens)", "of query i\nand key"], size=9)
        left.set_yticks([])
        left.xaxis.tick_top()
        left.set_title(f"2N − 1 = {len(distances)} distances", fontsize=10, pad=10)
        words = [[str(i) for i in row] for row in index]
        panels.matrix(right, index - (length - 1), colors, dark, gaps=True, words=words, size=11)
        right.set(xticks=range(length), yticks=range(length), xlabel="key j (position)", ylabel="query i (position)")
        right.set_title("the index of each pair: j − i + N − 1")
    return figure


# -- the numbers ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@panels.fixed_draws()
def relative_indices(length: int) -> NDArray[np.int64]:
    """The index in `Relative1D`'s table of every pair of ``length`` tokens, (queries, keys)."""
    whole("length", length)
    scheme = Relative1D(length, head_dim=1).double()
    scheme.weight.copy_(torch.arange(2 * length - 1)[:, None])
    return _scores(scheme, Positions.arange(length), Positions.arange(length))


def _scores(scheme: Relative1D | Relative2D, query_positions: Positions, key_positions: Positions) -> NDArray[np.int64]:
    """The table entry of every pair, read from the scores of queries of 1 and keys of 0."""
    query = torch.ones(1, 1, len(query_positions), 1, dtype=torch.float64)
    key = torch.zeros(1, 1, len(key_positions), 1, dtype=torch.float64)
    scores = posenc.logits(query, key, scheme, query_positions=query_positions, key_positions=key_positions, scale=1.0)
    return np.asarray(scores[0, 0].round().long().numpy())


def _by_distance(length: int, dark: bool) -> tuple[Colormap, Normalize]:
    reach = 1.25 * max(length - 1, 1)
    return panels.diverging(dark), Normalize(-reach, reach)


def _signed(number: float) -> str:
    return f"{number:+.0f}".replace("-", "−") if number else "0"


def _plus(number: int) -> str:
    return f" {'+' if number > 0 else '−'} {abs(number)}" if number else ""
