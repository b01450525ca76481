// The bound of RoPE's scores falls with the distance; the scores below it need not.

import { Heads } from "posenc/math/arrays.js";
import { frequencies } from "posenc/math/phases.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, askAttention } from "posenc/options.js";
import { Random } from "posenc/random.js";
import { remembered } from "posenc/remembered.js";
import { rope } from "posenc/use.js";
import { WEIGHED, weighed } from "posenc/weighed.js";

const DRAWS = 128; // of Gaussian queries and keys

/** cos and sin of r theta_k, (distances, pairs). */
function waves(length, theta) {
    const pairs = theta.length;
    const [cos, sin] = [new Float64Array(length * pairs), new Float64Array(length * pairs)];
    for (let r = 0, n = 0; r < length; r++) {
        for (let k = 0; k < pairs; k++, n++) [cos[n], sin[n]] = [Math.cos(r * theta[k]), Math.sin(r * theta[k])];
    }
    return { cos, sin, pairs };
}

/** B(r): the mean of |S_j| over j = 1 .. pairs, S_j the sum of the first j pairs' e^(i r theta_k). */
function bounds(length, { cos, sin, pairs }) {
    return Float64Array.from({ length }, (_, r) => {
        let [x, y, sum] = [0, 0, 0];
        for (let n = r * pairs; n < (r + 1) * pairs; n++) {
            x += cos[n];
            y += sin[n];
            sum += Math.sqrt(x * x + y * y);
        }
        return sum / pairs;
    });
}

/** Of each pair of every draw what its score has along cos and along sin. */
const draws = remembered((pairs, seed) => {
    const random = new Random(seed);
    const [along, across] = [new Float64Array(DRAWS * pairs), new Float64Array(DRAWS * pairs)];
    for (let n = 0; n < DRAWS * pairs; n++) {
        const [a, b, c, d] = random.normals(4);
        [along[n], across[n]] = [a * c + b * d, a * d - b * c];
    }
    return { along, across };
});

/** Mean and standard deviation, at each distance, of the scores of Gaussian queries and keys. */
function gaussian(length, { cos, sin, pairs }, seed) {
    const { along, across } = draws(pairs, seed);
    const [mean, spread] = [new Float64Array(length), new Float64Array(length)];
    for (let r = 0; r < length; r++) {
        let [sum, squares] = [0, 0];
        for (let draw = 0, n = 0; draw < DRAWS; draw++) {
            let score = 0;
            for (let at = r * pairs; at < (r + 1) * pairs; at++, n++) score += along[n] * cos[at] + across[n] * sin[at];
            score /= Math.sqrt(2 * pairs);
            sum += score;
            squares += score * score;
        }
        mean[r] = sum / DRAWS;
        spread[r] = Math.sqrt((squares - (sum * sum) / DRAWS) / (DRAWS - 1));
    }
    return { mean, spread };
}

/** What does not depend on the peak. */
const curves = remembered((dim, base, length, seed) => {
    const turns = waves(length, frequencies(dim, base));
    return { bound: bounds(length, turns), ...gaussian(length, turns, seed) };
});

export const figure = {
    name: "rope-decay",
    title: "The bound falls with distance; scores need not",
    see:
        "A bound is not the score: a score is at most B(r) times what does not depend on the distance r, and B(r) falls, " +
        "unevenly. Still, for any distance there is a key whose score is highest there: move the peak. Random queries " +
        "and keys have a mean of about 0 and the same spread everywhere.",
    defaults: { dim: 64, base: 10000, length: 256, peak: 100, seed: 0, weighed: false },
    another: { dim: 16, base: 300, length: 64, peak: 11, seed: 3 },
    controls: ({ length }) => [
        { name: "peak", label: "peak at distance", kind: "range", min: 0, max: length - 1, step: 1 },
        { name: "length", label: "distances to", kind: "range", min: 32, max: 512, step: 16 },
        { name: "dim", label: "head_dim", kind: "range", min: 8, max: 128, step: 8 },
        { name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 },
        WEIGHED,
        { name: "seed", label: "Other draws", kind: "button", value: (seed) => (seed + 1) % 100 },
    ],
    change: (values, name, value) => ({
        ...values,
        [name]: value,
        ...(name === "length" && { peak: Math.min(values.peak, value - 1) }),
    }),
    values(state) {
        const { dim, base, length, peak, seed } = state;
        const theta = frequencies(dim, base);
        // The query is of ones, and the key is the query turned to the peak: sum of 2 cos((r - peak) theta_k) / sqrt(d)
        const wave = (r) => theta.reduce((sum, x) => sum + 2 * Math.cos((r - peak) * x), 0) / Math.sqrt(dim);
        const built = Float64Array.from({ length }, (_, r) => wave(r));
        const { bound, mean, spread } = curves(dim, base, length, seed);
        return { bound, mean, spread, built, curves: [{ y: built, wave }] };
    },
    use: ({ dim, base }) => rope(dim, { base }),
    line: ({ dim, base, length, peak, weighed: isWeighed }) =>
        `from posenc_lab.laws.laws import rotary_bound\n` +
        `rope = posenc.RoPE(${dim}, base=${base})\n` +
        `ones = torch.ones(1, 1, ${length}, ${dim}, dtype=torch.float64)\n` +
        `q = rope(posenc.Positions.arange(${length}), dtype=torch.float64).rotate_query(ones)[0, 0]\n` +
        `built = q @ q[${peak}] / ${dim}**0.5  # the key is the query turned to the peak\n` +
        `torch.stack((rotary_bound(rope.frequencies()[0][0], torch.arange(${length})), built${isWeighed ? ".softmax(-1)" : ""}))`,
    compared({ length, weighed: isWeighed }, { bound, built }) {
        return { shape: [2, length], data: [...bound, ...(isWeighed ? weighed(built) : built)] };
    },
    async check({ dim, base, length, peak }, { built }, app) {
        const n = Math.min(length, 32);
        const [ones, key] = [new Heads(1, n, dim, new Float64Array(n * dim).fill(1)), new Heads(1, 1, dim)];
        frequencies(dim, base).forEach((x, k) => {
            const [cos, sin] = [Math.cos(peak * x), Math.sin(peak * x)];
            [key.data[k], key.data[k + dim / 2]] = [cos - sin, sin + cos];
        });
        const at = (m) => Math.floor((m * (length - 1)) / (n - 1)); // the distances asked for
        const places = Array.from({ length: n }, (_, m) => at(m));
        const rope = { name: "rope", options: { head_dim: dim, base } };
        const where = { positions: new Positions(places), keyPositions: new Positions([0]) };
        const { logits } = await askAttention(app, [rope], [ones, key], where);
        return agreed(n, apart(places.map((r) => built[r]), logits.data));
    },
    mount(box, app) {
        const above = app.lines(box, {
            label: "the bound B(r) against the distance",
            xLabel: "distance r = query − key",
            yLabel: "B(r)",
            height: 260,
        });
        const below = app.lines(box, {
            label: "scores against the distance",
            xLabel: "distance r = query − key",
            yLabel: "score (in logits)",
            height: 260,
        });
        return ({ length, peak, weighed: isWeighed }, { bound, mean, spread, built, curves: [curve] }) => {
            const x = Array.from({ length }, (_, r) => r);
            const [ink, orange, blue] = app.theme().palette;
            above.draw(x, [{ name: "B(r): with a number for q and k, a bound on the score", y: bound, color: ink, dash: [], always: true }]);
            const marks = [{ x: peak, name: `peak ${peak}` }];
            if (isWeighed) {
                const name = "one query, and at every distance the key built for the peak";
                below.draw(x, [{ name, y: weighed(built), color: orange, dash: [9, 3] }], { marks, yLabel: "weight" });
                return;
            }
            below.draw(
                x,
                [
                    { name: "a key built for the peak", ...curve, color: orange, dash: [9, 3] },
                    {
                        name: `mean of ${DRAWS} Gaussian queries and keys, ± 1 standard deviation`,
                        y: mean,
                        color: blue,
                        dash: [],
                        low: mean.map((m, r) => m - spread[r]),
                        high: mean.map((m, r) => m + spread[r]),
                    },
                ],
                { marks, yLabel: "score (in logits)" },
            );
        };
    },
    describe({ peak, length }, { bound, built, mean, spread }) {
        const three = (x) => x.toPrecision(3);
        const average = spread.reduce((a, b) => a + b, 0) / length;
        return (
            `B(r) goes from ${three(bound[0])} at distance 0 to ${three(bound[length - 1])} at ${length - 1}. ` +
            `The built key scores ${three(built[peak])} at distance ${peak} and ${three(built[0])} at 0. ` +
            `Random ones: mean ${mean[peak].toFixed(2)} at the peak, spread about ${average.toFixed(2)} everywhere.`
        );
    },
};
