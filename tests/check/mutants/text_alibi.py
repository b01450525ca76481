"""ALiBi as people write it: BLOOM's from the mask, MPT's from the length, the authors' from the index of the key."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Bias, Layer
from tests.check.mutants import Mutant

Cache = tuple[Tensor, Tensor] | None


def bloom_slopes(heads: int) -> Tensor:
    closest = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = base ** torch.arange(1, 1 + closest)
    if closest != heads:
        extra = 2.0 ** (-(2.0 ** -(math.log2(2 * closest) - 3)))
        slopes = torch.cat((slopes, extra ** torch.arange(1, 1 + 2 * (heads - closest), 2)))
    return slopes


class Bloom(nn.Module):
    """Keys are counted in the mask, so padding anywhere is passed over; softmax takes what is left to each row."""

    causal = True

    def __init__(self, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)

    def slopes(self) -> Tensor:
        return bloom_slopes(self.heads)

    def counted(self, mask: Tensor) -> Tensor:
        return (mask.long().cumsum(-1) - 1) * mask

    def alibi(self, mask: Tensor) -> Tensor:
        """(rows · heads, 1, keys)"""
        return (self.slopes()[:, None] * self.counted(mask)[:, None, None]).view(-1, 1, mask.size(1))

    def biased(self, product: Tensor, alibi: Tensor) -> Tensor:
        return product / (48 // self.heads) ** 0.5 + alibi

    def sees(self, new: int, total: int) -> Tensor:
        return torch.ones(new, total).bool().tril(total - new)

    def forward(self, x: Tensor, mask: Tensor | None, cache: Cache) -> tuple[Tensor, Cache]:
        rows, new = x.shape[:2]
        query, key, value = self.qkv(x).unflatten(-1, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4).flatten(1, 2)
        if cache is not None:
            key, value = torch.cat((cache[0], key), 1), torch.cat((cache[1], value), 1)
        mask = torch.ones(rows, key.size(1)).bool() if mask is None else mask
        scores = self.biased(query @ key.mT, self.alibi(mask)).unflatten(0, (rows, -1))
        visible = (self.sees(new, key.size(1)) & mask[:, None])[:, None]
        weights = (
            scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1, dtype=torch.float32).to(x.dtype)
        )
        out = weights.flatten(0, 1) @ value
        return self.out(out.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2)), (key, value)


def bloom(layer: Bloom, x: Tensor, padding: Tensor | None = None, cache: Cache = None) -> tuple[Tensor, Cache]:
    return layer(x, padding, cache)


class MPT(nn.Module):
    """The bias of so many keys, for any number of heads."""

    def __init__(self, heads: int = 12, alibi_bias_max: int = 8) -> None:
        super().__init__()
        self.heads, self.alibi_bias_max = heads, alibi_bias_max

    def slopes(self) -> Tensor:
        power = 2 ** math.ceil(math.log2(self.heads))
        slopes = 1.0 / 2 ** (torch.arange(1, power + 1).float() * (self.alibi_bias_max / power))
        return slopes if power == self.heads else torch.cat((slopes[1::2], slopes[::2]))[: self.heads]

    def forward(self, query_length: int, key_length: int) -> Tensor:
        query = torch.arange(key_length - query_length, key_length)
        return self.slopes()[:, None, None] * self.distance(query[:, None], torch.arange(key_length))

    def distance(self, query: Tensor, key: Tensor) -> Tensor:
        return key - query


def mpt(made: MPT, query_length: int, key_length: int) -> Tensor:
    return made(query_length, key_length)


class Fairseq(nn.Module):
    """The authors' mask: slope times the key's index, and -inf above the diagonal, for square scores."""

    def __init__(self, heads: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)

    def slopes(self, heads: int) -> list[float]:
        if math.log2(heads).is_integer():
            start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
            return [start * start**i for i in range(heads)]
        closest = 2 ** math.floor(math.log2(heads))
        return self.slopes(closest) + self.slopes(2 * closest)[0::2][: heads - closest]

    def mask(self, tokens: int) -> Tensor:
        future = torch.full((tokens, tokens), -torch.inf).triu(1)
        return future + torch.tensor(self.slopes(self.heads))[:, None, None] * torch.arange(tokens)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT * query.size(-1) ** -0.5 + self.mask(x.size(1))
        return self.out((nn.functional.softmax(scores, dim=-1).to(x.dtype) @ value).transpose(1, 2).flatten(2))


def fairseq(layer: Fairseq, x: Tensor) -> Tensor:
    return layer(x)


class Encoder(Fairseq):
    """Both sides, by the distance."""

    def mask(self, tokens: int) -> Tensor:
        index = torch.arange(tokens)
        return -torch.tensor(self.slopes(self.heads))[:, None, None] * (index[:, None] - index).abs()


# -- the schemes that they are ----------------------------------------------------------------------------------------


def alibi_12() -> Any:
    import posenc

    return posenc.ALiBi(12)


def alibi_6() -> Any:
    import posenc

    return posenc.ALiBi(6)


def alibi_both() -> Any:
    import posenc

    return posenc.ALiBi(6, "bidirectional")


# -- bugs -------------------------------------------------------------------------------------------------------------


class BloomOfTheNextPower(Bloom):
    """The first twelve of sixteen."""

    def slopes(self) -> Tensor:
        return bloom_slopes(16)[: self.heads]


class BloomInverted(Bloom):
    """The distance is rewarded."""

    def slopes(self) -> Tensor:
        return -super().slopes()


class BloomReversed(Bloom):
    def slopes(self) -> Tensor:
        return super().slopes().flip(0)


class BloomScaled(Bloom):
    """(product + alibi) / sqrt(d), as Falcon has it."""

    def biased(self, product: Tensor, alibi: Tensor) -> Tensor:
        return (product + alibi) / (48 // self.heads) ** 0.5


class BloomInTheDtype(Bloom):
    """alibi in the dtype of the product, of which bfloat16 has no 257."""

    def biased(self, product: Tensor, alibi: Tensor) -> Tensor:
        return super().biased(product, alibi.to(product.dtype))


class BloomByIndex(Bloom):
    """arange in the place of the mask: padding inside a row counts."""

    def counted(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.size(1)).expand_as(mask)


class BloomOfTheFirstRow(Bloom):
    """One mask's alibi for all rows."""

    def counted(self, mask: Tensor) -> Tensor:
        return super().counted(mask)[:1].expand_as(mask)


class BloomHeadsAndRowsMixed(Bloom):
    """repeat_interleave over rows, where scores have rows first and heads within."""

    def alibi(self, mask: Tensor) -> Tensor:
        alibi = super().alibi(mask).unflatten(0, (mask.size(0), self.heads))
        return alibi.transpose(0, 1).flatten(0, 1)


class BloomOfSharedKeys(Bloom):
    """Slopes of four heads of keys, each repeated for three queries."""

    def slopes(self) -> Tensor:
        return bloom_slopes(self.heads // 3).repeat_interleave(3)


class MPTOfTheNextPower(MPT):
    """Without taking every other."""

    def slopes(self) -> Tensor:
        power = 2 ** math.ceil(math.log2(self.heads))
        return (1.0 / 2 ** (torch.arange(1, power + 1).float() * (self.alibi_bias_max / power)))[: self.heads]


class MPTFromZero(MPT):
    """2^(-8h/H) with h from 0: the first head has slope 1."""

    def slopes(self) -> Tensor:
        return 2.0 ** (-self.alibi_bias_max * torch.arange(self.heads) / self.heads)


class MPTByFormula(MPT):
    """2^(-8h/H) of any number of heads."""

    def slopes(self) -> Tensor:
        return 2.0 ** (-self.alibi_bias_max * torch.arange(1, self.heads + 1) / self.heads)


class MPTEvenFirst(MPT):
    """slopes[::2], then slopes[1::2]."""

    def slopes(self) -> Tensor:
        power = 2 ** math.ceil(math.log2(self.heads))
        slopes = 1.0 / 2 ** (torch.arange(1, power + 1).float() * (self.alibi_bias_max / power))
        return torch.cat((slopes[::2], slopes[1::2]))[: self.heads]


class MPTReversed(MPT):
    def slopes(self) -> Tensor:
        return super().slopes().flip(0)


class MPTBiasMaxIgnored(MPT):
    def __init__(self, heads: int = 12, alibi_bias_max: int = 8) -> None:
        super().__init__(heads)


class FairseqDoubled(Fairseq):
    """-2 (log2 n - 3) in the exponent: a start too small."""

    def slopes(self, heads: int) -> list[float]:
        return [slope**2 for slope in super().slopes(heads)]


class FairseqEveryOtherFromTheSecond(Fairseq):
    """[1::2] of the larger number of heads, all of which the smaller has."""

    def slopes(self, heads: int) -> list[float]:
        closest = 2 ** math.floor(math.log2(heads))
        small, large = super().slopes(closest), super().slopes(2 * closest)
        return small + large[1::2][: heads - closest]


class FairseqByQuery(Fairseq):
    """Slope times the query's index: a row has one bias for all its keys, and softmax drops it."""

    def mask(self, tokens: int) -> Tensor:
        future = torch.full((tokens, tokens), -torch.inf).triu(1)
        return future + torch.tensor(self.slopes(self.heads))[:, None, None] * torch.arange(tokens)[:, None]


class EncoderByIndex(Encoder):
    """The mask of decoders without -inf: keys after the query are rewarded."""

    def mask(self, tokens: int) -> Tensor:
        return torch.tensor(self.slopes(self.heads))[:, None, None] * torch.arange(tokens)


class EncoderHeadsLast(Encoder):
    """view in the place of permute: numbers of several heads in one row."""

    def mask(self, tokens: int) -> Tensor:
        mask = super().mask(tokens)
        return mask.permute(1, 2, 0).reshape(mask.shape)


def of_bloom(build: Any = Bloom) -> Layer:
    return Layer(build=build, call=bloom, dim=48, causal=True, relative=True, like=alibi_12)


def of_mpt(build: Any = MPT, **claims: Any) -> Bias:
    said = {"options": {"heads": 12}, "heads": 12, "heads_option": "heads", "like": alibi_12}
    return Bias(**{"build": build, "call": mpt, "causal": True, "relative": True, **said, **claims})


def of_fairseq(build: Any = Fairseq) -> Layer:
    return Layer(build=build, call=fairseq, dim=48, causal=True, relative=True, like=alibi_6)


def of_encoder(build: Any = Encoder) -> Layer:
    return Layer(build=build, call=fairseq, dim=48, relative=True, directed=False, like=alibi_both)


FEWER = {"varied": {"alibi_bias_max": 16}, "like": None}

CORRECT = (of_bloom(), of_mpt(), of_mpt(**FEWER), of_fairseq(), of_encoder())
MUTANTS = (
    Mutant("BLOOM, slopes of the next power of two", of_bloom(BloomOfTheNextPower), 21, 16),
    Mutant("BLOOM, far tokens rewarded", of_bloom(BloomInverted), 21, 16),
    Mutant("BLOOM, slopes reversed", of_bloom(BloomReversed), 21, 16),
    Mutant("BLOOM, alibi divided by sqrt(d)", of_bloom(BloomScaled), 21, 16),
    Mutant("BLOOM, alibi in the dtype of the product", of_bloom(BloomInTheDtype), 1, 1),
    Mutant("BLOOM, keys by index", of_bloom(BloomByIndex), 7, 3),
    Mutant("BLOOM, the first row's alibi", of_bloom(BloomOfTheFirstRow), 7, 3),
    Mutant("BLOOM, heads and rows mixed", of_bloom(BloomHeadsAndRowsMixed), 19, 16),
    Mutant("BLOOM, slopes of shared keys", of_bloom(BloomOfSharedKeys), 21, 16),
    Mutant("MPT, slopes of the next power of two", of_mpt(MPTOfTheNextPower), 19, 16),
    Mutant("MPT, slopes from h = 0", of_mpt(MPTFromZero), 19, 16),
    Mutant("MPT, one formula for any number of heads", of_mpt(MPTByFormula), 19, 16),
    Mutant("MPT, even slopes first", of_mpt(MPTEvenFirst), 19, 16),
    Mutant("MPT, slopes reversed", of_mpt(MPTReversed), 19, 16),
    Mutant("MPT, alibi_bias_max ignored", of_mpt(MPTBiasMaxIgnored, **FEWER), 14, 7),
    Mutant("fairseq, slopes squared", of_fairseq(FairseqDoubled), 21, 16),
    Mutant("fairseq, every other slope from the second", of_fairseq(FairseqEveryOtherFromTheSecond), 21, 16),
    Mutant("fairseq, the query's index", of_fairseq(FairseqByQuery), 21, 16),
    Mutant("an encoder with a decoder's alibi", of_encoder(EncoderByIndex), 21, 16),
    Mutant("an encoder's alibi with heads last", of_encoder(EncoderHeadsLast), 21, 16),
)
