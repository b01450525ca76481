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

/** torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), for a count of 16 or more: the
 * Mersenne Twister's numbers, and Box and Muller on sixteen at a time. */
export function randn(count, seed) {
    const state = Uint32Array.of(seed, ...Array(623));
    for (let n = 1; n < 624; n++) state[n] = Math.imul(1812433253, state[n - 1] ^ (state[n - 1] >>> 30)) + n;
    let at = 0;
    const word = () => {
        const y = (state[at] & 0x80000000) | (state[(at + 1) % 624] & 0x7fffffff);
        let x = (state[at] = state[(at + 397) % 624] ^ (y >>> 1) ^ (y & 1 && 0x9908b0df));
        at = (at + 1) % 624;
        x ^= x >>> 11;
        x ^= (x << 7) & 0x9d2c5680;
        x ^= (x << 15) & 0xefc60000;
        return (x ^ (x >>> 18)) >>> 0;
    };
    const uniform = () => ((word() & 0x1fffff) * 2 ** 32 + word()) / 2 ** 53;
    const made = new Float64Array(count);
    for (let n = 0; n < count; n++) made[n] = uniform(); // faster than Float64Array.from
    for (let from = 0; from < count; from += 16) {
        const some = made.subarray(Math.min(from, count - 16));
        if (some.length > count - from) some.forEach((_, n) => (some[n] = uniform())); // the last ones overlap those before
        for (let n = 0; n < 8; n++) {
            const [length, angle] = [Math.sqrt(-2 * Math.log(1 - some[n])), 2 * Math.PI * some[n + 8]];
            [some[n], some[n + 8]] = [length * Math.cos(angle), length * Math.sin(angle)];
        }
    }
    return made;
}

/** The same in Python. */
export const randnPython = (shape, seed) =>
    `torch.randn(${shape.join(", ")}, generator=torch.Generator().manual_seed(${seed}), dtype=torch.float64)`;
