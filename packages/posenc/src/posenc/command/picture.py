"""Draws what a model does about positions as an SVG, which needs no library."""

from __future__ import annotations

import math
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from posenc.huggingface.reading import words
from posenc.positions.tiles import window_words
from posenc.schedule import ranges
from posenc.schemes.alibi import ALiBi
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from posenc.huggingface.reading import ModelPositions
    from posenc.scheme import Scheme

LEFT, WIDTH = 92, 860  # of strips, in pixels
CELLS = 2**16  # the most layers and channels of a picture

FAST, WITHIN, BEYOND, SLOW = (8, 72, 145), (206, 228, 244), (253, 208, 162), (190, 66, 8)
"""The colours of periods: the shortest; just within the trained length; just beyond it; 1,000 times as long."""
STILL, INK, DIM = "#dcdcdc", "#222222", "#555555"
KINDS = ("#444444", "#7a5195", "#2f7f5f", "#a86a00", "#8a4a3a", "#5f6f8f")
AXES = (("time", "#222222"), ("row", "#2f7f5f"), ("column", "#c9558a"))


def picture(said: ModelPositions, groups: Sequence[tuple[list[int], Scheme, Any]]) -> str:
    """The SVG: for each kind of layers which channels turn and how fast, what queries see, and the words.

    ValueError for a model of more than ``CELLS`` layers and channels."""
    parts = [part for _, scheme, _ in groups for part in scheme.parts]
    cells = len(said.layers) + sum(getattr(part, "head_dim", getattr(part, "num_heads", 0)) or 0 for part in parts)
    if cells > CELLS:
        raise ValueError(f"a picture must have at most {CELLS} layers and channels, and {said.model_type} has {cells}")
    trained = [getattr(getattr(part, "scaling", None), "original_length", None) for part in parts]
    drawing = _Drawing(min(filter(None, trained), default=None), said.length)
    length = "" if said.length is None else f", {said.length:,} positions"
    title = f"{said.model_type}: {len(said.layers)} layers, {'causal' if said.causal else 'both directions'}{length}"
    drawing.text(LEFT, 34, title, 20, font_weight="bold")
    if said.input is not None:
        drawing.paragraph(f"Added to the input: {words(said.input)}")
    drawing.top([layers for layers, *_ in groups], any(isinstance(part, RoPE | ALiBi) for part in parts))
    for n, (layers, scheme, (window, layer)) in enumerate(groups):
        drawing.kind(n, layers, scheme, window, str(layer))
    for remark in said.remarks:
        drawing.paragraph(f"Note: {remark}")
    width, height = LEFT + WIDTH + 30, drawing.y + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" shape-rendering="crispEdges" role="img">\n'
        f'<desc>{escape(str(said))}</desc>\n<rect width="{width}" height="{height}" fill="white"/>\n'
        f"{chr(10).join(drawing.shapes)}\n</svg>\n"
    )


class _Drawing:
    """Shapes from top to bottom, and where the next begins."""

    def __init__(self, trained: int | None, length: int | None) -> None:
        self.turn, self.end, self.y = max(trained or length or 4096, 16), max(length or 4096, 16), 52
        self.bound = f"{self.turn:,} tokens" if trained is None else f"trained length {trained:,}"
        self.shapes: list[str] = []

    def text(self, x: float, y: float, words: str, size: int = 12, fill: str = INK, **font: str) -> None:
        style = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in font.items())
        self.shapes.append(f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{fill}"{style}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.shapes.append(f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{fill}"/>')

    def ticks(self, low: float, high: float, room: float) -> None:
        """Numbers below an axis, whose ends are powers of ten."""
        for power in range(math.ceil(low), math.floor(high) + 1):
            x = LEFT + (power - low) / (high - low) * room
            self.text(x, self.y + 29, f"{10**power:,}", 11, DIM, text_anchor="middle")

    def paragraph(self, words: str) -> None:
        for line in textwrap.wrap(words, 125):
            self.y += 18
            self.text(LEFT, self.y - 5, line, 13)
        self.y += 6

    def top(self, kinds: list[list[int]], turns: bool) -> None:
        """A cell for each layer, in the colour of its kind, and what the colours of channels mean."""
        width = WIDTH / sum(map(len, kinds))
        self.text(LEFT - 10, self.y + 15, "layers", text_anchor="end")
        for n, layer in ((n, layer) for n, layers in enumerate(kinds) for layer in layers):
            self.kind_box(n, LEFT + layer * width, width - (width > 4))
        self.y += 38
        if not turns:
            return
        low, high, room = math.log10(2 * math.pi), math.log10(self.turn) + 3, WIDTH - 150
        self.y += 14
        for step in range(room):
            self.box(LEFT + step, self.y, 1, 14, self.colour(10 ** (low + (high - low) * step / room)))
        self.ticks(low, high, room)
        x = LEFT + (high - 3 - low) / (high - low) * room
        self.box(x - 1, self.y - 4, 2, 22, INK)
        self.text(x, self.y - 7, self.bound, font_weight="bold", text_anchor="middle")
        self.text(LEFT, self.y - 7, "tokens for one full turn", fill=DIM)
        self.box(LEFT + room + 30, self.y, 14, 14, STILL)
        self.text(LEFT + room + 50, self.y + 12, "does not turn")
        self.y += 48

    def kind_box(self, n: int, x: float, width: float) -> None:
        self.box(x, self.y, width, 20, KINDS[n % len(KINDS)])
        if width >= 13:
            self.text(x + width / 2, self.y + 15, chr(65 + n % 26), fill="white", text_anchor="middle")

    def colour(self, period: float) -> str:
        """Blue for a period within the trained length, the darker the shorter; orange beyond it; else grey."""
        if not math.isfinite(period):
            return STILL
        within = period < self.turn
        share = math.log(period / self.turn) / math.log(2 * math.pi / self.turn if within else 1000)
        ends = (WITHIN, FAST) if within else (BEYOND, SLOW)
        return "#" + "".join(f"{round(a + (b - a) * min(max(share, 0), 1)):02x}" for a, b in zip(*ends, strict=True))

    def kind(self, n: int, layers: list[int], scheme: Scheme, window: Any, other: str) -> None:
        """The band of one kind of layers."""
        self.kind_box(n, LEFT - 36, 22)
        name = textwrap.shorten(f"layer{'s' * (len(layers) > 1)} {ranges(layers)}", 100, placeholder=" ...")
        self.text(LEFT, self.y + 15, name, 14, font_weight="bold")
        self.y += 22
        bare = all(isinstance(part, NoPE) for part in scheme.parts)
        self.paragraph(", ".join(filter(None, ("no positions in attention" if bare else words(scheme), other))))
        for part in scheme.parts:
            if isinstance(part, RoPE | ALiBi):
                self.strip(part)
        reach = window[0] + 1 if isinstance(window, tuple) and window[0] is not None else window
        reach = getattr(window, "size", reach if isinstance(reach, int) else self.end)
        high = math.log10(self.end)
        self.text(LEFT - 10, self.y + 13, "sees", text_anchor="end")
        self.text(LEFT - 10, self.y + 29, "tokens away", 11, DIM, text_anchor="end")
        self.box(LEFT, self.y, WIDTH, 17, "#f0f0f0")
        self.box(LEFT, self.y, min(math.log10(max(reach, 1.2)) / high, 1) * WIDTH, 17, "#a9c4e0")
        self.text(LEFT + 6, self.y + 13, window_words(window))
        self.ticks(0, high, WIDTH)
        self.y += 54

    def strip(self, part: RoPE | ALiBi) -> None:
        """A cell for each channel of a rotation by its period, or each head of ALiBi by its distance."""
        axes: dict[int, int] = {}
        if isinstance(part, ALiBi):
            name, note = "heads", "colour: tokens over which the score of a head falls by 1"
            periods = [1 / slope for slope in part.slopes]
        else:
            name, note, periods = "channels", "", [math.inf] * part.head_dim
            lengths = torch.tensor([self.turn]) if part.needs_lengths else None
            for k, theta in enumerate(part.frequencies(lengths=lengths)[0][0].abs().tolist()):
                for c in (k, k + part.rotary_dim // 2) if part.layout == "half" else (2 * k, 2 * k + 1):
                    periods[part.first_channel + c] = 2 * math.pi / theta if theta else math.inf
                    axes |= {part.first_channel + c: part.allocation[k]} if part.allocation is not None else {}
        width = WIDTH / len(periods)
        self.text(LEFT - 10, self.y + 19, name, text_anchor="end")
        for n, period in enumerate(periods):
            self.box(LEFT + n * width, self.y, width + 0.3, 28, self.colour(period))
        for channel, axis in axes.items():
            self.box(LEFT + channel * width, self.y + 30, width, 5, AXES[axis][1])
        self.y += 36 if axes else 28
        self.text(LEFT, self.y + 13, "0", 11, DIM)
        self.text(LEFT + WIDTH, self.y + 13, str(len(periods) - 1), 11, DIM, text_anchor="end")
        self.text(LEFT + 30, self.y + 13, note, 11, DIM)
        for axis in sorted(set(axes.values())):
            self.text(LEFT + 30 + 80 * axis, self.y + 13, f"\u25a0 {AXES[axis][0]}", fill=AXES[axis][1])
        self.y += 24
