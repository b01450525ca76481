"""Inkling with other profiles, or other queries that mix them."""

from collections.abc import Callable

from torch import Tensor

from posenc import Inkling
from posenc.schemes import inkling
from tests.hard.wrong import NO_NUMBERS, NO_SIZES, each, sizes
from tests.mutants import Mutant, oracles
from tests.mutants.backends import Line

COMPARED = oracles("inkling")
OF_LAYER = inkling._of_layer


def growth(n: Callable[[Tensor], Tensor], floor: float | None = 1.0) -> Callable[..., Tensor]:
    """tau as it is, but for one thing."""

    def wrong(length: int, strength: float, positions: object, dtype: object) -> Tensor:
        tokens = n(positions.coords.double())[:, None, :, None] / length  # type: ignore[attr-defined]
        return 1 + strength * tokens.clamp(min=floor or 1e-3).log()

    return wrong


MUTANTS = (
    Mutant("clips nothing", inkling, "_of_layer", lambda c, n, a, r, p: OF_LAYER(None, n, a, r, p), COMPARED),
    Mutant("counts from 0", inkling, "_factor", growth(lambda p: p), COMPARED),
    Line("looks ahead", Inkling, "_at", ("back = -r", "back = r"), COMPARED),
    Line(
        "goes on with its last profile", Inkling, "_at", ("(back >= 0) & (back < self.extent)", "back >= 0"), COMPARED
    ),
)


GOOD = {"num_heads": 4}
REFUSED = {
    "Inkling": [
        *sizes(Inkling, GOOD, "num_heads", "width", "extent"),
        *each(Inkling, GOOD, "length", NO_SIZES, "a whole number of at least 1"),
        *each(Inkling, GOOD, "strength", NO_NUMBERS, "a finite number"),
        *each(
            Inkling, GOOD, "clip", [(0, "0"), (-1.0, "-1.0"), ("8", "'8'"), (True, "True")], "a finite number above 0"
        ),
    ]
}
