"""What begins to count beyond a length is tried beyond it: correct code is not accused of what no short row shows, and
wrong code still is."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Layer, check
from posenc_check.run import FINDING, PASSED, TrialResult

DIM = 8


class Late(nn.Module):
    """Causal attention of one head, with a bias by the distance, and by the query's place too from ``length``
    on (as FIRE's), unless there is no length."""

    def __init__(self, length: int | None) -> None:
        super().__init__()
        self.length, self.project = length, nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        away = (positions[:, :, None] - positions[:, None]).clamp(min=0).to(x.dtype)
        place = (positions / self.length).clamp(min=1).to(x.dtype)[..., None] if self.length else 1.0
        scores = query @ key.mT / DIM**0.5 + (away / 8 / place).log1p()
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1) @ value


def by_positions(made: nn.Module, x: Tensor, positions: Tensor) -> Any:
    return made(x, positions)


def trials(length: int | None, seconds: float = 60.0, **claims: Any) -> dict[str, TrialResult]:
    subject = Layer(
        build=Late, call=by_positions, options={"length": length}, dim=DIM, causal=True, relative=False, **claims
    )
    return {trial.name: trial for trial in check(subject, checks=[6], seconds=seconds).results[0].trials}


def test_what_is_absolute_from_some_place_on_is_seen_however_far_it_is() -> None:
    """A threshold that is claimed is passed too."""
    for length, claims in ((40, {}), (50_000, {}), (200_000, {"threshold": 200_000})):
        found = trials(length, **claims)
        assert found["absolute"].status == PASSED
        assert found["some moved"].status == PASSED
    assert trials(None, seconds=4.0)["absolute"].status == FINDING
