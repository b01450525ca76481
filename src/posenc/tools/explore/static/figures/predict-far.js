// Asked first: whether a key farther away always scores less under RoPE.

import { Heads, dot } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { frequencies, turnedOn } from "posenc/math/phases.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { agreed, apart, array } from "posenc/options.js";
import { checkState, question } from "posenc/question.js";
import { rope } from "posenc/use.js";
import { NORMALS, normals } from "posenc/words.js";

const DRAWS = 64; // Gaussian keys
const KEYS = { equal: "equal to the query", opposite: "the query times −1", drawn: "drawn at random" };

const controls = ({ length }) => [
    {
        name: "key",
        label: "your key",
        kind: "choice",
        choices: Object.entries(KEYS).map(([value, name]) => ({ value, name })),
    },
    { name: "peak", label: "the other key peaks at", kind: "range", min: 0, max: length - 1 },
    { name: "length", label: "distances to", kind: "range", min: 32, max: 512, step: 16 },
    { name: "dim", label: "head_dim", kind: "range", min: 8, max: 128, step: 8 },
    { name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 },
];

const ASK = {
    asks: "A query and a key are turned by RoPE. The key is moved farther and farther away. Does its score always fall?",
    choices: [
        { value: "always", name: "Yes: for every query and key", said: "for every query and key" },
        {
            value: "mean",
            name: "Not for every key, but in the mean over random keys",
            said: "in the mean over random keys",
        },
        {
            value: "no",
            name: "No: it depends on the query and the key, and the mean over random keys does not fall",
            said: "no, and the mean over random keys does not fall either",
        },
        {
            value: "sign",
            name: "It falls where the score at distance 0 is positive, and rises where it is negative",
            said: "it falls from a positive score, and rises from a negative one",
        },
    ],
    truth:
        "no. For any distance there is a key whose score is highest there, and the mean over random keys is 0 " +
        "everywhere. What falls, unevenly, is a bound",
};

export const figure = {
    name: "predict-far",
    title: "Answer first: does a far key always score less under RoPE?",
    see:
        "Choose an answer; then the picture is shown. " +
        "After that, choose your key, and move the distance at which the other key peaks.",
    defaults: { answer: "", key: "equal", peak: 100, dim: 64, base: 10000, length: 256 },
    another: { answer: "always", key: "drawn", peak: 11, dim: 16, base: 300, length: 64 },
    controls: (state) => (state.answer ? controls(state) : []),
    change: (state, name, value) => ({
        ...state,
        [name]: value,
        ...(name === "length" && { peak: Math.min(state.peak, value - 1) }),
    }),
    waits: ({ answer }) => !answer,
    values(state) {
        const { dim, base, length, key, peak } = state;
        checkState("predict-far", state, ASK.choices, controls(state));
        // A query of ones at every distance, turned; the keys stand at 0, where nothing turns.
        const ones = new Heads(1, length, dim, new Float64Array(length * dim).fill(1));
        const all = Positions.arange(length);
        const { q } = new RoPE({ head_dim: dim, base }).rotate(ones, ones, all, all, { length });
        const yours = {
            equal: () => ones.at(0, 0),
            opposite: () => ones.at(0, 0).map((x) => -x),
            drawn: () => normals("your key", dim),
        }[key]();
        const gaussian = normals("keys", DRAWS * dim);
        const keys = [
            yours,
            q.at(0, peak),
            ...Array.from({ length: DRAWS }, (_, n) => gaussian.subarray(n * dim, (n + 1) * dim)),
        ];
        const [mine, other, mean, spread] = Array.from({ length: 4 }, () => new Float64Array(length));
        for (let r = 0; r < length; r++) {
            const [first, second, ...drawn] = keys.map((one) => dot(q.at(0, r), one) / Math.sqrt(dim));
            mine[r] = first;
            other[r] = second;
            mean[r] = drawn.reduce((sum, x) => sum + x, 0) / DRAWS;
            spread[r] = Math.sqrt(drawn.reduce((sum, x) => sum + (x - mean[r]) ** 2, 0) / (DRAWS - 1));
        }
        const curves = [mine, other].map((y, n) => {
            const product = turnedOn(ones.at(0, 0), keys[n], frequencies(dim, base));
            return { y, wave: (r) => product(r) / Math.sqrt(dim) };
        });
        return { keys, mine, other, mean, spread, curves };
    },
    use: ({ dim, base }) => rope(dim, { base }),
    line({ dim, base, length, key, peak }) {
        const yours = {
            equal: `torch.ones(${dim}, dtype=torch.float64)`,
            opposite: `-torch.ones(${dim}, dtype=torch.float64)`,
            drawn: `normals("your key", ${dim})`,
        }[key];
        return (
            `${NORMALS}\n` +
            `ones = torch.ones(1, 1, ${length}, ${dim}, dtype=torch.float64)\n` +
            `q = posenc.RoPE(${dim}, base=${base})(posenc.Positions.arange(${length}), dtype=torch.float64).rotate_query(ones)[0, 0]\n` +
            `keys = torch.stack((${yours}, q[${peak}], *normals("keys", ${DRAWS}, ${dim})))  # at position 0\n` +
            `scores = keys @ q.mT / ${dim}**0.5\n` +
            `torch.stack((scores[0], scores[1], scores[2:].mean(0), scores[2:].std(0)))`
        );
    },
    compared(state) {
        const { mine, other, mean, spread } = figure.values(state);
        return { shape: [4, state.length], data: Float64Array.from([...mine, ...other, ...mean, ...spread]) };
    },
    async check({ dim, base, length }, { keys, mine, other }, app) {
        const places = Array.from({ length: 32 }, (_, n) => Math.floor((n * (length - 1)) / 31));
        const two = array([1, 2, dim], [...keys[0], ...keys[1]]);
        const said = await app.ask("attention", {
            schemes: [{ name: "rope", options: { head_dim: dim, base } }],
            query: array([1, 32, dim], new Float64Array(32 * dim).fill(1)),
            key: two,
            value: two,
            positions: places.map((r) => [r]),
            key_positions: [[0], [0]],
        });
        return agreed(
            64,
            apart(
                places.flatMap((r) => [mine[r], other[r]]),
                said.logits.data,
            ),
        );
    },
    mount(box, app) {
        const asked = question(box, app, "predict-far");
        const plot = app.lines(asked.shown, {
            label: "scores of three kinds of keys against the distance",
            xLabel: "distance (query − key, tokens)",
            yLabel: "score (in logits)",
        });
        return (state, { mean, spread, curves }) => {
            if (!asked.draw(state, ASK)) return;
            const x = Array.from({ length: state.length }, (_, r) => r);
            plot.draw(
                x,
                [
                    { name: `your key: ${KEYS[state.key]}`, ...curves[0] },
                    { name: `the query turned by ${state.peak} positions`, ...curves[1] },
                    {
                        name: `${DRAWS} Gaussian keys: mean ± standard deviation`,
                        y: mean,
                        low: mean.map((m, r) => m - spread[r]),
                        high: mean.map((m, r) => m + spread[r]),
                    },
                ],
                { marks: [{ x: state.peak, name: `peak at ${state.peak}` }] },
            );
        };
    },
    describe({ answer, key, peak, length }, { mine, other, mean, spread }) {
        if (!answer) return ASK.asks;
        const rises = mine.reduce((count, x, r) => count + (r > 0 && x > mine[r - 1] ? 1 : 0), 0);
        const [least, most] = [Math.min(...spread), Math.max(...spread)].map(short);
        return (
            `Your key, ${KEYS[key]}, rises at ${rises} of ${length - 1} steps. ` +
            `The other key scores ${short(other[0])} at distance 0 and ${short(other[peak])} at ${peak}, its highest. ` +
            `The mean of ${DRAWS} Gaussian keys stays from ${short(Math.min(...mean))} to ${short(Math.max(...mean))}, ` +
            `their standard deviation from ${least} to ${most}, at all distances.`
        );
    },
};

const short = (x) => Number(x.toPrecision(3));
