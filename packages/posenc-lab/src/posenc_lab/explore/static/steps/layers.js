// Side path of step 9: the layers of published models.

import { figure as schedule } from "posenc/figures/schedule.js";

export const figure = { ...schedule, name: "layers", isTall: true, defaults: { family: "llama4", layer: 0, query: 20000 } };

export const predict = { family: "gemma3", layer: 0 };

export const question = {
    judge({ family, layer, query }, { layers, kinds }) {
        if (family !== "llama4") return "family";
        const [first, last] = kinds[layers[layer]].seen;
        if (query !== 20000) return "query";
        return first === 0 && last === query ? "right" : "chunk";
    },
    examples: {
        right: { layer: 7 },
        chunk: { layer: 8 },
        query: { layer: 7, query: 5000 },
        family: { family: "gemma3", layer: 5 },
    },
};
