// Side path: patches of an image, numbered in one row or by row and column, when the grid grows.

import { threeMaps } from "posenc/elements.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { AxialRoPE } from "posenc/math/rotate/axes.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { agreed, apart, askAttention, named } from "posenc/options.js";
import { shown } from "posenc/panel.js";

const [TRAINED, MOST, DIM, BASE] = [14, 32, 16, 100];
const [ROW, COLUMN] = [6, 6]; // of the patch that is the query
const OPTIONS = { head_dim: DIM, base: BASE, rotary_dim: null, extent: null, shift: null, jitter: null, rescale: null };

/** The three ways of numbering: what it is called, the scheme as JavaScript has it and the server takes it. */
const WAYS = [
    {
        title: "one number for each patch",
        name: "rope",
        options: { head_dim: DIM, base: BASE },
        build: (options) => new RoPE(options),
        grid: (_, side) => Positions.arange(side * side),
    },
    {
        title: "a row and a column",
        name: "axial_rope",
        options: { ...OPTIONS, convention: "index" },
        build: (options) => new AxialRoPE(options),
        grid: (scheme, side) => scheme.grid(side, side),
    },
    {
        title: "both, rescaled to training",
        name: "axial_rope",
        options: { ...OPTIONS, convention: "eva", extent: [TRAINED, TRAINED] },
        build: (options) => new AxialRoPE(options),
        grid: (scheme, side) => scheme.grid(side, side),
    },
];

const query = new Heads(1, 1, DIM, new Float64Array(DIM).fill(1));
const patches = (side) => new Heads(1, side * side, DIM, new Float64Array(side * side * DIM).fill(1));

/** Of each way its positions, and the scores of the query with the same content in each patch. */
function scoresOf(side) {
    return WAYS.map(({ build, grid, options }) => {
        const scheme = build(options);
        const positions = grid(scheme, side);
        const at = positions.at(ROW * side + COLUMN);
        const where = { positions: new Positions([at]), keyPositions: positions };
        return { positions, at, scores: logits(scheme, query, patches(side), where).data };
    });
}

export const figure = {
    name: "images",
    title: "Patches of an image",
    see:
        "Every patch has the same content, so the scores of the marked patch show its position alone. The model was " +
        `trained on ${TRAINED} × ${TRAINED} patches. Make the grid larger.`,
    defaults: { side: 16 },
    another: { side: 20 },
    controls: [{ name: "side", label: "rows and columns", kind: "range", min: 10, max: MOST }],
    values({ side }) {
        const ways = scoresOf(side);
        const below = ways.map(({ scores }) => scores[(ROW + 1) * side + COLUMN]);
        return { ways, below, away: [side, 1, TRAINED / side] };
    },
    line: ({ side }) =>
        `schemes = posenc.RoPE(${DIM}, base=${BASE}), posenc.AxialRoPE(${DIM}), ` +
        `posenc.AxialRoPE(${DIM}, "eva", ${BASE}, extent=(${TRAINED}, ${TRAINED}))\n` +
        `grids = posenc.Positions.arange(${side ** 2}), *(scheme.grid(${side}, ${side}) for scheme in schemes[1:])\n` +
        `patch = torch.ones(1, 1, ${side ** 2}, ${DIM})\n` +
        "scores = [posenc.logits(patch, patch, scheme, query_positions=grid, key_positions=grid) " +
        "for scheme, grid in zip(schemes, grids)]\n" +
        `torch.stack(scores)[:, 0, 0, ${ROW * side + COLUMN}].view(3, ${side}, ${side})`,
    compared: ({ side }, { ways }) => ({
        shape: [3, side, side],
        data: ways.flatMap(({ scores }) => [...scores]),
    }),
    mount(box, app) {
        const titles = WAYS.map(({ title }) => title);
        const maps = threeMaps(box, app, titles, { size: 240 });
        return ({ side }, { ways, below, away }) => {
            const all = ways.flatMap(({ scores }) => [...scores]);
            const [low, high] = [Math.min(...all), Math.max(...all)];
            const known = side > TRAINED ? [{ row: 0, column: 0, rows: TRAINED, columns: TRAINED }] : [];
            ways.forEach(({ scores }, n) =>
                maps[n].map.draw(scores, {
                    rows: side,
                    columns: side,
                    low,
                    high,
                    centre: null,
                    marks: [...(n === 1 ? known : []), { row: ROW, column: COLUMN }],
                    rowName: (at) => `row ${at}`,
                    columnName: (at) => `column ${at}`,
                }),
            );
            const units = [`${away[0]} numbers`, "1 row", `${Number(away[2].toFixed(2))} of a row`];
            maps.forEach(({ said }, n) => {
                said.textContent = `To the patch below: ${units[n]}, score ${shown(below[n], 2)}`;
            });
        };
    },
    pictured: ["said"],
    describe: ({ side }, { below, away }) =>
        `${side} × ${side} patches. From the marked patch, the one below is ${away[0]} numbers, 1 row, or ` +
        `${Number(away[2].toFixed(2))} rescaled rows away, with the scores ` +
        `${below.map((x) => shown(x, 2)).join(", ")}.`,
    async check({ side }, { ways }, app) {
        let most = 0;
        for (const [n, { positions, at, scores }] of ways.entries()) {
            const { name, options } = WAYS[n];
            const where = { positions: new Positions([at]), keyPositions: positions };
            const { logits: theirs } = await askAttention(app, [named({ name }, options)], [query, patches(side)], where);
            most = Math.max(most, apart(scores, theirs.data));
        }
        return agreed(3 * side * side, most);
    },
};

export const predict = { side: 20 };

export const question = {
    judge({ side }) {
        if (side === 2 * TRAINED) return "right";
        if (side <= TRAINED) return "trained";
        return Math.abs(side - TRAINED * Math.SQRT2) <= 1 ? "area" : "width";
    },
    examples: {
        right: { side: 28 },
        trained: { side: TRAINED },
        area: { side: 20 },
        width: { side: 24 },
    },
};
