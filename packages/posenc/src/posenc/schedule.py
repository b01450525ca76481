"""`Schedule`: the scheme and window of each layer."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from posenc.arguments import shown, whole
from posenc.positions.tiles import Chunk, Window, check_window, window_words
from posenc.scheme import Scheme, is_scheme

BOUND_BY_LAYER = (
    "a Schedule is bound layer by layer: use scheme, window = schedule[n] in layer n, or a posenc.models.ForwardPass"
)


class Schedule(nn.Module):
    """The scheme and window of each layer of a model.

    ``layers`` is a pair (scheme, window) for each layer; a window is None for the whole text, a number of keys, (left,
    right), or a `Chunk`, as in `attention`. Layers with the same scheme object share its parameters.

    >>> local, whole = RoPE(64, base=10_000.0), RoPE(64, base=1_000_000.0)
    >>> Schedule([(local, 1024), (local, 1024), (whole, None)])
    Schedule(
      layers 0, 1: RoPE(64, base=10000.0, layout='half', rotary_dim=64, axes=1), window of 1024 keys
      layer 2: RoPE(64, base=1000000.0, layout='half', rotary_dim=64, axes=1), whole text
    )
    """

    def __init__(self, layers: Sequence[tuple[Scheme, Window]]) -> None:
        super().__init__()
        if not isinstance(layers, Sequence) or not layers:
            raise ValueError(f"layers must be (scheme, window) for each layer, got {shown(layers)}")
        schemes: list[Scheme] = []
        self._layers: list[tuple[int, Window]] = []
        for layer in layers:
            if not isinstance(layer, tuple) or len(layer) != 2 or not is_scheme(layer[0]):
                no_window = "; for no window, (scheme, None)" if is_scheme(layer) else ""
                raise ValueError(f"layers must be (scheme, window) for each layer, got {shown(layer)}{no_window}")
            scheme, window = layer
            if not isinstance(window, Chunk):
                check_window(window)
            same = [n for n, other in enumerate(schemes) if other is scheme]
            if not same:
                schemes.append(scheme)
            self._layers.append((same[0] if same else len(schemes) - 1, window))
        self.schemes = nn.ModuleList(schemes)

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[tuple[Scheme, Window]]:
        return (self[n] for n in range(len(self)))

    def __getitem__(self, layer: int) -> tuple[Scheme, Window]:
        """Scheme and window of a layer."""
        number, window = self._layers[whole("layer", layer, 0, len(self) - 1)]
        scheme: Any = self.schemes[number]
        return scheme, window

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same scheme and window."""
        return len(set(self._layers)) == 1

    def forward(self, *_: Any) -> None:
        """Raises ValueError: a schedule is bound layer by layer."""
        raise ValueError(BOUND_BY_LAYER)

    def number(self, layer: int) -> int:
        """The index in ``schemes`` of a layer's scheme."""
        return self._layers[whole("layer", layer, 0, len(self) - 1)][0]

    def __repr__(self) -> str:
        layers_of: dict[tuple[int, Window], list[int]] = {}
        for layer, kind in enumerate(self._layers):
            layers_of.setdefault(kind, []).append(layer)
        words = []
        for (scheme, window), layers in layers_of.items():
            parts: Any = self.schemes[scheme].parts
            names = " + ".join(f"{type(part).__name__}({part.extra_repr()})" for part in parts)
            names += "" if any(part.doors for part in parts) else " (no position)"
            words.append(f"  layer{'s' * (len(layers) > 1)} {ranges(layers)}: {names}, {window_words(window)}\n")
        return f"Schedule(\n{''.join(words)})"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, with three or more consecutive ones as a range.

    >>> ranges([0, 1, 2, 4, 6, 7])
    '0-2, 4, 6, 7'
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
