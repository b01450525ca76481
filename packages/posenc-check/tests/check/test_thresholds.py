"""What begins to count beyond a length is tried beyond it: correct code is not accused of what no short row shows, and
wrong code still is."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Layer, check
from posenc_check.run import FINDING, PASSED, Report, TrialResult
from posenc_check.subjects import Subject

DIM = 8


def ended(subject: Subject, number: int, **how: Any) -> tuple[Report, dict[str, TrialResult]]:
    report = check(subject, checks=[number], **how)
    return report, {trial.name: trial for trial in report.results[0].trials}


class Late(nn.Module):
    """Causal attention of one head, with a bias by the distance, which also goes by the query's place from ``length``
    on (as FIRE's); distances from ``far`` on are alike (as in T5 and in windows); and in rows of more than ``length``
    tokens the bias is multiplied by ``factor`` (as dynamic NTK goes by the length)."""

    def __init__(self, length: int = 40, far: int = 10**6, factor: float = 1.0) -> None:
        super().__init__()
        self.length, self.far, self.factor = length, far, factor
        self.project = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        at = torch.arange(x.size(1))[None] if positions is None else positions
        away = (at[:, :, None] - at[:, None]).clamp(0, self.far).to(x.dtype)
        bias = self.bias(away, (at / self.length).clamp(min=1).to(x.dtype)[..., None])
        scores = query @ key.mT / DIM**0.5 + bias * (self.factor if x.size(1) > self.length else 1.0)
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1) @ value

    def bias(self, away: Tensor, place: Tensor) -> Tensor:
        return (away / 8 / place).log1p()


class Never(Late):
    """By the distance alone, and by no option."""

    def __init__(self, length: int = 40, far: int = 10**6, factor: float = 1.0) -> None:
        super().__init__(length)

    def bias(self, away: Tensor, place: Tensor) -> Tensor:
        return (away / 8).log1p()


def by_index(made: nn.Module, x: Tensor) -> Any:
    return made(x)


def by_positions(made: nn.Module, x: Tensor, positions: Tensor | None = None) -> Any:
    return made(x, positions)


def late(build: Any = Late, call: Any = by_index, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": call, "dim": DIM, "causal": True, **claims})


def test_where_positions_are_given_moving_them_shows_it() -> None:
    """However far: a threshold that is claimed is passed too."""
    for length, claims in ((40, {}), (50_000, {}), (200_000, {"threshold": 200_000})):
        _, trials = ended(late(call=by_positions, options={"length": length}, relative=False, **claims), 6)
        assert trials["absolute"].status == PASSED
        assert trials["some moved"].status == PASSED
    _, trials = ended(late(Never, by_positions, relative=False), 6, seconds=4.0)
    assert trials["absolute"].status == FINDING
