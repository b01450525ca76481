// Any scheme of the catalog: what it does to every two tokens.

import {
    MOST,
    SCORES,
    WHAT,
    across,
    axesOf,
    callOf,
    familyOf,
    framed,
    isForDecoders,
    ofGrid,
    ofLine,
} from "posenc/effect.js";
import { comparedOf, isDrawn, pythonOf } from "posenc/effect_python.js";
import { Heads } from "posenc/math/arrays.js";
import { attend } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { changed, effectOf, isByNumbers, noteOf, numbersOf, shownOptions, usualOf, valuesOf } from "posenc/numbers.js";
import * as given from "posenc/options.js";
import { remembered } from "posenc/remembered.js";
import { ordered } from "posenc/theme.js";
import { use } from "posenc/use.js";
import { WEIGHED, weighed } from "posenc/weighed.js";

const DASHES = [[], [12, 3], [12, 3, 3, 3], [3, 3], [6, 2, 2, 2], [1, 3]];

const FAR = 512; // tokens that are drawn at most of what depends only on the distance

/** Options that need another one beside them. */
const BESIDE = {
    alibi: { form: (form, { num_heads: n }) => (form === "directed" && n % 2 ? `num_heads:${n + 1}` : "") },
    query_scale: {
        form: (form) =>
            ["ssmax", "mistral_large4"].includes(form) ? "num_heads:4 length:None" : "num_heads:None length:16",
    },
    deberta: { clamp: (clamp) => `num_buckets:${clamp === "distance" ? 32 : "None"}` },
    rope_3d: { form: () => "shares:None" },
    axial_rope: { convention: (convention) => `extent:${convention === "eva" ? "9,9" : "None"}` },
};

/** {entry, options, scheme, family, axes, parameters} of a state. */
function chosen({ scheme, options, tokens, side, draw }, app) {
    const entry = given.entryOf(app, scheme);
    if (!isByNumbers(entry)) return built(entry, options, Math.max(tokens, 64), side, draw);
    const wanted = given.optionsOf(entry, options);
    const drawn = numbersOf(entry, app, wanted);
    return { ...ofNumbers(entry, drawn), options: entry.own ? wanted : drawn.options, note: noteOf(entry, app, wanted) };
}

/** The same of a scheme that posenc has computed. */
function ofNumbers(entry, { options, effect }) {
    const { found, ...one } = effectOf(effect, entry);
    const all = () => found;
    return { entry, options, scheme: {}, parameters: {}, few: all, all, axes: axesOf(entry), ...one };
}

/** The same, with what the scheme does to a few tokens and to `all`, so many of them (or patches to a side). Another
 * head is drawn of the same numbers. */
const built = remembered((entry, text, max_positions, side, draw) => {
    const axes = axesOf(entry);
    const options = given.optionsOf(entry, text, axes === 1 ? { max_positions } : { grid: [side, side] });
    const parameters = given.parametersOf(entry, options, { seed: draw, spread: entry.name === "cope" ? 1 : 0 });
    const scheme = given.schemeOf(entry, options, parameters);
    const family = familyOf(scheme, entry);
    const of = axes === 1 ? ofLine : ofGrid;
    const seen = (size) => of(scheme, entry, options, family, size, draw);
    const few = remembered(() => seen(axes === 1 ? 9 : 3));
    return { entry, options, parameters, scheme, axes, family, what: WHAT[family], few, all: remembered(seen) };
});

/** Whether what is drawn is a score, or added to one. */
const isScore = ({ family, what }) =>
    ["bias", "rotate"].includes(family) || (family === "score" && what === "bias");

const seesBack = ({ family, entry, options }) =>
    ["content", "bands"].includes(family) || isForDecoders(entry, options);

/** The heads of a scheme that are not all alike, and the tokens that it is drawn for. */
function extent(values, app) {
    const entry = given.entryOf(app, values.scheme);
    if (isByNumbers(entry)) {
        const one = ofNumbers(entry, usualOf(entry, app));
        return { ...one, options: given.optionsOf(entry, values.options), heads: one.all().heads ?? 1, most: 0 };
    }
    const one = chosen(values, app);
    const { heads, by } = one.few();
    return { ...one, heads, most: by === "distance" ? FAR : MOST };
}

/** A scheme that cannot be built has the controls to make it one that can. */
function extentOr(values, app) {
    try {
        return extent(values, app);
    } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        const entry = given.entryOf(app, values.scheme);
        const options = given.optionsOf(entry, values.options);
        return { entry, options, axes: axesOf(entry), heads: 16, most: FAR, family: "" };
    }
}

// Not asked for: tokens here have no segments, and numbers are of heads and of channels as they are built.
const WITHOUT = ["segments", "values"];
const SIZED = [...WITHOUT, "num_heads"];

export const figure = {
    name: "scheme",
    title: "What a scheme does to every two tokens",
    see:
        "Choose a scheme and its options. A diagonal pattern depends only on the distance; rows or columns that " +
        "differ say where the tokens stand. What a scheme learns is drawn at initialisation, before any training.",
    formula: ({ scheme }, app) => given.entryOf(app, scheme).formula,
    defaults: { scheme: "alibi", options: "", tokens: 33, side: 9, head: 1, causal: false, weighed: false, draw: 0 },
    another: { scheme: "rope", options: "base:100", tokens: 24, side: 9, head: 1, causal: true, draw: 0 },
    controls(values, app) {
        const one = extentOr(values, app);
        const { entry, options, axes, heads, most, family } = one;
        return [
            given.schemeControl(app),
            ...given.optionControls(
                entry,
                options,
                isByNumbers(entry) ? SIZED : WITHOUT,
                (name) => isByNumbers(entry) ? valuesOf(entry, name, app) : null,
            ),
            ...(most === 0
                ? []
                : [
                      axes === 1
                          ? { name: "tokens", label: "tokens", kind: "range", min: 8, max: most }
                          : { name: "side", label: "patches to a side", kind: "range", min: 3, max: 13 },
                  ]),
            ...(heads > 1 ? [{ name: "head", label: "head", kind: "range", min: 1, max: heads }] : []),
            ...(axes === 1 && most > 0 && !seesBack(one) ? [{ name: "causal", label: "causal", kind: "check" }] : []),
            ...(isScore(one) ? [WEIGHED] : []),
            ...(family !== "" && !isByNumbers(entry) && (isDrawn(one) || family === "content")
                ? [{ name: "draw", label: "random numbers, draw", kind: "range", min: 0, max: 20 }]
                : []),
        ];
    },
    change(values, name, value, app) {
        const entry = given.entryOf(app, values.scheme);
        const key = name.replace("options.", "");
        let next = changed(values, name, value, app);
        if (name !== "scheme" && !name.startsWith("options.")) return next;
        if (!isByNumbers(entry) || app.server) {
            const beside = BESIDE[values.scheme]?.[key]?.(value, given.optionsOf(entry, values.options)) ?? "";
            for (const part of beside.split(" ").filter(Boolean))
                next = given.change(next, `options.${part.split(":")[0]}`, part.split(":")[1]);
        }
        const { heads, most } = extentOr({ ...next, tokens: Math.min(next.tokens, MOST) }, app);
        return { ...next, head: Math.min(next.head, heads), tokens: most ? Math.min(next.tokens, most) : next.tokens };
    },
    shown: shownOptions,
    values(state, app) {
        const one = chosen(state, app);
        const sizes = sizesOf(one, state);
        const made = one.family === "curve" ? curve(one) : one.axes === 1 ? line(one, sizes) : grid(one, sizes);
        return { ...one, ...made, ...(state.weighed && isScore(one) && { what: "attention weight" }) };
    },
    use(state, app) {
        const one = chosen(state, app);
        return use([one], { ...sizesOf(one, state), causal: state.causal || seesBack(one) });
    },
    line(state, app) {
        const one = chosen(state, app);
        if (isByNumbers(one.entry)) return `# posenc plot overview --schemes ${one.entry.name}`;
        const lines = pythonOf(one, state);
        return state.weighed && isScore(one) && !isDrawn(one) ? weights(lines, one, state) : lines;
    },
    compared(state, numbers, app) {
        const one = chosen(state, app);
        if (isByNumbers(one.entry)) return null;
        const found = comparedOf(one, state);
        if (!state.weighed || !isScore(one) || isDrawn(one)) return found;
        const { shape, data } = found;
        const keys = state.tokens;
        return { shape, data: one.axes > 1 ? weighed(data) : weighed(hidden(data, keys, one, state), { keys }) };
    },
    mount(box, app) {
        const matrix = app.heat(box, { label: "what the scheme does to each query and key" });
        const along = app.lines(box, { label: "the same as lines", xLabel: "key − query", yLabel: "" });
        const frame = box.querySelector(".heat");
        return (state, { entry, what, map, x, xLabel, series }) => {
            frame.style.display = map ? "" : "none";
            if (map) matrix.draw(map.data, { ...map, label: `${entry.title}: ${what} of ${map.said}` });
            const color = (n) => ordered(app.theme(), n, Math.max(series.length, 2));
            along.draw(
                x,
                series.map((one, n) => ({ always: true, color: color(n), dash: DASHES[n % DASHES.length], ...one })),
                { xLabel, yLabel: what },
            );
        };
    },
    describe({ head }, { entry, what, heads, goes, map, series, note = "" }) {
        let [low, high] = [Infinity, -Infinity];
        for (const x of map?.data ?? series[0].y)
            if (Number.isFinite(x)) [low, high] = [Math.min(low, x), Math.max(high, x)];
        const words = heads > 1 ? `, head ${head} of ${heads}` : "";
        return `${entry.title}${words}: ${what} from ${Number(low.toPrecision(3))} to ${Number(high.toPrecision(3))}. ${goes}${note}`;
    },
    async check(state, { entry, family, axes }, app) {
        if (isByNumbers(entry)) return "posenc computed all of these numbers";
        const small = { ...state, tokens: Math.min(state.tokens, 32), side: Math.min(state.side, 5) };
        const one = chosen(small, app);
        const positions = axes > 1 ? framed(one.scheme, axes, small.side) : Positions.arange(small.tokens);
        const scheme = given.named(one.entry, one.options, one.parameters);
        if (family === "add") {
            const ours = one.scheme.table(positions).data;
            return given.agreed(ours.length, given.apart(ours, await given.askTable(app, scheme, positions)));
        }
        const ofScheme = [one.scheme, one.entry, one.options, family];
        const { q, k, causal, features } = callOf(...ofScheme, positions, positions, state.draw);
        const N = positions.length;
        // Values are unit vectors, so the output is the weights; where they gain, they are as wide as keys.
        const width = one.scheme.values ? k.dim : N;
        const unit = new Heads(k.heads, N, width).map(width, (made, _, head, token) => (made[token % width] = 1));
        const ours = attend(one.scheme, q, k, unit, { positions, causal: causal || seesBack(one), features }).out;
        const how = { positions, causal: causal || seesBack(one), projected: features };
        const { out } = await given.askAttention(app, [scheme], [q, k, unit], how);
        return given
            .agreed(ours.data.length, given.apart(ours.data, out.data))
            .replace("these numbers", "the attention weights under these scores");
    },
};

/** The state with the sizes that posenc has computed, where it has. */
const sizesOf = ({ entry, tokens, side }, state) =>
    isByNumbers(entry) ? { ...state, tokens: tokens || state.tokens, side } : state;

/** The scores without those of keys that a query does not see. */
function hidden(data, N, one, { causal }) {
    if (causal || seesBack(one)) for (let i = 0; i < N; i++) data.fill(NaN, i * N + i + 1, (i + 1) * N);
    return data;
}

/** Lines of Python whose last is a score, with the weights in its place. */
function weights(lines, one, { tokens: N, side, causal }) {
    const at = lines.lastIndexOf("\n") + 1;
    const scores = `${lines.slice(0, at)}scores = ${lines.slice(at)}\n`;
    if (one.axes > 1) return `${scores}scores.flatten().softmax(-1).view(${side}, ${side})`;
    if (!causal && !seesBack(one)) return `${scores}scores.softmax(-1)`;
    return (
        `${scores}hidden = torch.ones(${N}, ${N}, dtype=torch.bool).triu(1)\n` +
        "scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, torch.nan)"
    );
}

function line(one, { tokens: N, head, causal, weighed: asWeights }) {
    const { family } = one;
    const { by, heads, matrix, along, between, arrives } = one.all(N);
    const which = Math.min(head, heads) - 1;
    const isCausal = causal || seesBack(one);
    const isWeighed = asWeights && isScore(one);
    const scores = hidden(matrix(which), N, one, { causal });
    const data = isWeighed ? weighed(scores, { keys: N }) : scores;
    const map = {
        rows: N,
        columns: N,
        data,
        centre: family === "factor" ? 1 : undefined,
        low: isWeighed ? 0 : undefined,
        rowLabel: "query",
        columnLabel: "key",
        said: `each query and key of ${N}`,
    };
    const made = { heads, map, main: data };
    if (!by || isWeighed) {
        const queries = [N >> 2, N >> 1, N - 1];
        const x = Float64Array.from({ length: isCausal ? N : 2 * N - 1 }, (_, n) => n + 1 - N);
        const series = queries.map((i) => ({
            name: `query ${i}`,
            dots: true,
            y: x.map((r) => (i + r >= 0 && i + r < N ? data[i * N + i + r] : NaN)),
        }));
        return {
            ...made,
            x,
            xLabel: "key − query (tokens)",
            series,
            goes: family === "content"
                ? "It depends on what the tokens are."
                : isWeighed
                  ? "The weights of a query sum to 1."
                  : "It depends on more than the distance.",
        };
    }
    const isDistance = by === "distance";
    const count = isDistance && !isCausal ? 2 * N - 1 : N;
    const x = Float64Array.from({ length: count }, (_, n) => (isDistance ? n + 1 - N : n));
    const series = Array.from({ length: heads }, (_, n) => ({
        isChosen: n === which,
        name: heads > 1 ? `head ${n + 1}` : one.what,
        width: n === which && heads > 1 ? 3.5 : 2,
        dots: true,
        y: along(n).slice(0, count),
        wave: between(n),
    }));
    if (arrives) series.push({ name: "share of a value that arrives", y: x.map((r) => arrives[Math.abs(r)] ?? NaN) });
    return {
        ...made,
        x,
        series,
        xLabel: isDistance ? "key − query (tokens)" : `${by} (token)`,
        goes: isDistance ? "It depends only on the distance." : `It depends on where the ${by} stands.`,
    };
}

function grid(one, { side, head, weighed: asWeights }) {
    const { axes, all } = one;
    const { x, middle, heads, matrix, lines } = all(side);
    const which = Math.min(head, heads) - 1;
    const isWeighed = asWeights && isScore(one);
    const data = isWeighed ? weighed(matrix(which)) : matrix(which);
    const marks = [{ row: middle, column: middle }];
    const map = {
        rows: side,
        columns: side,
        data,
        marks,
        rowLabel: "row (patch)",
        columnLabel: "column (patch)",
        said: `the query in row ${middle}, column ${middle} and every patch`,
    };
    const series = isWeighed ? across(data, side) : lines(which);
    return {
        heads,
        map,
        main: data,
        x,
        xLabel: "key − query (along the axis)",
        series,
        goes: `The query stands in the middle of ${side} × ${side} patches${axes === 3 ? " of one frame" : ""}.`,
    };
}

function curve(one) {
    const { y } = one.all();
    return {
        heads: 1,
        map: null,
        main: y,
        x: SCORES,
        xLabel: "score before",
        series: [
            { name: "score after", y },
            { name: "unchanged", y: SCORES },
        ],
        goes: "It depends only on the score.",
    };
}
