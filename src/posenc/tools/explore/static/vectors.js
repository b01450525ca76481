// The vectors that schemes add to the input, as the figures of the add door draw them.

import { element } from "posenc/elements.js";
import { Matrix, dot } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { drawn } from "posenc/math/special.js";
import * as options from "posenc/options.js";
import { added, use } from "posenc/use.js";

export const MINILM = "minilm"; // the table of all-MiniLM-L6-v2, which posenc reads where its package is installed
const MINILM_SIZES = { tokens: 512, dim: 384 };
export const FORMULAS = ["sinusoidal", "fourier_features", "exponential_decay"];
const HIDDEN = ["dim", "axes", "learned", "hidden", "max_positions"]; // options that these figures set themselves

/** The control that chooses the scheme: formulas, and tables with `tables`, in the words of the catalog. */
export function schemeControl(app, { tables = false, but = [] } = {}) {
    const titles = { learned: "Learned, before training", [MINILM]: "Learned, in all-MiniLM-L6-v2" };
    const names = [...FORMULAS, ...(tables ? ["learned", MINILM] : [])].filter((name) => !but.includes(name));
    const own = tables ? app.catalog.filter((entry) => entry.own?.table).map(({ name }) => name) : [];
    const choices = [...names, ...own].map((value) => ({
        value,
        name: titles[value] ?? options.entryOf(app, value).title,
    }));
    return { name: "scheme", label: "scheme", kind: "choice", choices };
}

/** Controls of the scheme's own options. */
export function ownControls(values, app) {
    if (values.scheme === MINILM) return [];
    const { entry, options: given } = setting(values, app);
    return options.optionControls(entry, given, HIDDEN);
}

export const shown = (values, app) =>
    values.scheme === MINILM ? {} : options.optionValues(setting(values, app).options);

const ownOf = ({ scheme }, app) => app.catalog.find(({ name }) => name === scheme)?.own;

/** The sizes of a table that is as it is, a model's or one of the user's own; null of a scheme that has any. */
export function sizesOf(values, app) {
    if (values.scheme === MINILM) return MINILM_SIZES;
    const own = ownOf(values, app);
    return own ? { tokens: own.tokens, dim: own.table.length / own.tokens } : null;
}

/** How many positions and dimensions there can be. */
export const limits = (values, most, app) => sizesOf(values, app) ?? most;

function setting({ scheme, dim, tokens, options: text }, app, axes = 1) {
    const entry = options.entryOf(app, scheme);
    return { entry, options: options.optionsOf(entry, text, { dim, axes, max_positions: tokens }) };
}

/** The scheme, with one coordinate of a token or two. */
export function schemeOf(values, app, axes = 1) {
    const { entry, options: given } = setting(values, app, axes);
    return options.schemeOf(entry, given, entry.name === "learned" ? { weight: before(given) } : {});
}

/** The table, a Matrix (tokens, dim): of the first positions, or of the patches of a grid {rows, columns}. */
export function vectors(values, app, grid = null) {
    if (values.scheme === MINILM) return ofMiniLM(values, app);
    const positions = grid ? Positions.grid(grid.rows, grid.columns) : Positions.arange(values.tokens);
    return schemeOf(values, app, grid ? 2 : 1).table(positions);
}

/** Python that makes the same table, named P. */
export function python(values, app, grid = null) {
    const { scheme, tokens, dim } = values;
    if (scheme === MINILM)
        return `from posenc.tools.plot.minilm import learned\nP = learned().weight.detach().double()[:${tokens}]`;
    if (ownOf(values, app)) {
        const entry = options.entryOf(app, scheme);
        const zeros = `torch.zeros(1, ${tokens}, ${sizesOf(values, app).dim}, dtype=torch.float64)`;
        return (
            `${options.imports([entry])}encoding = ${options.python(entry)}(posenc.Positions.arange(${tokens}), dtype=torch.float64)\n` +
            `P = encoding.add(${zeros})[0].detach()`
        );
    }
    if (scheme === "learned") {
        return `from posenc.rotation.phases import drawn\n# So a posenc.Learned(${tokens}, ${dim}) may begin:\nP = 0.02 * drawn(${tokens * dim}, 0).view(${tokens}, ${dim})`;
    }
    const { entry, options: given } = setting(values, app, grid ? 2 : 1);
    const positions = grid ? `grid(${grid.rows}, ${grid.columns})` : `arange(${tokens})`;
    return `scheme = ${options.python(entry, given)}\nP = scheme.table(posenc.Positions.${positions}, torch.float64)[0]`;
}

/** The vectors added to the tokens of a model, in Python. */
export function useOf(values, app, grid = null) {
    if (values.scheme === MINILM) {
        const { tokens, dim } = MINILM_SIZES;
        return added(`posenc.Learned(max_positions=${tokens}, dim=${dim})`, { tokens: values.tokens, dim });
    }
    const { entry, options: given } = setting(values, app, grid ? 2 : 1);
    const positions = grid && `posenc.Positions.grid(${grid.rows}, ${grid.columns})`;
    if (entry.own) return use([{ entry, options: given }], { tokens: values.tokens });
    const tokens = grid ? grid.rows * grid.columns : values.tokens;
    return added(options.python(entry, given), { tokens, dim: given.dim, ...(grid && { positions }) });
}

/** posenc's own numbers for up to `most` of the positions: {rows, data}; null where those drawn came from posenc. */
export async function fromPosenc(values, app, grid = null, most = 32) {
    if (values.scheme === MINILM) {
        const { missing } = ofMiniLM(values, app);
        if (missing) throw new Error(missing);
        return null;
    }
    if (ownOf(values, app)) return null;
    const positions = grid ? Positions.grid(grid.rows, grid.columns) : Positions.arange(values.tokens);
    const rows = Math.min(most, positions.length);
    const { entry, options: given } = setting({ ...values, tokens: rows }, app, grid ? 2 : 1);
    const parameters = entry.name === "learned" ? { weight: before(given) } : {};
    const { table } = await app.ask("table", {
        scheme: options.named(entry, given, parameters),
        positions: Array.from({ length: rows }, (_, token) => Array.from(positions.at(token))),
    });
    return { rows, data: table.data };
}

/** The sentence of a `check` that has nothing to compare. */
export const READ_BY_POSENC = "posenc itself has given these numbers to the page";

/** The weight of a learned table before training: N(0, 0.02^2), by draws that posenc can repeat. */
export function before({ max_positions, dim }, seed = 0) {
    return { shape: [max_positions, dim], data: draws(max_positions * dim, seed).map((x) => 0.02 * x) };
}

const streams = new Map(); // by seed, as far as they were drawn: drawing is slow

function draws(count, seed) {
    const kept = streams.get(seed) ?? new Float64Array(0);
    if (kept.length < count) {
        const longer = new Float64Array(count);
        longer.set(kept);
        longer.set(drawn(count - kept.length, seed, kept.length), kept.length);
        streams.set(seed, longer);
    }
    return streams.get(seed).slice(0, count);
}

const minilm = { table: null, missing: "", asked: null };

/** The model's table, asked for once; until it is here, and where it cannot come, {missing}: what to say instead. */
function ofMiniLM({ tokens }, app) {
    if (!app.server) {
        return {
            missing:
                "The table of all-MiniLM-L6-v2 is read by posenc, which does not run behind this page: pip install 'posenc[minilm]', then posenc explore.",
        };
    }
    if (app.data.minilm) return { missing: app.data.minilm };
    if (minilm.missing) return { missing: minilm.missing };
    if (!minilm.table) {
        const store = ({ table }) => (minilm.table = new Matrix(...table.shape, Float64Array.from(table.data)));
        minilm.asked ??= app.ask("minilm", {}).then(store, (error) => (minilm.missing = error.message));
        minilm.asked.then(() => app.set({}));
        return { missing: "posenc reads the table of all-MiniLM-L6-v2" };
    }
    const { columns, data } = minilm.table;
    return new Matrix(tokens, columns, data.subarray(0, tokens * columns));
}

/** Parts of a figure that stand in its box, or in their place the sentence of what is missing: show(missing). */
export function orMissing(box) {
    const parts = element("div", { class: "parts", style: "width: 100%" });
    const note = element("p", { class: "see" });
    box.append(parts, note);
    return {
        parts,
        show: (missing = "") => ([parts.style.display, note.textContent] = [missing ? "none" : "", missing]),
    };
}

/** Inner products of every two rows. */
export function products({ rows, columns, data }) {
    const made = new Float64Array(rows * rows);
    for (let i = 0; i < rows; i++) {
        const at = i * columns;
        for (let j = 0; j <= i; j += 4) {
            // four at a time: each number of row i is read once for all of them
            let [a, b, c, d] = [0, 0, 0, 0];
            const from = j * columns;
            for (let n = 0; n < columns; n++) {
                const x = data[at + n];
                a += x * data[from + n];
                b += x * data[from + columns + n];
                c += x * data[from + 2 * columns + n];
                d += x * data[from + 3 * columns + n];
            }
            const four = [a, b, c, d];
            for (let m = 0; m < 4 && j + m <= i; m++) made[i * rows + j + m] = made[(j + m) * rows + i] = four[m];
        }
    }
    return made;
}

/** Each row divided by its length, so that products are cosines; a row of zeros stays. */
export function unit({ rows, columns, data }) {
    const made = Float64Array.from(data);
    for (let i = 0; i < rows; i++) {
        const row = made.subarray(i * columns, (i + 1) * columns);
        const length = Math.sqrt(dot(row, row)) || 1;
        for (let c = 0; c < columns; c++) row[c] /= length;
    }
    return new Matrix(rows, columns, made);
}
