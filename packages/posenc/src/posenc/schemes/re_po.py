"""RePo: RoPE at positions that each layer computes from its tokens."""

from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import number
from posenc.encoding.context import Feature
from posenc.rotary import ClockRotary
from posenc.rotation.phases import PairLayout, frequencies
from posenc.schemes.entry import FORMULA, ROTATED_SCORE, Entry, Law, lines


class RePo(ClockRotary):
    """Context re-positioning: rotates the channel pairs of a token by a position that the layer computes from it.

    Formula, with a real number z_t of every token t and key head h, for k = 0 .. d/2 - 1:

        pair k of q_t and k_t is rotated by z_t theta_k,   theta_k = base^(-2k/d)
        z_t = w_h . (SiLU(G x_t) * C x_t)                  with d_model/8 rows of G and C, no biases, in each layer

    so a score depends on the contents of its two tokens alone: coordinates and order are ignored, and order needs a
    causal mask or other layers. In the authors' model of 16 layers the first five have RoPE, and the others RePo, which
    is a `Schedule`.

    Each layer provides the feature ``position``, z, a number per key head:

        z = layer.w(silu(layer.gate(x)) * layer.content(x)).transpose(1, 2)
        encoding = scheme(positions).with_projected({"position": z})

    See `posenc.models.ForwardPass.features`. `posenc.models.Decoder` projects linearly, z_t = w_h . x_t, which the
    authors' code has as "multihead_continuous".

    The scheme itself has no parameters. A key head that several query heads share has one position, so ``num_heads`` is
    the number of *key* heads. Angles are computed in float64, in which z may have any size.
    Shapes: position (batch, num_heads, tokens); query (batch, heads, tokens, head_dim).
    Source: Li, Zhao & Sproat 2025, "RePo: Language Models with Context Re-Positioning" (arXiv 2512.14391), by the
    authors' code (SakanaAI/repo, OLMo/olmo/model.py: "swigluex_multihead"), whose base and layout are the defaults.
    """

    def __init__(self, num_heads: int, head_dim: int, base: float = 500_000.0, layout: PairLayout = "half") -> None:
        super().__init__(num_heads, head_dim, layout)
        self.base = number("base", base, above=1)

    @property
    def features(self) -> Mapping[str, Feature]:
        return {"position": Feature(self.num_heads, rotates=True)}

    def frequencies(self, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
        return frequencies(self.head_dim, self.base, device)


ENTRY = Entry(
    name="re_po",
    scheme=RePo,
    paper="Li, Zhao and Sproat 2025",
    laws=FORMULA | {Law.RELATIVE, Law.BOUNDED, Law.ORDER_FREE},
    cost="a number per token and key head, and one pass over q and k per layer",
    build=lambda shape: RePo(shape.key_heads, shape.head_dim),
    axes="any",
    learned="a gated projection of d_model/8 numbers, in each layer",
    does="rotates channel pairs of q and k as RoPE does, by a position that each layer computes from the token",
    limits="does not encode order: other layers must, or a causal mask",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = z_t \, \mathrm{base}^{-2k/d}, \qquad "
        r"z_t = w_h \cdot (\mathrm{SiLU}(G x_t) \odot C x_t)",
    ),
    example=(
        'said = {"position": torch.randn(2, 12, 64)}\n'
        "encoding = posenc.RePo(12, 64)(posenc.Positions.arange(64)).with_projected(said)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    users="RePo-OLMo2-1B",
    url="https://arxiv.org/abs/2512.14391",
    avoid="**All layers.** Positions come from contents alone: keep `RoPE` in the first layers.",
)
