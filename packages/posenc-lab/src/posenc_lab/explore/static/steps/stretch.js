// Step 9: RoPE's frequencies changed so that a longer text shows no new angles.

import { checkAngles, dials } from "posenc/angles.js";
import { element } from "posenc/elements.js";
import { trained as models } from "posenc/figures/models.js";
import { built, python, SCALINGS } from "posenc/figures/scalings.js";
import { frequencies } from "posenc/math/phases.js";
import { scaled } from "posenc/math/scalings.js";
import { count } from "posenc/panel.js";
import { BASE, DIM, TRAINED } from "posenc/steps/longer.js";

const FACTOR = 4;
const TOKENS = FACTOR * TRAINED;
const GIVEN = { factor: FACTOR, length: TRAINED, dim: DIM };
const NAMES = { none: "none: plain RoPE", linear: "position interpolation", ntk: "NTK-aware scaling", yarn: "YaRN" };

const scalingOf = (way) => (way === "none" ? null : built(way, GIVEN));

export const figure = {
    name: "stretch",
    title: "Four times the trained length",
    see:
        `The model was trained on ${count(TRAINED)} tokens and reads ${count(TOKENS)}. Choose what is done to ` +
        "RoPE's frequencies.",
    defaults: { way: "none" },
    another: { way: "yarn" },
    controls: [
        {
            name: "way",
            label: "scaling of the frequencies",
            kind: "choice",
            choices: Object.entries(NAMES).map(([value, name]) => ({ value, name })),
        },
    ],
    values({ way }) {
        const plain = frequencies(DIM, BASE);
        const { theta, factor } = scaled(scalingOf(way), plain, TOKENS);
        const made = (distance, of) => of.map((x) => (distance * x) / (2 * Math.PI));
        const [trained, turns] = [made(TRAINED - 1, plain), made(TOKENS - 1, theta)];
        return {
            theta,
            factor,
            trained,
            turns,
            next: made(1, theta),
            divided: plain.map((x, k) => x / theta[k]),
            fresh: trained.filter((x, k) => x < 1 && turns[k] > x * (1 + 1e-3)).length, // but for one token of 2,048
            kept: plain.filter((x, k) => theta[k] === x).length,
        };
    },
    line: ({ way }) =>
        way === "none"
            ? `rope = posenc.RoPE(${DIM})\nrope.frequencies()[0][0]`
            : `scaling = ${python(way, GIVEN)}\nrope = posenc.RoPE(${DIM}, scaling=scaling)\nrope.frequencies()[0][0]`,
    compared: (state) => ({ shape: [DIM / 2], data: figure.values(state).theta }),
    check({ way }, { theta, factor }, app) {
        const position = TOKENS - 1;
        const scaling = way === "none" ? null : { ...scalingOf(way), kind: SCALINGS[way].of };
        const angles = theta.map((x) => x * position);
        return checkAngles({ dim: DIM, base: BASE, scaling, position, angles, factor }, app);
    },
    mount(box, app) {
        const clocks = dials(box, app);
        const said = element("p", { class: "ends" });
        box.append(element("div", { class: "wide" }, said));
        return (state, { turns, trained, next, divided, fresh, kept, factor }) => {
            clocks(
                `${NAMES[state.way]}: pairs kept: ${kept} of ${DIM / 2}, with new angles: ${fresh}`,
                Array.from(trained, (most, k) => ({
                    trained: most,
                    turns: turns[k],
                    next: next[k],
                    words: divided[k] === 1 ? "kept" : `÷ ${divided[k].toFixed(2)}`,
                })),
            );
            said.textContent =
                `The dot is where a pair stands one token later: ${(360 * next[0]).toFixed(0)}° for pair 0. ` +
                `Pairs with new angles: ${fresh} of ${DIM / 2}.` +
                (factor === 1
                    ? ""
                    : ` Cos and sin are multiplied by ${factor.toFixed(3)}, ` +
                      `so every score by ${(factor * factor).toFixed(2)}.`);
        };
    },
    pictured: ["said"],
    describe: ({ way }, { divided, fresh, kept }) =>
        `${NAMES[way]}: the fastest pair is divided by ${divided[0].toFixed(2)}, ` +
        `the slowest by ${divided.at(-1).toFixed(2)}; of ${DIM / 2} pairs, ` +
        `${kept} kept and ${fresh} with new angles in a text of ${count(TOKENS)} tokens.`,
};

export const trained = models("stretch", {}, {
    title: "YaRN on a trained model",
    see: "Put YaRN on the RoPE that was trained on 128 bytes, without any more training.",
    asked: ["yarn", "text"],
    parts: ["loss", "table"],
});

export const predict = { way: "linear" };

export const question = {
    judge({ way }, { fresh }) {
        if (way === "none") return "none";
        if (way === "linear") return "neighbours";
        return fresh ? "ends" : "right";
    },
    examples: {
        right: { way: "yarn" },
        none: { way: "none" },
        neighbours: { way: "linear" },
        ends: { way: "ntk" },
    },
};
