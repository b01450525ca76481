// 95 % intervals of a mean, as posenc has them (posenc/tools/kit/statistics.py): by Student's t over seeds and windows,
// or over pieces, and by Wilson of a share.

const SHARE = 0.95;
const Z = 1.959963984540054; // what a normal law stays within in that share of cases

/**
 * The mean of rows, one per seed with the same windows in each, and its interval: seeds and windows are two crossed
 * random effects, and degrees of freedom are Satterthwaite's.
 *
 * @param {number[][]} rows
 * @returns {{mean: number, low: number, high: number}}
 */
export function crossed(rows) {
    const [seeds, windows] = [rows.length, rows[0].length];
    if (Math.min(seeds, windows) === 1) return student(rows.flat());
    const mean = average(rows.flat());
    const ofSeeds = rows.map((row) => average(row) - mean);
    const ofWindows = rows[0].map((_, w) => average(rows.map((row) => row[w])) - mean);
    const rest = rows.flatMap((row, s) => row.map((value, w) => value - mean - ofSeeds[s] - ofWindows[w]));
    const freedoms = [seeds - 1, windows - 1, (seeds - 1) * (windows - 1)];
    const sums = [windows * squares(ofSeeds), seeds * squares(ofWindows), squares(rest)];
    const [s, w, e] = sums.map((sum, n) => sum / freedoms[n]);
    const variance = Math.max(s + w - e, s, w);
    if (variance === 0) return { mean, low: mean, high: mean };
    const spread = s ** 2 / freedoms[0] + w ** 2 / freedoms[1] + e ** 2 / freedoms[2];
    const half = tQuantile(Math.max(variance ** 2 / spread, 1)) * Math.sqrt(variance / (seeds * windows));
    return { mean, low: mean - half, high: mean + half };
}

/** The same of a share of right answers, which lies between 0 and 1: Wilson's interval for the answers of one seed, and
 * where all come out alike. */
export function share(rows) {
    const { mean, low, high } = crossed(rows);
    const [first] = rows;
    const alike = rows.flat().every((value) => value === first[0]);
    if (!alike && (rows.length > 1 || !first.every((value) => value === 0 || value === 1)))
        return { mean, low: Math.max(low, 0), high: Math.min(high, 1) };
    return { mean, ...wilson(even(first.reduce((sum, x) => sum + x, 0)), first.length) };
}

/** Rounded as Python does: halves to even. */
const even = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

function wilson(right, of) {
    const [part, scale] = [right / of, 1 + Z ** 2 / of];
    const middle = (part + Z ** 2 / (2 * of)) / scale;
    const half = (Z / scale) * Math.sqrt((part * (1 - part)) / of + Z ** 2 / (4 * of ** 2));
    return { low: right === 0 ? 0 : middle - half, high: right === of ? 1 : middle + half };
}

/** The mean of a few values and its interval by Student's t; one value has none. */
export function student(values) {
    const mean = average(values);
    const count = values.length;
    if (count === 1) return { mean, low: -Infinity, high: Infinity };
    const error = Math.sqrt(squares(values.map((x) => x - mean)) / (count - 1) / count);
    const half = error && tQuantile(count - 1) * error;
    return { mean, low: mean - half, high: mean + half };
}

/** What Student's t stays within in 95 % of all cases: outside t it is in I(x; freedom / 2, 1 / 2) of them, where
 * x = cos² theta and t = sqrt(freedom) tan theta (Abramowitz & Stegun 26.7.1); by bisection over theta. */
function tQuantile(freedom) {
    let [low, high] = [0, Math.PI / 2];
    for (let n = 0; n < 60; n++) {
        const middle = (low + high) / 2;
        if (incompleteBeta(Math.cos(middle) ** 2, freedom / 2, 0.5) > 1 - SHARE) low = middle;
        else high = middle;
    }
    return Math.sqrt(freedom) * Math.tan(low);
}

/** The regularized incomplete beta function I(x; a, b): its continued fraction (Abramowitz & Stegun 26.5.8), from the
 * end at which it converges fast. */
function incompleteBeta(x, a, b) {
    if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a);
    if (x <= 0) return 0;
    let fraction = 0;
    for (let m = 200; m > 0; m--) {
        const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
        const odd = (-(a + m - 1) * (a + b + m - 1) * x) / ((a + 2 * m - 2) * (a + 2 * m - 1));
        fraction = odd / (1 + even / (1 + fraction));
    }
    const front = a * Math.log(x) + b * Math.log(1 - x) + logGamma(a + b) - logGamma(a) - logGamma(b);
    return Math.exp(front) / (a * (1 + fraction));
}

/** Stirling's series, where it is exact to the last digits. */
function logGamma(x) {
    if (x < 15) return logGamma(x + 1) - Math.log(x);
    const series = 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5) - 1 / (1680 * x ** 7);
    return (x - 0.5) * Math.log(x) - x + Math.log(2 * Math.PI) / 2 + series;
}

const squares = (values) => values.reduce((sum, x) => sum + x ** 2, 0);

const average = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

export function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
