// Which figures there are, in which view, in which order.

import { figure as predictChannel } from "posenc/figures/predict-channel.js";
import { figure as predictFar } from "posenc/figures/predict-far.js";
import { figure as predictOrder } from "posenc/figures/predict-order.js";
import { figure as seen } from "posenc/figures/seen.js";
import { figure as sentence } from "posenc/figures/sentence.js";

export const VIEWS = [
    {
        name: "scores",
        title: "Scores",
        about: "What a scheme adds to the score of a query and a key, or does to it, before the softmax.",
        figures: [seen],
    },
    {
        name: "sentence",
        title: "Sentence",
        about: "Attention between the words of a sentence, with a scheme and without one, and three questions to answer before the picture is shown.",
        figures: [sentence, predictChannel, predictFar, predictOrder],
    },
];
