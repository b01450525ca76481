// The numbers by which a scheme is drawn that has no JavaScript: most of the catalog, and the user's own. posenc has
// computed them as the scheme is usually built; other options it is asked for or, in a saved page, the nearest are taken.

import { across, axesOf, goesBy, ofDistances } from "posenc/effect.js";
import { SCHEMES } from "posenc/math/catalog.js";
import { change, entryOf, named, optionValues, optionsOf } from "posenc/options.js";

/** Whether a scheme is drawn by numbers. */
export const isByNumbers = ({ name }) => !Object.hasOwn(SCHEMES, name);

/** Thrown while posenc computes; `wait` settles when there is an answer. */
export class Waiting extends Error {
    constructor(wait) {
        super("what is shown is computed");
        this.wait = wait;
    }
}

const MOST = 200; // answers that are held
const answers = new Map(); // by scheme and options: {found} or {refused} or {wait}

/** {options, effect, kept} of a scheme as it is usually built. */
export const usualOf = (entry, app) => app.data.numbers[entry.name][0];

/** The same with these options, or of a saved page with the nearest that it has. Throws Waiting, and where posenc
 * refuses the options RangeError. */
export function numbersOf(entry, app, options) {
    const there = app.data.numbers[entry.name];
    const near = nearest(there, options);
    if (entry.own || !app.server || isAt(near, options)) return near;
    const key = JSON.stringify([entry.name, options]);
    if (answers.size > MOST) answers.clear();
    if (!answers.has(key)) {
        const one = {};
        one.wait = app.ask("numbers", named(entry, options)).then(
            (found) => answers.set(key, { found }),
            ({ message }) => answers.set(key, { refused: message }),
        );
        answers.set(key, one);
    }
    const { found, refused, wait } = answers.get(key);
    if (refused) throw new RangeError(refused);
    if (wait) throw new Waiting(wait);
    return found;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const isAt = ({ options }, wanted) => Object.entries(options).every(([name, value]) => same(value, wanted[name]));

function nearest(there, wanted) {
    const apart = ([name, value]) => {
        const other = wanted[name];
        if (same(value, other)) return 0;
        return value > 0 && other > 0 ? Math.abs(Math.log(value / other)) : 1;
    };
    const far = there.map(({ options }) => Object.entries(options).reduce((sum, one) => sum + apart(one), 0));
    return there[far.indexOf(Math.min(...far))];
}

/** The values of an option that a saved page has numbers of; null where posenc can be asked for any. */
export function valuesOf(entry, name, app) {
    if (app.server || entry.own) return null;
    return [...new Set(app.data.numbers[entry.name].map(({ options }) => options[name]))].filter((x) => x !== null);
}

/** The options of a saved page's numbers in which one has this value, as a figure's `options` has them. */
function settingOf(entry, name, value, app) {
    const [usual, ...others] = app.data.numbers[entry.name];
    const found = [usual, ...others].find(({ options }) => String(options[name]) === String(value)) ?? usual;
    const changed = Object.entries(found.options).filter(([key, x]) => !same(x, usual.options[key]));
    return changed.map(([key, x]) => `${key}:${x === null ? "None" : x}`).join(" ");
}

/** A figure's `shown`: the options of its scheme, of a saved page those that are drawn. */
export function shownOptions({ scheme, options: text }, app, sizes = {}) {
    const entry = entryOf(app, scheme);
    const options = optionsOf(entry, text, sizes);
    return optionValues(isByNumbers(entry) && !app.server ? numbersOf(entry, app, options).options : options);
}

/** A figure's `change` of a scheme's option or another value: a saved page takes the numbers that it has. */
export function changed(values, name, value, app) {
    const entry = entryOf(app, values.scheme);
    if (!name.startsWith("options.") || !isByNumbers(entry) || app.server) return change(values, name, value);
    return { ...values, options: settingOf(entry, name.replace("options.", ""), value, app) };
}

/** What a saved page says of its settings, and where it draws others than were asked for. */
export function noteOf(entry, app, options) {
    if (!isByNumbers(entry) || app.server || app.data.numbers[entry.name].length === 1) return "";
    const { options: drawn } = numbersOf(entry, app, options);
    const others = Object.entries(drawn).filter(([name, value]) => !same(value, options[name]));
    const words = others.map(([name, value]) => `${name} ${value ?? "None"} in place of ${options[name] ?? "None"}`);
    const shown = words.length ? `It is drawn with ${words.join(", ")}. ` : "";
    return ` ${shown}This saved page has a few settings of this scheme; posenc explore computes any.`;
}

const made = new WeakMap(); // by effect: what it gives

/** An effect as `ofLine`, `ofGrid` or a curve of effect.js: {family, what, axes, tokens or side, found}. */
export function effectOf(effect, entry) {
    if (!made.has(effect)) {
        const [{ family, what }, axes] = [effect, axesOf(entry)];
        const found = family === "curve" ? { y: numbers(effect.data) } : axes === 1 ? lineOf(effect) : gridOf(effect, entry);
        made.set(effect, { family, what, axes, found, tokens: found.tokens ?? 0, side: found.side ?? 0 });
    }
    return made.get(effect);
}

function lineOf({ shape: [heads, rows, keys], data: given, values }) {
    const data = numbers(given);
    const between = () => undefined;
    const arrives = values && numbers(values);
    if (keys === undefined) {
        const N = (rows + 1) / 2;
        const along = (head) => data.slice(head * rows, (head + 1) * rows);
        return { by: "distance", tokens: N, heads, along, between, arrives, matrix: (head) => ofDistances(along(head), N) };
    }
    const by = goesBy({ heads, data }, [...new Array(keys).keys()], keys);
    const step = by === "key" ? 1 : keys;
    const last = by === "key" ? keys * (keys - 1) : 0;
    return {
        by: by === "distance" ? "" : by, // posenc has found that it does not
        tokens: keys,
        heads,
        between,
        arrives,
        matrix: (head) => data.slice(head * keys * keys, (head + 1) * keys * keys),
        along: (head) => Float64Array.from({ length: keys }, (_, n) => data[head * keys * keys + last + n * step]),
    };
}

function gridOf({ shape: [heads, keys], data: given, times }, { name }) {
    const [data, along] = [numbers(given), times && numbers(times)];
    const side = Math.round(Math.sqrt(keys));
    const middle = side >> 1;
    const matrix = (head) => data.slice(head * keys, (head + 1) * keys);
    const x = Float64Array.from({ length: side }, (_, n) => n - middle);
    const lines = (head) => [
        ...(along ? [{ name: name === "cameras" ? "views apart" : "frames apart", y: along.slice(0, side) }] : []),
        ...across(matrix(head), side),
    ];
    return { x, side, middle, heads, matrix, lines };
}

const numbers = (values) => Float64Array.from(values, (x) => x ?? NaN);
