"""What is run, in order: the first minutes, and two commands beside it."""

from posenc.tools.bench.gpu import agreement, first, tests, timing, variants
from posenc.tools.bench.gpu.step import Step

MINUTES, VARIANTS, FLEX = "first minutes", "variants", "flex"

PLANS: dict[str, tuple[Step, ...]] = {
    MINUTES: (
        first.FIRST,
        timing.COMPILED,
        agreement.SMALL_SIZES,
        tests.TESTS,
        agreement.REAL_SIZES,
        agreement.LARGE_SIZES,
        timing.TIMED,
        timing.PROFILES,
    ),
    VARIANTS: (first.FIRST, variants.COMPILED, variants.VARIANTS),
    FLEX: (first.FIRST, variants.FLEX),
}
