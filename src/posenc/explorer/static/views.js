// Which figures there are, in which view, in which order.

import { figure as laws } from "posenc/figures/laws.js";
import { figure as lengthCost } from "posenc/figures/length-cost.js";
import { figure as lengthCurves } from "posenc/figures/length-curves.js";
import { figure as seen } from "posenc/figures/seen.js";
import { figure as which } from "posenc/figures/which.js";

export const VIEWS = [
    {
        name: "scores",
        title: "Scores",
        about: "What a scheme adds to the score of a query and a key, or does to it, before the softmax.",
        figures: [seen],
    },
    {
        name: "length",
        title: "Length",
        about: "What models do past the length that they were trained at: curves of your own records, measured by posenc compare and posenc extend.",
        figures: [lengthCurves, lengthCost],
    },
    {
        name: "laws",
        title: "Laws",
        about: "What each scheme's mathematics does, whatever the training; and which scheme fits what you need.",
        figures: [which, laws],
    },
];
