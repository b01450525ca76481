// Which figures there are, in which view, in which order.

import { figure as allocation } from "posenc/figures/allocation.js";
import { figure as clocks } from "posenc/figures/clocks.js";
import { figure as pairLayouts } from "posenc/figures/pair-layouts.js";
import { figure as product } from "posenc/figures/product.js";
import { figure as ropeDecay } from "posenc/figures/rope-decay.js";
import { figure as scalings } from "posenc/figures/scalings.js";
import { figure as seen } from "posenc/figures/seen.js";

export const VIEWS = [
    {
        name: "rotation",
        title: "Rotation",
        about: "Queries and keys turned by their positions, pair by pair, so that their product goes by the distance.",
        figures: [clocks, pairLayouts, product, ropeDecay, allocation, scalings],
    },
    {
        name: "scores",
        title: "Scores",
        about: "What a scheme adds to the score of a query and a key, or does to it, before the softmax.",
        figures: [seen],
    },
];
