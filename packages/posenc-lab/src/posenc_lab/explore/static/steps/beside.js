// Step 7: RoPE and ALiBi on the same query and the same keys.

import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { NoPE } from "posenc/math/nope.js";
import { Positions } from "posenc/math/positions.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { ALiBi } from "posenc/math/score/alibi.js";
import { randn, randnPython } from "posenc/math/special.js";
import { agreed, apart, askAttention } from "posenc/options.js";
import { colorOf, drawing, legend, panel, words } from "posenc/panel.js";
import { svg } from "posenc/svg.js";
import { weighed } from "posenc/weighed.js";

const WORDS = ["the", "dog", "bit", "the", "man", "and", "the", "dog"];
const QUERY = "ran";
const [FIRST, SECOND] = [WORDS.indexOf("dog"), WORDS.lastIndexOf("dog")];
const [DIM, HEADS, HEAD, SEED, LAST] = [16, 8, 2, 324, 64]; // of ALiBi's 8 heads the one of slope 1/8
const OPENS = WORDS.length;
const EQUAL = 0.01; // weights whose bars look the same

const KINDS = [...new Set(WORDS), QUERY]; // each word has one vector
const ROWS = [...WORDS, QUERY].map((word) => KINDS.indexOf(word));
const vectors = randn(KINDS.length * DIM, SEED);
const of = (rows) =>
    new Heads(HEADS, rows.length, DIM).map(DIM, (to, _, head, n) =>
        to.set(vectors.subarray(rows[n] * DIM, (rows[n] + 1) * DIM)),
    );
const [Q, K] = [of(ROWS.slice(-1)), of(ROWS.slice(0, -1))];
const SCHEMES = [
    { name: "nope", title: "none", scheme: new NoPE({}), options: {} },
    { name: "rope", title: "RoPE", scheme: new RoPE({ head_dim: DIM, base: 10000 }), options: { head_dim: DIM } },
    {
        name: "alibi",
        title: "ALiBi",
        scheme: new ALiBi({ num_heads: HEADS, form: "causal" }),
        options: { num_heads: HEADS },
    },
];

const placesOf = (query) => ({ positions: new Positions([query]), keyPositions: Positions.arange(WORDS.length) });

function values({ query }) {
    const scores = SCHEMES.map(({ scheme }) => logits(scheme, Q, K, placesOf(query)).row(HEAD, 0).slice());
    const [raw, ...others] = scores;
    return {
        scores,
        added: others.map((each) => each.map((score, n) => score - raw[n])),
        weights: scores.map((each) => weighed(each)),
    };
}

/** The ends of each plot's axis: what the slider can reach, so that bars alone move. */
function endsOfAxes() {
    const all = Array.from({ length: LAST - OPENS + 1 }, (_, n) => values({ query: OPENS + n }));
    return ["scores", "added", "weights"].map((name) => {
        const shown = all.flatMap((one) => (name === "scores" ? [one.scores[0]] : one[name]));
        const numbers = shown.flatMap((row) => Array.from(row));
        return [Math.min(0, ...numbers), Math.max(0, ...numbers)].map((end) => 1.05 * end);
    });
}

export const figure = {
    name: "beside",
    title: "RoPE and ALiBi on the same query and keys",
    see: "The same words are scored three times: without position, under RoPE and under ALiBi. Move the query away.",
    defaults: { query: OPENS },
    another: { query: 41 },
    controls: [
        { name: "query", label: `position of the query “${QUERY}”`, kind: "range", min: OPENS, max: LAST, step: 1 },
    ],
    values,
    line: ({ query }) =>
        `x = ${randnPython([KINDS.length, DIM], SEED)}[[${ROWS.join(", ")}]]\n` +
        `x = x` +
        `.expand(1, ${HEADS}, ${ROWS.length}, ${DIM})  # a vector for each word\n` +
        `places = posenc.Positions(torch.tensor([[*range(${WORDS.length}), ${query}]]))\n` +
        `schemes = posenc.NoPE(), posenc.RoPE(${DIM}), posenc.ALiBi(${HEADS})\n` +
        `torch.stack([posenc.logits(x, x, s(places, dtype=x.dtype))[0, ${HEAD}, -1, :-1] for s in schemes])`,
    compared: (state, { scores }) => ({
        shape: [SCHEMES.length, WORDS.length],
        data: scores.flatMap((x) => Array.from(x)),
    }),
    async check({ query }, { scores }, app) {
        let most = 0;
        for (const [n, { name, options }] of SCHEMES.entries()) {
            const { logits: theirs } = await askAttention(app, [{ name, options }], [Q, K], placesOf(query));
            const row = theirs.data.slice(HEAD * WORDS.length, (HEAD + 1) * WORDS.length);
            most = Math.max(most, apart(scores[n], row));
        }
        return agreed(SCHEMES.length * WORDS.length, most);
    },
    mount(box, app) {
        const ends = endsOfAxes();
        return drawing(box, (width, state, { scores, added, weights }) => {
            const [left, right, top, high, gap] = [34, 8, 24, width < 480 ? 80 : 104, 28];
            const looks = SCHEMES.map(({ name }, n) => ({ fill: n ? colorOf(app, name) : "var(--faint)", "data-part": name }));
            const plots = [
                { title: "score without position", yTicks: [-1, 0], rows: [[scores[0], looks[0]]] },
                { title: "what each adds", yTicks: [-6, -3, 0], rows: added.map((row, n) => [row, looks[n + 1]]) },
                { title: "weights", yTicks: [0, 0.2, 0.4], rows: weights.map((row, n) => [row, looks[n]]) },
            ].map(({ rows, ...how }, n) => ({
                ...panel({
                    left,
                    width: width - left - right,
                    top: top + n * (high + gap),
                    height: high,
                    x: [-0.5, WORDS.length - 0.5],
                    y: ends[n],
                    ...how,
                }),
                rows,
            }));
            const [{ X }] = plots;
            const bottom = top + 3 * high + 2 * gap;
            const behind = [FIRST, SECOND].map((word) =>
                svg("rect", {
                    x: X(word - 0.5),
                    y: top,
                    width: X(1) - X(0),
                    height: bottom + 22 - top,
                    fill: "var(--code)",
                }),
            );
            const names = WORDS.map((word, n) =>
                words(X(n), bottom + 16, word, {
                    "text-anchor": "middle",
                    fill: "var(--ink)",
                    "font-weight": n === FIRST || n === SECOND ? 700 : 400,
                }),
            );
            const named = SCHEMES.map(({ title }, n) => ({ name: title, stroke: looks[n].fill }));
            return {
                height: bottom + 24,
                parts: [
                    ...behind,
                    ...plots.flatMap(({ parts }) => parts),
                    ...plots.flatMap(bars),
                    ...names,
                    ...legend(width - right, 18, named),
                ],
                label: figure.describe(state, { weights }),
            };
        });
    },
    describe({ query }, { weights }) {
        const said = SCHEMES.map(({ name, title }, n) => {
            const both = [FIRST, SECOND].map((word) => weights[n][word].toFixed(3)).join(" and ");
            return `${name === "nope" ? "without position" : `under ${title}`} ${both}`;
        });
        return `The query is at ${query}. Weights of the first and of the second “dog”: ${said.join("; ")}.`;
    },
};

export const predict = { query: 58 };

export const question = {
    judge({ query }, { weights }) {
        const [, rope] = weights;
        if (query === OPENS) return "start";
        if (Math.abs(rope[FIRST] - rope[SECOND]) < EQUAL) return "equal";
        return rope[FIRST] > rope[SECOND] ? "right" : "nearer";
    },
    examples: { right: { query: 26 }, start: { query: OPENS }, nearer: { query: 12 }, equal: { query: 16 } },
};

/** Bars of several rows side by side, for each word. */
function bars({ rows, X, bar }) {
    const wide = (0.8 * (X(1) - X(0))) / Math.max(rows.length, 2);
    return rows.flatMap(([row, look], at) =>
        Array.from(row, (value, word) =>
            bar(X(word) + (at - rows.length / 2) * wide + 0.5, wide - 1, value, look),
        ),
    );
}
