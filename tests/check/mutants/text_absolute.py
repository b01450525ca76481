"""Vectors added to the input as people write them: sinusoids of two layouts, OPT's and RoBERTa's learned tables."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer, Model
from tests.check.mutants import Mutant

PLACES, PAD = 64, 48  # rows of the learned tables; the id of padding


class Tutorial(nn.Module):
    """Sines in even channels, cosines in odd ones; its cache is how many tokens there were."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.dim = dim

    def rates(self) -> Tensor:
        return torch.exp(torch.arange(0, self.dim, 2).float() * (-math.log(10_000.0) / self.dim))

    def table(self, position: Tensor) -> Tensor:
        phase = position[..., None].float() * self.rates()
        table = phase.new_zeros(*position.shape, self.dim)
        table[..., 0::2] = phase.sin()
        table[..., 1::2] = phase[..., : self.dim // 2].cos()
        return table

    def places(self, positions: Tensor | None, start: int, x: Tensor) -> Tensor:
        return torch.arange(start, start + x.size(1)).expand(x.size(0), -1) if positions is None else positions

    def forward(self, x: Tensor, positions: Tensor | None, start: int) -> Tensor:
        return x + self.table(self.places(positions, start, x)).to(x.dtype)


class Concatenated(Tutorial):
    """Sines, then cosines, as in tensor2tensor; an odd channel that is left is zero."""

    def table(self, position: Tensor) -> Tensor:
        phase = position[..., None].float() * self.rates()[: self.dim // 2]
        table = torch.cat((phase.sin(), phase.cos()), -1)
        return nn.functional.pad(table, (0, self.dim - table.size(-1)))


def add(layer: Tutorial, x: Tensor, positions: Tensor | None = None, cache: int | None = None) -> tuple[Tensor, int]:
    start = cache or 0
    return layer(x, positions, start), start + x.size(1)


class OPT(nn.Module):
    """A learned table whose first two rows are of no position; places are counted in the mask."""

    offset = 2

    def __init__(self) -> None:
        super().__init__()
        self.embed_positions = nn.Embedding(PLACES + 2, 32)

    def positions(self, mask: Tensor, past: int) -> Tensor:
        return ((mask.long().cumsum(1) * mask).long() - 1)[:, past:]

    def rows(self, positions: Tensor, past: int) -> Tensor:
        if int(positions.max()) >= PLACES:
            raise ValueError(f"positions must be below {PLACES}, got {int(positions.max())}")
        return self.embed_positions(positions + self.offset)

    def forward(self, x: Tensor, mask: Tensor, past: int) -> Tensor:
        return x + self.rows(self.positions(mask, past), past)


def opt(layer: OPT, x: Tensor, padding: Tensor | None = None, cache: int | None = None) -> tuple[Tensor, int]:
    past = cache or 0
    mask = torch.ones(x.size(0), past + x.size(1)).bool() if padding is None else padding
    return layer(x, mask, past), past + x.size(1)


class Roberta(nn.Module):
    """Embeddings of ids and places, and one attention of all with all. Places begin after that of padding."""

    padding_idx = 1

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(PAD + 1, 32, padding_idx=PAD)
        self.places = nn.Embedding(PLACES + 2, 32, padding_idx=self.padding_idx)
        self.qkv = nn.Linear(32, 96)

    def position_ids(self, ids: Tensor) -> Tensor:
        mask = ids.ne(PAD).long()
        return mask.cumsum(1) * mask + self.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        position_ids = self.position_ids(ids)
        if int(position_ids.max()) >= PLACES + 2:
            raise ValueError(f"rows must have at most {PLACES} tokens, got {int(position_ids.max()) - 1}")
        x = self.words(ids) + self.places(position_ids)
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        visible = ids.ne(PAD)[:, None, None]
        out = nn.functional.scaled_dot_product_attention(query, key, value, visible)
        return out.transpose(1, 2).flatten(2)


def roberta(model: Roberta, ids: Tensor, padding: Tensor | None = None) -> Tensor:
    return model(ids if padding is None else ids.masked_fill(~padding, PAD))


# -- the schemes that they are ----------------------------------------------------------------------------------------


def interleaved() -> Any:
    import posenc

    return posenc.Sinusoidal(32)


def concatenated() -> Any:
    import posenc

    return posenc.Sinusoidal(32, layout="concatenated")


def table() -> Any:
    import posenc

    return posenc.Learned(PLACES, 32)


def match_opt(made: OPT, scheme: Any) -> None:
    scheme.weight.data.copy_(made.embed_positions.weight.data[2:])


def match_roberta(made: Roberta, scheme: Any) -> None:
    scheme.weight.data.copy_(made.places.weight.data[2:])


# -- bugs -------------------------------------------------------------------------------------------------------------


class ExponentTwice(Tutorial):
    """10,000^(2i/d), where i goes by twos already."""

    def rates(self) -> Tensor:
        return super().rates() ** 2


class OtherBase(Tutorial):
    def rates(self) -> Tensor:
        return torch.exp(torch.arange(0, self.dim, 2).float() * (-math.log(1_000.0) / self.dim))


class CosinesInEven(Tutorial):
    def table(self, position: Tensor) -> Tensor:
        return super().table(position).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class FromOne(Tutorial):
    def places(self, positions: Tensor | None, start: int, x: Tensor) -> Tensor:
        return super().places(positions, start, x) + 1


class EveryChunkFromZero(Tutorial):
    def places(self, positions: Tensor | None, start: int, x: Tensor) -> Tensor:
        return super().places(positions, 0, x)


class CountedInTheDtype(Tutorial):
    """Positions in the dtype of x, before they meet the frequencies."""

    def forward(self, x: Tensor, positions: Tensor | None, start: int) -> Tensor:
        return x + self.table(self.places(positions, start, x).to(x.dtype)).to(x.dtype)


class OfTheFirstRow(Tutorial):
    def places(self, positions: Tensor | None, start: int, x: Tensor) -> Tensor:
        return super().places(positions, start, x)[:1].expand(x.size(0), -1)


class HalfLessOne(Concatenated):
    """log(10,000) / (d/2 - 1), as tensor2tensor and fairseq have it and the paper does not."""

    def rates(self) -> Tensor:
        half = self.dim // 2
        return torch.exp(torch.arange(half).float() * (-math.log(10_000.0) / (half - 1)))


class CosinesBefore(Concatenated):
    def table(self, position: Tensor) -> Tensor:
        return super().table(position).roll(self.dim // 2, -1)


class OddCosinesOfTheNext(Tutorial):
    """With an odd dim, cosines take the frequencies from the second on."""

    def table(self, position: Tensor) -> Tensor:
        table = super().table(position)
        table[..., 1::2] = (position[..., None].float() * self.rates()[1:]).cos()
        return table


class WithoutOffset(OPT):
    offset = 0

    def positions(self, mask: Tensor, past: int) -> Tensor:
        return super().positions(mask, past).clamp(min=0)


class WithoutOffsetInDecode(OPT):
    """Places of new tokens are taken for rows."""

    def rows(self, positions: Tensor, past: int) -> Tensor:
        return super().rows(positions - 2 if past else positions, past)


class CountedFromOne(OPT):
    """cumsum, not less one: the offset is 3 then, and the last place has no row."""

    offset = 3

    def rows(self, positions: Tensor, past: int) -> Tensor:
        return super().rows(positions.clamp(max=PLACES - 2), past)


class MaskOfNewTokens(OPT):
    """Counts from the new tokens on."""

    def positions(self, mask: Tensor, past: int) -> Tensor:
        return super().positions(mask[:, past:], 0)


class MaskNotCounted(OPT):
    def positions(self, mask: Tensor, past: int) -> Tensor:
        return torch.arange(past, mask.size(1)).expand(mask.size(0), -1)


class PlacesPastTheEndShared(OPT):
    def rows(self, positions: Tensor, past: int) -> Tensor:
        return super().rows(positions.clamp(max=PLACES - 1), past)


class PaddingCounts(Roberta):
    """arange(padding_idx + 1, …), as for vectors that come without ids."""

    def position_ids(self, ids: Tensor) -> Tensor:
        return torch.arange(self.padding_idx + 1, self.padding_idx + 1 + ids.size(1)).expand_as(ids)


class FirstOfPadding(Roberta):
    """Without padding_idx: the first token takes the row of padding, which is zero, and the others follow."""

    def position_ids(self, ids: Tensor) -> Tensor:
        return super().position_ids(ids) - 1


class PaddingByTheFirstRow(Roberta):
    def position_ids(self, ids: Tensor) -> Tensor:
        return super().position_ids(ids)[:1].expand_as(ids)


def of_sines(build: Any = Tutorial, like: Any = interleaved, **claims: Any) -> Layer:
    return Layer(build=build, call=add, causal=True, relative=False, like=like, **claims)


ODD: dict[str, Any] = {"like": None, "dim": 33, "options": {"dim": 33}}


def of_opt(build: Any = OPT) -> Layer:
    said = {"causal": True, "relative": None, "max_positions": PLACES, "like": table, "match": match_opt}
    return Layer(build=build, call=opt, **said)


def of_roberta(build: Any = Roberta) -> Model:
    return Model(build=build, call=roberta, max_positions=PLACES, like=table, match=match_roberta)


CORRECT = (
    of_sines(),
    of_sines(Concatenated, concatenated),
    of_sines(**ODD),
    of_sines(Concatenated, **ODD),
    of_opt(),
    of_roberta(),
)
MUTANTS = (
    Mutant("sinusoids, exponents twice", of_sines(ExponentTwice), 21, 7),
    Mutant("sinusoids, another base", of_sines(OtherBase), 21, 7),
    Mutant("sinusoids, cosines in even channels", of_sines(CosinesInEven), 21, 8),
    Mutant("sinusoids, concatenated for interleaved", of_sines(Concatenated), 21, 8),
    Mutant("sinusoids, from 1", of_sines(FromOne), 21, 5),
    Mutant("sinusoids, every chunk from 0", of_sines(EveryChunkFromZero), 8, 5),
    Mutant("sinusoids, counted in the dtype of x", of_sines(CountedInTheDtype), 1, 1),
    Mutant("sinusoids, of the first row", of_sines(OfTheFirstRow), 19, 3),
    Mutant("sinusoids, half less one", of_sines(HalfLessOne, concatenated), 21, 7),
    Mutant("sinusoids, cosines before", of_sines(CosinesBefore, concatenated), 21, 8),
    Mutant("OPT, without its offset", of_opt(WithoutOffset), 21, 5),
    Mutant("OPT, without its offset in decode", of_opt(WithoutOffsetInDecode), 8, 5),
    Mutant("OPT, counted from one", of_opt(CountedFromOne), 19, 5),
    Mutant("OPT, the mask of new tokens", of_opt(MaskOfNewTokens), 8, 5),
    Mutant("OPT, the mask not counted", of_opt(MaskNotCounted), 7, 3),
    Mutant("OPT, places past the end shared", of_opt(PlacesPastTheEndShared), 19, 14),
    Mutant("RoBERTa, padding counts", of_roberta(PaddingCounts), 7, 3),
    Mutant("RoBERTa, the row of padding", of_roberta(FirstOfPadding), 19, 5),
    Mutant("RoBERTa, places of the first row", of_roberta(PaddingByTheFirstRow), 7, 3),
)
