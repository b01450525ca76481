"""GRAPE-A with other rates, or other distances."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import GRAPEA, Positions
from posenc.encoding.encoding import Context
from posenc.rotation.phases import alibi_slopes
from tests.cases import HEAD_DIM
from tests.hard.wrong import NO_WORDS, Row, each, sizes
from tests.mutants import Mutant, oracles

COMPARED = oracles("grape_a")


def lowered(
    away: Callable[[Tensor], Tensor] = lambda r: r.clamp(min=0),
    slopes: Callable[[int], Tensor] = lambda heads: alibi_slopes(heads, torch.float64),
    positive: Callable[[Tensor], Tensor] = F.softplus,
    gate: Callable[[Tensor], Tensor] = F.softplus,
    unit: Callable[[Tensor], Tensor] = lambda u: F.normalize(u, dim=-1),
    scale: float = HEAD_DIM**-0.5,
    sides: tuple[str, str] = ("u", "v"),
) -> Callable[..., Tensor]:
    """The method as it is, but for one thing."""

    def wrong(
        self: GRAPEA,
        context: Context,
        s: Tensor,
        visible: Tensor | None,
        query: Tensor,
        key: Tensor,
        x: Positions,
        y: Positions,
    ) -> Tensor:
        keys = key.repeat_interleave(query.size(1) // key.size(1), 1)
        rate = torch.zeros_like(s)
        of_key, of_query = (getattr(self, name) for name in sides)
        if of_key is not None:
            rate = rate + gate((keys * unit(of_key)[:, None]).sum(-1) * scale)[..., None, :]
        if of_query is not None:
            rate = rate + gate((query * unit(of_query)[:, None]).sum(-1) * scale)[..., None]
        omega = (slopes(self.num_heads) * positive(self.w))[:, None, None]
        r = (x.coords[:, :, None] - y.coords[:, None]).to(s.dtype)[:, None]
        return s - away(r) * omega * rate

    return wrong


def bug(words: str, **one: object) -> Mutant:
    return Mutant(words, GRAPEA, "_lowered", lowered(**one), COMPARED)  # type: ignore[arg-type]


MUTANTS = (
    bug("takes later keys for distant ones", away=torch.abs),
    bug("rewards later keys", away=lambda r: r),
    bug("has slopes for powers of two alone", slopes=lambda n: 2.0 ** (-8 * torch.arange(1.0, n + 1) / n)),
)


GOOD, MADE = {"num_heads": 4, "head_dim": 8}, GRAPEA(4, 8)


def called(heads: int, width: int) -> Tensor:
    x = torch.zeros(1, heads, 3, width)
    return MADE(Positions.arange(3)).pieces[0].apply(x @ x.mT, None, x, x, *2 * (Positions.arange(3),))


REFUSED = {
    "GRAPEA": [
        *sizes(GRAPEA, GOOD, "num_heads", "head_dim"),
        *each(GRAPEA, GOOD, "gates", NO_WORDS, "'key', 'query' or 'both'"),
        *(
            Row(
                lambda heads=heads, width=width: called(heads, width),
                f"GRAPEA was made for 4 heads of head_dim 8, got queries of {heads} heads and head_dim {width}",
            )
            for heads, width in ((8, 8), (4, 6))
        ),
    ]
}
