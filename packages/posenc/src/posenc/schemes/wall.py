"""Wall attention: forget gates for every channel, which each layer projects from its hidden state."""

from collections.abc import Mapping

from posenc.arguments import whole
from posenc.encoding.context import WHOLE, Context, Feature, log_gate
from posenc.encoding.terms import ChannelDecay, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class Wall(Scheme):
    """Wall attention: each channel of the product of query and key is multiplied by the forget gates of the tokens
    between them.

    Formula, with gates f_tc = sigmoid(w_hc . x_t + b_hc) of every token t, head h and channel c:

        s_ij = scale sum_c q_ic k_jc prod over t = j + 1 .. i of f_tc
             = scale sum_c q_ic k_jc exp(P_ic - P_jc),   P_ic = ln f_1c + ... + ln f_ic

    The score of a distant key goes to 0, not to minus infinity as in `FoX`. The sum follows the order of the tokens
    within each document; coordinates are ignored. It is for causal attention: for a key after the query the product
    would have no bound, and attention without a causal mask raises ValueError.

    Each layer provides the feature ``kept``: it projects its hidden state, with a bias, to ``head_dim`` numbers per
    query head. See `posenc.models.ForwardPass.features`. The authors initialize the bias to 8, where gates are nearly
    open. Their optional gate per head is `FoX`: ``Wall(...) + FoX(...)``.

    How it is computed: exp(P_i) exp(-P_j) would overflow. For keys up to a query a, and queries from a on, exp(P_i -
    P_a) exp(P_a - P_j) has two factors of at most 1, and scores are a matrix product. Queries are halved, each half
    with such an a, until 16 and their own keys are left, for which exp is taken pair by pair. P is summed in float64,
    and differences are computed before rounding.

    The scheme itself has no parameters. Shapes: kept (batch, num_heads, tokens, head_dim), any number of key heads.
    Source: Pai et al. 2026, "Wall Attention: Length Generalization With Diagonal Gates" (blog of Tilde Research), and
    the authors' code in flash-linear-attention 0.6: ``layers/wall_attn.py``, ``ops/wall_attn/naive.py``.
    """

    looks_back = "ALiBi with form='bidirectional'"

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = whole("num_heads", num_heads), whole("head_dim", head_dim)

    @property
    def features(self) -> Mapping[str, Feature]:
        return {"kept": Feature(self.num_heads, self.head_dim, map=log_gate, is_clock=True, bias=True)}

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (ChannelDecay("Wall", "kept"),)


ENTRY = Entry(
    name="wall",
    scheme=Wall,
    paper="Pai et al. 2026",
    laws=FORMULA | {Law.RELATIVE, Law.DIRECTED},
    cost="d gates per token and head, and a second product of queries and keys",
    build=lambda shape: Wall(shape.num_heads, shape.head_dim),
    axes="any",
    learned="d gates per head, in each layer",
    does="multiplies each channel of q · k by the forget gates of the tokens between key and query",
    limits="for decoders only",
    formula=(
        r"s_{ij} = \frac{1}{\sqrt{d}} \sum_{c} q_{ic} \, k_{jc} \prod_{t = j + 1}^{i} f_{tc}, \qquad "
        r"f_t = \sigma(W_h x_t + b_h)"
    ),
    example=(
        'gates = {"kept": torch.randn(2, 12, 64, 64) + 8}\n'
        "encoding = posenc.Wall(12, 64)(posenc.Positions.arange(64)).with_projected(gates)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    url="https://blog.tilderesearch.com/blog/wall-attn",
    avoid="**Cheap attention.** Scores need a second product of queries and keys. `FoX` has one gate per head.",
)
