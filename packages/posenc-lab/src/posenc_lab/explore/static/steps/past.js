// Side path of step 8: trained models past the length of their training.

import { figure as models } from "posenc/figures/models.js";

export const figure = { ...models, name: "past" };

export const predict = { text: "The first thing we do, let's kill all the lawyers. ".repeat(6) };

export const question = {
    judge({ yarn }, { models, bytes, length }) {
        if (bytes.length < 2 * length) return "short";
        if (!yarn) return "plain";
        const [nope, scaled] = [models.find(({ name }) => name === "nope"), models.find(({ scaling }) => scaling)];
        return scaled.outside < nope.outside ? "right" : "still";
    },
    examples: { right: { yarn: true, model: "yarn" }, short: { text: "Who's there?" }, plain: {}, still: { yarn: true, text: "the ".repeat(80) } },
};
