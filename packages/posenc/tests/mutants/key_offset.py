"""KeyOffset with channels of other tokens."""

import torch

from posenc import KeyOffset, Positions
from posenc.encoding import context
from posenc.schemes import key_offset
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("key_offset"),
    (
        "leaks across documents",
        context,
        "by_document",
        "document[:, 1:] != document[:, :-1]",
        "(document[:, 1:] != document[:, :-1]) & False",
    ),
    (
        "shifts by index",
        context,
        "by_document",
        "_places(positions, positions)[0].argsort(dim=-1, stable=True)",
        "torch.arange(len(positions)).expand(positions.order.shape)",
    ),
    ("takes the token after", key_offset, "previous_tokens", ".roll(1, -1)", ".roll(-1, -1)"),
    ("shifts the first half", KeyOffset, "rotation", ">= block // 2", "< block // 2"),
)
OF_THREE = KeyOffset(8)(Positions.arange(3))
REFUSED = {
    "KeyOffset": [
        Row(lambda: KeyOffset(7), "head_dim must be a multiple of 2 for form='partial', got 7"),
        Row(lambda: KeyOffset(6, "proportional"), "head_dim must be a multiple of 4 for form='proportional', got 6"),
        Row(
            lambda: OF_THREE.rotate_key(torch.zeros(1, 2, 4, 8)),
            "KeyOffset was made for (batch, heads, tokens) (1, 1, 3), got (1, 2, 4, 8)",
        ),
        Row(lambda: OF_THREE.rotate_key(torch.zeros(1, 2, 3, 6)), "KeyOffset was made for head_dim 8, got keys of 6"),
    ]
}
