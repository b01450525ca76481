// Step 3: the pairs of a sinusoidal vector as clocks. M_k turns those of every position by the same angles.

import { dragged, turnedTo } from "posenc/drag.js";
import { element, row } from "posenc/elements.js";
import { Sinusoidal } from "posenc/math/add.js";
import { Matrix, dot } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, askTable } from "posenc/options.js";
import { svg } from "posenc/svg.js";
import { ordered } from "posenc/theme.js";

const [DIM, BASE, MOST] = [8, 100, 32];
const FROM = [2, 9, 30]; // positions
const OPTIONS = { dim: DIM, base: BASE, layout: "interleaved", axes: 1 };
const scheme = new Sinusoidal(OPTIONS);
const TURN = 2 * Math.PI;
const NEAR = 0.1; // of a turn: the hands seem to cover each other

/** M with P[p + k] = M P[p]: the sine and the cosine of each frequency, side by side, are turned by k theta. */
function rotation(k) {
    const M = new Matrix(DIM, DIM);
    scheme.theta.forEach((theta, n) => {
        const [sin, cos] = [2 * n, 2 * n + 1];
        M.row(sin)[sin] = M.row(cos)[cos] = Math.cos(k * theta);
        M.row(sin)[cos] = Math.sin(k * theta);
        M.row(cos)[sin] = -Math.sin(k * theta);
    });
    return M;
}

const turnsOf = (k) => Array.from(scheme.theta, (theta) => (k * theta) / TURN);

export const figure = {
    name: "clockwork",
    title: "Four clocks at three positions, turned by Mₖ",
    see: "A row for each position p, a column for each speed θ. The thin hand is at p, the thick hand at p + k.",
    defaults: { k: 3 },
    another: { k: 19 },
    controls: [{ name: "k", label: "positions to go on: k =", kind: "range", min: 0, max: MOST }],
    /** The vectors at p, and what M_k makes of them. */
    values({ k }) {
        const M = rotation(k);
        const before = scheme.table(new Positions(FROM));
        const after = Matrix.of(FROM.length, DIM, (row, c) => dot(M.row(c), before.row(row)));
        return { M, before, after, turns: turnsOf(k) };
    },
    line: ({ k }) =>
        `scheme = posenc.Sinusoidal(${DIM}, base=${BASE})\n` +
        `P = scheme.table(posenc.Positions.arange(${MOST}), torch.float64)[0]\n` +
        `P[[${FROM.join(", ")}]] @ scheme.linear_map([${k}]).T  # the vectors at ${FROM.map((p) => p + k).join(", ")}`,
    compared: (state, { after }) => ({ shape: [FROM.length, DIM], data: after.data }),
    async check({ k }, { after }, app) {
        const positions = new Positions(FROM.map((p) => p + k));
        const theirs = await askTable(app, { name: "sinusoidal", options: OPTIONS }, positions);
        return agreed(after.data.length, apart(after.data, theirs));
    },
    mount(box, app) {
        const names = FROM.map((p) => element("span", { "data-part": "position" }, `p = ${p}`));
        let last = 0; // k
        /** The thick hand is dragged: k is the angle from the thin one, divided by the speed. */
        const turning = (p, theta) =>
            dragged({
                ...{ now: () => last, min: 0, max: MOST, set: (k) => app.move("k", k) },
                place: (x, y, k) => turnedTo(Math.atan2(-y, x) - p * theta, theta, k),
            });
        const clocks = FROM.map((p) =>
            Array.from(scheme.theta, (theta, pair) => clock(ordered(app.theme(), pair, 4), turning(p, theta))),
        );
        const cells = (part) => Array.from(scheme.theta, () => element("span", { "data-part": part }));
        const [turned, blocks, speeds] = ["turn", "matrix", "theta"].map(cells);
        scheme.theta.forEach((theta, pair) => (speeds[pair].textContent = `θ = ${Number(theta.toPrecision(2))}`));
        box.append(
            element(
                "table",
                { class: "clockwork" },
                element("thead", {}, row("speed", speeds, "th")),
                element("tbody", {}, ...FROM.map((p, n) => row(names[n], clocks[n].map((one) => one.box)))),
                element("tfoot", {}, row("turns", turned), row("Mₖ", blocks)),
            ),
        );
        return ({ k }, { M, before, after, turns }) => {
            last = k;
            FROM.forEach((p, n) => {
                names[n].replaceChildren(`p = ${p}`, element("br"), `→ ${p + k}`);
                clocks[n].forEach((one, pair) => one.draw(before.row(n), after.row(n), pair, turns[pair]));
            });
            turns.forEach((turn, pair) => {
                turned[pair].textContent = turn.toFixed(2);
                const [a, b] = M.row(2 * pair).slice(2 * pair, 2 * pair + 2).map((x) => Number(x.toFixed(2)));
                const rows = [[a, b], [-b, a]].map((one) => one.map(signed).join("\u2002"));
                blocks[pair].replaceChildren(rows[0], element("br"), rows[1]);
            });
        };
    },
    pictured: ["said"],
    describe: ({ k }, { turns }) =>
        `M of ${k} turns the four clocks by ${turns.map((turn) => turn.toFixed(2)).join(", ")} turns, ` +
        `at every position: it takes ${FROM.map((p) => `${p} to ${p + k}`).join(", ")}.`,
};

const signed = (x) => `${x < 0 ? "−" : "\u2007"}${Math.abs(x).toFixed(2)}`;

/** One clock: {box, draw}. The sector between the hands is what M_k has turned. */
function clock(color, handle) {
    const R = 22;
    const hand = (width, part) =>
        svg("line", { stroke: color, "stroke-width": width, "stroke-linecap": "round", "data-part": part });
    const sector = svg("path", { fill: color, "fill-opacity": 0.3, "data-part": "turn" });
    const [thin, thick] = [hand(1.5, "position"), hand(3.5, "k")];
    const tip = svg("circle", { r: 3.5, fill: color, "data-part": "k" });
    const grip = svg("circle", { r: 10, fill: "transparent", "data-part": "k", ...handle });
    const rim = svg("circle", { r: R, fill: color, stroke: "var(--faint)" });
    const made = svg("svg", { viewBox: "-26 -26 52 52", "aria-hidden": "true" }, rim, sector, thin, thick, tip, grip);
    // The cosine goes to the right and the sine up; y runs down on the screen.
    const place = (vector, pair, r) => [r * vector[2 * pair + 1], -r * vector[2 * pair]];
    return {
        box: made,
        draw(before, after, pair, turns) {
            const [from, to] = [before, after].map((vector) => place(vector, pair, R));
            // Whole turns fill the clock, and what is left of one is a sector.
            rim.setAttribute("fill-opacity", turns >= 1 ? 0.15 : 0);
            sector.setAttribute(
                "d",
                `M0 0L${from.join(" ")}A${R} ${R} 0 ${Number(turns % 1 > 0.5)} 0 ${to.join(" ")}Z`,
            );
            [thin, thick].forEach((one, n) => {
                const [x, y] = place(n ? after : before, pair, n ? R - 4 : R);
                one.setAttribute("x2", x);
                one.setAttribute("y2", y);
            });
            const [cx, cy] = place(after, pair, R - 4);
            for (const one of [tip, grip]) for (const [key, to] of [["cx", cx], ["cy", cy]]) one.setAttribute(key, to);
        },
    };
}

export const predict = { k: 6 };

export const question = {
    judge(state, { turns: [first] }) {
        const whole = Math.round(first);
        if (Math.abs(first - whole) > NEAR) return "between";
        return whole === 3 ? "right" : "other-turns";
    },
    examples: { right: { k: 19 }, "other-turns": { k: 6 }, between: { k: 3 } },
};
