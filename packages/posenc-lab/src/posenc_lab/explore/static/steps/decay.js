// Side path of step 5: the bound on RoPE's score falls with distance, scores need not.

import { figure as ropeDecay } from "posenc/figures/rope-decay.js";

export const figure = { ...ropeDecay, name: "decay", defaults: { ...ropeDecay.defaults, peak: 0, length: 256 } };

/** Where the score is highest. */
const highest = ({ built }) => built.indexOf(Math.max(...built));

export const predict = { peak: 60 };

export const question = {
    judge(_, numbers) {
        const at = highest(numbers);
        if (at >= 200) return "right";
        return at ? "near" : "start";
    },
    examples: { right: { peak: 220 }, near: { peak: 60 }, start: { peak: 0 } },
};
