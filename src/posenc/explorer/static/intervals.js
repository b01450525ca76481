// 95 % intervals of a mean, as posenc has them: by bootstrap over windows and seeds, and by Student's t over pieces.

import { Random } from "posenc/random.js";

const RESAMPLES = 2000;
const SHARE = 0.95;

/**
 * The mean of rows, one per seed with the same windows in each, and its 95 % percentile bootstrap interval: windows and
 * seeds are drawn anew, each on its own (the pigeonhole bootstrap of Owen 2007).
 *
 * posenc draws with another generator, so the ends of the two intervals differ as those of two bootstraps do.
 *
 * @param {ArrayLike<number>[]} rows
 * @returns {{mean: number, low: number, high: number}}
 */
export function bootstrap(rows) {
    const [seeds, windows] = [rows.length, rows[0].length];
    const [ofSeeds, ofWindows] = drawn(seeds, windows);
    const means = new Float64Array(RESAMPLES);
    for (let n = 0; n < RESAMPLES; n++) {
        for (let s = 0; s < seeds; s++) {
            const weight = ofSeeds[n * seeds + s];
            if (!weight) continue;
            let sum = 0;
            for (let w = 0; w < windows; w++) sum += ofWindows[n * windows + w] * rows[s][w];
            means[n] += (weight * sum) / (seeds * windows);
        }
    }
    means.sort();
    const all = rows.flatMap((row) => Array.from(row));
    return { mean: average(all), low: quantile(means, (1 - SHARE) / 2), high: quantile(means, (1 + SHARE) / 2) };
}

const draws = new Map();

/** How often each seed and each window was drawn in every resample: the same each time. */
function drawn(seeds, windows) {
    const key = `${seeds},${windows}`;
    if (!draws.has(key)) {
        const random = new Random(0);
        const times = (count) => {
            const found = new Uint16Array(RESAMPLES * count);
            for (let n = 0; n < RESAMPLES; n++) {
                for (let k = 0; k < count; k++) found[n * count + Math.floor(random.uniform(0, count))] += 1;
            }
            return found;
        };
        draws.set(key, [times(seeds), times(windows)]);
    }
    return draws.get(key);
}

/** Of sorted numbers, linear between neighbours. */
function quantile(sorted, share) {
    const place = share * (sorted.length - 1);
    const low = Math.floor(place);
    return sorted[low] + (place - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

/** The mean of a few values and its interval by Student's t; one value has none. */
export function student(values) {
    const mean = average(values);
    const count = values.length;
    if (count === 1) return { mean, low: -Infinity, high: Infinity };
    const deviation = Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (count - 1));
    const half = (tQuantile(count - 1) * deviation) / Math.sqrt(count);
    return { mean, low: mean - half, high: mean + half };
}

/** What Student's t stays within in 95 % of all cases: Abramowitz & Stegun 26.7.3 and 26.7.4, by bisection over
 * theta = atan(t / sqrt(freedom)). */
function tQuantile(freedom) {
    const within = (theta) => {
        const odd = freedom % 2;
        let term = odd ? Math.cos(theta) : 1;
        let series = freedom > 1 ? term : 0;
        for (let n = 2 + odd; n < freedom; n += 2) {
            term *= (Math.cos(theta) ** 2 * (n - 1)) / n;
            series += term;
        }
        return odd ? (2 / Math.PI) * (theta + Math.sin(theta) * series) : Math.sin(theta) * series;
    };
    let [low, high] = [0, Math.PI / 2];
    for (let n = 0; n < 60; n++) {
        const middle = (low + high) / 2;
        if (within(middle) < SHARE) low = middle;
        else high = middle;
    }
    return Math.sqrt(freedom) * Math.tan(low);
}

export const average = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

export function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
