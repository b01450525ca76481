"""What a model of transformers does with positions, read from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from posenc.scheme import Schedule, Scheme


@dataclass(frozen=True)
class Layer:
    """What a layer's attention does beside its scheme and window.

    - ``scale``: the factor of q . k, where it is not 1/sqrt(head_dim);
    - ``softcap``: scores are squashed as c tanh(s / c), after position;
    - ``sinks``: a learned logit per head stands in the denominator of the softmax, in the model's weights;
    - ``chunk``: tokens see only those of their own block of so many, [n chunk, (n + 1) chunk).
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    chunk: int | None = None


@dataclass(frozen=True, eq=False)
class ModelPositions:
    """What a model does with positions: a scheme and a window per layer, and what else its attention needs.

    ``schedule`` has what every layer rotates or adds to its scores; ``layers`` what is not of the scheme. ``input`` is
    what is added to the embeddings once, before the first layer, at the positions plus ``offset``.
    """

    model_type: str
    schedule: Schedule
    layers: tuple[Layer, ...]
    input: Scheme | None = None
    offset: int = 0
    causal: bool = True


def scheme_from_config(config: object, part: str | None = None) -> ModelPositions:
    """What the model of a configuration does with positions."""
    raise NotImplementedError
