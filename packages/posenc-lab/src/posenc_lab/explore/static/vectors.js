// The vectors that schemes add to the input, as the figures of the add door draw them.

import { element } from "posenc/elements.js";
import { Matrix, dot } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { randn, randnPython } from "posenc/math/special.js";
import { changed, isByNumbers, noteOf, numbersOf, usualOf, valuesOf } from "posenc/numbers.js";
import * as options from "posenc/options.js";
import { remembered } from "posenc/remembered.js";
import { added, use } from "posenc/use.js";

export const MINILM = "minilm"; // the table of all-MiniLM-L6-v2, which posenc reads where its package is installed
const MINILM_SIZES = { tokens: 512, dim: 384 };
const HIDDEN = ["dim", "axes", "learned", "hidden", "max_positions"]; // options that these figures set themselves

/** The control that chooses the scheme, in the words of the catalog: those that add vectors by the position. */
function schemeControl(app) {
    const titles = { learned: "Learned, before training", [MINILM]: "Learned, in all-MiniLM-L6-v2" };
    const computed = app.catalog.filter((entry) => isByNumbers(entry) && usualOf(entry, app).kept.table);
    const choices = ["sinusoidal", "learned", MINILM, ...computed.map(({ name }) => name)].map((value) => ({
        value,
        name: titles[value] ?? options.entryOf(app, value).title,
    }));
    return { name: "scheme", label: "scheme", kind: "choice", choices };
}

/** Controls of the scheme's own options. */
function ownControls(values, app) {
    if (values.scheme === MINILM) return [];
    const { entry, options: given } = setting(values, app);
    return options.optionControls(entry, given, HIDDEN, (name) =>
        isByNumbers(entry) ? valuesOf(entry, name, app) : null,
    );
}

/** The sizes of a table that is as it is, a model's or one that posenc has computed; null of a scheme that has any. */
function sizesOf({ scheme }, app) {
    if (scheme === MINILM) return MINILM_SIZES;
    const entry = options.entryOf(app, scheme);
    if (!isByNumbers(entry)) return null;
    const { tokens, table } = usualOf(entry, app).kept;
    return { tokens, dim: table.length / tokens };
}

/** What a saved page says of the settings that it has. */
export function noteOn({ scheme, options: text }, app) {
    if (scheme === MINILM) return "";
    const entry = options.entryOf(app, scheme);
    return noteOf(entry, app, options.optionsOf(entry, text));
}

/** What figures of such tables share: the controls, `own` ones of a figure among them, and what they change. There are up
 * to `most` positions and dimensions, the latter in steps. */
export const ofTable = (most, step, own) => ({
    controls(values, app) {
        const sizes = sizesOf(values, app);
        return [
            schemeControl(app),
            { name: "position", label: "position", kind: "range", min: 0, max: values.tokens - 1 },
            ...own(values),
            { name: "tokens", label: "positions", kind: "range", min: 16, max: (sizes ?? most).tokens, step: 16 },
            ...(sizes ? [] : [{ name: "dim", label: "dim", kind: "range", min: step, max: most.dim, step }]),
            ...ownControls(values, app),
        ];
    },
    shown: (values, app) => (values.scheme === MINILM ? {} : options.optionValues(setting(values, app).options)),
    change(values, name, value, app) {
        const made = (values.scheme === MINILM ? options.change : changed)(values, name, value, app);
        const sizes = sizesOf(made, app);
        const tokens = Math.min(made.tokens, (sizes ?? most).tokens);
        const dim = Math.min((sizes ?? made).dim, most.dim);
        const next = { ...made, tokens, dim, position: Math.min(made.position, tokens - 1) };
        return "dimension" in made ? { ...next, dimension: Math.min(made.dimension, dim - 1) } : next;
    },
    use: useOf,
});

/** The entry and its options; `kept`, of a scheme that is drawn by numbers, has those of the table. */
function setting({ scheme, dim, tokens, options: text }, app) {
    const entry = options.entryOf(app, scheme);
    const wanted = options.optionsOf(entry, text, { dim, axes: 1, max_positions: tokens });
    if (!isByNumbers(entry) || entry.own || app.server) return { entry, options: wanted };
    return { entry, options: numbersOf(entry, app, wanted).options };
}

/** The scheme, of one that is not drawn by numbers. */
export function schemeOf(values, app) {
    const { entry, options: given } = setting(values, app);
    return options.schemeOf(entry, given, entry.name === "learned" ? { weight: before(given) } : {});
}

/** The table of the first positions, a Matrix (tokens, dim). */
export function vectors(values, app) {
    const { scheme, tokens } = values;
    if (scheme === MINILM) return ofMiniLM(values, app);
    const { entry, options: given } = setting(values, app);
    if (!isByNumbers(entry)) return schemeOf(values, app).table(Positions.arange(tokens));
    const { kept } = numbersOf(entry, app, given);
    const columns = kept.table.length / kept.tokens;
    return new Matrix(tokens, columns, Float64Array.from(kept.table.slice(0, tokens * columns)));
}

/** Python that makes the same table, named P. */
export function python(values, app) {
    const { scheme, tokens, dim } = values;
    if (scheme === MINILM)
        return `from posenc_lab.plot.vectors import learned\nP = learned().weight.detach().double()[:${tokens}]`;
    const { entry, options: given } = setting(values, app);
    if (isByNumbers(entry)) {
        const zeros = `torch.zeros(1, ${tokens}, ${sizesOf(values, app).dim}, dtype=torch.float64)`;
        return (
            `${options.imports([entry])}encoding = ${options.python(entry, given)}(posenc.Positions.arange(${tokens}), dtype=torch.float64)\n` +
            `P = encoding.add(${zeros})[0].detach()`
        );
    }
    if (scheme === "learned") {
        return `# One possible start of posenc.Learned(${tokens}, ${dim}):\nP = 0.02 * ${randnPython([tokens, dim], 0)}`;
    }
    return `scheme = ${options.python(entry, given)}\nP = scheme.table(posenc.Positions.arange(${tokens}), torch.float64)[0]`;
}

/** The vectors added to the tokens of a model, in Python. */
function useOf(values, app) {
    const { tokens } = values;
    if (values.scheme === MINILM) {
        const { dim } = MINILM_SIZES;
        return added(`posenc.Learned(max_positions=${MINILM_SIZES.tokens}, dim=${dim})`, { tokens, dim });
    }
    const { entry, options: given } = setting(values, app);
    if (entry.own) return use([{ entry, options: given }], { tokens });
    return added(options.python(entry, given), { tokens, dim: given.dim });
}

/** posenc's own numbers for up to `most` of the positions: {rows, data}; null where those drawn came from posenc. */
export async function fromPosenc(values, app, most = 32) {
    if (values.scheme === MINILM) {
        const { missing } = ofMiniLM(values, app);
        if (missing) throw new Error(missing);
        return null;
    }
    const rows = Math.min(most, values.tokens);
    const { entry, options: given } = setting({ ...values, tokens: rows }, app);
    if (isByNumbers(entry)) return null;
    const parameters = entry.name === "learned" ? { weight: before(given) } : {};
    const scheme = options.named(entry, given, parameters);
    return { rows, data: await options.askTable(app, scheme, Positions.arange(rows)) };
}

/** The sentence of a `check` that has nothing to compare. */
export const READ_BY_POSENC = "these numbers come from posenc itself";

/** The weight of a learned table before training: N(0, 0.02^2), as torch draws it. */
export const before = ({ max_positions, dim }) => ({ shape: [max_positions, dim], data: draws(max_positions * dim) });

const draws = remembered((count) => randn(count, 0).map((x) => 0.02 * x));

const minilm = { table: null, missing: "", asked: null };

/** The model's table, asked for once; until it is here, and where it cannot come, {missing}: what to say instead. */
function ofMiniLM({ tokens }, app) {
    if (!app.server) {
        return {
            missing:
                "The table of all-MiniLM-L6-v2 is read by posenc, which does not run behind this page: in a clone of posenc, pip install './packages/posenc-lab[minilm]', then posenc explore.",
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
