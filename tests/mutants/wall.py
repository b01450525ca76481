"""Wall with other gates, or with factors of other tokens."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import Positions, Wall, attention
from posenc.encoding import features as room
from posenc.encoding.encoding import Context
from posenc.encoding.features import Feature
from posenc.encoding.pieces import Bias, Distance, Fading
from posenc.lowering import forms
from posenc.schemes import wall
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.mutants.fox import by_index, its_own_left_out, of_padding_too
from tests.mutants.selective_rope import of_vectors
from tests.schemes import test_rows_and_features

FEATURES, FADED = Wall.features.fget, forms._faded
COMPARED = oracles("wall")
CLOSED = partial(test_rows_and_features.check_closed_gates, -400.0, Positions.arange(70))


def gate(bug: str, wrong: Callable[[Tensor, Positions], Tensor]) -> Mutant:
    return Mutant(bug, wall, "log_gate", wrong, COMPARED)


def with_steps(change: Callable[[Tensor], Tensor]) -> property:
    def features(self: Wall) -> Mapping[str, Feature]:
        wanted = FEATURES(self)["kept"]
        return {"kept": replace(wanted, map=lambda x, positions: change(wanted.map(x, positions)))}

    return property(features)


def of_all_channels(q: Tensor, k: Tensor, here: Tensor, there: Tensor, seen: Tensor | None) -> Tensor:
    def mean(x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True).expand_as(x)

    return FADED(q, k, mean(here), mean(there), seen)


def by_factors(q: Tensor, k: Tensor, here: Tensor, there: Tensor, seen: Tensor | None) -> Tensor:
    """As it would be with an anchor for all keys: exp(P_i) exp(-P_j)."""
    left, right = q * here.to(q.dtype).exp(), k * (-there).to(q.dtype).exp()
    made = left @ right.mT - q @ k.mT
    return made if seen is None else made.masked_fill(~seen, 0.0)


def seen_by_all(q: Tensor, k: Tensor, here: Tensor, there: Tensor, seen: Tensor | None) -> Tensor:
    return FADED(q, k, here, there, None)


MUTANTS = (
    gate("forgets by the gate and not its logarithm", lambda x, positions: -x.sigmoid()),
    gate("has its gates the wrong way round", lambda x, positions: F.logsigmoid(-x)),
    gate("has one gate for all channels", lambda x, positions: F.logsigmoid(x[..., :1].expand_as(x))),
    Mutant("fades nothing", Wall, "score", lambda self, *where: (), COMPARED),
    Mutant("fades all channels alike near the query", forms, "_faded", of_all_channels, COMPARED),
    Mutant("has blocks so long that factors would overflow", forms, "_faded", by_factors, CLOSED),
    Mutant("rewards keys after the query", forms, "_faded", seen_by_all, COMPARED),
    Mutant("leaves the query's own gate out", room, "readings", of_vectors(its_own_left_out), COMPARED),
    Mutant("runs by index and not by order", room, "readings", of_vectors(by_index), COMPARED),
    Mutant("is wound by padding and by other documents", room, "readings", of_vectors(of_padding_too), COMPARED),
)


class KeyedWall(Wall):
    """Beside the gates a bias that grows with where the text stands."""

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Fading | Bias, ...]:
        far = key_positions.coords.amax()
        return Fading("Wall", "kept"), Bias(lambda r: (r.double() * far * 1e-3)[None], Distance("KeyedWall"))


class EvenWall(Wall):
    """No gate forgets anything."""

    features = with_steps(torch.zeros_like)


class HalfWall(Wall):
    """Forgets by the root of the gate: every law holds."""

    features = with_steps(lambda steps: steps / 2)


LAWLESS = (
    Lawless("wall", lambda shape: KeyedWall(shape.num_heads, shape.head_dim), "relative"),
    Lawless("wall", lambda shape: EvenWall(shape.num_heads, shape.head_dim), "directed"),
)
UNTRUE = (Untrue("wall", lambda: HalfWall(HEADS, HEAD_DIM)),)
X = torch.zeros(1, 4, 3, 8)
SAID = {"kept": X}
REFUSED = {
    "Wall": [
        *sizes(Wall, {"num_heads": 4, "head_dim": 8}, "num_heads", "head_dim"),
        Row(
            lambda: attention(X, X, X, Wall(4, 8)(Positions.arange(3)).with_projected(SAID)),
            "Wall encodes only keys up to the query, but …, or use ALiBi with form='bidirectional'",
        ),
        Row(
            lambda: attention(
                X[..., :6], X[..., :6], X, Wall(4, 8)(Positions.arange(3)).with_projected(SAID), is_causal=True
            ),
            "Wall was made for head_dim 8, got queries of head_dim 6",
        ),
    ],
}
