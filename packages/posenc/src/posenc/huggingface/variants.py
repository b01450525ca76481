"""Variants of the catalog's schemes in single models of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from posenc.arguments import check_choice, check_type, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Function, RelativeDot, plus
from posenc.positions.positions import Positions
from posenc.positions.tiles import table_index
from posenc.rotation.phases import widest
from posenc.rotation.scalings import _Scaling
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.deberta import DeBERTa
from posenc.schemes.learned import Learned
from posenc.schemes.sinusoidal import Sinusoidal
from posenc.schemes.swin_v2 import SwinV2


class OffsetLearned(Learned):
    """A learned table whose first rows are not positions: x_i <- x_i + W[p_i + offset].

    In OPT position 0 is row 2, in RoBERTa row pad_token_id + 1. ``max_positions`` is the number of rows of the table,
    of which max_positions - offset are positions.

    Errors: PositionError for a position outside the table, and as for `Learned`.
    Source: the code of OPT and of RoBERTa in transformers.
    """

    def __init__(self, max_positions: int, dim: int, offset: int) -> None:
        super().__init__(max_positions, dim)
        self.offset = whole("offset", offset, 0, self.max_positions - 1)

    def extra_repr(self) -> str:
        """The arguments, with the offset as a keyword."""
        return f"{self.max_positions}, {self.dim}, offset={self.offset}"

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The rows W[p + offset]."""
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        row = table_index(positions, "OffsetLearned", self.max_positions - self.offset)
        return self.weight[self.offset :][row].to(dtype)


def table_of(rows: int, dim: int, offset: int = 0) -> Learned:
    """A learned table, of which the first rows may be no positions."""
    return OffsetLearned(rows, dim, offset) if offset > 0 else Learned(rows, dim)


class OffsetSinusoidal(Sinusoidal):
    """tensor2tensor's sinusoids whose first position is not 0: x_i <- x_i + P[p_i + offset].

    In M2M100 and in fairseq's models position 0 is pad_token_id + 1. Errors: as for `Sinusoidal`.
    Source: the code of M2M100 in transformers.
    """

    def __init__(self, dim: int, offset: int) -> None:
        super().__init__(dim, layout="tensor2tensor")
        self.offset = whole("offset", offset, 0)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.dim}, offset={self.offset}"

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The vectors P[p + offset]."""
        check_type("positions", positions, Positions)
        return super().table(positions.with_coords(positions.coords + self.offset), dtype)


class CosineSinusoidal(Sinusoidal):
    """tensor2tensor's sinusoids with cosines before sines: x_i <- x_i + (cos p theta, sin p theta).

    Errors: as for `Sinusoidal`. Source: the code of MusicGen in transformers.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, layout="tensor2tensor")

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The vectors P[p]."""
        return super().table(positions, dtype).roll(self.dim // 2, -1)

    def linear_map(self, offset: Sequence[int | float]) -> Float64[Tensor, "dim dim"]:
        """M with P[p + offset] = M P[p]."""
        return super().linear_map(offset).roll((self.dim // 2, self.dim // 2), (0, 1))


@dataclass(frozen=True, repr=False)
class Frequencies(_Scaling):
    """The frequencies themselves, whatever the base: those of a model that were measured, or that turn the other way.

    Formula: theta'_k = theta_k and the factor as given. Errors: ValueError for another number of pairs.
    """

    theta: tuple[float, ...]
    cos_factor: float = 1.0

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        if theta.numel() != len(self.theta):
            raise ValueError(f"Frequencies must be of {theta.numel()} pairs, got {len(self.theta)}")
        return torch.tensor(self.theta, dtype=torch.float64, device=theta.device), self.cos_factor


class DividedALiBi(ALiBi):
    """ALiBi with slopes divided by sqrt(head_dim), since Falcon divides the sum of product and bias by it.

    Formula: (q_i . k_j - m_h (p_i - p_j)) / sqrt(d). Source: the code of Falcon in transformers, which also rounds the
    bias to bfloat16; here it is exact, and rounded in `RoundedALiBi`.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__(num_heads)
        self.head_dim = whole("head_dim", head_dim)

    @property
    def slopes(self) -> tuple[float, ...]:
        """m_h / sqrt(d) for every head."""
        return tuple(slope / math.sqrt(self.head_dim) for slope in super().slopes)

    def _bias(self, r: Tensor) -> Tensor:
        return super()._bias(r) / math.sqrt(self.head_dim)


class RoundedALiBi(DividedALiBi):
    """`DividedALiBi` as in the published code of Falcon: slopes, positions and products are rounded to bfloat16.

    Formula: (q_i . k_j + b_h(p_j) - b_h(p_i)) / sqrt(d), with b_h(p) = r(r(m_h) r(p)) and r the rounding to bfloat16.
    So it is not relative, and with the 32 heads of falcon-rw-1b its error is up to 1.1 before position 2,048. It runs
    as a mask or in blocks, while `DividedALiBi` has kernels. Source: the code of Falcon in transformers, and copies of
    the authors' code.
    """

    def score(  # type: ignore[override]  # another kind of term
        self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE
    ) -> tuple[Function, ...]:
        """The bias, a function of both positions."""
        for positions in (query_positions, key_positions):
            positions.scalar("RoundedALiBi")
        return (Function(plus, self._rounded_bias, adds=True, scheme="RoundedALiBi"),)

    def _rounded_bias(self, x: Tensor, y: Tensor) -> tuple[Float[Tensor, "heads rows queries keys"]]:
        if x.dim() == 4:  # coordinates with a dimension for axes
            x, y = x[..., 0], y[..., 0]
        slopes = self._slopes(self.num_heads, torch.float32, x.device).bfloat16()[:, None, None, None]
        here, there = ((slopes * p.to(torch.bfloat16)).to(widest(x.device)) for p in (x, y))
        return ((there - here) / math.sqrt(self.head_dim),)


class LayerSwinV2(SwinV2):
    """Swin v2 with the weights of a layer of transformers, which are not copied and can be trained.

    ``layer`` is a Swinv2SelfAttention. Errors: ValueError for an MLP that is not of plain linear layers.
    """

    def __init__(self, layer: Any) -> None:
        Scheme.__init__(self)  # no parameters
        before, self.grid = tuple(layer.pretrained_window_size), tuple(layer.window_size)
        self.trained = before if before[0] > 0 else self.grid
        inner, _, outer = layer.continuous_position_bias_mlp
        for each in (inner, outer):
            if type(each) is not nn.Linear:
                raise ValueError(
                    "continuous_position_bias_mlp must be of torch.nn.Linear, whose weights are read, got "
                    f"{type(each).__name__}"
                )
        self.num_heads, self.hidden = layer.num_attention_heads, inner.out_features
        vars(self).update(inner=inner, outer=outer, tau=layer.logit_scale.flatten())  # not as parts of its own

    def extra_repr(self) -> str:
        """The windows and the number of heads."""
        trained = "" if self.trained == self.grid else f", trained={self.trained}"
        return f"{self.grid}, {self.num_heads}{trained}"


TERMS = ("c2p", "p2c")
"""Content to position, and position to content."""


class LayerDeBERTa(DeBERTa):
    """DeBERTa's terms with the projections of a layer of transformers, and the relative table that its model passes.

    Formula: that of `DeBERTa` with the t terms that ``pos_att_type`` names, and 1/sqrt((1 + t) d) instead of
    1/sqrt(3 d). The layer has this scale even if relative_attention is off and no term is added.

    ``layer`` is a DisentangledSelfAttention; ``table`` (2k, dim) is its relative embeddings, after norm and dropout, or
    None to read only the configuration. Errors: ValueError for unknown terms, sizes that `DeBERTa` does not accept, and
    buckets that differ from those of transformers, which are computed in float32.
    Source: the code of DeBERTa-v2 in transformers.
    """

    clamp = "index"

    def __init__(self, layer: Any, table: Tensor | None = None) -> None:
        Scheme.__init__(self)  # no parameters
        self.num_heads, self.head_dim = layer.num_attention_heads, layer.attention_head_size
        self.terms = tuple(term for term in TERMS if term in layer.pos_att_type)
        self.relative_attention = bool(layer.relative_attention)
        self.max_distance = layer.max_relative_positions if self.relative_attention else 1
        buckets = layer.position_buckets if self.relative_attention else -1
        self.num_buckets = buckets if buckets > 0 else None
        if self.relative_attention and table is not None:
            names = ("key_proj", "query_proj") if layer.share_att_key else ("pos_key_proj", "pos_query_proj")
            made = [getattr(layer, name) for name, term in zip(names, TERMS, strict=True) if term in self.terms]
            if made:  # `score` omits the term that is missing
                self.key, self.query = made[0], made[-1]
            rows = SimpleNamespace(weight=table[: 2 * self.span])
            self.relative: Any = SimpleNamespace(rows=rows, norm=None)

    @classmethod
    def checked(cls, layer: Any) -> LayerDeBERTa:
        """The scheme without its table. ValueError, naming the key, for a configuration that it would not compute as
        transformers does."""
        self = cls(layer)
        for term in layer.pos_att_type:
            if term not in TERMS:
                raise ValueError(f"deberta-v2's pos_att_type must be of c2p and p2c, got {term!r}")
        if not self.relative_attention:
            return self
        sizes = f"position_buckets={self.num_buckets} with max_relative_positions={self.max_distance}"
        try:
            with torch.device("meta"):  # only its checks
                DeBERTa(1, 1, max_distance=self.max_distance, num_buckets=self.num_buckets)
        except ValueError as error:
            raise ValueError(f"deberta-v2's {sizes} is not supported by DeBERTa: {error}") from None
        if self.num_buckets is not None:
            from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

            n = torch.arange(-4 * self.max_distance, 4 * self.max_distance + 1)
            theirs = make_log_bucket_position(n, self.num_buckets, self.max_distance).long()
            other = n[(theirs + self.span).clamp(0, 2 * self.span - 1) != self._index(-n)]
            if len(other):
                raise ValueError(
                    f"deberta-v2's {sizes} gives other buckets in the float32 of transformers, first at a distance of "
                    f"{int(other.abs().min())}"
                )
        return self

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE
    ) -> tuple[RelativeDot, ...]:
        """The terms that the layer has."""
        if not (self.relative_attention and self.terms):
            return ()
        both = super().score(query_positions, key_positions, context)
        return tuple(score_term for score_term, term in zip(both, TERMS, strict=True) if term in self.terms)

    def _projected(self, table: Tensor, layer: nn.Module) -> Float[Tensor, "heads entries head_dim"]:
        if type(layer) is nn.Linear:
            return super()._projected(table, layer)
        # LoRA and quantized layers have more than a weight, so they are called, in the dtype of the given table.
        given: Tensor = self.relative.rows.weight
        rows: Tensor = layer(given)
        return rows.to(table).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)

    def extra_repr(self) -> str:
        """The configuration of the layer."""
        if not self.relative_attention:
            return f"{self.num_heads}, {self.head_dim}, no terms"
        buckets = "" if self.num_buckets is None else f", num_buckets={self.num_buckets}"
        said = f"{self.num_heads}, {self.head_dim}, max_distance={self.max_distance}{buckets}"
        return f"{said}, terms {' and '.join(self.terms) or 'none'}"
