"""Dual chunk attention: rotation by the position within a chunk, so that no distance exceeds the chunk size."""

import torch

from posenc.arguments import whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Band, Rotation
from posenc.positions.positions import Positions
from posenc.rotary import PairwiseRotary
from posenc.rotation.phases import PairLayout
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class DualChunk(PairwiseRotary):
    """Dual chunk attention (DCA, ChunkLlama): RoPE within a chunk, to the previous chunk, and to earlier chunks.

    Formula, for query i and key j, theta_m = base^(-2m/head_dim), a text in steps of c = chunk - local tokens, and
    n_ij = floor(p_i/c) - floor(p_j/c), the number of steps between the two:

        s_ij = q_i . R(a_ij) R(p_j mod c) k_j / sqrt(head_dim),  with -a_ij =
            p_i mod c                      for n_ij <= 0         within a chunk
            min(p_i mod c + c, chunk)      for n_ij = 1          in the chunk before
            min(2c - 1, chunk)             for n_ij >= 2         further back

    where R(a) rotates channel pair m by a theta_m, as in `RoPE`. The distance is exact within a chunk and, in the
    previous chunk, for at least the ``local`` nearest keys. It never exceeds ``chunk``. Scores are invariant only to
    shifts by a multiple of c.

    A cache keeps unrotated keys. Attention needs a causal mask: a key in a later chunk would be treated as if it were
    in the query's own.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; positions of one coordinate, fractional
    or negative too.
    Source: An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models" (arXiv 2402.17463), section 3;
    read: ``chunkllama_attn_replace.py`` of github.com/HKUNLP/ChunkLlama, whose ``chunk_size`` is chunk and
    ``local_window`` is local; by default they are 3/4 and 1/8 of the training length L. The paper's inter-chunk query
    is at the last trained position, the code's at min(2c - 1, chunk), as here.

    Both models that use it also sharpen attention in texts longer than L, by a factor that is a scheme of its own:
    ``DualChunk(...) + QueryScale("chunkllama", length=L)``, or "qwen2_5_1m".
    """

    looks_back = "RoPE"

    def __init__(
        self, head_dim: int, chunk: int, local: int, base: float = 10_000.0, layout: PairLayout = "half"
    ) -> None:
        super().__init__(head_dim, base, layout)
        self.chunk = whole("chunk", chunk)
        self.local = whole("local", local, 0, self.chunk - 1)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        """The rotation by the position within the chunk, and those of queries for keys in earlier chunks."""
        p = positions.scalar("DualChunk")
        c = self.chunk - self.local
        within = p.remainder(c)
        last = p.new_full((1, 1), min(2 * c - 1, self.chunk))
        places = within, (within + c).clamp(max=self.chunk), last
        own, before, further = (self.rotation_at(place, dtype) for place in places)
        return Rotation(own, own, bands=(Band(1, before, own), Band(2, further, own)), chunk=c)


ENTRY = Entry(
    name="dual_chunk",
    scheme=DualChunk,
    paper="An et al. 2024",
    laws=FORMULA | {Law.BOUNDED, Law.DIRECTED},
    cost="four passes over q and k per layer, three calls merged",
    build=lambda shape: DualChunk(shape.head_dim, chunk=6, local=2),
    does="rotates by the position within a chunk; for earlier chunks queries are one step ahead, or at `chunk`",
    limits="for causal attention; keys two or more chunks back all have the same query position",
    formula=lines(
        r"s_{ij} = q_i \cdot R_{a_{ij}} R_{p_j \bmod c} \, k_j / \sqrt{d}, \qquad "
        r"c = \mathrm{chunk} - \mathrm{local}, \qquad n_{ij} = \lfloor p_i / c \rfloor - \lfloor p_j / c \rfloor",
        r"-a_{ij} = \begin{cases} p_i \bmod c & n_{ij} \le 0 \\ "
        r"\min(p_i \bmod c + c, \mathrm{chunk}) & n_{ij} = 1 \\ "
        r"\min(2c - 1, \mathrm{chunk}) & n_{ij} \ge 2 \end{cases} \qquad "
        r"R_a \mbox{ turns pair } k \mbox{ by } a \, \mathrm{base}^{-2k/d}",
    ),
    example='scheme = posenc.DualChunk(64, chunk=48, local=8) + posenc.QueryScale("chunkllama", length=64)\n'
    "posenc.attention(q, k, v, scheme, is_causal=True)",
    users="ChunkLlama and Qwen2.5-1M, with `QueryScale`",
    url="https://arxiv.org/abs/2402.17463",
    avoid="**Training from scratch.** It runs trained weights of `RoPE` on longer texts, and costs more.",
)
