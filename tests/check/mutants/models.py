"""A model with learned positions, and what goes wrong with it."""

import torch
from torch import Tensor, nn

from posenc.tools.check import Model
from tests.check.mutants import Mutant

WIDTH, POSITIONS = 24, 70

Cache = list[tuple[Tensor, Tensor]] | None


class Learned(nn.Module):
    """Ids to logits: two layers of causal attention over embeddings of tokens and of positions."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(48, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.project = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 48)

    def forward(
        self, ids: Tensor, positions: Tensor | None, padding: Tensor | None, cache: Cache
    ) -> tuple[Tensor, Cache]:
        start = 0 if cache is None else cache[0][0].size(1)
        end = start + ids.size(1)
        if padding is None:
            padding = torch.ones(ids.size(0), end).bool()
        positions = self.place(padding, start) if positions is None else positions
        if not 0 <= int(positions.min()) <= int(positions.max()) < POSITIONS:
            raise ValueError(f"positions must be within 0..{POSITIONS - 1}, got {positions.tolist()}")
        # A token of padding sees itself, so that there is something to divide by.
        itself = torch.arange(start, end)[:, None] == torch.arange(end)
        visible = padding[:, None] & torch.ones(ids.size(1), end).tril(start).bool() | itself
        x, kept = self.tokens(ids) + self.places(positions), []
        for n, (norm, project) in enumerate(zip(self.norms, self.project, strict=True)):
            query, key, value = project(norm(x)).chunk(3, -1)
            if cache is not None:
                key, value = torch.cat((cache[n][0], key), 1), torch.cat((cache[n][1], value), 1)
            kept.append((key, value))
            scores = (query @ key.mT / WIDTH**0.5).masked_fill(~visible, -torch.inf)
            x = x + scores.softmax(-1) @ value
        return self.head(x), kept

    def place(self, padding: Tensor, start: int) -> Tensor:
        """How many tokens there were before."""
        return (padding.cumsum(-1) - 1).clamp(min=0)[:, start:]


def call_model(
    model: Learned,
    ids: Tensor,
    positions: Tensor | None = None,
    padding: Tensor | None = None,
    cache: Cache = None,
) -> tuple[Tensor, Cache]:
    return model(ids, positions, padding, cache)


# -- bugs -------------------------------------------------------------------------------------------------------------


class IndexAsPosition(Learned):
    def place(self, padding: Tensor, start: int) -> Tensor:
        return torch.arange(start, padding.size(1)).expand(padding.size(0), -1)


class StartForgotten(Learned):
    """Every new token stands at 0, as if it were a text of its own."""

    def place(self, padding: Tensor, start: int) -> Tensor:
        return super().place(padding[:, start:], 0)


class SlotAsPosition(Learned):
    """A prompt by its tokens, and new tokens by the slots of the cache."""

    def place(self, padding: Tensor, start: int) -> Tensor:
        slots = torch.arange(start, padding.size(1)).expand(padding.size(0), -1)
        return slots if start else super().place(padding, start)


LEARNED = Model(build=Learned, call=call_model, causal=True, relative=False, max_positions=POSITIONS)


def built(build: type) -> Model:
    return Model(build=build, call=call_model, causal=True, relative=False, max_positions=POSITIONS)


CORRECT = (LEARNED,)
MUTANTS = (
    Mutant("a model that places by index", built(IndexAsPosition), 7, 3),
    Mutant("a model that forgets where it was", built(StartForgotten), 8, 5),
    Mutant("a model that counts slots", built(SlotAsPosition), 8, 3),
)
