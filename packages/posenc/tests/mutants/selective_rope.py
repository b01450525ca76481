"""SelectiveRoPE with other angles, or with a clock that runs otherwise."""

import torch
from torch import Tensor

from posenc import Positions, SelectiveRoPE
from posenc.encoding import context as room
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, oracles

COMPARED = oracles("selective_rope")


MUTANTS = (
    Mutant("does not sum up", room, "cumulative_sums", lambda steps, positions, at=None: of_last(steps, at), COMPARED),
    Mutant("turns all pairs alike", SelectiveRoPE, "frequencies", lambda self, device=None: 1.0, COMPARED),
)


def of_last(steps: Tensor, at: Positions | None) -> Tensor:
    return steps if at is None else steps[:, :, steps.size(2) - len(at) :]


TEXT = Positions.arange(3)
SAID = {"turned": torch.zeros(1, 4, 3, 4)}
OF_FOUR = SelectiveRoPE(4, 8)(TEXT).with_projected(SAID)
REFUSED = {
    "SelectiveRoPE": [
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
    ]
}
