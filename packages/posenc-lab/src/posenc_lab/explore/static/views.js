// Which figures there are, in which view, in which order.

import { figure as clocks } from "posenc/figures/clocks.js";
import { figure as distanceAware } from "posenc/figures/distance-aware.js";
import { figure as doors } from "posenc/figures/doors.js";
import { figure as laws } from "posenc/figures/laws.js";
import { figure as lengthCurves } from "posenc/figures/length-curves.js";
import { figure as models } from "posenc/figures/models.js";
import { figure as relative2d } from "posenc/figures/relative-2d.js";
import { figure as ropeDecay } from "posenc/figures/rope-decay.js";
import { figure as scalings } from "posenc/figures/scalings.js";
import { figure as schedule } from "posenc/figures/schedule.js";
import { figure as scheme } from "posenc/figures/scheme.js";
import { figure as seen } from "posenc/figures/seen.js";
import { figure as sentence } from "posenc/figures/sentence.js";
import { figure as similarity } from "posenc/figures/similarity.js";
import { figure as vectorTable } from "posenc/figures/vector-table.js";
import { figure as which } from "posenc/figures/which.js";
import { figure as windows } from "posenc/figures/windows.js";
import * as add from "posenc/steps/add.js";
import * as beside from "posenc/steps/beside.js";
import * as bias from "posenc/steps/bias.js";
import * as clockwork from "posenc/steps/clockwork.js";
import * as content from "posenc/steps/content.js";
import * as decay from "posenc/steps/decay.js";
import * as decide from "posenc/steps/decide.js";
import * as grid from "posenc/steps/grid.js";
import * as images from "posenc/steps/images.js";
import * as layers from "posenc/steps/layers.js";
import * as longer from "posenc/steps/longer.js";
import * as past from "posenc/steps/past.js";
import * as rescale from "posenc/steps/rescale.js";
import * as segments from "posenc/steps/segments.js";
import * as shuffle from "posenc/steps/shuffle.js";
import * as stretch from "posenc/steps/stretch.js";
import * as table from "posenc/steps/table.js";
import * as turn from "posenc/steps/turn.js";
import * as why from "posenc/steps/why.js";

const ASIDE = [shuffle, segments, decay, images, grid, content, rescale, past, layers];

/** The steps of the lesson, each with a figure and a question. */
export const STEPS = [why, add, clockwork, table, turn, bias, beside, longer, stretch, decide, ...ASIDE];

export const VIEWS = [
    {
        name: "start",
        title: "Start here",
        figures: STEPS.flatMap(({ figure, trained = [] }) => [figure].concat(trained)),
    },
    {
        name: "where",
        title: "Where position enters",
        about: "Attention sees a set of tokens. Positions enter at four points, called doors, and layers may differ.",
        figures: [doors, schedule],
    },
    {
        name: "vectors",
        title: "Vectors",
        about: "What is added to the input: a vector for each position, from a formula or from a learned table.",
        figures: [vectorTable, similarity],
    },
    {
        name: "rotation",
        title: "Rotation",
        about: "Queries and keys turned by their positions, pair by pair, so that their product depends only on the distance.",
        figures: [clocks, ropeDecay, scalings],
    },
    {
        name: "scores",
        title: "Scores",
        about: "What a scheme adds to the score of a query and a key, or does to it, before the softmax.",
        figures: [scheme, windows, distanceAware, relative2d, seen],
    },
    {
        name: "sentence",
        title: "Sentence",
        about: "Attention between the words of a sentence, with a scheme and without one.",
        figures: [sentence],
    },
    {
        name: "models",
        title: "Models",
        about: "Trained models at work in this page, on any text: one for each of four schemes, the same in everything else.",
        figures: [models],
    },
    {
        name: "length",
        title: "Length",
        about: "What models do beyond the length of training, measured by posenc compare and posenc extend: the study's curves, and those of your own records.",
        figures: [lengthCurves],
    },
    {
        name: "laws",
        title: "Laws",
        about: "What each scheme's mathematics does, whatever the training; and which scheme fits what you need.",
        figures: [which, laws],
    },
];
