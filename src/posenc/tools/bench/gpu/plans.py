"""What is run, in order: the first minutes, and three commands beside it."""

from dataclasses import replace

from posenc.tools.bench.gpu import agreement, first, tests, timing, variants
from posenc.tools.bench.gpu.step import Step

MINUTES, QUICK, VARIANTS, FLEX = "first minutes", "quick", "variants", "flex"

PLANS: dict[str, tuple[Step, ...]] = {
    MINUTES: (
        first.FIRST,
        timing.COMPILED,
        agreement.SMALL_SIZES,
        agreement.REAL_SIZES,
        timing.TIMED,
        timing.PROFILES,
        agreement.LARGE_SIZES,
        tests.TESTS,
    ),
    QUICK: (
        first.FIRST,
        replace(timing.COMPILED, limit=40, each=35),
        agreement.FEW_SIZES,
        replace(timing.TIMED, limit=80),
        timing.PROFILES,
    ),
    VARIANTS: (first.FIRST, variants.COMPILED, variants.VARIANTS),
    FLEX: (first.FIRST, variants.FLEX),
}
