"""What is run, in order: the first lease, and two commands beside it."""

from posenc.tools.bench.gpu import agreement, first, tests, timing, variants
from posenc.tools.bench.gpu.step import Step

LEASE, VARIANTS, FLEX = "first lease", "variants", "flex"

PLANS: dict[str, tuple[Step, ...]] = {
    LEASE: (
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
