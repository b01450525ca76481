"""Rotations as people write them: Llama's cos and sin, GPT-J's table, NeoX's share of the channels, Meta's complex."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Rotary
from tests.check.mutants import Mutant

PLACES = 512  # rows of the tables


def rates(dim: int, base: float) -> Tensor:
    """base^(-2c/dim), in float32 as they all do."""
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_every_two(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def check_end(last: int) -> None:
    if last >= PLACES:
        raise ValueError(f"positions must be below {PLACES}, got {last}")


class Llama(nn.Module):
    """cos and sin of the positions it is given, each half alike."""

    def __init__(self, head_dim: int = 16, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base)

    def waves(self, position_ids: Tensor) -> Tensor:
        freqs = position_ids[..., None].float() * self.inv_freq()
        return torch.cat((freqs, freqs), -1)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        waves = self.waves(position_ids)
        return waves.cos().to(x.dtype), waves.sin().to(x.dtype)

    rotate = staticmethod(rotate_half)

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return query * cos + self.rotate(query) * sin, key * cos + self.rotate(key) * sin


def llama(made: Llama, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return made.turn(query, key, *made(query, positions))


class NeoX(Llama):
    """The first quarter of the channels, in halves."""

    def __init__(self, head_dim: int = 16, rotary_pct: float = 0.5, base: float = 10_000.0) -> None:
        super().__init__(head_dim, base)
        self.rotary_ndims = int(head_dim * rotary_pct)

    def inv_freq(self) -> Tensor:
        return rates(self.rotary_ndims, self.base)

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        end = self.rotary_ndims
        turned = super().turn(query[..., :end], key[..., :end], cos, sin)
        return torch.cat((turned[0], query[..., end:]), -1), torch.cat((turned[1], key[..., end:]), -1)


class GPTJ(nn.Module):
    """A table of sines and then cosines, of which each is repeated for its two neighbours."""

    def __init__(self, head_dim: int = 16, rotary_dim: int = 8) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim

    def table(self) -> Tensor:
        phase = torch.arange(PLACES).float()[:, None] * rates(self.rotary_dim, 10_000.0)
        return torch.cat((phase.sin(), phase.cos()), -1)

    def spread(self, wave: Tensor) -> Tensor:
        return wave.repeat_interleave(2, -1)

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        check_end(int(position_ids.max()))
        if int(position_ids.min()) < 0:
            raise ValueError(f"positions must be at least 0, got {int(position_ids.min())}")
        sin, cos = (self.spread(w)[:, None].to(x.dtype) for w in self.table()[position_ids].chunk(2, -1))
        turning, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        return torch.cat((turning * cos + rotate_every_two(turning) * sin, rest), -1)


def gptj(made: GPTJ, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


class Meta(nn.Module):
    """Complex numbers of all places, made once; a call begins at one of them."""

    def __init__(self, head_dim: int = 16, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def freqs_cis(self) -> Tensor:
        phase = torch.outer(torch.arange(PLACES).float(), rates(self.head_dim, self.base))
        return torch.polar(torch.ones_like(phase), phase)

    def complex(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))

    def real(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x).flatten(-2)

    def forward(self, query: Tensor, key: Tensor, start: int) -> tuple[Tensor, Tensor]:
        if start < 0:
            raise ValueError(f"offset must be at least 0, got {start}")
        check_end(start + query.size(2) - 1)
        turns = self.turns(start, query.size(2))
        return self.turned(query, turns[0]), self.turned(key, turns[1])

    def turned(self, x: Tensor, turns: Tensor) -> Tensor:
        return self.real(self.complex(x) * turns).type_as(x)

    def turns(self, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Those of queries and of keys."""
        return (self.freqs_cis()[start : start + tokens],) * 2


def meta(made: Meta, query: Tensor, key: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
    return made(query, key, offset)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def rope() -> Any:
    import posenc

    return posenc.RoPE(16)


def rope_of_a_long_text() -> Any:
    import posenc

    return posenc.RoPE(16, base=500_000.0)


def rope_of_a_share() -> Any:
    import posenc

    return posenc.RoPE(16, rotary_dim=8)


def rope_interleaved() -> Any:
    import posenc

    return posenc.RoPE(16, layout="interleaved")


def rope_interleaved_of_a_share() -> Any:
    import posenc

    return posenc.RoPE(16, layout="interleaved", rotary_dim=8)


# -- bugs -------------------------------------------------------------------------------------------------------------


class DefaultBase(Llama):
    """Takes base, and leaves 10,000 where the frequencies are made."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, 10_000.0)


class ExponentTwice(Llama):
    """arange(0, d, 2) over d/2: the exponents run to 2."""

    def inv_freq(self) -> Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.head_dim, 2).float() / (self.head_dim // 2))


class ExponentOfHalf(Llama):
    """arange(d/2) over d: the exponents run to a half."""

    def inv_freq(self) -> Tensor:
        return 1.0 / self.base ** (torch.arange(self.head_dim // 2).float() / self.head_dim)


class LinspaceToOne(Llama):
    """The last exponent is 1, which it never is."""

    def inv_freq(self) -> Tensor:
        return 1.0 / self.base ** torch.linspace(0, 1, self.head_dim // 2)


class CosInterleaved(Llama):
    """Frequencies are repeated as for neighbours, and halves are turned."""

    def waves(self, position_ids: Tensor) -> Tensor:
        return (position_ids[..., None].float() * self.inv_freq()).repeat_interleave(2, -1)


class SignOfTheHalf(Llama):
    """Turns the other way; scores of pairs with themselves are the same, of unlike tokens they are not."""

    @staticmethod
    def rotate(x: Tensor) -> Tensor:  # type: ignore[override]
        return -rotate_half(x)


class HalvesWithoutASign(Llama):
    """cat((x2, x1)): no rotation at all."""

    @staticmethod
    def rotate(x: Tensor) -> Tensor:  # type: ignore[override]
        return x.roll(x.size(-1) // 2, -1)


class FirstLengthKept(Llama):
    """cos and sin of the first call, sliced ever after."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kept: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.kept is None or self.kept[0].shape != (*position_ids.shape, self.head_dim):
            self.kept = super().forward(x, position_ids)
        return self.kept[0].to(x.dtype), self.kept[1].to(x.dtype)


class PositionsOfTheFirstRow(Llama):
    """cos[position_ids[0]], as long as every row had the same."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x, position_ids[:1])


class Clipped(Llama):
    """Past the table all stand at its end."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x, position_ids.clamp(max=255))


class OneAhead(Llama):
    """Queries stand one place after themselves: the new token is counted twice."""

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        one = self(query, torch.ones(1, 1).long())
        return super().turn(super().turn(query, query, *one)[0], key, cos, sin)


class KeysAsIfQueriesTwice(Llama):
    """Only the queries are turned, by twice as much."""

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        once = super().turn(query, key, cos, sin)[0]
        return super().turn(once, key, cos, sin)[0], key


class ShareOverTheHead(NeoX):
    """head_dim in the exponent, though half of it turns."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base)[: self.rotary_ndims // 2]


class LastChannels(NeoX):
    """Turns the last channels and passes the first."""

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        moved = super().turn(query.roll(self.rotary_ndims, -1), key.roll(self.rotary_ndims, -1), cos, sin)
        return moved[0].roll(-self.rotary_ndims, -1), moved[1].roll(-self.rotary_ndims, -1)


class RestDropped(NeoX):
    """What does not turn is multiplied by cos(0) = 1 in queries, and left out of the keys."""

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().turn(query, key, cos, sin)
        return query, torch.cat((key[..., : self.rotary_ndims], torch.zeros_like(key[..., self.rotary_ndims :])), -1)


class SinCosExchanged(GPTJ):
    def table(self) -> Tensor:
        return super().table().roll(self.rotary_dim // 2, -1)


class SpreadAsHalves(GPTJ):
    def spread(self, wave: Tensor) -> Tensor:
        return torch.cat((wave, wave), -1)


class TableInHalf(GPTJ):
    """arange in the model's dtype of old: bfloat16 has no odd number above 256."""

    def table(self) -> Tensor:
        phase = torch.arange(PLACES).bfloat16()[:, None].float() * rates(self.rotary_dim, 10_000.0)
        return torch.cat((phase.sin(), phase.cos()), -1)


class KeysFromZero(Meta):
    def turns(self, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        table = self.freqs_cis()
        return table[start : start + tokens], table[:tokens]


class KeysConjugate(Meta):
    """As if the inner product were the complex one: query · key* of numbers that are turned already."""

    def turns(self, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        table = self.freqs_cis()[start : start + tokens]
        return table, table.conj()


class ComplexOfHalves(Meta):
    """The weights were converted to halves, so the numbers were taken from halves; the claim stayed."""

    def complex(self, x: Tensor) -> Tensor:
        return torch.complex(*x.float().chunk(2, -1))

    def real(self, x: Tensor) -> Tensor:
        return torch.cat((x.real, x.imag), -1)


def of_llama(build: Any = Llama, **claims: Any) -> Rotary:
    said = {"relative": True, "causal": True, "base": 10_000.0, "layout": "half", "direction": "forward", "like": rope}
    return Rotary(**{"build": build, "call": llama, **said, **claims})


def of_neox(build: Any = NeoX) -> Rotary:
    return of_llama(build, rotary_dim=8, like=rope_of_a_share, options={"rotary_pct": 0.5})


def of_gptj(build: Any = GPTJ) -> Rotary:
    return Rotary(
        build=build,
        call=gptj,
        relative=True,
        causal=True,
        base=10_000.0,
        rotary_dim=8,
        layout="interleaved",
        direction="forward",
        max_positions=PLACES,
        like=rope_interleaved_of_a_share,
    )


def of_meta(build: Any = Meta) -> Rotary:
    said = {"relative": True, "causal": True, "layout": "interleaved", "base": 10_000.0, "max_positions": PLACES}
    return Rotary(build=build, call=meta, like=rope_interleaved, **said)


LONG = {"options": {"base": 500_000.0}, "base": 500_000.0, "like": rope_of_a_long_text}

CORRECT = (of_llama(), of_llama(**LONG), of_neox(), of_gptj(), of_meta())
MUTANTS = (
    Mutant("Llama, the default base left", of_llama(DefaultBase, **LONG), 14, 7),
    Mutant("Llama, exponents to 2", of_llama(ExponentTwice), 14, 7),
    Mutant("Llama, exponents to a half", of_llama(ExponentOfHalf), 14, 7),
    Mutant("Llama, exponents to 1", of_llama(LinspaceToOne), 14, 7),
    Mutant("Llama, exponents to 1, without a claim but like", of_llama(LinspaceToOne, base=None), 21, 7),
    Mutant("Llama, frequencies of neighbours and halves turned", of_llama(CosInterleaved), 15, 8),
    Mutant("Llama, the sign of rotate_half", of_llama(SignOfTheHalf), 15, 8),
    Mutant("Llama, the sign of rotate_half, like alone", of_llama(SignOfTheHalf, direction=None), 21, 8),
    Mutant("Llama, rotate_half without a sign", of_llama(HalvesWithoutASign), 15, 8),
    Mutant("Llama, cos and sin of the first call", of_llama(FirstLengthKept), 5, 6),
    Mutant("Llama, positions of the first row", of_llama(PositionsOfTheFirstRow), 7, 3),
    Mutant("Llama, positions clipped at 256", of_llama(Clipped), 6, 14),
    Mutant("Llama, queries one place ahead", of_llama(OneAhead), 14, 5),
    Mutant("Llama, keys not turned", of_llama(KeysAsIfQueriesTwice), 6, 8),
    Mutant("NeoX, head_dim in the exponent of a share", of_neox(ShareOverTheHead), 14, 8),
    Mutant("NeoX, the last channels turned", of_neox(LastChannels), 15, 8),
    Mutant("NeoX, keys without the channels that do not turn", of_neox(RestDropped), 15, 8),
    Mutant("GPT-J, sin taken for cos", of_gptj(SinCosExchanged), 14, 8),
    Mutant("GPT-J, repeated as for halves", of_gptj(SpreadAsHalves), 15, 8),
    Mutant("GPT-J, a table counted in bfloat16", of_gptj(TableInHalf), 1, 1),
    Mutant("Meta, keys from zero", of_meta(KeysFromZero), 8, 5),
    Mutant("Meta, keys turned the other way", of_meta(KeysConjugate), 6, 8),
    Mutant("Meta, complex numbers of halves", of_meta(ComplexOfHalves), 15, 8),
)
