// Side path of "images": a bias of rows and one of columns.

import { figure as relative2d } from "posenc/figures/relative-2d.js";

export const figure = { ...relative2d, name: "grid", defaults: { ...relative2d.defaults, rows: 4, columns: 4, row: 1, column: 1 } };

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
