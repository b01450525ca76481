// The bias of every scheme that adds one by the distance, on common axes.

import { callOf } from "posenc/effect.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { isByNumbers, usualOf } from "posenc/numbers.js";
import { agreed, apart, arrayOf, entryOf, named, optionsOf, parametersOf, python, schemeOf } from "posenc/options.js";
import { use } from "posenc/use.js";
import { WEIGHED, weighed } from "posenc/weighed.js";

const FREE = ["alibi", "sandwich"]; // nothing is learned
const NAMES = [...FREE, "kerple", "t5", "fire", "fox", "shaw"];
const HEADS = 4;
const SPARE = [
    [2, 2],
    [16, 4],
    [16, 4, 2, 4],
    [8, 2, 2, 2, 2, 2],
]; // dashes of lines whose own look is taken

/** What the query at a distance of that many tokens adds to the scores of the keys 0 .. distance; FoX's gates are all
 * open by `gate`. */
function call(name, app, { distance, gate, draw }) {
    const entry = entryOf(app, name);
    const options = optionsOf(entry, "", { num_heads: HEADS, max_positions: distance + 1 });
    if (isByNumbers(entry)) return { entry, options };
    const parameters = parametersOf(entry, options, { seed: draw });
    const keys = Positions.arange(distance + 1);
    const scheme = schemeOf(entry, options, parameters);
    const made = callOf(scheme, entry, options, "bias", keys.slice(distance), keys, draw);
    const forgotten = new Heads(HEADS, distance + 1, 1).map(1, (to) => to.fill(Math.log(gate / (1 - gate))));
    return { entry, options, parameters, scheme, ...made, features: name === "fox" ? { forgotten } : {} };
}

/** The bias at the distances 0 .. distance, in one head. */
function biasOf(name, state, app) {
    const entry = entryOf(app, name);
    if (isByNumbers(entry)) return computed(entry, state, app);
    const { scheme, q, k, ...rest } = call(name, app, state);
    const scores = logits(scheme, q, k, rest);
    return scores
        .row(Math.min(state.head, scores.heads) - 1, 0)
        .slice()
        .reverse();
}

/** The same as far as posenc has computed it. */
function computed(entry, { distance, head }, app) {
    const { shape, data } = usualOf(entry, app).kept.bias;
    const far = (shape[1] - 1) / 2;
    const start = (Math.min(head, shape[0]) - 1) * shape[1];
    return Float64Array.from({ length: distance + 1 }, (_, n) => (n > far ? NaN : (data[start + far - n] ?? -Infinity)));
}

/** These looks, of which one that another line has already takes dashes that none has. */
function told(looks) {
    const taken = new Set();
    return looks.map(({ color, dash }) => {
        const free = [dash, ...SPARE].find((one) => !taken.has(color + one)) ?? dash;
        taken.add(color + free);
        return { color, dash: free };
    });
}

/** The user's own schemes that add a bias by the distance, and do no more. */
const biased = (app) =>
    app.catalog.filter(
        (entry) => entry.own && entry.doors.join() === "score" && usualOf(entry, app).kept.bias?.shape.length === 2,
    );

export const figure = {
    name: "bias-by-distance",
    title: "Bias against distance",
    see:
        "How much a key so many tokens back loses or gains. What is learned is drawn at initialisation; terms that " +
        "meet the query are shown for one Gaussian query. Try another head, and the logarithmic axis: on it " +
        "KERPLE becomes a line far away, and T5's wide buckets have equal widths. On the linear axis ALiBi is a line.",
    defaults: {
        distance: 128,
        head: 1,
        log: false,
        gate: 0.95,
        draw: 0,
        own: true,
        weighed: false,
        ...Object.fromEntries(
            NAMES.map((name) => [name, ["alibi", "sandwich", "kerple", "t5", "fire", "fox"].includes(name)]),
        ),
    },
    another: {
        distance: 64,
        head: 3,
        log: true,
        gate: 0.9,
        draw: 2,
        ...Object.fromEntries(NAMES.map((name) => [name, name === "alibi" || name === "shaw"])),
    },
    controls: (values, app) => [
        { name: "distance", label: "up to distance", kind: "range", min: 16, max: 512, step: 1, log: true },
        { name: "head", label: `head (of ${HEADS})`, kind: "range", min: 1, max: HEADS },
        { name: "log", label: "logarithmic distance", kind: "check" },
        WEIGHED,
        { name: "draw", label: "random numbers, draw", kind: "range", min: 0, max: 20 },
        ...(values.fox
            ? [{ name: "gate", label: "FoX's gates, all", kind: "range", min: 0.5, max: 0.99, step: 0.01 }]
            : []),
        ...(biased(app).length ? [{ name: "own", label: "your own", kind: "check" }] : []),
        ...NAMES.map((name) => ({ name, label: entryOf(app, name).title, kind: "check" })),
    ],
    values(state, app) {
        const shown = NAMES.filter((name) => state[name]);
        const x = Float64Array.from({ length: state.distance + 1 }, (_, n) => n);
        return {
            x,
            series: [
                ...shown.map((name) => ({
                    scheme: name,
                    name: entryOf(app, name).title,
                    y: biasOf(name, state, app),
                })),
                ...(state.own ? biased(app) : []).map((entry) => ({
                    scheme: entry.name,
                    name: entry.title,
                    y: computed(entry, state, app),
                })),
            ],
        };
    },
    use(state, app) {
        const name = NAMES.find((one) => state[one]);
        return name ? use([call(name, app, state)], { tokens: state.distance + 1, causal: true }) : "";
    },
    line(state, app) {
        const names = FREE.filter((name) => state[name]);
        const N = state.distance + 1;
        const schemes = names.map((name) => python(entryOf(app, name), call(name, app, state).options));
        return (
            "import torch, posenc\n\n" +
            `# Distances, and there the bias of the schemes that learn nothing:\nschemes = [${schemes.join(", ")}]\nkeys = posenc.Positions.arange(${N})\n` +
            `q, k = (torch.zeros(1, ${HEADS}, n, 64, dtype=torch.float64) for n in (1, ${N}))\n` +
            'places = {"query_positions": keys[-1:], "key_positions": keys}\n' +
            `rows = [posenc.logits(q, k, scheme, **places)[0, ${state.head - 1}, 0].flip(0)${state.weighed ? ".softmax(-1)" : ""} for scheme in schemes]\n` +
            `torch.stack([torch.arange(${N}, dtype=torch.float64), *rows])`
        );
    },
    compared(state, app) {
        const names = FREE.filter((name) => state[name]);
        const N = state.distance + 1;
        const data = new Float64Array((names.length + 1) * N);
        for (let n = 0; n < N; n++) data[n] = n;
        const shown = (name) => (state.weighed ? weighed(biasOf(name, state, app)) : biasOf(name, state, app));
        names.forEach((name, row) => data.set(shown(name), (row + 1) * N));
        return { shape: [names.length + 1, N], data };
    },
    mount(box, app) {
        const label = "bias of each scheme against the distance";
        const charts = [false, true].map((logX) =>
            app.lines(box, { label, xLabel: "distance (tokens)", yLabel: "bias", logX, height: 360 }),
        );
        return ({ log, weighed: isWeighed }, { x, series: biases }) => {
            const series = biases.map((one) => (isWeighed ? { ...one, y: weighed(one.y) } : one));
            charts.forEach(({ frame }, n) => (frame.parentElement.style.display = n === Number(log) ? "" : "none"));
            const looks = told(series.map(({ scheme }) => app.data.looks[scheme][app.theme().dark ? "dark" : "light"]));
            const from = log ? 1 : 0;
            const lines = series.map(({ name, y }, n) => ({ name, y: y.subarray(from), ...looks[n], always: true }));
            charts[Number(log)].draw(x.subarray(from), lines, { yLabel: isWeighed ? "attention weight" : "bias" });
        };
    },
    describe({ distance, head }, { series }) {
        const number = (x) => (Number.isNaN(x) ? "not computed that far" : Number(x.toPrecision(3)));
        const words = series.map(({ name, y }) => `${name} ${number(y[distance])}`);
        return series.length
            ? `Bias in head ${head} at a distance of ${distance}: ${words.join(", ")}.`
            : "No scheme is chosen.";
    },
    async check(state, numbers, app) {
        const small = { ...state, distance: Math.min(state.distance, 31) };
        let [count, most] = [0, 0];
        for (const name of NAMES.filter((one) => state[one] && one !== "fox" && !isByNumbers({ name: one }))) {
            const { entry, options, parameters, q, k } = call(name, app, small);
            const tokens = (x) => Array.from({ length: x }, (_, n) => [n]);
            const { logits: theirs } = await app.ask("attention", {
                schemes: [named(entry, options, parameters)],
                query: arrayOf(q),
                key: arrayOf(k),
                value: arrayOf(k),
                positions: [[small.distance]],
                key_positions: tokens(k.tokens),
                causal: true,
            });
            const head = Math.min(state.head, theirs.shape[0]) - 1;
            most = Math.max(
                most,
                apart(biasOf(name, small, app).reverse(), theirs.data.slice(head * k.tokens, (head + 1) * k.tokens)),
            );
            count += k.tokens;
        }
        if (!count) throw new Error("what FoX reads of a layer is sent in the figure of any scheme, and posenc computed the rest");
        return agreed(count, most);
    },
};
