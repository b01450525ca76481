// Functions that JavaScript lacks.

/** The error function: its series near 0, and 1 - erfc by Lentz's continued fraction further out. */
export function erf(x) {
    const size = Math.abs(x);
    if (size > 2) return Math.sign(x) * (1 - erfc(size));
    let [sum, term] = [x, x];
    for (let n = 1; Math.abs(term) > 1e-18 * Math.abs(sum); n++) {
        term *= (-x * x) / n;
        sum += term / (2 * n + 1);
    }
    return (2 / Math.sqrt(Math.PI)) * sum;
}

/** 1 - erf(x) for x > 2: e^(-x^2) / sqrt(pi) / (x + (1/2) / (x + 1 / (x + (3/2) / (x + ...)))). */
function erfc(x) {
    let below = x;
    for (let n = 120; n > 0; n--) below = x + n / 2 / below;
    return Math.exp(-x * x) / Math.sqrt(Math.PI) / below;
}

/** The x with erf(x) = y: Newton's steps, from an approximation by Winitzki. */
function erfinv(y) {
    const log = Math.log((1 - y) * (1 + y));
    const half = 2 / (Math.PI * 0.147) + log / 2;
    let x = Math.sign(y) * Math.sqrt(Math.sqrt(half * half - log / 0.147) - half);
    for (let step = 0; step < 4; step++) {
        x -= ((erf(x) - y) * Math.sqrt(Math.PI) * Math.exp(x * x)) / 2;
    }
    return x;
}

/** Draws from N(0, 1) that follow from the seed alone, as posenc.rotation.phases.seeded_normal has them: splitmix64, then erfinv. The
 * stream can be read on from its draw `first`. */
export function drawn(count, seed, first = 0) {
    const wrap = (x) => BigInt.asUintN(64, x);
    return Float64Array.from({ length: count }, (_, n) => {
        let x = wrap(BigInt(first + n + 1) + BigInt(seed) * 1000003n);
        x = wrap((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
        x = wrap((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
        x ^= x >> 31n;
        const uniform = (Number(x >> 11n) + 0.5) / 2 ** 53;
        return Math.SQRT2 * erfinv(2 * uniform - 1);
    });
}
