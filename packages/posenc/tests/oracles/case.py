"""What the tests run an oracle on: its scheme at unlucky sizes, and what the oracle makes of the same tensors.

``CASES`` at the end of an oracle's file are found by `tests.cases`, which hands over the scheme's class, positions and
parameters: the oracles import none of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM = 12, 4, 6
DIM = HEADS * HEAD_DIM
TOKENS = 9


@dataclass(frozen=True)
class Case:
    """A scheme and what its oracle does to the input, to queries and keys, and to the scores.

    ``scheme`` makes it of its class; ``add`` takes (x, positions, scheme), ``rotate`` (x, positions), ``turn_query``
    (query, positions, scheme) after it, ``turn_key`` keys, ``turn_values`` the values and 1, or the output and -1,
    (v, positions, sense), and ``pairs`` (scheme, query, key, query_positions, key_positions), of which it makes
    arguments of `attention.attend`. ``projected`` is what a layer projects for the scheme's features, cut from (query,
    key) so that the oracle finds it there.
    """

    scheme: Callable[..., Any]
    add: Callable[[Tensor, Any, Any], Tensor] = lambda x, p, scheme: x
    rotate: Callable[[Tensor, Any], Tensor] = lambda x, p: x
    turn_query: Callable[[Tensor, Any, Any], Tensor] = lambda x, p, scheme: x
    turn_key: Callable[[Tensor, Any, Any], Tensor] = lambda x, p, scheme: x
    projected: Callable[[Tensor, Tensor], dict[str, Tensor]] = lambda q, k: {}
    turn_values: Callable[[Tensor, Any, int], Tensor] = lambda v, p, sense: v
    pairs: Callable[[Any, Tensor, Tensor, Any, Any], dict[str, Any]] = lambda scheme, q, k, x, y: {}
    integers_only: bool = False
    real_only: bool = False
    from_zero: bool = False
    one_document: bool = False
    axes: int = 1
    class_token: bool = False  # it has a token at (-1, -1)
    refused_by: tuple[str, ...] = ()
    wide: bool = True  # parameters from N(0, 1), so that none hides behind its small beginning; False: as it draws them
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # where a parameter begins to count otherwise


def rows(positions: Any) -> Any:
    """Coordinates as nested lists, for each of two samples."""
    return positions.expand(2).coords.tolist()
