// The whole table of vectors as a picture.

import { element } from "posenc/elements.js";
import * as options from "posenc/options.js";
import { MINILM, READ_BY_POSENC, fromPosenc, noteOn, ofTable, orMissing, python, vectors } from "posenc/vectors.js";

export const figure = {
    name: "vector-table",
    title: "The table of vectors",
    see: "Each row is the vector of one position; in the interleaved sinusoid the fast dimensions are on the left. Click a place to mark it, or choose the concatenated layout, which has the same numbers in another order.",
    defaults: { scheme: "sinusoidal", dim: 64, tokens: 64, position: 20, dimension: 12, options: "" },
    another: { scheme: "learned", dim: 32, tokens: 48, position: 5, dimension: 3, options: "" },
    ...ofTable({ tokens: 512, dim: 512 }, 16, ({ dim }) => [
        { name: "dimension", label: "dimension", kind: "range", min: 0, max: dim - 1 },
    ]),
    values(values, app) {
        const { rows, columns, data, missing } = vectors(values, app);
        return { rows, columns, main: data, missing };
    },
    formula: ({ scheme }, app) => options.entryOf(app, scheme === MINILM ? "learned" : scheme).formula,
    line: (values, app) => `${python(values, app)}\nP`,
    compared: (values, { rows, columns, main }) => ({ shape: [rows, columns], data: main }),
    mount(box, app) {
        const { parts, show } = orMissing(box);
        const table = app.heat(parts, {
            label: "the table of vectors",
            rowLabel: "position",
            columnLabel: "dimension",
            size: 560,
            onPick: (position, dimension) => app.set({ position, dimension }),
        });
        const beside = element("div", { class: "beside" });
        parts.append(beside);
        const chart = (label, xLabel) => app.lines(beside, { label, xLabel, yLabel: "value", height: 220 });
        const vector = chart("the vector of the chosen position", "dimension");
        const wave = chart("the chosen dimension by position", "position");
        return ({ position, dimension }, { rows, columns, main, missing }) => {
            show(missing);
            if (missing) return;
            const at = (n) => Float64Array.from({ length: n }, (_, x) => x);
            const row = main.slice(position * columns, (position + 1) * columns);
            const column = at(rows).map((n) => main[n * columns + dimension]);
            vector.draw(at(columns), [{ name: `position ${position}`, y: row, dots: true, always: true }], {
                marks: [{ x: dimension, name: `dimension ${dimension}` }],
            });
            wave.draw(at(rows), [{ name: `dimension ${dimension}`, y: column, dots: true, always: true }], {
                marks: [{ x: position, name: `position ${position}` }],
            });
            table.draw(main, {
                rows,
                columns,
                aspect: Math.min(Math.max(rows / columns, 0.3), 1),
                marks: [
                    { row: position, column: 0, columns },
                    { row: 0, column: dimension, rows },
                ],
                label: `${rows} vectors of ${columns} dimensions; arrow keys read a number, Enter marks its position and dimension`,
            });
        };
    },
    describe(values, { rows, columns, main, missing }, app) {
        if (missing) return missing;
        const { position, dimension } = values;
        return `Of ${rows} positions and ${columns} dimensions, position ${position} has ${Number(main[position * columns + dimension].toPrecision(4))} in dimension ${dimension}.${noteOn(values, app)}`;
    },
    async check(values, { columns, main }, app) {
        const theirs = await fromPosenc(values, app);
        if (!theirs) return READ_BY_POSENC;
        return options.agreed(
            theirs.rows * columns,
            options.apart(main.subarray(0, theirs.rows * columns), theirs.data),
        );
    },
};
