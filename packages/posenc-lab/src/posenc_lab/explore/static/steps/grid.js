// Side path of "images": numbers by distance become numbers by key; and a bias of rows and one of columns.

import { wave } from "posenc/fixed.js";
import { figure as relative2d } from "posenc/figures/relative-2d.js";
import { Matrix, dot } from "posenc/math/arrays.js";
import { LAST, skewing } from "posenc/skewed.js";

const [L, DIM] = [4, 16];
const [q, table] = [[1, L], [2, 2 * L - 1]].map(([seed, rows]) => new Matrix(rows, DIM, wave(seed, rows * DIM)));
/** The numbers of each query by distance: its products with the seven rows of a table. */
const BY_DISTANCE = Matrix.of(L, 2 * L - 1, (row, column) => dot(q.row(row), table.row(column)) / Math.sqrt(DIM)).data;

export const figure = {
    ...relative2d,
    name: "grid",
    title: "From distances to keys, and the same for rows and columns",
    defaults: { ...relative2d.defaults, rows: L, columns: L, row: 1, column: 1, moment: 0 },
    values(state) {
        if (!(state.moment >= 0 && state.moment <= LAST))
            throw new RangeError(`grid.moment must be from 0 to ${LAST}, got ${state.moment}`);
        return { ...relative2d.values(state), byDistance: BY_DISTANCE };
    },
    mount(box, app) {
        const drawSkew = skewing(box, app, (moment) => app.set({ moment }));
        const drawGrid = relative2d.mount(box, app);
        let drawn = "";
        return (state, numbers) => {
            drawSkew(state.moment, numbers.byDistance);
            const now = JSON.stringify([{ ...state, moment: 0 }, app.theme().dark]);
            if (now !== drawn) drawGrid(state, numbers);
            drawn = now;
        };
    },
};

export const predict = { row: 0, column: 0 };

export const question = {
    judge({ row, column, rows, columns }) {
        if (row !== rows - 1) return column === columns - 1 ? "row" : "inside";
        return column === columns - 1 ? "right" : "column";
    },
    examples: {
        right: { row: 3, column: 3 },
        row: { row: 1, column: 3 },
        column: { row: 3, column: 1 },
        inside: { row: 1, column: 1 },
    },
};
