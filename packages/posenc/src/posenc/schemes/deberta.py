"""DeBERTa: disentangled attention with content-to-position and position-to-content terms."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import check_choice, check_flag, check_type, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.encoding.terms import Distance, RelativeDot
from posenc.positions.positions import Positions
from posenc.rotation.phases import identity, in_double
from posenc.scheme import Scheme, uninitialized, uninitialized_table
from posenc.schemes.entry import Entry, Law, lines


class DeBERTa(Scheme):
    """Disentangled attention: one table of relative positions, projected like queries and like keys.

    Formula, with n = p_i - p_j, the table R (2k x dim), Kr = R W_K and Qr = R W_Q of every head:

        s_ij = (q_i . k_j + q_i . Kr[c] + k_j . Qr[c]) / sqrt(3 d),    c = clamp(b(n) + k, 0, 2k - 1)
                content     content to     position to
                            position       content

    b(n) = n and k = D = ``max_distance``; or, with B = ``num_buckets`` and h = B / 2, k = B and

        b(n) = n for |n| <= h,  else sign(n) (h + ceil((h - 1) ln(|n| / h) / ln((D - 1) / h)))

    With buckets there are two ``clamp`` conventions, which differ for keys D or more ahead of the query: "index" clamps
    only c, so that these keys have row 0, as in transformers; "distance" first clamps n to -(D - 1) .. D - 1, so that
    they have row 1, as in the authors' present code.

    All three terms are divided by sqrt(3 d): this is the scheme's ``scale``, so do not pass ``scale=``. With
    ``normalized`` a layer norm is applied to R, as in version 3. Logarithms are in float64, as in the authors' first
    code, in NumPy; the float32 of their present code and of transformers gives the same buckets for B = 256, D = 512.

    The projections are the scheme's own or, with ``of_layer(query, key)``, those of a layer's contents, as in versions
    2 and 3 (``share_att_key``). The layers of a model share the table: `another` keeps it.

    Parameters: R 2k x dim; W_Q and W_K dim x (H d), with biases; from N(0, 0.02^2), biases 0. ``dim`` is H d if None.
    Shapes: query (batch, num_heads, queries, head_dim). Coordinates must be int64.
    Source: He et al. 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", equation 4; index and
    buckets follow the authors' code (da_utils.py), everything else that of transformers (deberta_v2).
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        dim: int | None = None,
        max_distance: int = 512,
        num_buckets: int | None = None,
        normalized: bool = False,
        clamp: Literal["index", "distance"] = "index",
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = whole("num_heads", num_heads), whole("head_dim", head_dim)
        self.width = self.num_heads * self.head_dim if dim is None else whole("dim", dim)
        self.max_distance, self.num_buckets = whole("max_distance", max_distance), num_buckets
        if num_buckets is not None:
            half = whole("num_buckets", num_buckets, least=4) // 2
            if num_buckets % 2:
                raise ValueError(f"num_buckets must be even (half of them on each side), got {num_buckets}")
            if max_distance <= half + 1:
                raise ValueError(
                    f"max_distance must be above {half + 1}, the largest distance with its own bucket, "
                    f"got {max_distance}"
                )
        check_flag("normalized", normalized)
        check_choice("clamp", clamp, ("index", "distance"))
        if clamp == "distance" and num_buckets is None:
            raise ValueError("clamp must be 'index' without num_buckets, where both are the same, got 'distance'")
        self.normalized, self.clamp = normalized, clamp
        self.relative = Relative(2 * self.span, self.width, normalized)
        self.query, self.key = (uninitialized(nn.Linear, self.width, self.num_heads * self.head_dim) for _ in range(2))
        self.reset_parameters()

    @property
    def span(self) -> int:
        """k, half the rows of the table."""
        return self.max_distance if self.num_buckets is None else self.num_buckets

    def reset_parameters(self) -> None:
        nn.init.normal_(self.relative.rows.weight, std=0.02)
        if self.relative.norm is not None:
            self.relative.norm.reset_parameters()
        self._reset_projections()

    def _reset_projections(self) -> None:
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def another(self) -> DeBERTa:
        """A copy for another layer, with the same table and its own projections."""
        other = copy.deepcopy(self, {id(self.relative): self.relative})
        other._reset_projections()
        return other

    def of_layer(self, query: nn.Linear, key: nn.Linear) -> DeBERTa:
        """The scheme of a layer, with the same table and the layer's projections of queries and keys, not copied.

        There may be fewer key heads. Raises ValueError unless projections are ``torch.nn.Linear`` of the table's width.
        """
        outs = []
        for name, layer in (("query", query), ("key", key)):
            check_type(name, layer, nn.Linear)
            heads, over = divmod(layer.out_features, self.head_dim)
            fits = heads == self.num_heads if name == "query" else heads and self.num_heads % heads == 0
            if layer.in_features != self.width or over or not fits:
                raise ValueError(
                    f"{name} must project {self.width} channels to {self.num_heads * self.head_dim}, got "
                    f"{layer.in_features} to {layer.out_features}"
                )
            outs.append(layer)
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.query, other.key = outs
        return other

    @property
    def scale(self) -> float:
        """The softmax scale: 1 / sqrt(3 d)."""
        return 1 / math.sqrt(3 * self.head_dim)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        """Unchanged queries and keys: only the scale differs."""
        return Rotation(identity, identity)

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE
    ) -> tuple[RelativeDot, ...]:
        table, norm = self.relative.rows.weight, self.relative.norm
        table = table.to(torch.promote_types(table.dtype, torch.float32))
        if norm is not None:
            table = F.layer_norm(table, (self.width,), norm.weight.to(table), norm.bias.to(table), norm.eps)
        distance = Distance("DeBERTa", integral=True, tail="constant", past=self.max_distance, num_heads=self.num_heads)
        of_keys, of_queries = self._projected(table, self.key), self._projected(table, self.query)
        return (
            RelativeDot(lambda r: of_keys[:, self._index(r)], distance),
            RelativeDot(lambda r: of_queries[:, self._index(r)], distance, side="key"),
        )

    def _projected(self, table: Tensor, layer: nn.Linear) -> Float[Tensor, "heads entries head_dim"]:
        bias = None if layer.bias is None else layer.bias.to(table)
        rows = F.linear(table, layer.weight.to(table), bias).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        return rows if rows.size(0) == self.num_heads else rows.repeat_interleave(self.num_heads // rows.size(0), 0)

    def _index(self, r: Tensor) -> Int[Tensor, "..."]:
        k, n = self.span, -r
        if self.num_buckets is not None:
            half = k // 2
            if self.clamp == "distance":
                n = n.clamp(1 - self.max_distance, self.max_distance - 1)
            share = (in_double(n.abs().clamp(min=half)) / half).log() / math.log((self.max_distance - 1) / half)
            far = half + (share * (half - 1)).ceil().long().to(n.device)
            n = torch.where(n.abs() <= half, n, n.sign() * far)
        return (n + k).clamp(0, 2 * k - 1)


class Relative(nn.Module):
    """R and its optional layer norm. A module, since tensors that two modules share are no longer shared after they
    leave ``meta``."""

    def __init__(self, rows: int, width: int, normalized: bool) -> None:
        super().__init__()
        self.rows = uninitialized_table(rows, width)
        self.norm = nn.LayerNorm(width, eps=1e-7) if normalized else None


ENTRY = Entry(
    name="deberta",
    scheme=DeBERTa,
    paper="He et al. 2021",
    laws=frozenset({Law.RELATIVE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE}),
    cost="two products with a vector per distance per query and key per layer",
    build=lambda shape: DeBERTa(shape.num_heads, shape.head_dim, shape.dim, min(512, shape.max_positions)),
    learned="(2 max_distance + 2 dim) × dim",
    does="multiplies queries and keys with projected relative positions, of each distance or in `num_buckets`",
    limits="all distances beyond the last are the same",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot W_K R_c + k_j \cdot W_Q R_c}{\sqrt{3d}}, \qquad "
        r"c = \min(\max(b(n) + M, 0), 2M - 1), \qquad n = p_i - p_j",
        r"b(n) = n, \quad M = D; \qquad \mbox{with } B = 2m \mbox{ buckets } M = B \mbox{ and} "
        r"\allowbreak b(n) = n \mbox{ for } |n| \le m, \allowbreak \mbox{else } \mathrm{sign}(n) \bigl( m + "
        r"\allowbreak \lceil (m - 1) \ln(|n| / m) / \ln((D - 1) / m) \rceil \bigr)",
        r"\mbox{normalized} \mbox{: } R \mbox{ after a layer norm}; \qquad "
        r"\mbox{clamp} = \mbox{distance} \mbox{: } n \mbox{ first within } \pm (D - 1)",
    ),
    symbols={"max_distance": "D", "num_buckets": "B"},
    example="posenc.attention(q, k, v, posenc.DeBERTa(12, 64, max_distance=512))",
    users="DeBERTa, versions 1 to 3",
    url="https://arxiv.org/abs/2006.03654",
    avoid="**Cheap attention.** Queries and keys both meet a vector for each distance. `T5` adds one number.",
)
