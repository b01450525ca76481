// Answers jobs, one line of JSON each, with one line of JSON: what the explorer's mathematics makes of it.
// An array is {shape, data}, its doubles in base64.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const of = (file) => import(pathToFileURL(`${process.argv[2]}/${file}`).href);
const { Heads } = await of("math/arrays.js");
const { attend } = await of("math/attend.js");
const { SCHEMES } = await of("math/catalog.js");
const { Positions } = await of("math/positions.js");
const { skew, steps } = await of("math/skew.js");
const { Random, drawnParameters } = await of("random.js");
const { answerOf, choose, needsOf } = await of("choosing.js");
const { source } = await of("records.js");
const { valuesOf } = await of("state.js");
const { weighed } = await of("weighed.js");
const { having, take } = await of("models.js");
const { STEPS, VIEWS } = await of("views.js");

const read = ({ shape, data }) => {
    const bytes = Uint8Array.from(Buffer.from(data, "base64"));
    return { shape, data: new Float64Array(bytes.buffer) };
};
const written = (shape, data) => ({ shape, data: Buffer.from(Float64Array.from(data).buffer).toString("base64") });
const each = (named, what) => Object.fromEntries(Object.entries(named).map(([name, x]) => [name, what(x)]));
const heads = (x) => {
    const { shape, data } = read(x);
    return new Heads(shape[0], shape[1], shape[2] ?? 1, data);
};
const positions = (x) => x && new Positions(x.coords, x);
const scheme = ({ name, options, parameters }) => {
    if (!(name in SCHEMES)) {
        throw new Error(`math/catalog.js has no ${name}`);
    }
    return new SCHEMES[name](options, each(parameters, read));
};

const JOBS = {
    names: () => Object.keys(SCHEMES),
    attend({ schemes, q, k, v, features, ...options }) {
        const found = attend(schemes.map(scheme), heads(q), heads(k), heads(v), {
            ...options,
            positions: positions(options.positions),
            keyPositions: positions(options.keyPositions),
            features: each(features, heads),
        });
        const { logits, weights, out } = found;
        const pairs = [logits.heads, logits.queries, logits.keys];
        return {
            logits: written(pairs, logits.data),
            weights: written(pairs, weights.data),
            out: written([out.heads, out.tokens, out.dim], out.data),
        };
    },
    table(job) {
        const { rows, columns, data } = scheme(job.scheme).table(positions(job.positions));
        return written([rows, columns], data);
    },
    weighed({ scores, causal }) {
        const { shape, data } = read(scores);
        return written(shape, weighed(data, { keys: shape[1], causal }));
    },
    skew(job) {
        const { shape, data } = read(job.x);
        return { lines: steps(shape[0]), made: skew(data, shape[0]).map((one) => written(one.shape, one.data)) };
    },
    begin({ name, options, draws }) {
        const learned = SCHEMES[name].learned(options);
        const made = Array.from({ length: draws }, (_, seed) => drawnParameters(learned, new Random(seed)));
        const drawn = ([key, { shape }]) => [
            key,
            written(
                [draws, ...shape],
                made.flatMap((parameters) => Array.from(parameters[key].data)),
            ),
        ];
        return Object.fromEntries(Object.entries(learned).map(drawn));
    },
};

JOBS.source = ({ set }) => source(set);

JOBS.choose = ({ asked }) => {
    const { groups, out } = choose(asked, content.catalog, content.evidence);
    const facts = (all) =>
        all.map(({ passes, words, source, record }) => ({ passes, words, source: source ?? record.name }));
    const lines = (all) => all.map(({ record, words, verdict }) => ({ record: record.name, words, verdict }));
    return {
        groups: Object.fromEntries(
            groups.map(({ name, answers }) => [
                name,
                Object.fromEntries(
                    answers.map((one) => [
                        one.entry.name,
                        { facts: facts(one.facts), lines: lines(one.lines), without: one.without },
                    ]),
                ),
            ]),
        ),
        out: Object.fromEntries(out.map(({ entry, ...fact }) => [entry.name, facts([fact])[0]])),
    };
};

JOBS.answer = ({ given }) => ({
    name: answerOf(given, content.choosing).name,
    needs: needsOf(given, content.choosing),
});

// Of a figure: its Python line, and the numbers that it shows by the same state.
let content = {};
JOBS.content = (given) => {
    content = given;
    for (const name of Object.keys(content.models?.models ?? {})) {
        const file = readFileSync(`${process.argv[2]}/../data/models/${name}.bin`);
        take(content.models, name, file.buffer.slice(file.byteOffset, file.byteOffset + file.length));
    }
};

// The logits of a text under a model, and the attention of its last byte by layer and head.
JOBS.read = ({ name, bytes, scaling = null }) => {
    const model = having({ data: content }, name, bytes, { scaling });
    const heads = Array.from({ length: model.layers * model.heads }, (_, n) => n);
    const of = (n) => [...model.weightsOf(Math.floor(n / model.heads), n % model.heads, bytes.length - 1)];
    return {
        logits: written([bytes.length, 256], model.logits.slice(0, 256 * bytes.length)),
        weights: written([model.layers, model.heads, bytes.length], heads.flatMap(of)),
    };
};

JOBS.figure = ({ name, state, change }) => {
    const figure = VIEWS.flatMap(({ figures }) => figures).find((one) => one.name === name);
    const begun = { ...figure.defaults, ...(state === "another" ? figure.another : typeof state === "object" ? state : {}) };
    const app = { catalog: content.catalog, data: content };
    const values = change ? figure.change(begun, ...change, app) : begun;
    const numbers = figure.values(values, app);
    const compared = figure.compared?.(values, numbers, app);
    const controls = typeof figure.controls === "function" ? figure.controls(values, app) : figure.controls;
    return {
        title: figure.title,
        see: figure.see,
        values,
        line: figure.line(values, app),
        use: figure.use?.(values, app) ?? "",
        compared: compared ? written(compared.shape, compared.data) : null,
        says: figure.describe(values, numbers, app),
        controls: controls.map((control) => control.name),
        choices: controls
            .filter((control) => control.name.startsWith("options."))
            .flatMap(({ name, kind, choices }) => (kind === "check" ? [true, false] : (choices ?? [])).map((x) => [name, x])),
        another: Boolean(figure.another),
    };
};

// How far each curve of a figure is from the numbers that it goes through.
JOBS.waves = async ({ name, state }) => {
    const { figure } = await of(`figures/${name}.js`);
    const begun = { ...figure.defaults, ...(state === "another" ? figure.another : state === "defaults" ? {} : state) };
    const app = { catalog: content.catalog, data: content };
    const numbers = figure.values(begun, app);
    const all = [numbers.series, numbers.lines, numbers.curves].flatMap((some) => some ?? []).filter(({ wave }) => wave);
    const apart = ({ x = numbers.x, y, wave }) => Array.from(y, (value, n) => Math.abs(wave(x?.[n] ?? n) - value));
    return all.map((one) => Math.max(...apart(one)));
};

// Of the lesson: the steps in their order; what the question of one says to the state it opens with, its own examples, and
// other states.
JOBS.steps = () => STEPS.map(({ figure }) => figure.name);
JOBS.question = ({ name, states = [] }) => {
    const { figure, question, predict } = STEPS.find((step) => step.figure.name === name);
    const app = { catalog: content.catalog, data: content };
    const judged = (state) => {
        const values = { ...figure.defaults, ...state };
        return question.judge(values, figure.values(values, app), app);
    };
    const specs = (values) => (typeof figure.controls === "function" ? figure.controls(values, app) : figure.controls);
    const foreseen = predict && valuesOf(figure, each(predict, String), specs);
    return {
        opening: judged({}),
        examples: each(question.examples, judged),
        states: states.map(judged),
        predicted: predict && figure.describe(foreseen, figure.values(foreseen, app), app),
    };
};

for await (const line of createInterface({ input: process.stdin })) {
    const { what, ...job } = JSON.parse(line);
    let answer;
    try {
        answer = { found: (await JOBS[what](job)) ?? null };
    } catch (error) {
        answer = { error: error.message };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
}
