"""T5: adds a learned bias per bucket of distances to the score."""

from bisect import bisect_left

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_flag, number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Bias, Distance, ScoreTerms
from posenc.positions.positions import Positions
from posenc.rotation.phases import constant
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines

MAX_STORED_DISTANCE = 2**16  # the longest distance up to which all buckets are kept


class T5(Scheme):
    """Relative position bias of T5: a learned bias per head and bucket of distances. Small distances have their own
    bucket, larger ones share one.

    Formula, with n = p_i - p_j, B = ``num_buckets``, D = ``max_distance``, e = floor(B / 2):

        s_ij + W[bucket(n), h]

        causal         bucket(n) = max(n, 0)                                              for n < e
                                   min(B - 1, e + floor((B - e) ln(n / e) / ln(D / e)))   for n >= e
        bidirectional  the same for |n| with B / 2 in place of B, plus B / 2 for keys after the query (n < 0)

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. T5 does not divide the product either: pass
    ``scale=1.0`` to `attention` for T5's scores. From D on, and slightly before (from ``edges[-1]``: 113 for 128), all
    distances share the last bucket, so any length has an encoding. In the causal form, keys after the query, which a
    causal mask hides, share the bucket of distance 0.

    The first n of each bucket is computed exactly in integers, as n^(B - e) >= D^m e^(B - e - m) for bucket e + m. The
    published code takes logarithms in float32, which gives the same buckets for the sizes of the released models (B =
    32, D = 128, both forms), but can be off by one where a bucket starts exactly at an integer, such as bucket 40 at n
    = 54 with B = 48 and D = 81.

    In documents, tokens have several coordinates: with ``axes`` of them p is the one of ``axis``, and the bias is
    multiplied by ``factor``. Real coordinates are accepted then, and n is rounded toward 0, as UDOP does. The bias of a
    model is a sum of schemes, such as that of LayoutLMv3, with coordinates (position in the text, left, bottom):

        one = posenc.T5(12, 32, 128, True, axis=0, axes=3, factor=64**-0.5)
        two, three = (posenc.T5(12, 64, 256, True, axis=n, axes=3, factor=64**-0.5) for n in (1, 2))
        scheme = one + two + three

    LayoutLMv2 has the same with ``factor=1.0``, and UDOP, which does not divide products, 32 buckets with 128 along the
    text and 100 along the other two axes, whose coordinates are 100 times the middle of the box.

    Parameters: B x H, initialized uniformly with Glorot's bound, as in the authors' T5X; ports that use N(0, 1/d_model)
    need the width of the model. T5 shares one table between all layers of a stack.
    Shapes: score (batch, num_heads, queries, keys); coordinates (rows, tokens), int64, or (rows, tokens, axes).
    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1, and the authors' code for the buckets. Documents: Xu et al. 2021, "LayoutLMv2: Multi-modal Pre-training
    for Visually-rich Document Understanding"; transformers, LayoutLMv3Encoder and RelativePositionBiasBase
    of UDOP.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        *,
        axis: int = 0,
        axes: int = 1,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        check_flag("bidirectional", bidirectional)
        num_heads, max_distance = whole("num_heads", num_heads), whole("max_distance", max_distance)
        num_buckets = whole("num_buckets", num_buckets, least=2)
        if bidirectional and (num_buckets < 4 or num_buckets % 2):
            raise ValueError(f"num_buckets must be even and at least 4 if bidirectional, got {num_buckets}")
        side = num_buckets // 2 if bidirectional else num_buckets
        if max_distance <= side // 2:
            raise ValueError(
                f"max_distance must be above {side // 2}, the largest distance with its own bucket, got {max_distance}"
            )
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.looks_back = None if bidirectional else "bidirectional=True"
        self.axes = whole("axes", axes)
        self.axis = whole("axis", axis, 0, self.axes - 1)
        self.factor = number("factor", factor)
        self.edges = _edges(side, max_distance)  # here, since torch.compile does not support ints beyond int64
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        distance = Distance(
            "T5",
            self.axis,
            self.axes,
            integral=self.axes == 1 or not query_positions.coords.is_floating_point(),
            tail="constant",
            past=self.edges[-1],
            num_heads=self.num_heads,
        )
        return (Bias(self._bias, distance),)

    def _bias(self, r: Tensor) -> Float[Tensor, "heads ..."]:
        weight = self.weight if self.factor == 1.0 else self.weight * self.factor
        # PyTorch's .mT of a parameter may wait forever for another thread: it keeps the interpreter's lock meanwhile.
        return weight.transpose(0, 1)[:, self._bucket(r)]

    def _bucket(self, r: Tensor) -> Tensor:
        last, second = self.edges[-1], self.num_buckets // 2 if self.bidirectional else 0
        if last > MAX_STORED_DISTANCE:
            return _bucket_of(r, self.edges, second)
        return constant(_buckets, self.edges, second, device=r.device)[r.clamp(-last, last).long() + last]


def _buckets(edges: tuple[int, ...], second: int, device: torch.device) -> Tensor:
    """The buckets of all distances up to the last edge, on both sides. Those to the right are the ``second`` half."""
    return _bucket_of(torch.arange(-edges[-1], edges[-1] + 1, device=device), edges, second)


def _bucket_of(r: Tensor, edges: tuple[int, ...], second: int) -> Tensor:
    away = r.abs() if second else (-r).clamp(min=0)
    exact = (len(edges) + 1) // 2  # up to here each distance has its own bucket
    # Compare with Python ints: a tensor of edges would be copied to the GPU in every graph.
    bucket = away.clamp(max=exact).to(torch.int64)
    for edge in edges[exact:]:
        bucket += away >= edge
    return bucket + second * (r >= 1)


def _edges(side: int, max_distance: int) -> tuple[int, ...]:
    """The first distance of each of the buckets 1, 2, .. of a side. The last bucket has no end."""
    exact, shared = side // 2, side - side // 2
    distances = range(exact, max_distance + 1)
    starts = (max_distance**m * exact ** (shared - m) for m in range(1, shared))
    return (*range(1, exact + 1), *(exact + bisect_left(distances, s, key=lambda n: n**shared) for s in starts))


ENTRY = Entry(
    name="t5",
    scheme=T5,
    paper="Raffel et al. 2020",
    laws=frozenset({Law.RELATIVE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE}),
    cost="one bias on every score per layer",
    build=lambda shape: T5(shape.num_heads, bidirectional=not shape.causal),
    learned="buckets × heads",
    does="a trainable bias per head and bucket of distances, of which larger ones share logarithmic buckets",
    limits="all distances from the last bucket on are the same",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + W_{\mathrm{bucket}(p_i - p_j), h}, \qquad "
        r"e = \lfloor B / 2 \rfloor",
        r"\mathrm{bucket}(n) = \max(n, 0) \mbox{ for } n < e, \qquad \mbox{else } \min \Bigl( B - 1, "
        r"\allowbreak e + \lfloor (B - e) \, \frac{\ln(n / e)}{\ln(D / e)} \rfloor \Bigr)",
        r"\mathrm{bidirectional} \mbox{: the same of } |n| \allowbreak \mbox{with } B / 2 \mbox{ in place of } B, "
        r"\allowbreak \mbox{plus } B / 2 \mbox{ where } n < 0",
    ),
    symbols={"num_buckets": "B", "max_distance": "D"},
    example="posenc.attention(q, k, v, posenc.T5(12), is_causal=True)",
    users="T5, mT5, Flan-T5; along several axes LayoutLMv2, LayoutLMv3, UDOP",
    url="https://arxiv.org/abs/1910.10683",
    rate=30.0,
    why_rate="T5 was trained with a rate of 0.01 (section 3.1.2), so a bias can change as much in a short run",
    avoid="**Differences between far distances.** All near `max_distance` and beyond share a bucket.",
)
