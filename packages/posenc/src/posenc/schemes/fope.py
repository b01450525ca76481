"""FoPE: RoPE whose cosines and sines are Fourier series, without frequencies too low for the training length."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from posenc import compat
from posenc.arguments import check_choice, number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotary import OfAllPairs
from posenc.rotation.phases import OfHeads, PairLayout, PairRotation, coords_of, frequencies, in_double, phases
from posenc.schemes.entry import Entry, Law, lines


class FoPE(OfAllPairs):
    """Fourier position embedding: each pair of channels is mapped by sums of all frequencies instead of one.

    Formula, with the K frequencies theta_k = base^(-2k/head_dim) that turn once within the training length L or
    faster, theta_k >= 2 pi/L, for head h and pair m = 0 .. M - 1:

        C_m(p) = sum_k A[0, h, k, m] cos p theta_k,   S_m(p) = sum_k A[1, h, k, m] sin p theta_k
        (a, b) -> (a C_m(p) - b S_m(p),  a S_m(p) + b C_m(p))

    The other pairs have frequency 0 with C = S = 1: their part of every score is multiplied by 2. The authors mean this
    (issue 6 of their repository: a phase of 45 degrees, so that no channel is multiplied by 0), where equations that
    begin with cos 0 and sin 0 have C = 1 and S = 0. With A = 1 for k = m and 0 otherwise it is RoPE without its low
    frequencies.

    ``length`` = L. ``series`` = M is K if it is None, as in Intern-S1-Pro; the authors' code has min(K, head_dim // 4).
    ``strength`` = sigma is that of the initial values.
    Parameters: ``coefficients`` A (2, num_heads, K, M), in a checkpoint of the authors' code
    ``torch.stack((cos_coef, sin_coef))``. Initialized with 1 for the main frequency of each pair, k = m ceil(K/M), plus
    Xavier's normal distribution with gain sigma. The authors do not train them: ``scheme.requires_grad_(False)``.

    A key head that several query heads share has one map, so ``num_heads`` is the number of *key* heads.
    Shapes: query (batch, heads, tokens, head_dim), key (batch, num_heads, tokens, head_dim). Sums are in float64.
    Source: Hua et al. 2024, "Fourier Position Embedding: Enhancing Attention's Periodic Extension for Length
    Generalization", section 4; ``FourierEmbedding`` of the authors' code (TsinghuaC3I/Fourier-Position-Embedding,
    olmo/model.py), which conventions and initial values follow.
    """

    heads_of = "key"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        length: int,
        base: float = 10_000.0,
        layout: PairLayout = "half",
        *,
        series: int | None = None,
        strength: float = 0.3,
    ) -> None:
        super().__init__(head_dim, layout)
        self.num_heads = whole("num_heads", num_heads)
        self.length, self.base = whole("length", length, least=7), number("base", base, above=1)
        kept = sum(base ** (-2 * k / head_dim) >= 2 * math.pi / length for k in range(head_dim // 2))
        self.series = kept if series is None else whole("series", series, 1, kept)
        self.strength = number("strength", strength, least=0)
        self.coefficients = nn.Parameter(torch.empty(2, self.num_heads, kept, self.series))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """1 for the main frequency of each pair, plus small random numbers."""
        mine = self.coefficients  # which may be divided among processes
        made = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        for part in made:
            nn.init.xavier_normal_(part, gain=self.strength)
        kept = made.size(2)
        step = -(-kept // self.series)
        for m in range(-(-kept // step)):
            made[..., m * step, m] += 1
        compat.assign(self.coefficients, made)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, 1, "FoPE")
        mine = context.of_heads(self.coefficients, 1)
        theta = frequencies(self.head_dim, self.base, coords.device)[: mine.size(2)]
        angle = phases(coords[..., 0], theta)[:, None]
        coefficients = in_double(mine)
        waves = (angle.cos() @ coefficients[0], angle.sin() @ coefficients[1])
        rest = self.head_dim // 2 - self.series
        cos, sin = (F.pad(wave, (0, rest), value=1.0).to(dtype=dtype, device=coords.device) for wave in waves)
        token_map = PairRotation(cos, sin, self.layout, self.head_dim)
        return Rotation(token_map, OfHeads(token_map, mine.size(1)))


ENTRY = Entry(
    name="fope",
    scheme=FoPE,
    paper="Hua et al. 2024",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.LINEAR, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="one pass over q and k per layer",
    build=lambda shape: FoPE(shape.key_heads, shape.head_dim, max(7, shape.max_positions)),
    learned="2 K M coefficients per key head, of K frequencies and M pairs; or drawn and kept",
    does="maps channel pairs of q and k by Fourier series of the frequencies that turn once in the training length",
    limits="scores are no function of the distance; heads that share keys share their coefficients",
    formula=lines(
        r"(a, b)_m \mapsto \allowbreak (a \, C_m - b \, S_m, \; a \, S_m + b \, C_m), \qquad "
        r"C_m = \sum_k A_{hkm} \cos p \theta_k, \qquad S_m = \sum_k B_{hkm} \sin p \theta_k",
        r"\theta_k = \mathrm{base}^{-2k/d} \ge \frac{2 \pi}{L}, \qquad C_m = S_m = 1 \mbox{ for the other pairs}",
    ),
    symbols={"length": "L"},
    example="posenc.attention(q, k, v, posenc.FoPE(12, 64, length=4096), is_causal=True)",
    users="Intern-S1-Pro",
    url="https://arxiv.org/abs/2412.17739",
    avoid="**Weights of RoPE.** Pairs that turn less than once in `length` do not turn here.",
)
