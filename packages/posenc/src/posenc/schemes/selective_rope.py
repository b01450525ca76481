"""Selective RoPE: rotations by angles that each layer projects from its tokens and sums up."""

from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import number
from posenc.encoding.context import Feature
from posenc.rotary import ClockRotary
from posenc.rotation.phases import PairLayout, frequencies
from posenc.schemes.entry import FORMULA, ROTATED_SCORE, Entry, Law, lines


class SelectiveRoPE(ClockRotary):
    """Selective rotary position embedding: rotates channel pairs by angles that depend on the contents of the tokens.

    Formula, with a_tk a number that the layer computes from token t, for pair k of a key head:

        pair k of q_i and k_i is rotated by theta_k (a_1k + ... + a_ik),   theta_k = base^(-2k/d)

    so a score depends on the tokens between key and query: the angle of a pair is theta_k times the sum of a_tk over
    t = j + 1 .. i. With a = 1 it is `RoPE` by the order of the tokens. The sum follows the order within
    each document; coordinates are ignored.

    Each layer provides the feature ``turned``: a projection of its hidden state without bias, d/2 numbers per key head.
    See `posenc.models.ForwardPass.features`.

    The scheme itself has no parameters. A key head that several query heads share has one angle, so ``num_heads`` is
    the number of *key* heads. Sums and angles are computed in float64.
    Shapes: turned (batch, num_heads, tokens, head_dim/2); query (batch, heads, tokens, head_dim).
    Source: Movahedi et al. 2026, "Selective Rotary Position Embedding" (arXiv 2511.17388), and the authors' code,
    timurcarstensen/selective-rope: ``modules/rotary.py``, with its base and layout as defaults here.
    """

    def __init__(self, num_heads: int, head_dim: int, base: float = 500_000.0, layout: PairLayout = "half") -> None:
        super().__init__(num_heads, head_dim, layout)
        self.base = number("base", base, above=1)

    @property
    def features(self) -> Mapping[str, Feature]:
        return {"turned": Feature(self.num_heads, self.head_dim // 2, is_clock=True, rotates=True)}

    def frequencies(self, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
        return frequencies(self.head_dim, self.base, device)


ENTRY = Entry(
    name="selective_rope",
    scheme=SelectiveRoPE,
    paper="Movahedi et al. 2026",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.DECAYING_BOUND},
    cost="d/2 numbers per token and key head, and one pass over q and k per layer",
    build=lambda shape: SelectiveRoPE(shape.key_heads, shape.head_dim),
    axes="any",
    learned="d/2 projections per key head, in each layer",
    does="rotates channel pairs of q and k by sums of angles that each layer projects from the tokens so far",
    limits="the angle between two tokens is known only after all tokens between them",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = \theta_k \sum_{t \le i} a_{tk}, \qquad a_t = W_h x_t, \qquad \theta_k = \mathrm{base}^{-2k/d}",
    ),
    example=(
        'angles = {"turned": torch.randn(2, 12, 64, 32)}\n'
        "encoding = posenc.SelectiveRoPE(12, 64)(posenc.Positions.arange(64)).with_projected(angles)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    url="https://arxiv.org/abs/2511.17388",
    avoid="**Fixed meanings of distance.** The angle between two tokens depends on all tokens between them.",
)
