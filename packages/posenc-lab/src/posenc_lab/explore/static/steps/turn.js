// Step 5: RoPE turns q and k by their positions. What meets in the score is the angle between them.
// Two positions are moved, since only so one sees that both arrows turn and the angle between them stays.

import { dragged, turnedTo } from "posenc/drag.js";
import { repeated } from "posenc/fixed.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { randn, randnPython } from "posenc/math/special.js";
import { agreed, apart, askAttention } from "posenc/options.js";
import { drawing, panel, shown, words } from "posenc/panel.js";
import { svg } from "posenc/svg.js";

const [DIM, LAST, SEED] = [16, 110, 4310];
const PAIRS = DIM / 2;
const ROPE = new RoPE({ head_dim: DIM, base: 10000 });
const vectors = randn(2 * DIM, SEED);
const one = (n) => new Heads(1, 1, DIM, vectors.slice(n * DIM, (n + 1) * DIM));
const [Q, K] = [one(0), one(1)];
const OPENS = { query: 7, key: 3, pair: 2 }; // which turns by base^(-4 / DIM) = 0.1 a token
const FAR = 50; // the question wants the query past it
const NEAR = 0.1; // scores that one may take for the same

const at = (position) => new Positions([position]);
const score = (query, key) => logits(ROPE, Q, K, { positions: at(query), keyPositions: at(key) }).data[0];

const queries = repeated(LAST + 1, Q.data);
const THETA = ROPE.frequencies().theta;
/** The score at the distances 0 .. LAST. */
const curve = logits(ROPE, queries, K, { positions: Positions.arange(LAST + 1), keyPositions: at(0) }).data;

function values({ query, key, pair: shown }) {
    const { q, k } = ROPE.rotate(Q, K, at(query), at(key), { length: 0 });
    const pair = ({ data }, n) => [data[n], data[n + PAIRS]];
    const products = Array.from({ length: PAIRS }, (_, n) => {
        const [[a, b], [c, d]] = [pair(q, n), pair(k, n)];
        return (a * c + b * d) / Math.sqrt(DIM);
    });
    const arrows = { query: pair(q, shown), key: pair(k, shown) };
    const angle = ([x, y]) => Math.atan2(y, x);
    const between = Math.acos(Math.cos(angle(arrows.query) - angle(arrows.key)));
    return { arrows, between, products, score: score(query, key), curve };
}

const degrees = (angle) => `${Math.round((angle * 180) / Math.PI)}°`;
const turned = (position, pair) => degrees(position * THETA[pair]);

export const figure = {
    name: "turn",
    title: "Both arrows turn, the angle between them stays",
    see: "Drag both arrows by the same number of tokens: each turns, and the score stays. Click a bar for its pair.",
    defaults: OPENS,
    another: { query: 91, key: 20, pair: 4 },
    controls: [
        { name: "query", label: "position of q", kind: "range", min: 0, max: LAST, step: 1 },
        { name: "key", label: "position of k", kind: "range", min: 0, max: LAST, step: 1 },
        { name: "pair", label: "pair of channels", kind: "range", min: 0, max: PAIRS - 1, step: 1 },
    ],
    // A query sees no key behind itself, so the one that is moved pushes the other along.
    change: (state, name, value) => ({
        ...{ ...state, [name]: value },
        ...(name === "key" && { query: Math.max(state.query, value) }),
        ...(name === "query" && { key: Math.min(state.key, value) }),
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
        const where = { positions: at(query), keyPositions: at(key) };
        const said = await askAttention(app, [{ name: "rope", options: { head_dim: DIM } }], [Q, K], where);
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
                    ...arrowsIn(app, { left: 0, top, side, right: width - 4 }, state, numbers),
                    ...barsIn(app, { left: side + 36, top, width: width - side - 40, height: side }, state, numbers),
                    ...curveIn(
                        app,
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
    describe: ({ query, key, pair }, { between, score: sum }) =>
        `q at position ${query} is turned by ${turned(query, pair)} in pair ${pair}, k at ${key} by ${turned(key, pair)}; ` +
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
        one: { ...OPENS, query: 60 },
        apart: { query: 60, key: 30 },
        chance: { query: 60, key: 51 },
    },
};

/** The arrows of one pair of channels, as they stand at their positions, and thin as they are at position 0. */
function arrowsIn(app, { left, top, side, right }, state, { arrows, between }) {
    const { query, key, pair } = state;
    const { palette } = app.theme();
    const [x, y, radius] = [left + side / 2, top + side / 2, side / 2 - 8];
    const start = { query: [Q.data[pair], Q.data[pair + PAIRS]], key: [K.data[pair], K.data[pair + PAIRS]] };
    const longest = Math.max(...Object.values(start).map((arrow) => Math.hypot(...arrow)));
    const tip = ([a, b], scale = radius / longest) => [x + a * scale, y - b * scale]; // up is positive
    const color = { query: palette[0], key: palette[1] };
    const line = (name, vector, look) => {
        const [x2, y2] = tip(vector);
        return svg("line", { x1: x, y1: y, x2, y2, stroke: color[name], "data-part": name, ...look });
    };
    const arrow = (name) => {
        const [to, angle] = [tip(arrows[name]), Math.atan2(-arrows[name][1], arrows[name][0])];
        const barb = (by) => [to[0] - 10 * Math.cos(angle + by), to[1] - 10 * Math.sin(angle + by)].join();
        const d = `M${barb(0.45)} L${to} L${barb(-0.45)}`;
        return [line(name, arrows[name], { "stroke-width": 3 }), svg("path", { d, fill: color[name], "data-part": name })];
    };
    /** What is dragged: the position is the angle from the thin arrow, divided by the speed. */
    const handle = (name) => {
        const at = (px, py, last) => turnedTo(Math.atan2(y - py, px - x) - Math.atan2(start[name][1], start[name][0]), THETA[pair], last);
        const drag = { now: () => state[name], min: 0, max: LAST, place: at, set: (to) => app.move(name, to) };
        return line(name, arrows[name], { stroke: "transparent", "stroke-width": 22, ...dragged(drag) });
    };
    const isLeft = arrows.key[0] * arrows.query[1] - arrows.key[1] * arrows.query[0] > 0; // from k to q against the clock
    const name = (which) => {
        const [a, b] = arrows[which];
        const [px, py] = tip([a, b], (radius / longest) * 0.62);
        const turn = Math.atan2(-b, a);
        const off = isLeft === (which === "query") ? -12 : 12; // on the side away from the other arrow
        const [dx, dy] = [-off * Math.sin(turn), off * Math.cos(turn)];
        const look = { fill: color[which], "font-size": 15, "font-weight": 700, "text-anchor": "middle", "data-part": which };
        return words(px + dx, py + dy + 4, which[0], look);
    };
    const near = 0.35 * radius;
    const along = (vector) => tip(vector, near / Math.hypot(...vector));
    const arc = `M${along(arrows.key)} A${near} ${near} 0 0 ${isLeft ? 0 : 1} ${along(arrows.query)}`;
    /** What the position has turned, but for whole turns. */
    const turn = (which, far) => {
        const [from, to] = [start[which], arrows[which]].map((vector) => tip(vector, far / Math.hypot(...vector)));
        const isLong = (state[which] * THETA[pair]) % (2 * Math.PI) > Math.PI ? 1 : 0;
        const d = `M${from} A${far} ${far} 0 ${isLong} 0 ${to}`;
        return svg("path", { d, fill: "none", stroke: color[which], "stroke-width": 1.5, "data-part": "theta" });
    };
    const both = ["query", "key"];
    const said = { turned: `q turned by ${turned(query, pair)}, k by ${turned(key, pair)}`, between: `between them ${degrees(between)}` };
    return [
        words(left, top - 6, `pair ${pair} of channels`, { fill: "var(--ink)", "data-part": "pair" }),
        svg("circle", { cx: x, cy: y, r: radius, fill: "none", stroke: "var(--rule)" }),
        ...both.map((which) => line(which, start[which], { "stroke-width": 1, "stroke-dasharray": "3 3" })),
        turn("query", 0.78 * radius),
        turn("key", 0.9 * radius),
        svg("path", { d: arc, fill: "none", stroke: "var(--ink)", "stroke-width": 2, "data-part": "angle" }),
        ...both.flatMap((which) => [...arrow(which), name(which)]),
        words(left, top + side + 36, said.turned, { fill: "var(--ink)", "data-part": "theta" }),
        words(right, top + side + 36, said.between, { fill: "var(--ink)", "text-anchor": "end", "data-part": "angle" }),
        ...both.map(handle),
    ];
}

/** The most that a pair can give: the product of its two lengths. */
const length = ({ data }, n) => Math.hypot(data[n], data[n + PAIRS]);
const most = Math.max(...Array.from({ length: PAIRS }, (_, n) => length(Q, n) * length(K, n))) / Math.sqrt(DIM);

/** What each pair of channels gives to the score; the pair whose bar is clicked is drawn. */
function barsIn(app, place, { pair }, { products, score: sum }) {
    const { parts, X, bar } = panel({
        ...place,
        x: [-0.5, PAIRS - 0.5],
        y: [-most, most],
        title: `${place.width < 300 ? "by pair, the sum is" : "what each pair gives: the sum is"} ${shown(sum, 2)}`,
        xTicks: Array.from({ length: PAIRS }, (_, n) => n),
        yTicks: [-1, 0, 1].filter((value) => Math.abs(value) <= most),
    });
    const wide = X(1) - X(0);
    const [plain, chosen] = [app.theme().palette[2], "var(--ink)"].map((fill) => ({ fill, "data-part": "score" }));
    const look = (n) => (n === pair ? { ...chosen, "data-part": "pair score" } : plain);
    const column = (n) => ({ x: X(n) - wide / 2, width: wide, y: place.top, height: place.height + 20, fill: "transparent" });
    return [
        ...parts,
        ...products.map((product, n) => bar(X(n) - 0.35 * wide, 0.7 * wide, product, look(n))),
        ...products.map((_, n) => svg("rect", { ...column(n), class: "chosen-by-click", onclick: () => app.move("pair", n) })),
    ];
}

/** The score at each distance, and a dot that is dragged along it. */
function curveIn(app, place, { query, key }, numbers) {
    const [low, high] = [Math.min(...curve), Math.max(...curve)];
    const { parts, X, Y, at, path } = panel({
        ...place,
        x: [0, LAST],
        y: [Math.floor(low), Math.ceil(high)],
        title: "score by distance",
        xTicks: [0, 20, 40, 60, 80, 100],
        yTicks: Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, n) => Math.floor(low) + n),
        xLabel: "position of q − position of k (tokens)",
    });
    const set = (distance) => app.move("query", key + distance);
    const drag = { now: () => query - key, min: 0, max: LAST - key, place: (x, y) => at(x, y)[0], set };
    const dot = { cx: X(query - key), cy: Y(numbers.score), "data-part": "score" };
    return [
        ...parts,
        path(curve, { stroke: app.theme().palette[2], "data-part": "score" }),
        svg("circle", { ...dot, r: 5, fill: "var(--ink)" }),
        svg("circle", { ...dot, r: 14, fill: "transparent", ...dragged(drag) }),
    ];
}
