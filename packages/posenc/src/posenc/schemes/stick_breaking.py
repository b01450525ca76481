"""Stick-breaking attention: from the nearest key on, each key takes a share of the remaining weight."""

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.arguments import check_flag
from posenc.encoding.context import WHOLE, Context, following
from posenc.encoding.terms import Row, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class StickBreaking(Scheme):
    """Stick-breaking weights instead of a softmax: each key takes a share of the weight that nearer keys have left.

    Formula, with shares b_ij = sigmoid(s_ij), s_ij = q_i . k_j / sqrt(d), for keys j before the query i:

        A_ij = b_ij times 1 - b_it for every token t between j and i,   o_i = sum_j A_ij v_j

    The weights of a row sum to less than 1, so the output may be near 0. The scores of the row become ln A_ij, which
    `attention` does not normalize (``Row(gives_weights=True)``); the log-sum-exp that it returns is the logarithm of
    the weights' sum. A query does not attend to its own key, as in the paper, unless ``sees_itself``: then its own key
    takes the first share. Without it the first token of a text attends to nothing and returns zeros.

    The authors' models give the remaining weight to the query's own value: o_i + (1 - sum_j A_ij) v_i. With the
    log-sum-exp this is ``out + (1 - lse.exp())[..., None] * value``, for as many value heads as query heads.

    Before and between refer to the order of tokens, and masked keys take nothing. Keys after the query have no share,
    with or without a causal mask. Coordinates are ignored.

    Shapes: scores (batch, heads, queries, keys). Errors: ValueError for sinks, which need a softmax.
    Source: Tan et al. 2025, "Stick-breaking Attention" (arXiv 2410.17980), section 2; ``sees_itself`` is
    ``attend_current`` of the authors' kernels, read in a copy.
    """

    def __init__(self, *, sees_itself: bool = False) -> None:
        super().__init__()
        check_flag("sees_itself", sees_itself)
        self.sees_itself = sees_itself

    @property
    def for_decoders(self) -> bool:
        """True: keys after the query have no share."""
        return True

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (Row(self._log_weights, gives_weights=True, reads_vectors=False),)

    def _log_weights(
        self,
        scores: Tensor,
        visible: Tensor | None,
        query: Tensor,
        key: Tensor,
        query_positions: Positions,
        key_positions: Positions,
    ) -> Tensor:
        here, there = query_positions.order[:, None, :, None], key_positions.order[:, None, None, :]
        takes = there <= here if self.sees_itself else there < here
        takes = takes if visible is None else takes & visible
        left = F.logsigmoid(-scores).masked_fill(~takes, 0.0)  # ln(1 - b)
        return (F.logsigmoid(scores) + following(left, key_positions, itself=False)).masked_fill(~takes, -torch.inf)


ENTRY = Entry(
    name="stick_breaking",
    scheme=StickBreaking,
    paper="Tan et al. 2025",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED},
    cost="a cumulative sum of every row of scores",
    build=lambda shape: StickBreaking(),
    axes="any",
    does="gives each key a share of the weight that nearer keys have left, in place of a softmax",
    limits="needs whole rows of scores; attends only to earlier keys",
    formula=lines(
        r"a_{ij} = b_{ij} \prod_{t = j + 1}^{i - 1} (1 - b_{it}), \qquad "
        r"b_{ij} = \sigma \Bigl( \frac{q_i \cdot k_j}{\sqrt{d}} \Bigr), \qquad o_i = \sum_{j < i} a_{ij} v_j",
        r"\mathrm{sees\_itself} \mbox{: the product up to } t = i, \allowbreak \mbox{the sum over } j \le i",
    ),
    example="posenc.attention(q, k, v, posenc.StickBreaking(), is_causal=True)",
    url="https://arxiv.org/abs/2410.17980",
    avoid="**Weights of a model with a softmax.** Its weights are another function of the scores.",
)
