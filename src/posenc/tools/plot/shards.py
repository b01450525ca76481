"""Draws which process computes each pair of a text that is divided, and which keys travel to it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from posenc.arguments import whole
from posenc.distributed.cost import Sizes, price
from posenc.distributed.needs import Needs
from posenc.positions.orders import ORDERS, indices
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.positions.visibility import visible
from posenc.tools.kit import style
from posenc.tools.plot import panels

LOCAL, IDLE = 0.42, 0.13  # how much of a process's colour pairs of its own keys have, and keys that are sent in vain
A_NUMBER = Sizes(1, 1, 1, 1, 1, itemsize=1, trains=False)


def shards(*, length: int = 48, world: int = 4, dark: bool = False) -> Figure:
    """Who computes and sends what: a column for each order, a row for each kind of text, mask or scheme.

    A pair of query and key has the colour of the process that holds the query and computes it: pale if the key is its
    own, full if the key is another's and travels. Very pale: keys that travel though the query does not attend to them.
    Above each panel are the pairs of the busiest process over the mean, and the keys and values that are sent, over
    those that gathering sends.
    """
    length, world = whole("length", length, 8, 256), whole("world", world, 1, 7)
    with style.context(dark):
        paper = style.theme(dark)
        colors = [np.array(to_rgb(paper.palette[index])) for index in (4, 1, 3, 6, 2, 5, 0)[:world]]
        title = f"A text of {length} tokens on {world} processes: who computes a pair, which keys travel"
        kinds = _kinds(length)
        figure, axes = panels.panels(len(kinds), len(ORDERS), (10, 2.55 * len(kinds) + 0.9), title)
        for row, (name, text, visibility, gathers) in enumerate(kinds):
            for column, order in enumerate(ORDERS):
                panel = axes[row * len(ORDERS) + column]
                held = indices(text.layout, world, order)
                picture, words = _picture(text, held, visibility, gathers, colors, np.array(to_rgb(paper.background)))
                panel.imshow(picture, interpolation="nearest")
                panel.grid(visible=False)
                panel.set(xticks=[], yticks=[])
                panel.set_title(f"{order}\n{words}" if row == 0 else words, fontsize=9, fontweight="normal")
                if column == 0:
                    panel.set_ylabel(f"{name}\nquery", fontsize=9)
                if row == len(kinds) - 1:
                    panel.set_xlabel("key (token)", fontsize=9)
        handles = [Patch(color=tuple(color), label=f"process {rank}") for rank, color in enumerate(colors)]
        for strength, label in ((1.0, "another's key, sent"), (LOCAL, "its own key"), (IDLE, "sent, not attended to")):
            handles.append(Patch(color=(*colors[0], strength), label=label))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _kinds(length: int) -> list[tuple[str, Positions, Visibility, bool]]:
    """Names, texts, masks, and whether all keys are gathered."""
    text, causal = Positions.arange(length), Visibility(True)
    eighth = length // 8
    lengths = [3 * eighth, eighth, 2 * eighth, length - 6 * eighth]
    return [
        ("causal", text, causal, False),
        (f"causal, window {eighth}\n(or a head's horizon)", text, Visibility(True, eighth - 1), False),
        ("packed, causal", Positions.packed(lengths), causal, False),
        ("CoPE (gathers), causal", text, causal, True),
    ]


def _picture(
    text: Positions,
    held: Sequence[Any],
    visibility: Visibility,
    gathers: bool,
    colors: Sequence[NDArray[np.float64]],
    background: NDArray[np.float64],
) -> tuple[NDArray[np.float64], str]:
    """The colours of all pairs, (queries, keys, 3), and the words above them."""
    world, needs = len(held), Needs([text[index] for index in held], visibility)
    mask = visible(text, text, visibility)
    seen = np.ones((len(text), len(text)), dtype=bool) if mask is None else mask[0].numpy()
    strength = np.zeros((world, len(text), len(text)))
    for i, queries in enumerate(held):
        for j, keys in enumerate(held):
            wanted = slice(None) if gathers else needs.keys(i, j)
            if i != j and wanted is not None:
                strength[i][np.ix_(queries.numpy(), keys[wanted].numpy())] = IDLE
            pairs = np.ix_(queries.numpy(), keys.numpy())
            strength[i][pairs] = np.where(seen[pairs], LOCAL if i == j else 1.0, strength[i][pairs])
    picture = np.tile(background, (len(text), len(text), 1))
    for i, color in enumerate(colors):
        picture += strength[i][:, :, None] * (color - background)
    counts = [len(index) for index in held]
    taken = price(needs, counts, A_NUMBER, "gather" if gathers else "ring")
    gathered = sum(price(needs, counts, A_NUMBER, "gather").sent)
    busiest = max(taken.scores) / (sum(taken.scores) / world)
    return picture, f"busiest {busiest:.2f}, sent {sum(taken.sent) / gathered if gathered else 0:.0%}"
