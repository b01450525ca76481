// Which figures there are, in which view, in which order.

import { figure as allocation } from "posenc/figures/allocation.js";
import { figure as biasByDistance } from "posenc/figures/bias-by-distance.js";
import { figure as clocks } from "posenc/figures/clocks.js";
import { figure as distanceAware } from "posenc/figures/distance-aware.js";
import { figure as fox } from "posenc/figures/fox.js";
import { figure as pairLayouts } from "posenc/figures/pair-layouts.js";
import { figure as predictChannel } from "posenc/figures/predict-channel.js";
import { figure as predictFar } from "posenc/figures/predict-far.js";
import { figure as predictOrder } from "posenc/figures/predict-order.js";
import { figure as product } from "posenc/figures/product.js";
import { figure as relative2d } from "posenc/figures/relative-2d.js";
import { figure as ropeDecay } from "posenc/figures/rope-decay.js";
import { figure as scalings } from "posenc/figures/scalings.js";
import { figure as scheme } from "posenc/figures/scheme.js";
import { figure as seen } from "posenc/figures/seen.js";
import { figure as sentence } from "posenc/figures/sentence.js";
import { figure as transformerXL } from "posenc/figures/transformer-xl.js";
import { figure as windows } from "posenc/figures/windows.js";

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
        figures: [scheme, biasByDistance, windows, transformerXL, distanceAware, relative2d, fox, seen],
    },
    {
        name: "sentence",
        title: "Sentence",
        about: "What the words of a sentence attend to, with a scheme and without one; then three questions, asked first.",
        figures: [sentence, predictChannel, predictFar, predictOrder],
    },
];
