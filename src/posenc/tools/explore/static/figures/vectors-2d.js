// Vectors of two coordinates: how alike a patch of an image is to all others.

import { dot } from "posenc/math/arrays.js";
import * as options from "posenc/options.js";
import { fromPosenc, ownControls, python, schemeControl, shown, unit, useOf, vectors } from "posenc/vectors.js";

const grid = ({ rows, columns }) => ({ rows, columns });

/** Inner products of one row with all. */
const alike = (P, chosen) => Float64Array.from({ length: P.rows }, (_, token) => dot(P.row(token), P.row(chosen)));

export const figure = {
    name: "vectors-2d",
    title: "Vectors of rows and columns",
    see: "Half of the channels hold the row and half the column, so the likeness of two patches is that of their rows plus that of their columns: a cross. Click another patch, or choose Fourier features, whose directions are drawn and go across both.",
    defaults: {
        scheme: "sinusoidal",
        measure: "cosine",
        rows: 14,
        columns: 14,
        row: 5,
        column: 8,
        dim: 64,
        options: "",
    },
    another: {
        scheme: "fourier_features",
        measure: "inner product",
        rows: 6,
        columns: 9,
        row: 2,
        column: 3,
        dim: 32,
        options: "sigma:0.1",
    },
    controls(values, app) {
        return [
            schemeControl(app, { but: ["exponential_decay"] }),
            { name: "measure", label: "measure", kind: "choice", choices: ["cosine", "inner product"] },
            { name: "row", label: "row", kind: "range", min: 0, max: values.rows - 1 },
            { name: "column", label: "column", kind: "range", min: 0, max: values.columns - 1 },
            { name: "rows", label: "rows of the grid", kind: "range", min: 2, max: 32 },
            { name: "columns", label: "columns of the grid", kind: "range", min: 2, max: 32 },
            { name: "dim", label: "dim", kind: "range", min: 8, max: 512, step: 8 },
            ...ownControls(values, app),
        ];
    },
    shown,
    change(values, name, value) {
        const made = options.change(values, name, value);
        return { ...made, row: Math.min(made.row, made.rows - 1), column: Math.min(made.column, made.columns - 1) };
    },
    values(values, app) {
        const { rows, columns, row, column, measure } = values;
        const P = vectors(values, app, grid(values));
        return { rows, columns, main: alike(measure === "cosine" ? unit(P) : P, row * columns + column) };
    },
    use: (values, app) => useOf(values, app, grid(values)),
    line(values, app) {
        const { rows, columns, row, column, measure } = values;
        const unit = measure === "cosine" ? "P = P / P.norm(dim=1, keepdim=True)\n" : "";
        return `${python(values, app, grid(values))}\n${unit}(P @ P[${row} * ${columns} + ${column}]).view(${rows}, ${columns})`;
    },
    compared(values, app) {
        const { rows, columns, main } = figure.values(values, app);
        return { shape: [rows, columns], data: main };
    },
    mount(box, app) {
        const picture = app.heat(box, {
            label: "similarity with the chosen patch",
            rowLabel: "row",
            columnLabel: "column",
            onPick: (row, column) => app.set({ row, column }),
        });
        const lines = app.lines(box, {
            label: "similarity along the row, the column and the diagonal",
            xLabel: "patches from the chosen one",
            yLabel: "similarity",
        });
        return ({ row, column, measure }, { rows, columns, main }) => {
            picture.draw(main, {
                rows,
                columns,
                centre: null,
                marks: [
                    { row, column, color: app.theme().background },
                    { row, column },
                ],
                label: `${measure} of the patch at row ${row}, column ${column} with all of ${rows} by ${columns}`,
            });
            const reach = Math.max(row, rows - 1 - row, column, columns - 1 - column);
            const steps = Float64Array.from({ length: 2 * reach + 1 }, (_, n) => n - reach);
            const at = (r, c) => (r >= 0 && r < rows && c >= 0 && c < columns ? main[r * columns + c] : NaN);
            lines.draw(steps, [
                { name: "along its row", dots: true, y: steps.map((n) => at(row, column + n)) },
                { name: "along its column", dots: true, y: steps.map((n) => at(row + n, column)) },
                { name: "along the diagonal", dots: true, y: steps.map((n) => at(row + n, column + n)) },
            ]);
        };
    },
    describe({ row, column, measure }, { rows, columns, main }) {
        const near = [
            ["right", row, column + 1],
            ["below", row + 1, column],
            ["below and right", row + 1, column + 1],
        ].filter(([, r, c]) => r < rows && c < columns);
        return `The ${measure} of the patch at row ${row}, column ${column} with itself is ${Number(main[row * columns + column].toPrecision(3))}${near.map(([words, r, c]) => `, with the one ${words} ${Number(main[r * columns + c].toPrecision(3))}`).join("")}.`;
    },
    async check(values, numbers, app) {
        const { rows, data } = await fromPosenc(values, app, grid(values));
        const ours = vectors(values, app, grid(values)).data.subarray(0, rows * values.dim);
        return options.agreed(rows * values.dim, options.apart(ours, data));
    },
};
