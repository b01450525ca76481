"""FoX: attention that forgets, by gates that each layer makes of its hidden state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.arguments import whole
from posenc.encoding.encoding import Context
from posenc.encoding.features import Feature
from posenc.encoding.pieces import Clock
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class FoX(Scheme):
    """Forgetting attention: a score falls by what the gates between key and query forget.

    Formula, with gates f_t = sigmoid(w_h . x_t + b_h) of every token t and head h:

        s_ij + sum over t = j + 1 .. i of ln f_t = s_ij + F_i - F_j,   F_i = ln f_1 + ... + ln f_i

    It is ALiBi by a clock that the text itself winds: a head whose gates are constant is ALiBi of slope -ln f. The sum
    goes by the order of the tokens, within each document; coordinates are not looked at. Without a causal mask the
    formula stands as it is, and rewards a key after the query by what is forgotten between the two.

    Each layer makes the gates: it projects its hidden state, with a bias, to a number per head, the feature
    ``forgotten``. posenc's models do; in a model of one's own see `posenc.models.ForwardPass.features`, which also goes
    on from where the clock of a cache stood. F is summed in double precision, and differences are taken before they are
    rounded where the backend can.

    The scheme learns nothing by itself. Shapes: gates (batch, num_heads, tokens), any number of keys' heads.
    Errors: ValueError for num_heads below 1, and where the feature is missing or of other heads.
    Source: Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate" (arXiv 2503.02130),
    equations 4 to 6; the authors' layer was read: a projection with a bias, float32 from the logarithm on.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)

    @property
    def features(self) -> Mapping[str, Feature]:
        """``forgotten``: a clock whose steps are ln f_t."""
        return {"forgotten": Feature(self.num_heads, map=log_gate, is_clock=True, bias=True)}

    @property
    def for_decoders(self) -> bool:
        """True: keys after the query would be rewarded."""
        return True

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Clock, ...]:
        """F_i - F_j, of what the layer makes."""
        return (Clock("forgotten"),)


def log_gate(projected: Tensor, positions: Positions) -> Tensor:
    """ln sigmoid, in single precision at least."""
    return F.logsigmoid(projected.to(torch.promote_types(projected.dtype, torch.float32)))


ENTRY = Entry(
    name="fox",
    scheme=FoX,
    paper="Lin et al. 2025",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.MONOTONE, Law.DECAYING},
    cost="a gate per token and head, and one difference on every score",
    build=lambda shape: FoX(shape.num_heads),
    axes="any",
    learned="a gate per head, in each layer",
    does="lets scores fall by what the gates of the tokens between forget",
    limits="for decoders: without a causal mask later keys are rewarded",
    formula=(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + \sum_{t = j + 1}^{i} \ln f_t, \qquad f_t = \sigma(w_h \cdot x_t "
        r"+ b_h)"
    ),
    example=(
        'gates = {"forgotten": torch.randn(2, 12, 64)}\n'
        "encoding = posenc.FoX(12)(posenc.Positions.arange(64)).with_projected(gates)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    url="https://arxiv.org/abs/2503.02130",
)
