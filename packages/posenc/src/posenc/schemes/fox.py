"""FoX: attention with forget gates that each layer projects from its hidden state."""

from collections.abc import Mapping

from posenc.arguments import whole
from posenc.encoding.context import WHOLE, Context, Feature, log_gate
from posenc.encoding.terms import CumulativeBias, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class FoX(Scheme):
    """Forgetting attention: adds the log forget gates of the tokens between key and query to the score.

    Formula, with gates f_t = sigmoid(w_h . x_t + b_h) of every token t and head h:

        s_ij + sum over t = j + 1 .. i of ln f_t = s_ij + F_i - F_j,   F_i = ln f_1 + ... + ln f_i

    The sum follows the order of the tokens within each document; coordinates are ignored. Keys after the query would be
    rewarded, so attention needs a causal mask.

    Each layer provides the feature ``forgotten``: it projects its hidden state, with a bias, to a number per head. See
    `posenc.models.ForwardPass.features`. CABLE is the same with the sign of the projection turned: it subtracts
    softplus(w_h . x_t + b_h) = -ln sigmoid(-(w_h . x_t + b_h)). Its code does not divide products by sqrt(d), so pass
    ``scale=1.0`` for its weights.

    The scheme itself has no parameters. Shapes: gates (batch, num_heads, tokens), any number of key heads.
    Source: Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate" (arXiv 2503.02130),
    equations 4 to 6, and the authors' layer: a projection with a bias, float32 from the logarithm on; Veisi et al.
    2025, "Context-aware Biases for Length Extrapolation" (arXiv 2503.08067), by its code, axiomlab/Cable.
    """

    looks_back = "ALiBi with form='bidirectional'"

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)

    @property
    def features(self) -> Mapping[str, Feature]:
        return {"forgotten": Feature(self.num_heads, map=log_gate, is_clock=True, bias=True)}

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (CumulativeBias("forgotten"),)


ENTRY = Entry(
    name="fox",
    scheme=FoX,
    paper="Lin et al. 2025",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.MONOTONE, Law.DECAYING},
    cost="a gate per token and head, and one difference on every score",
    build=lambda shape: FoX(shape.num_heads),
    axes="any",
    learned="a gate per head, in each layer",
    does="lowers scores by the log forget gates of the tokens between key and query",
    limits="for decoders: without a causal mask later keys are rewarded",
    formula=(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} \allowbreak + \sum_{t = j + 1}^{i} \ln f_t, \qquad "
        r"f_t = \sigma(w_h \cdot x_t + b_h)"
    ),
    example=(
        'gates = {"forgotten": torch.randn(2, 12, 64)}\n'
        "encoding = posenc.FoX(12)(posenc.Positions.arange(64)).with_projected(gates)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    url="https://arxiv.org/abs/2503.02130",
    avoid="**Trained weights of another model.** Its gates are projections that must be trained.",
)
