// Side path of step 1: which trained model notices another order of the words.

import { figure as models, SHORT } from "posenc/figures/models.js";

const { defaults } = models;
export const figure = { ...models, name: "shuffle", picks: true, defaults: { ...defaults, text: SHORT, byte: 60 } };

export const predict = { shuffle: 1 };

export const question = {
    judge({ shuffle, model }, { models }) {
        if (!shuffle) return "typed";
        const [least] = [...models].sort((a, b) => a.shuffling - b.shuffling);
        return model === least.name ? "right" : "other";
    },
    examples: { right: { shuffle: 1, model: "nope" }, typed: {}, other: { shuffle: 1, model: "t5" } },
};
