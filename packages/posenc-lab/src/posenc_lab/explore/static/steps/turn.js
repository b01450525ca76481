// Step 5: RoPE turns q and k by their positions. What meets in the score is the angle between them.
// Two controls, where other steps have one: that both arrows turn and the angle between them stays is seen only by
// moving both.

import { repeated } from "posenc/fixed.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { randn, randnPython } from "posenc/math/special.js";
import { agreed, apart, arrayOf } from "posenc/options.js";
import { drawing, panel, shown, words } from "posenc/panel.js";
import { svg } from "posenc/svg.js";

const [DIM, PAIR, LAST, SEED] = [16, 2, 110, 4310]; // the pair of the arrows turns by base^(-2 PAIR / DIM) = 0.1 a token
const PAIRS = DIM / 2;
const ROPE = new RoPE({ head_dim: DIM, base: 10000 });
const vectors = randn(2 * DIM, SEED);
const one = (n) => new Heads(1, 1, DIM, vectors.slice(n * DIM, (n + 1) * DIM));
const [Q, K] = [one(0), one(1)];
const OPENS = { query: 7, key: 3 };
const FAR = 50; // the question wants the query past it
const NEAR = 0.1; // scores that one may take for the same

const at = (position) => new Positions([position]);
const score = (query, key) => logits(ROPE, Q, K, { positions: at(query), keyPositions: at(key) }).data[0];

const queries = repeated(LAST + 1, Q.data);
/** The score at the distances 0 .. LAST. */
const curve = logits(ROPE, queries, K, { positions: Positions.arange(LAST + 1), keyPositions: at(0) }).data;

function values({ query, key }) {
    const { q, k } = ROPE.rotate(Q, K, at(query), at(key), { length: 0 });
    const pair = ({ data }, n) => [data[n], data[n + PAIRS]];
    const products = Array.from({ length: PAIRS }, (_, n) => {
        const [[a, b], [c, d]] = [pair(q, n), pair(k, n)];
        return (a * c + b * d) / Math.sqrt(DIM);
    });
    const arrows = { q: pair(q, PAIR), k: pair(k, PAIR) };
    const angle = ([x, y]) => Math.atan2(y, x);
    const between = Math.acos(Math.cos(angle(arrows.q) - angle(arrows.k)));
    return { arrows, between, products, score: score(query, key), curve };
}

const degrees = (angle) => `${Math.round((angle * 180) / Math.PI)}°`;
const turned = (position) => degrees(position * ROPE.frequencies().theta[PAIR]);

export const figure = {
    name: "turn",
    title: "Both arrows turn, the angle between them stays",
    see: "Move both positions by the same number of tokens: each arrow turns, and the score stays.",
    defaults: OPENS,
    another: { query: 91, key: 20 },
    controls: [
        { name: "query", label: "position of q", kind: "range", min: 0, max: LAST, step: 1 },
        { name: "key", label: "position of k", kind: "range", min: 0, max: LAST, step: 1 },
    ],
    // A query sees no key behind itself, so the one that is moved pushes the other along.
    change: (state, name, value) => ({
        query: name === "key" ? Math.max(state.query, value) : value,
        key: name === "query" ? Math.min(state.key, value) : value,
    }),
    values,
    line: ({ query, key }) =>
        `x = ${randnPython([2, DIM], SEED)}\n` +
        `q, k = x[:, None, None, None].expand(2, 1, 1, ${LAST + 1}, ${DIM})\n` +
        `scores = posenc.logits(q, k, posenc.RoPE(${DIM}))[0, 0]  # all positions\n` +
        `torch.cat((scores[${query}, ${key}:${key + 1}], scores[:, 0]))  # this one, all distances`,
    compared(state) {
        const data = Float64Array.of(score(state.query, state.key), ...curve);
        return { shape: [data.length], data };
    },
    async check({ query, key }, numbers, app) {
        const said = await app.ask("attention", {
            schemes: [{ name: "rope", options: { head_dim: DIM } }],
            query: arrayOf(Q),
            key: arrayOf(K),
            value: arrayOf(K),
            positions: [[query]],
            key_positions: [[key]],
        });
        return agreed(1, apart([numbers.score], said.logits.data));
    },
    mount(box, app) {
        return drawing(box, (width, state, numbers) => {
            const side = width < 480 ? 150 : 174;
            const top = 24; // of the first row
            const below = top + side + 66;
            const height = below + 100 + 34;
            return {
                height,
                parts: [
                    ...arrowsIn(app.theme(), { left: 0, top, side }, state, numbers),
                    ...barsIn(app.theme(), { left: side + 36, top, width: width - side - 40, height: side }, numbers),
                    ...curveIn(
                        app.theme(),
                        { left: 30, top: below, width: width - 40, height: height - below - 34 },
                        state,
                        numbers,
                    ),
                ],
                label: figure.describe(state, numbers),
            };
        });
    },
    pictured: ["said"],
    describe: ({ query, key }, { between, score: sum }) =>
        `q at position ${query} is turned by ${turned(query)} in this pair, k at ${key} by ${turned(key)}; ` +
        `between them are ${degrees(between)}. Over all ${PAIRS} pairs the score is ${shown(sum, 2)}, ` +
        `at a distance of ${query - key}.`,
};

export const predict = { query: 27, key: 23 };

export const question = {
    judge({ query, key }) {
        const isNear = Math.abs(curve[query - key] - curve[OPENS.query - OPENS.key]) < NEAR;
        if (query <= FAR) return "still";
        if (query - key === OPENS.query - OPENS.key) return "right";
        if (key === OPENS.key) return "one";
        return isNear ? "chance" : "apart";
    },
    examples: {
        right: { query: 60, key: 56 },
        still: OPENS,
        one: { query: 60, key: OPENS.key },
        apart: { query: 60, key: 30 },
        chance: { query: 60, key: 51 },
    },
};

/** The arrows of one pair of channels, as they stand at their positions, and thin as they are at position 0. */
function arrowsIn({ palette }, { left, top, side }, { query, key }, { arrows, between }) {
    const [x, y, radius] = [left + side / 2, top + side / 2, side / 2 - 8];
    const start = { q: [Q.data[PAIR], Q.data[PAIR + PAIRS]], k: [K.data[PAIR], K.data[PAIR + PAIRS]] };
    const longest = Math.max(...Object.values(start).map((arrow) => Math.hypot(...arrow)));
    const tip = ([a, b], scale = radius / longest) => [x + a * scale, y - b * scale]; // up is positive
    const color = { q: palette[0], k: palette[1] };
    const arrow = (name, vector, look) => {
        const [to, angle] = [tip(vector), Math.atan2(-vector[1], vector[0])];
        const barb = (by) => [to[0] - 10 * Math.cos(angle + by), to[1] - 10 * Math.sin(angle + by)].join();
        return [
            svg("line", { x1: x, y1: y, x2: to[0], y2: to[1], stroke: color[name], "stroke-width": 3, ...look }),
            ...(look ? [] : [svg("path", { d: `M${barb(0.45)} L${to} L${barb(-0.45)}`, fill: color[name] })]),
        ];
    };
    const isLeft = arrows.k[0] * arrows.q[1] - arrows.k[1] * arrows.q[0] > 0; // from k to q against the clock
    const name = (which) => {
        const [a, b] = arrows[which];
        const [px, py] = tip([a, b], (radius / longest) * 0.62);
        const turn = Math.atan2(-b, a);
        const off = isLeft === (which === "q") ? -12 : 12; // on the side away from the other arrow
        const [dx, dy] = [-off * Math.sin(turn), off * Math.cos(turn)];
        return words(px + dx, py + dy + 4, which, {
            fill: color[which],
            "font-size": 15,
            "font-weight": 700,
            "text-anchor": "middle",
        });
    };
    const near = 0.35 * radius;
    const along = (vector) => tip(vector, near / Math.hypot(...vector));
    const arc = `M${along(arrows.k)} A${near} ${near} 0 0 ${isLeft ? 0 : 1} ${along(arrows.q)}`;
    const angles = `q turned by ${turned(query)}, k by ${turned(key)}; between them ${degrees(between)}`;
    return [
        words(left, top - 6, `pair ${PAIR} of channels`, { fill: "var(--ink)" }),
        svg("circle", { cx: x, cy: y, r: radius, fill: "none", stroke: "var(--rule)" }),
        ...Object.entries(start).flatMap(([which, vector]) =>
            arrow(which, vector, { "stroke-width": 1, "stroke-dasharray": "3 3" }),
        ),
        svg("path", { d: arc, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }),
        ...["q", "k"].flatMap((which) => [...arrow(which, arrows[which]), name(which)]),
        words(left, top + side + 34, angles, { fill: "var(--ink)" }),
    ];
}

/** By pair, the most that it can give: the product of its two lengths. */
const lengths = Array.from(
    { length: PAIRS },
    (_, n) =>
        (Math.hypot(Q.data[n], Q.data[n + PAIRS]) * Math.hypot(K.data[n], K.data[n + PAIRS])) / Math.sqrt(DIM),
);

/** What each pair of channels gives to the score. */
function barsIn({ palette }, place, { products, score: sum }) {
    const most = Math.max(...lengths);
    const { parts, X, bar } = panel({
        ...place,
        x: [-0.5, PAIRS - 0.5],
        y: [-most, most],
        title: `what each pair gives: the sum is ${shown(sum, 2)}`,
        xTicks: Array.from({ length: PAIRS }, (_, n) => n),
        yTicks: [-1, 0, 1].filter((value) => Math.abs(value) <= most),
    });
    const width = 0.7 * (X(1) - X(0));
    const fill = (n) => (n === PAIR ? "var(--ink)" : palette[2]);
    return [...parts, ...products.map((product, n) => bar(X(n) - width / 2, width, product, fill(n)))];
}

function curveIn({ palette }, place, { query, key }, numbers) {
    const [low, high] = [Math.min(...curve), Math.max(...curve)];
    const { parts, X, Y, path } = panel({
        ...place,
        x: [0, LAST],
        y: [Math.floor(low), Math.ceil(high)],
        title: "score by distance",
        xTicks: [0, 20, 40, 60, 80, 100],
        yTicks: Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, n) => Math.floor(low) + n),
        xLabel: "position of q − position of k (tokens)",
    });
    return [
        ...parts,
        path(curve, { stroke: palette[2] }),
        svg("circle", { cx: X(query - key), cy: Y(numbers.score), r: 5, fill: "var(--ink)" }),
    ];
}
