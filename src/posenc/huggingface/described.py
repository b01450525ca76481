"""`ModelPositions`: a model's scheme and window of each layer, and the other properties of its attention."""

from __future__ import annotations

from dataclasses import dataclass

from posenc.positions.tiles import window_words
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE


@dataclass(frozen=True)
class Layer:
    """The properties of a layer's attention besides its scheme and window.

    - ``scale``: the factor of q . k, if it is not 1/sqrt(head_dim);
    - ``softcap``: scores become c tanh(s / c), after positions are applied;
    - ``sinks``: whether the softmax has a learned logit per head, from the model's weights, in its denominator;
    - ``images``: whether tokens of one image attend to one another in any order, if the caller marks them;
    - ``patches``: the side of the windows of patches that attend to one another; ``shift`` moves their borders.
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    images: bool = False
    patches: int | None = None
    shift: int = 0

    def __str__(self) -> str:
        said = [
            f"windows of {self.patches} x {self.patches} patches" if self.patches is not None else "",
            f"shifted by {self.shift}" if self.shift else "",
            f"scale {self.scale:.6g}" if self.scale is not None else "",
            f"softcap {self.softcap:g}" if self.softcap is not None else "",
            "a sink per head" if self.sinks else "",
            "tokens of an image attend to one another" if self.images else "",
        ]
        return ", ".join(filter(None, said))


@dataclass(frozen=True, eq=False, repr=False)
class ModelPositions:
    """The positional encoding of a model; printing it describes it in words.

    - ``model_type``: that of transformers, of the part that was read;
    - ``schedule``: the scheme and window of each layer;
    - ``layers``: other properties, one `Layer` for each layer;
    - ``input``: the scheme that is added to the embeddings before the first layer, or None;
    - ``causal``: whether attention is causal;
    - ``length``: the number of positions in the configuration, or None;
    - ``remarks``: where transformers' own code differs, in words.

    Learned schemes have newly initialized parameters, since a configuration has no weights.
    """

    model_type: str
    schedule: Schedule
    layers: tuple[Layer, ...]
    input: Scheme | None = None
    causal: bool = True
    length: int | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.schedule):
            raise ValueError(f"layers must be {len(self.schedule)} like those of the schedule, got {len(self.layers)}")

    def __repr__(self) -> str:
        kind = "decoder" if self.causal else "encoder"
        length = "" if self.length is None else f", {self.length} positions"
        lines = [f"{self.model_type}: {kind}, {len(self.layers)} layers{length}"]
        if self.input is not None:
            lines.append(f"  input: {words(self.input)}")
        said: dict[str, list[int]] = {}
        for layer, ((scheme, window), other) in enumerate(zip(self.schedule, self.layers, strict=True)):
            seen = "" if other.patches is not None and window is None else window_words(window)
            does = ", ".join(filter(None, (words(scheme), seen, str(other))))
            said.setdefault(does, []).append(layer)
        lines += [f"  layer{'s' * (len(which) > 1)} {ranges(which)}: {does}" for does, which in said.items()]
        return "\n".join(lines + [f"  {remark}" for remark in self.remarks])


def words(scheme: Scheme) -> str:
    """A scheme in words, with its arguments."""
    if len(scheme.parts) > 1:
        return " + ".join(words(part) for part in scheme.parts)
    if isinstance(scheme, NoPE):
        return "NoPE"
    if type(scheme) is not RoPE:
        return f"{type(scheme).__name__}({scheme.extra_repr()})"
    said = [f"RoPE, base {scheme.base:.12g}"]
    if scheme.rotary_dim == scheme.head_dim:
        said.append(f"all {scheme.head_dim} channels")
    else:
        channels = scheme.channels
        said.append(f"channels {channels.start}..{channels.stop - 1} of {scheme.head_dim}")
    said.append(f"{scheme.layout} layout")
    if scheme.allocation is not None:
        said.append(f"pairs by axis {runs(scheme.allocation)}")
    elif scheme.axes > 1:
        said.append(f"{scheme.axes} axes")
    if scheme.scaling is not None:
        said.append(repr(scheme.scaling))
    return ", ".join(said)


AXES = ("time", "row", "column")
"""The coordinates of a text with images, the only models that allocate pairs to axes."""


def runs(allocation: tuple[int, ...]) -> str:
    """The axes of pairs, such as "16 time, 24 row, 24 column"; more than six runs as a list of digits."""
    found: list[list[int]] = []
    for axis in allocation:
        if found and found[-1][1] == axis:
            found[-1][0] += 1
        else:
            found.append([1, axis])
    if len(found) > 6:
        return "".join(map(str, allocation))
    return ", ".join(f"{count} {AXES[axis]}" for count, axis in found)
