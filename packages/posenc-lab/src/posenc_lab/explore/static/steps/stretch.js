// Step 9: RoPE's frequencies changed so that a longer text shows no new angles.

import { checkAngles, dials } from "posenc/angles.js";
import { dragged } from "posenc/drag.js";
import { element } from "posenc/elements.js";
import { trained as models } from "posenc/figures/models.js";
import { built, python, SCALINGS } from "posenc/figures/scalings.js";
import { frequencies } from "posenc/math/phases.js";
import { scaled } from "posenc/math/scalings.js";
import { count, drawing, panel, words } from "posenc/panel.js";
import { BASE, DIM, TRAINED } from "posenc/steps/longer.js";
import { svg } from "posenc/svg.js";

const [FACTOR, LEAST, MOST, LARGEST] = [4, 2, 16, 1_000_000]; // factors, and the largest base
const PER_DECADE = 50; // steps of the base
const NAMES = { none: "none: plain RoPE", linear: "position interpolation", ntk: "NTK-aware scaling", yarn: "YaRN" };
const PLAIN = frequencies(DIM, BASE);
const SLOWEST = PLAIN.length - 1;

const givenOf = (factor) => ({ factor, length: TRAINED, dim: DIM });
const scalingOf = ({ way, factor }) => (way === "none" ? null : built(way, givenOf(factor)));

export const figure = {
    name: "stretch",
    title: "A longer text, and slower pairs",
    see: `The model was trained on ${count(TRAINED)} tokens. Choose what is done to RoPE's frequencies for a longer text.`,
    defaults: { way: "none", factor: FACTOR, base: BASE },
    another: { way: "yarn", factor: 8, base: 20_000 },
    controls: [
        {
            name: "way",
            label: "scaling of the frequencies",
            kind: "choice",
            choices: Object.entries(NAMES).map(([value, name]) => ({ value, name })),
        },
        { name: "factor", label: "times the trained length", kind: "range", min: LEAST, max: MOST },
        { name: "base", label: "base", kind: "range", min: BASE, max: LARGEST, log: true, step: 100 },
    ],
    values({ way, factor: times, base }) {
        const tokens = times * TRAINED;
        const own = frequencies(DIM, base);
        const { theta, factor } = scaled(scalingOf({ way, factor: times }), own, tokens);
        const made = (distance, of) => of.map((x) => (distance * x) / (2 * Math.PI));
        const [trained, turns] = [made(TRAINED - 1, PLAIN), made(tokens - 1, theta)];
        const by = (of) => PLAIN.map((x, k) => x / of[k]);
        return {
            ...{ tokens, theta, factor, trained, turns },
            next: made(1, theta),
            divided: by(theta),
            byBase: by(own),
            fresh: trained.filter((x, k) => x < 1 && turns[k] > x * (1 + 1e-3)).length, // but for one token of 2,048
            kept: PLAIN.filter((x, k) => theta[k] === x).length,
        };
    },
    line: ({ way, factor, base }) =>
        (way === "none" ? "" : `scaling = ${python(way, givenOf(factor))}\n`) +
        `rope = posenc.RoPE(${DIM}, base=${base}${way === "none" ? "" : ", scaling=scaling"})\nrope.frequencies()[0][0]`,
    compared: (state, { theta }) => ({ shape: [DIM / 2], data: theta }),
    check(state, { tokens, theta, factor }, app) {
        const position = tokens - 1;
        const scaling = state.way === "none" ? null : { ...scalingOf(state), kind: SCALINGS[state.way].of };
        const angles = theta.map((x) => x * position);
        return checkAngles({ dim: DIM, base: state.base, scaling, position, angles, factor }, app);
    },
    mount(box, app) {
        const clocks = dials(box, app);
        const plot = drawing(box, (width, ...given) => ({
            height: 190,
            parts: dividing(width, ...given, app),
            label: "by what each pair is divided",
        }));
        const said = element("p", { class: "ends" });
        app.beneath().append(said);
        return (state, numbers) => {
            const { turns, trained, next, divided, fresh, kept, factor } = numbers;
            clocks(
                `${NAMES[state.way]}: pairs kept: ${kept} of ${DIM / 2}, beyond the angles of training: ${fresh}`,
                Array.from(trained, (most, k) => ({
                    trained: most,
                    turns: turns[k],
                    next: next[k],
                    words: divided[k] === 1 ? "kept" : `÷ ${divided[k].toFixed(2)}`,
                })),
            );
            plot(state, numbers);
            said.textContent =
                `The dot is where a pair stands one token later: ${(360 * next[0]).toFixed(0)}° for pair 0. ` +
                `Beyond the angles of training: ${fresh} of ${DIM / 2} pairs; turning as they did: ${kept}.` +
                (factor === 1
                    ? ""
                    : ` Cos and sin are multiplied by ${factor.toFixed(3)}, ` +
                      `so every score by ${(factor * factor).toFixed(2)}.`);
        };
    },
    pictured: ["said"],
    describe: ({ way }, { tokens, divided, fresh, kept }) =>
        `${NAMES[way]}: the fastest pair is divided by ${divided[0].toFixed(2)}, ` +
        `the slowest by ${divided.at(-1).toFixed(2)}; of ${DIM / 2} pairs, ` +
        `${kept} kept and ${fresh} beyond the angles of training in a text of ${count(tokens)} tokens.`,
};

/** By what the frequency of each pair is divided. The level of the factor is dragged, and the end of what the base does. */
function dividing(width, { factor, base }, { divided, byBase }, app) {
    const { palette } = app.theme();
    const { parts, X, Y, at, path, dots } = panel({
        ...{ left: 38, top: 20, width: width - 52, height: 132, x: [0, SLOWEST], y: [0, 10] },
        title: "frequency divided by",
        xTicks: Array.from(PLAIN, (_, k) => k),
        yTicks: [0, 2, 4, 6, 8, 10],
        yWords: (power) => String(2 ** power),
        xLabel: "pair of channels",
    });
    const logs = (all) => all.map((x) => Math.log2(x));
    const own = { stroke: palette[2], "data-part": "divided" };
    const level = { x1: X(0), x2: X(SLOWEST), y1: Y(Math.log2(factor)), y2: Y(Math.log2(factor)), "data-part": "factor" };
    const end = { cx: X(SLOWEST), cy: Y(Math.log2(byBase[SLOWEST])), "data-part": "base" };
    const setFactor = { now: () => factor, min: LEAST, max: MOST, set: (to) => app.move("factor", to) };
    const steps = (times) => PER_DECADE * Math.log10(times);
    const setBase = { now: () => Math.round(steps(base / BASE)), min: 0, max: steps(LARGEST / BASE) };
    const baseAt = (n) => Number((BASE * 10 ** (n / PER_DECADE)).toPrecision(3));
    // The slowest pair is divided by (base / 10,000)^(2 SLOWEST / DIM).
    const placeOfBase = (x, y) => steps(2 ** ((at(x, y)[1] * DIM) / (2 * SLOWEST)));
    return [
        ...parts,
        svg("line", { ...level, stroke: "var(--ink)", "stroke-dasharray": "6 4" }),
        words(X(0) + 6, Y(Math.log2(factor)) - 5, `factor ${factor}`, { fill: "var(--ink)", "data-part": "factor" }),
        path(logs(byBase), { stroke: palette[1], "stroke-width": 1.2, "data-part": "base" }),
        path(logs(divided), own),
        ...dots(logs(divided), own.stroke, 3),
        svg("circle", { ...end, r: 5, fill: palette[1] }),
        words(end.cx - 10, end.cy - 6, `base ${count(base)}`, { "text-anchor": "end", fill: "var(--ink)", "data-part": "base" }),
        svg("line", { ...level, stroke: "transparent", "stroke-width": 14, ...dragged({ ...setFactor, place: (x, y) => 2 ** at(x, y)[1] }) }),
        svg("circle", { ...end, r: 14, fill: "transparent", ...dragged({ ...setBase, place: placeOfBase, set: (n) => app.move("base", baseAt(n)) }) }),
    ];
}

export const trained = models("stretch", {}, {
    title: "YaRN on a trained model",
    see: "Put YaRN on the RoPE that was trained on 128 bytes, without any more training.",
    asked: ["yarn", "text"],
    parts: ["loss", "table"],
});

export const predict = { way: "linear" };

export const question = {
    judge({ way, factor, base }, { fresh }) {
        if (factor !== FACTOR || base !== BASE) return "moved";
        if (way === "none") return "none";
        if (way === "linear") return "neighbours";
        return fresh ? "ends" : "right";
    },
    examples: {
        right: { way: "yarn" },
        none: { way: "none" },
        moved: { way: "yarn", factor: 8 },
        neighbours: { way: "linear" },
        ends: { way: "ntk" },
    },
};
