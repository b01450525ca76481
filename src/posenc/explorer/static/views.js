// Which figures there are, in which view, in which order.

import { figure as seen } from "posenc/figures/seen.js";

export const VIEWS = [
    {
        name: "scores",
        title: "Scores",
        about: "What a scheme adds to the score of a query and a key, or does to it, before the softmax.",
        figures: [seen],
    },
];
