// Relative positions in a grid: what a chosen patch adds to its scores with every other one.

import { threeMaps } from "posenc/elements.js";
import { WAVE, wave } from "posenc/fixed.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { Relative2D } from "posenc/math/score/relative_2d.js";
import { agreed, apart, askAttention, named } from "posenc/options.js";
import { attended } from "posenc/use.js";
import { WEIGHED, weighed } from "posenc/weighed.js";

const DIM = 16;
const PARTS = ["row_table", "column_table"];

/** The query, and what is learned of rows and of columns; seeds 4 draw + 1 .. 4 draw + 3. A patch past the grid is its
 * last. */
function made({ rows, columns, row, column, draw }) {
    const tables = [rows, columns].map((side, n) => [
        PARTS[n],
        { shape: [2 * side - 1, DIM], data: wave(4 * draw + n + 2, (2 * side - 1) * DIM).map((x) => x * DIM ** -0.5) },
    ]);
    return {
        at: [Math.min(row, rows - 1), Math.min(column, columns - 1)],
        query: new Heads(1, 1, DIM, wave(4 * draw + 1, DIM)),
        keys: new Heads(1, rows * columns, DIM),
        patches: Positions.grid(rows, columns),
        parameters: Object.fromEntries(tables),
        options: { grid: [rows, columns], head_dim: DIM, num_heads: null, convention: "botnet" },
    };
}

/** The bias with both tables, or with one, the other being zero. */
function biasOf({ at, query, keys, patches, parameters, options }, part = null) {
    const kept = Object.entries(parameters).map(([name, { shape, data }]) => [
        name,
        { shape, data: part === null || name === part ? data : data.map(() => 0) },
    ]);
    return logits(new Relative2D(options, Object.fromEntries(kept)), query, keys, {
        positions: new Positions([at]),
        keyPositions: patches,
    }).data;
}

export const figure = {
    name: "relative-2d",
    title: "Relative positions in a grid: a part of the rows, a part of the columns",
    see:
        "Click a patch to make it the query, or move with the arrow keys and press Enter. The bias is a sum of " +
        "two: one is the same along each row, the other along each column. The query is the same wherever it " +
        "stands, so the pattern moves with it.",
    defaults: { rows: 9, columns: 9, row: 4, column: 4, draw: 0, weighed: false },
    another: { rows: 7, columns: 12, row: 1, column: 10, draw: 2 },
    controls: ({ rows, columns }) => [
        { name: "rows", label: "rows", kind: "range", min: 2, max: 16 },
        { name: "columns", label: "columns", kind: "range", min: 2, max: 16 },
        { name: "row", label: "the query's row", kind: "range", min: 0, max: rows - 1 },
        { name: "column", label: "the query's column", kind: "range", min: 0, max: columns - 1 },
        { name: "draw", label: "random numbers, draw", kind: "range", min: 0, max: 20 },
        WEIGHED,
    ],
    change(values, name, value) {
        const next = { ...values, [name]: value };
        return { ...next, row: Math.min(next.row, next.rows - 1), column: Math.min(next.column, next.columns - 1) };
    },
    values(state) {
        const one = made(state);
        return { at: one.at, parts: PARTS.map((part) => biasOf(one, part)), main: biasOf(one) };
    },
    use: ({ rows, columns }) =>
        attended(`posenc.Relative2D((${rows}, ${columns}), head_dim=64)`, {
            tokens: rows * columns,
            more: [`query_positions=posenc.Positions.grid(${rows}, ${columns})`],
        }),
    line(state) {
        const { rows, columns, draw } = state;
        const [row, column] = made(state).at;
        const table = (n, side) => `wave(${4 * draw + n}, ${2 * side - 1}, ${DIM}) / ${DIM}**0.5`;
        return (
            `import torch, posenc\n\n${WAVE}\npatches = posenc.Positions.grid(${rows}, ${columns})\n` +
            `scheme = posenc.Relative2D((${rows}, ${columns}), head_dim=${DIM}).double()\n` +
            `scheme.load_state_dict({"row_table": ${table(2, rows)}, "column_table": ${table(3, columns)}})\n` +
            `q, k = wave(${4 * draw + 1}, 1, 1, 1, ${DIM}), torch.zeros(1, 1, ${rows * columns}, ${DIM}, dtype=torch.float64)\n` +
            `query = patches[${row * columns + column}:${row * columns + column + 1}]\n` +
            "bias = posenc.logits(q, k, scheme, query_positions=query, key_positions=patches)\n" +
            `bias${state.weighed ? ".softmax(-1)" : ""}.reshape(${rows}, ${columns}).detach()`
        );
    },
    compared: ({ rows, columns, weighed: isWeighed }, { main }) => ({
        shape: [rows, columns],
        data: isWeighed ? weighed(main) : main,
    }),
    mount(box, app) {
        const onPick = (row, column) => app.set({ row, column });
        const names = ["part of the rows", "part of the columns", "their sum, the bias"];
        const maps = threeMaps(box, app, names, { size: 340, onPick });
        return ({ rows, columns, weighed: isWeighed }, { at: [row, column], parts, main }) => {
            let reach = 0;
            for (const data of [...parts, main]) for (const x of data) reach = Math.max(reach, Math.abs(x));
            const options = {
                rows,
                columns,
                centre: 0,
                low: -reach,
                high: reach,
                marks: [{ row, column }],
                rowName: (n) => `row ${n}`,
                columnName: (n) => `column ${n}`,
            };
            [...parts, main].forEach((data, n) => maps[n].map.draw(data, options));
            if (!isWeighed) return;
            const weights = { low: 0, high: undefined, centre: null, columnLabel: "attention weights of the bias" };
            maps[2].map.draw(weighed(main), { ...options, ...weights });
        };
    },
    describe({ rows, columns }, { at: [row, column], main }) {
        const best = main.indexOf(Math.max(...main));
        const [most, there] = [
            main[best].toPrecision(3),
            `row ${Math.floor(best / columns)}, column ${best % columns}`,
        ];
        return `The query of row ${row}, column ${column} of ${rows} × ${columns} patches favours ${there} most, by ${most}.`;
    },
    async check(state, { main }, app) {
        const { at, query, keys, patches, parameters, options } = made(state);
        const scheme = named({ name: "relative_2d" }, { grid: options.grid, head_dim: DIM }, parameters);
        const where = { positions: new Positions([at]), keyPositions: patches };
        const { logits: theirs } = await askAttention(app, [scheme], [query, keys], where);
        return agreed(main.length, apart(main, theirs.data));
    },
};
