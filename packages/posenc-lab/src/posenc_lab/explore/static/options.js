// A scheme of the catalog, chosen and set by controls: its options live in one value of a figure, `options`, as
// "num_heads:12 form:directed", which holds only what is not as the catalog builds it.

import { SCHEMES } from "posenc/math/catalog.js";
import { drawnParameters, Random } from "posenc/random.js";

/** The catalog's entry of that name. */
export function entryOf(app, name) {
    const entry = app.catalog.find((one) => one.name === name);
    if (!entry)
        throw new RangeError(`scheme must be one of ${app.catalog.map((one) => one.name).join(", ")}, got "${name}"`);
    return entry;
}

const FIRST = ["nope", "sinusoidal", "learned", "rope", "alibi", "t5"]; // what is used most
const FEW = 8; // choices that a plain list shows well
const DOORS = { add: "Added to the input", rotate: "Turns queries and keys", score: "Changes the score" };

/** A control to choose a scheme of the entries that pass a filter: those used most, the user's own, and the rest by
 * their first door. `missing` says of an entry why it cannot be chosen here, or nothing. */
export function schemeControl(app, { name = "scheme", label = "scheme", filter = () => true, missing = () => "" } = {}) {
    const chosen = app.catalog.filter(filter);
    const often = FIRST.flatMap((first) => chosen.filter((entry) => entry.name === first));
    const own = chosen.filter((entry) => entry.own);
    const rest = Object.keys(DOORS).flatMap((door) =>
        chosen.filter((entry) => entry.doors[0] === door && !often.includes(entry) && !own.includes(entry)),
    );
    const group = (entry) =>
        often.includes(entry) ? "Used most" : own.includes(entry) ? "Your own" : DOORS[entry.doors[0]];
    const kind = chosen.length > FEW ? "chooser" : "choice";
    const choices = [...often, ...own, ...rest].map((entry) => ({
        value: entry.name,
        name: entry.title,
        group: kind === "chooser" ? group(entry) : "",
        about: entry.does.replaceAll("`", ""),
        finds: `${entry.users} ${entry.does}`,
        missing: missing(entry) || undefined,
    }));
    return { name, label, kind, choices };
}

/** The options of an entry: as the catalog builds it, with `sizes` {num_heads, head_dim, dim, …} put in where it takes
 * them and is not drawn by numbers, and what `text` says put over both. Names what the scheme does not take. */
export function optionsOf(entry, text = "", sizes = {}) {
    const isSized = entry.name in SCHEMES;
    const options = Object.fromEntries(
        entry.options.map(({ name, built }) => [name, isSized && name in sizes && built !== null ? sizes[name] : built]),
    );
    for (const part of text.split(" ").filter(Boolean)) {
        const [name, ...rest] = part.split(":");
        const option = entry.options.find((one) => one.name === name);
        if (!option) throw new RangeError(`${entry.title} takes ${Object.keys(options).join(", ")}, got "${name}"`);
        options[name] = parsed(entry, option, rest.join(":"));
    }
    return options;
}

const MOST_OPTION = 4096; // or what its control allows: an address must not stop the page, or the server, for good

function parsed(entry, { name, kind, choices, optional }, text) {
    if (optional && text === "None") return null;
    if (kind === "bool" && ["true", "false"].includes(text)) return text === "true";
    if (kind === "choice" && choices.includes(text)) return text;
    const numbers = text.split(",").map(Number);
    const several = kind === "grid" || kind === "numbers";
    const whole = kind === "int" || several;
    if (
        (several || kind === "int" || kind === "float") &&
        text !== "" &&
        numbers.every((x) => Number.isFinite(x) && (!whole || Number.isInteger(x)))
    ) {
        const most = Math.max(MOST_OPTION, RANGES[name]?.max ?? 0);
        if (numbers.reduce((product, x) => product * Math.max(x, 1), 1) > most) {
            throw new RangeError(`${entry.title}'s ${name} must be at most ${most} here, got "${text}"`);
        }
        if (several) return numbers;
        if (numbers.length === 1) return numbers[0];
    }
    throw new RangeError(
        `${entry.title}'s ${name} must be ${choices ? `one of ${choices.join(", ")}` : ({ int: "a whole number", float: "a number", bool: "true or false", grid: "whole numbers with commas between", numbers: "whole numbers with commas between" }[kind] ?? "left out")}, got "${text}"`,
    );
}

const RANGES = {
    num_heads: { min: 1, max: 16 },
    base: { min: 2, max: 1_000_000, log: true, step: 1 },
    max_distance: { min: 1, max: 256, log: true, step: 1 },
    num_buckets: { min: 4, max: 64, step: 2 },
    share: { min: 0.05, max: 1, step: 0.05 },
    sigma: { min: 0.005, max: 0.5, log: true, step: 0.001 },
    cap: { min: 1, max: 100 },
    window: { min: 1, max: 64 },
    group: { min: 1, max: 16 },
    chunk: { min: 2, max: 64 },
    local: { min: 0, max: 32 },
    seed: { min: 0, max: 20 },
    leak: { min: 0, max: 0.5, step: 0.01 },
    scale_base: { min: 8, max: 1024, log: true, step: 1 },
    longest: { min: 16, max: 100_000, log: true, step: 1 },
    length: { min: 16, max: 4096, log: true, step: 1 },
    extent: { min: 8, max: 512, log: true, step: 1 },
};

/** Controls for the options of an entry but those in `without`, named "options.NAME"; of one whose `values(name)` are
 * few, a list of these. */
export function optionControls(entry, options, without = [], values = () => null) {
    return entry.options
        .filter(
            ({ name, kind }) =>
                !without.includes(name) &&
                options[name] !== null &&
                (kind === "bool" || kind === "choice" || (name in RANGES && (kind === "int" || kind === "float"))),
        )
        .map(({ name, kind, choices }) => ({ name, kind, choices, few: kind === "bool" ? null : values(name) }))
        .filter(({ few }) => few === null || few.length > 1)
        .map(({ name, kind, choices, few }) => {
            const control = { name: `options.${name}`, label: name };
            if (few) return { ...control, kind: "choice", choices: few.map(String) };
            if (kind === "bool") return { ...control, kind: "check" };
            if (kind === "choice") return { ...control, kind: "choice", choices };
            return { ...control, kind: "range", ...RANGES[name] };
        });
}

/** The values of those controls, beside a figure's own. */
export const optionValues = (options) =>
    Object.fromEntries(Object.entries(options).map(([name, value]) => [`options.${name}`, value]));

/** A figure's `change`: what moving a control makes of its values. Another scheme begins with its own options. */
export function change(values, name, value) {
    if (name === "scheme") return { ...values, scheme: value, options: "" };
    if (!name.startsWith("options.")) return { ...values, [name]: value };
    const key = name.slice("options.".length);
    const parts = values.options.split(" ").filter((part) => part && !part.startsWith(`${key}:`));
    return { ...values, options: [...parts, `${key}:${value}`].join(" ") };
}

/** The scheme in JavaScript, with these learned numbers. */
export const schemeOf = (entry, options, parameters = {}) => new SCHEMES[entry.name](options, parameters);

/** What the scheme learns, by name; nothing of one that is drawn by numbers. */
export const learnedOf = (entry, options) => SCHEMES[entry.name]?.learned(options) ?? {};

/** The sentence of a `check` that has nothing to compare. */
export const COMPUTED = "posenc computed what this scheme adds, turns and biases, and the page computes the rest";

/** {name: {shape, data}} of what the scheme learns, as it is before training, and `spread` about what begins as a
 * constant. */
export function parametersOf(entry, options, { seed = 0, spread = 0 } = {}) {
    const random = new Random(seed);
    const learned = learnedOf(entry, options);
    const made = drawnParameters(learned, random);
    for (const [name, { fill }] of Object.entries(learned)) {
        if (spread && fill !== undefined) made[name].data = made[name].data.map((x) => x + random.normal(spread));
    }
    return made;
}

// What a scheme requires and is no option: a camera, where one frame is shown, whose scores any camera leaves as they are.
const DATA = { cameras: "torch.eye(4)[None]" };

/** How one writes the scheme in Python: what differs from the defaults of its class, and what it requires. */
export function python(entry, options) {
    if (entry.own) return entry.own.call.includes(" + ") ? `(${entry.own.call})` : entry.own.call;
    const isWhole = (name) => name === "rotary_dim" && options.rotary_dim === options.head_dim;
    const given = entry.options
        .filter(
            ({ name, required, default: usual }) =>
                options[name] !== undefined &&
                !isWhole(name) &&
                (required || JSON.stringify(options[name]) !== JSON.stringify(usual)),
        )
        .map(({ name }) => `${name}=${options[name] === null ? (DATA[name] ?? "None") : literal(options[name])}`);
    return `posenc.${entry.signature.split("(")[0]}(${given.join(", ")})`;
}

/** The imports of schemes among these that are drawn by numbers, and the seed of what they learn. */
export const imports = (entries) =>
    entries
        .filter(({ name }) => !(name in SCHEMES))
        .map(({ own: { imports: lines } = { imports: "" } }) => `${lines}${lines && "\n"}torch.manual_seed(0)\n`)
        .join("");

/** A value as Python writes it. */
export function literal(value) {
    if (value === null) return "None";
    if (typeof value === "boolean") return value ? "True" : "False";
    if (Array.isArray(value)) return `(${value.map(literal).join(", ")}${value.length === 1 ? "," : ""})`;
    if (value.kind === "proportional") return `posenc.Proportional(${value.share})`;
    return typeof value === "string" ? `"${value}"` : String(value);
}

/** The scheme as the server takes it. */
export function named(entry, options, parameters = {}) {
    return {
        name: entry.name,
        options: Object.fromEntries(Object.entries(options).filter(([, value]) => value !== null)),
        parameters: Object.fromEntries(
            Object.entries(parameters).map(([name, { shape, data }]) => [name, array(shape, data)]),
        ),
    };
}

/** Numbers as the server takes them. */
export const array = (shape, data) => ({ shape, data: Array.from(data) });

/** Vectors by head and token, as the server takes them. */
const arrayOf = ({ heads, tokens, dim, data }) => array([heads, tokens, dim], data);

/** What a layer projects for a scheme, {name: Heads}, as the server takes it: a number of each token has no width. */
const features = (projected) =>
    Object.fromEntries(
        Object.entries(projected).map(([name, x]) => [
            name,
            x.dim === 1 ? array([x.heads, x.tokens], x.data) : arrayOf(x),
        ]),
    );

/** Positions as the server takes them: a list of coordinates for each token. */
const coordinates = (positions) => Array.from({ length: positions.length }, (_, n) => [...positions.at(n)]);

/** What posenc makes of the same attention of Heads at Positions: {logits, out}, each {shape, data}. */
export const askAttention = (app, schemes, [q, k, v = k], { positions, keyPositions, projected = {}, ...more }) =>
    app.ask("attention", {
        ...{ schemes, query: arrayOf(q), key: arrayOf(k), value: arrayOf(v), positions: coordinates(positions) },
        ...(keyPositions && { key_positions: coordinates(keyPositions) }),
        ...{ features: features(projected), ...more },
    });

/** The vectors that posenc's scheme adds at Positions, one after another. */
export async function askTable(app, scheme, positions) {
    const segment = positions.segment && Array.from(positions.segment);
    const { table } = await app.ask("table", { scheme, positions: coordinates(positions), segment });
    return table.data;
}

/** How far two lists of numbers are apart. What is finite in one alone is apart without bounds. */
export function apart(ours, theirs) {
    let most = 0;
    ours.forEach((x, n) => {
        const [isOurs, isTheirs] = [Number.isFinite(x), Number.isFinite(theirs[n])];
        if (isOurs !== isTheirs) most = Infinity;
        else if (isOurs) most = Math.max(most, Math.abs(x - theirs[n]));
    });
    return most;
}

/** posenc has other numbers than the page. */
export class Differs extends Error {}

const SLACK = 1e-6; // what rounding may come to

/** The sentence under a picture that posenc has checked. Throws Differs where the difference is more than rounding. */
export function agreed(count, most) {
    const words = `posenc computed ${count.toLocaleString("en")} of these numbers too: the largest difference is ${most === 0 ? "0" : most.toExponential(1)}`;
    if (!(most <= SLACK)) throw new Differs(`${words}, which is more than rounding: one of the two is wrong`);
    return words;
}
