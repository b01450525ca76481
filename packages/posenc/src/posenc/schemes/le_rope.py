"""LeRoPE: RoPE with a learned factor for each frequency."""

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from posenc.rotary import Rotary
from posenc.rotation.phases import PairLayout, in_double
from posenc.rotation.scaling_parameters import ScalingLike
from posenc.schemes.entry import ROTARY, ROTATED_SCORE, Entry, Law, lines


class LeRoPE(Rotary):
    """Rotary position embedding with learned frequencies: pair k is rotated by p theta_k e^(alpha_k).

    Formula: theta_k = base^(-2k/rotary_dim), modified by the ``scaling``, then multiplied by e^(alpha_k), with the
    rotation of `RoPE` on the channels (2k, 2k + 1) in the "interleaved" layout, the checkpoint's, and (k, k +
    rotary_dim/2) in "half". alpha (pairs,) is learned and initialized to 0, which is RoPE with that scaling. All heads
    share it, and all layers with this scheme.

    Mistral Large 4 rotates 64 of 128 channels: ``LeRoPE(128, first_channel=64, scaling=YaRN(2048.0, 512,
    attention_factor=1.0))``, or ``LeRoPE(64, ...)`` for only that slice. Its alpha is a buffer, loaded with the
    weights.

    Shapes are as for `RoPE`.
    Source: transformers' mistral_large4, for name and formula; no paper was found.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        layout: PairLayout = "interleaved",
        rotary_dim: int | None = None,
        *,
        scaling: ScalingLike | None = None,
        first_channel: int = 0,
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim, scaling=scaling, first_channel=first_channel)
        self.alpha = nn.Parameter(torch.empty(self.rotary_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.alpha)

    def frequencies(
        self, device: torch.device | None = None, lengths: Tensor | None = None
    ) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        theta, factor = super().frequencies(device, lengths)
        return theta * in_double(self.alpha).exp(), factor


ENTRY = Entry(
    name="le_rope",
    scheme=LeRoPE,
    paper="Mistral Large 4, 2026",
    laws=ROTARY | {Law.DECAYING_BOUND, Law.LENGTH_FREE, Law.FRACTIONAL, Law.DETERMINISTIC},
    cost="one pass over q and k per layer",
    build=lambda shape: LeRoPE(shape.head_dim),
    learned="a number per pair",
    does="RoPE with a learned factor for each frequency, initially 1; with YaRN in Mistral Large 4",
    limits="angles beyond the training length are new to the model",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p \, \theta_k e^{\alpha_k}, \qquad \theta_k = \mathrm{base}^{-2k/n}, \qquad "
        r"n = \mathrm{rotary\_dim}, \qquad \alpha \mbox{ learned}",
    ),
    example="posenc.attention(q, k, v, posenc.LeRoPE(64), is_causal=True)",
    users="Mistral Large 4",
    avoid="**Use without training.** As it begins it is `RoPE`; only its trained factors differ.",
)
