// How alike the vectors of every two positions are.

import { dot } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import * as options from "posenc/options.js";
import {
    READ_BY_POSENC,
    fromPosenc,
    noteOn,
    ofTable,
    orMissing,
    products,
    python,
    schemeOf,
    unit,
    vectors,
} from "posenc/vectors.js";

const MEASURES = ["cosine", "inner product"];
let kept = { of: "" }; // the products of the last table: another position asks for no new ones

/** The similarity between whole positions, a function of the distance; of a formula, which a table is not. */
function waveOf(values, app) {
    if (values.scheme !== "sinusoidal") return undefined;
    const scheme = schemeOf(values, app);
    const at = (p) => scheme.table(new Positions([p]));
    const own = at(values.position);
    const lengths = (P) => (values.measure === "cosine" ? Math.sqrt(dot(P.row(0), P.row(0))) : 1);
    return (r) => {
        const other = at(Math.max(values.position + r, 0)); // by rounding it may be below
        return dot(own.row(0), other.row(0)) / (lengths(own) * lengths(other));
    };
}

export const figure = {
    name: "similarity",
    title: "How similar the vectors of two positions are",
    see: "In the sinusoid each diagonal has one colour: the product depends only on the distance. Choose the learned table: before training, a position is no more similar to its neighbours than to any other.",
    defaults: { scheme: "sinusoidal", measure: "cosine", dim: 128, tokens: 128, position: 40, options: "" },
    another: { scheme: "learned", measure: "inner product", dim: 32, tokens: 48, position: 5, options: "" },
    ...ofTable({ tokens: 512, dim: 128 }, 8, () => [
        { name: "measure", label: "measure", kind: "choice", choices: MEASURES },
    ]),
    values(values, app) {
        const { scheme, measure, dim, tokens, position } = values;
        const of = JSON.stringify([scheme, measure, dim, tokens, values.options]);
        if (of !== kept.of) {
            const P = vectors(values, app);
            if (P.missing) return P;
            kept = { of, main: alike(P, measure) };
        }
        const along = kept.main.subarray(position * tokens, (position + 1) * tokens);
        const x = Float64Array.from(along, (_, j) => j - position);
        return { tokens, main: kept.main, along, curves: [{ x, y: along, wave: waveOf(values, app) }] };
    },
    line: (values, app) =>
        `${python(values, app)}\n${values.measure === "cosine" ? "P = P / P.norm(dim=1, keepdim=True)\n" : ""}P @ P.T`,
    compared: ({ tokens }, { main }) => ({ shape: [tokens, tokens], data: main }),
    mount(box, app) {
        const { parts, show } = orMissing(box);
        const matrix = app.heat(parts, {
            label: "similarity of every two positions",
            rowLabel: "position",
            columnLabel: "position",
            onPick: (position) => app.set({ position }),
        });
        const line = app.lines(parts, {
            label: "similarity with the chosen position by distance",
            xLabel: "distance from the position",
            yLabel: "similarity",
        });
        return ({ measure, position }, { tokens, main, curves, missing }) => {
            show(missing);
            if (missing) return;
            matrix.draw(main, {
                rows: tokens,
                columns: tokens,
                marks: [{ row: position, column: 0, columns: tokens }],
                high: measure === "cosine" ? 1 : undefined,
                label: `${measure} of the vectors of every two of ${tokens} positions`,
            });
            const [{ x, ...curve }] = curves;
            line.draw(x, [{ name: `${measure} with position ${position}`, ...curve, dots: true, always: true }], {
                marks: [{ x: 0, name: `position ${position}` }],
            });
        };
    },
    describe(values, { tokens, main, along, missing }, app) {
        if (missing) return missing;
        const { measure, position } = values;
        const said = [1, 2, 8, 32]
            .filter((r) => position + r < tokens)
            .map((r) => `${Number(along[position + r].toPrecision(3))} at ${r}`);
        return `The ${measure} of position ${position} with itself is ${Number(along[position].toPrecision(3))}${said.length ? `, with the ones after it, by distance: ${said.join(", ")}` : ""}. Between neighbours it varies by ${spread(main, tokens, 1).toPrecision(2)} over the positions.${noteOn(values, app)}`;
    },
    async check(values, { tokens, main }, app) {
        const theirs = await fromPosenc(values, app);
        if (!theirs) return READ_BY_POSENC;
        const { rows, data } = theirs;
        const made = alike({ rows, columns: values.dim, data }, values.measure);
        return options.agreed(
            rows * rows,
            options.apart(
                made,
                made.map((_, n) => main[Math.floor(n / rows) * tokens + (n % rows)]),
            ),
        );
    },
};

const alike = (P, measure) => products(measure === "cosine" ? unit(P) : P);

/** The range of a diagonal. */
function spread(main, tokens, distance) {
    const diagonal = Array.from({ length: tokens - distance }, (_, i) => main[i * tokens + i + distance]);
    return Math.max(...diagonal) - Math.min(...diagonal);
}
