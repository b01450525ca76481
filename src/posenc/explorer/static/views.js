// Which figures there are, in which view, in which order.

import { figure as doors } from "posenc/figures/doors.js";
import { figure as linearMap } from "posenc/figures/linear-map.js";
import { figure as schedule } from "posenc/figures/schedule.js";
import { figure as seen } from "posenc/figures/seen.js";
import { figure as similarity } from "posenc/figures/similarity.js";
import { figure as vectorLines } from "posenc/figures/vector-lines.js";
import { figure as vectorTable } from "posenc/figures/vector-table.js";
import { figure as vectors2d } from "posenc/figures/vectors-2d.js";

export const VIEWS = [
    {
        name: "where",
        title: "Where position enters",
        about: "Attention sees a set of tokens. What tells it their places comes in through four doors, and not in every layer alike.",
        figures: [doors, schedule],
    },
    {
        name: "vectors",
        title: "Vectors",
        about: "What is added to the input: a vector for each position, by a formula or out of a table that is learned.",
        figures: [vectorLines, vectorTable, similarity, vectors2d, linearMap],
    },
    {
        name: "scores",
        title: "Scores",
        about: "What a scheme adds to the score of a query and a key, or does to it, before the softmax.",
        figures: [seen],
    },
];
