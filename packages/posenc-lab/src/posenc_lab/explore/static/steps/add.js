// Step 2: five codes of a position, the distances between their vectors, and what each of them breaks.

import { element } from "posenc/elements.js";
import { Sinusoidal } from "posenc/math/add.js";
import { Matrix } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, askTable, named } from "posenc/options.js";
import { count, shown } from "posenc/panel.js";

const [COUNT, LONG] = [16, 1024]; // positions in the picture, and of a long text
const [DIM, BASE] = [8, 100];
export const WAVES = { dim: DIM, base: BASE, layout: "interleaved", axes: 1 };

/** Of each code its vectors for so many positions, and the Python that makes those of the picture. */
const CODES = {
    counting: { name: "counting", table: (n) => Matrix.of(n, 1, (p) => p), python: `torch.arange(${COUNT})[:, None]` },
    fraction: {
        name: "p / N, for N tokens",
        table: (n) => Matrix.of(n, 1, (p) => p / n),
        python: `(torch.arange(${COUNT})[:, None] / ${COUNT})`,
    },
    "one-hot": {
        name: "one-hot",
        table: (n) => Matrix.of(n, n, (p, c) => Number(p === c)),
        python: `torch.eye(${COUNT})`,
    },
    binary: {
        name: "binary digits",
        table: (n) => Matrix.of(n, Math.log2(n), (p, c) => (p >> (Math.log2(n) - 1 - c)) & 1),
        python: `(torch.arange(${COUNT})[:, None] >> torch.arange(3, -1, -1) & 1)`,
    },
    waves: {
        name: "waves",
        table: (n) => new Sinusoidal(WAVES).table(Positions.arange(n)),
        python: `posenc.Sinusoidal(${DIM}, base=${BASE}).table(posenc.Positions.arange(${COUNT}))[0]`,
    },
};

/** The distance between the vectors of every two positions. */
export const distances = (P) => Matrix.of(P.rows, P.rows, (a, b) => Math.hypot(...P.row(a).map((x, c) => x - P.row(b)[c])));

/** The least and the largest distance over k positions. */
function over(D, k) {
    const found = Array.from({ length: D.rows - k }, (_, p) => D.row(p)[p + k]);
    return [Math.min(...found), Math.max(...found)];
}

const two = (x) => String(Number(x.toFixed(2)));
const range = ([least, most]) => (two(least) === two(most) ? two(least) : `${two(least)} to ${two(most)}`);

export const figure = {
    name: "add",
    title: "The codes of positions 0 to 15, and the distance between every two",
    see:
        "Choose a code. On the left each row is the vector of one position; on the right is how far apart two " +
        "positions are.",
    defaults: { code: "counting" },
    another: { code: "binary" },
    controls: [
        {
            name: "code",
            label: "code of a position",
            kind: "choice",
            choices: Object.entries(CODES).map(([value, { name }]) => ({ value, name })),
        },
    ],
    values({ code }) {
        const [P, long] = [COUNT, LONG].map(CODES[code].table);
        const D = distances(P);
        const largest = [P, long].map(({ data }) => data.reduce((most, x) => Math.max(most, Math.abs(x)), 0));
        const step = Math.hypot(...long.row(1).map((x, c) => x - long.row(0)[c])); // in the long text
        return { P, D, step, largest, widths: [P.columns, long.columns], next: over(D, 1), far: over(D, 8) };
    },
    line: ({ code }) => `P = ${CODES[code].python}.double()\ntorch.cat([P, torch.cdist(P, P)], dim=1)`,
    compared: (state, { P, D }) => ({
        shape: [COUNT, P.columns + COUNT],
        data: Array.from({ length: COUNT }, (_, p) => [...P.row(p), ...D.row(p)]).flat(),
    }),
    async check({ code }, { P }, app) {
        const sizes = { max_positions: COUNT, dim: P.columns };
        const weight = { shape: [COUNT, P.columns], data: P.data };
        const learned = named({ name: "learned" }, sizes, { weight });
        const scheme = code === "waves" ? named({ name: "sinusoidal" }, WAVES) : learned;
        return agreed(P.data.length, apart(P.data, await askTable(app, scheme, Positions.arange(COUNT))));
    },
    mount(box, app) {
        const maps = element("div", { class: "two-maps" });
        const facts = element("dl", { class: "facts-of-code" });
        box.append(maps, facts);
        const [vectors, apartFrom] = [
            app.heat(maps, { label: "", rowLabel: "position", columnLabel: "its vector", size: 300 }),
            app.heat(maps, { label: "", rowLabel: "position", columnLabel: "distance to position", size: 300 }),
        ];
        vectors.canvas.parentElement.dataset.part = "vectors";
        apartFrom.canvas.parentElement.dataset.part = "distances";
        return ({ code }, { P, D, step, largest, widths, next, far }) => {
            const { name } = CODES[code];
            const [rows, columns] = [COUNT, P.columns];
            vectors.draw(P.data, {
                ...{ rows, columns, aspect: 1, low: Math.min(...P.data) },
                label: `${name}: the vectors of the positions`,
            });
            apartFrom.draw(D.data, {
                ...{ rows, columns: rows, low: 0, centre: null },
                label: `${name}: distances between positions`,
            });
            const inLong = step < next[0] - 1e-9 ? `, and ${shown(step, 3)} in a text of ${count(LONG)}` : "";
            const said = [
                ["largest number", largest, (x) => count(Number(x.toFixed(2))), "largest"],
                ["numbers in a vector", widths, count, "width"],
                ["distance from p to p + 1", [range(next) + inLong], String, "neighbours"],
                ["distance from p to p + 8", [range(far)]],
            ];
            facts.replaceChildren(
                ...said.flatMap(([what, [here, there], written = String, part]) => [
                    element("dt", { "data-part": part }, what),
                    element("dd", {}, written(here), there > here ? `, and ${written(there)} in a text of ${count(LONG)}` : ""),
                ]),
            );
        };
    },
    describe: ({ code }, { D }) =>
        `Code: ${CODES[code].name}. From position 7 to 8 the distance is ${two(D.row(7)[8])}, ` +
        `from 7 to 0 it is ${two(D.row(7)[0])}.`,
};

export const predict = { code: "binary" };

export const question = {
    judge({ code }, { D, step, largest, next: [least, most] }) {
        const isEven = most - least < 1e-9 && Math.abs(step - least) < 1e-9;
        const isRight = isEven && D.row(7)[8] < D.row(7)[0] - 1e-9 && largest[1] <= 1;
        return isRight ? "right" : code;
    },
    examples: {
        right: { code: "waves" },
        ...Object.fromEntries(["counting", "fraction", "one-hot", "binary"].map((code) => [code, { code }])),
    },
};
