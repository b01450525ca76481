"""CARoPE: RoPE whose frequency each layer projects from the token."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.encoding.context import Feature
from posenc.positions.positions import Positions
from posenc.rotary import ClockRotary
from posenc.rotation.phases import PairLayout
from posenc.schemes.entry import FORMULA, ROTATED_SCORE, Entry, Law, lines


class CARoPE(ClockRotary):
    """Context-aware rotary position embedding: every token has a frequency of its own, and angles are sums of these.

    Formula, with f_t = 1 / (1 + softplus(w_h . x_t)) of every token t and key head h, for k = 0 .. d/2 - 1:

        pair k of q_i and k_i is rotated by f_1^k + ... + f_i^k

    The sum follows the order of the tokens within each document; coordinates are ignored.

    Each layer provides the feature ``frequency``: it projects its hidden state, without bias, to a number per key head.
    See `posenc.models.ForwardPass.features`. f and its powers are computed in float32 or wider, sums and angles in
    float64.

    The scheme itself has no parameters. A key head that several query heads share has one angle, so ``num_heads`` is
    the number of *key* heads.
    Shapes: frequency (batch, num_heads, tokens); query (batch, heads, tokens, head_dim).
    Source: Veisi et al. 2025, "Context-aware Rotary Position Embedding" (arXiv 2507.23083), section 2. No code was
    published.
    """

    def __init__(self, num_heads: int, head_dim: int, layout: PairLayout = "half") -> None:
        super().__init__(num_heads, head_dim, layout)

    @property
    def features(self) -> Mapping[str, Feature]:
        return {
            "frequency": Feature(self.num_heads, map=partial(powers, self.head_dim // 2), is_clock=True, rotates=True)
        }


def powers(pairs: int, projected: Tensor, positions: Positions) -> Tensor:
    """f^k of every token, (batch, heads, tokens, pairs)."""
    f = 1 / (1 + F.softplus(projected.to(torch.promote_types(projected.dtype, torch.float32))))
    return f[..., None] ** torch.arange(pairs, device=f.device)


ENTRY = Entry(
    name="carope",
    scheme=CARoPE,
    paper="Veisi et al. 2025",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.DECAYING_BOUND},
    cost="a number per token and key head, and one pass over q and k per layer",
    build=lambda shape: CARoPE(shape.key_heads, shape.head_dim),
    axes="any",
    learned="a projection per key head, in each layer",
    does="rotates channel pairs of q and k by sums of powers of a frequency that each token has",
    limits="the angle between two tokens is known only after all tokens between them",
    formula=lines(
        ROTATED_SCORE, r"\phi_k = \sum_{t \le i} f_t^k, \qquad f_t = \frac{1}{1 + \mathrm{softplus}(w_h \cdot x_t)}"
    ),
    example=(
        'features = {"frequency": torch.randn(2, 12, 64)}\n'
        "encoding = posenc.CARoPE(12, 64)(posenc.Positions.arange(64)).with_projected(features)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    url="https://arxiv.org/abs/2507.23083",
    avoid="**Comparison with the authors' results.** They have published no code: only the paper was compared.",
)
