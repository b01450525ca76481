"""SelectiveRoPE with other angles, or with a clock that runs otherwise."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from posenc import Positions, SelectiveRoPE
from posenc.encoding import features as room
from posenc.encoding.features import Feature
from posenc.encoding.rotation import Rotation
from posenc.rotary import ClockTurn
from posenc.rotation.phases import PairRotation, frequencies
from tests.cases import HEAD_DIM, KV_HEADS
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.mutants.fox import by_index, its_own_left_out, of_padding_too

FEATURES = SelectiveRoPE.features.fget
TURN, WITH_FEATURES = ClockTurn.__call__, Rotation.with_features
COMPARED = oracles("selective_rope")


def with_steps(change: Callable[[Tensor, Positions], Tensor]) -> property:
    """The features as they are, but for what the clock goes by."""

    def features(self: SelectiveRoPE) -> Mapping[str, Feature]:
        return {name: replace(wanted, map=change) for name, wanted in FEATURES(self).items()}

    return property(features)


def of_vectors(wrong: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrong readings of a clock of numbers, for one of vectors."""

    def read(steps: Tensor, positions: Positions, at: Positions | None = None) -> Tensor:
        x = wrong(steps.movedim(3, 2).flatten(1, 2), positions, at)
        return x.unflatten(1, (steps.size(1), steps.size(3))).movedim(2, 3)

    return read


def clock(bug: str, wrong: Callable[..., Tensor]) -> Mutant:
    return Mutant(bug, room, "readings", of_vectors(wrong), COMPARED)


def by_another_base(self: SelectiveRoPE, device: torch.device | None = None) -> Tensor:
    return frequencies(self.head_dim, 10_000.0, device)


def in_one_order(self: ClockTurn, readings: Tensor) -> PairRotation:
    return TURN(replace(self, layout="half"), readings)


def of_the_first_head(self: ClockTurn, readings: Tensor) -> PairRotation:
    return TURN(self, readings[:, :1].expand_as(readings))


def of_queries_alone(self: Rotation, query: Mapping[str, Tensor], key: Mapping[str, Tensor]) -> Rotation:
    return replace(WITH_FEATURES(self, query, key), key=lambda x: x)


MUTANTS = (
    Mutant("does not sum up", room, "readings", lambda steps, positions, at=None: of_last(steps, at), COMPARED),
    Mutant("has the frequencies of another base", SelectiveRoPE, "frequencies", by_another_base, COMPARED),
    Mutant("turns all pairs alike", SelectiveRoPE, "frequencies", lambda self, device=None: 1.0, COMPARED),
    Mutant(
        "turns by coordinates",
        SelectiveRoPE,
        "features",
        with_steps(lambda x, p: x * p.order[:, None, :, None]),
        COMPARED,
    ),
    Mutant("pairs channels in halves whatever the layout", ClockTurn, "__call__", in_one_order, COMPARED),
    Mutant("turns all heads by the first one's angles", ClockTurn, "__call__", of_the_first_head, COMPARED),
    Mutant("turns queries alone", Rotation, "with_features", of_queries_alone, COMPARED),
    clock("leaves the query's own angle out and takes the key's", its_own_left_out),
    clock("runs by index and not by order", by_index),
    clock("is wound by padding and by other documents", of_padding_too),
)


def of_last(steps: Tensor, at: Positions | None) -> Tensor:
    return steps if at is None else steps[:, :, steps.size(2) - len(at) :]


class AbsentSelectiveRoPE(SelectiveRoPE):
    """Nobody says anything."""

    features = with_steps(lambda x, positions: torch.zeros_like(x))


class FartherSelectiveRoPE(SelectiveRoPE):
    """Where a text stands counts too."""

    features = with_steps(lambda x, positions: x + 1e-3 * positions.coords.amax())


class DoubleSelectiveRoPE(SelectiveRoPE):
    """Turns by twice the angle: every law holds."""

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        return 2 * frequencies(self.head_dim, self.base, device)


LAWLESS = (
    Lawless("selective_rope", lambda shape: AbsentSelectiveRoPE(shape.key_heads, shape.head_dim), "unique"),
    Lawless("selective_rope", lambda shape: FartherSelectiveRoPE(shape.key_heads, shape.head_dim), "relative"),
)
UNTRUE = (Untrue("selective_rope", lambda: DoubleSelectiveRoPE(KV_HEADS, HEAD_DIM, 313.0)),)
SIZES = {"num_heads": 4, "head_dim": 8}
TEXT = Positions.arange(3)
SAID = {"turned": torch.zeros(1, 4, 3, 4)}
OF_FOUR = SelectiveRoPE(4, 8)(TEXT).with_projected(SAID)
REFUSED = {
    "SelectiveRoPE": [
        *sizes(SelectiveRoPE, SIZES, "num_heads", "head_dim"),
        *numbers(SelectiveRoPE, SIZES, "base", 1),
        *each(SelectiveRoPE, SIZES, "layout", NO_WORDS, "'half' or 'interleaved'"),
        Row(lambda: SelectiveRoPE(4, 7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: SelectiveRoPE(4, 8)(TEXT).rotate_key(torch.zeros(1, 4, 3, 8)),
            "the scheme needs the feature 'turned' of every key: use …, got none",
        ),
        Row(
            lambda: SelectiveRoPE(4, 8)(TEXT).with_projected({"turned": torch.zeros(1, 4, 3, 8)}),
            "the projection for feature 'turned' must be (batch, 4, 3, 4), got torch.float32 (1, 4, 3, 8)",
        ),
        Row(
            lambda: OF_FOUR.rotate_key(torch.zeros(1, 2, 3, 8)),
            "the rotation was made for keys of 4 heads, got 2: build it for as many heads as keys have",
        ),
        Row(
            lambda: SelectiveRoPE(4, 8)(TEXT).with_features({"turned": torch.zeros(1, 4, 3)}),
            "the feature that the rotation reads must be (batch, key heads, tokens, 4), got torch.float32 (1, 4, 3)",
        ),
        Row(lambda: OF_FOUR.cos_sin(), "cos_sin needs one rotation of channel pairs for all heads, got …"),
    ],
}
