// Attention in a sentence whose words can be moved: without a scheme it goes with the words, with one it does not.

import { element } from "posenc/elements.js";
import { attend } from "posenc/math/attend.js";
import { SCHEMES } from "posenc/math/catalog.js";
import { Positions } from "posenc/math/positions.js";
import * as given from "posenc/options.js";
import { Random } from "posenc/random.js";
import { NORMALS, embedded, normals, projected, wordsOf } from "posenc/words.js";

const [DIM, HEADS, HEAD_DIM, MOST] = [64, 4, 16, 24];
const SIZES = { dim: DIM, num_heads: HEADS, head_dim: HEAD_DIM, max_positions: 64 };
/** Options that are as the sentence has them, or that no weight depends on. */
const FIXED = ["num_heads", "head_dim", "dim", "max_positions", "axes", "rotary_dim", "rope_dim", "values"];
/** What some schemes want a layer to project beside queries and keys, and its width. */
const FEATURES = { fox: () => ["forgotten", 1], inkling: ({ width }) => ["profile", width] };
const takes = ({ axes, name }) => ["one", "any"].includes(axes) && name !== "segment"; // a segment is told by no order
const isCausal = (state, entry) => state.causal || entry.for_decoders;

/** {words, order, entry, options, scheme, learned, parameters} of a state. */
function chosen({ text, word, order: places, scheme: name, options: said, spread }, app) {
    const words = wordsOf(text);
    if (words.length < 2 || words.length > MOST) throw new RangeError(`the sentence must have 2 to ${MOST} words, got ${words.length}`);
    const order = places ? places.split(",").map(Number) : words.map((_, n) => n);
    if ([...order].sort((a, b) => a - b).join() !== words.map((_, n) => n).join()) {
        throw new RangeError(`order must be the numbers 0 to ${words.length - 1}, each once, got ${places}`);
    }
    if (!(word in words)) throw new RangeError(`word must be one of 0 to ${words.length - 1}, got ${word}`);
    const entry = given.entryOf(app, name);
    if (!takes(entry)) throw new RangeError(`scheme must be one that tells the words of a line apart, got ${entry.title}`);
    const options = given.optionsOf(entry, said, SIZES);
    const learned = Object.entries(SCHEMES[name].learned(options)).map(([of, { shape, fill, uniform }]) => ({
        of, shape, start: fill ?? (uniform ? (uniform[0] + uniform[1]) / 2 : 0),
    }));
    const parameters = Object.fromEntries(learned.map(({ of, shape, start }) => {
        const data = normals(of, shape.reduce((a, b) => a * b, 1)).map((x) => start + spread * x);
        return [of, { shape, data }];
    }));
    return { words, order, entry, options, learned, parameters, scheme: new SCHEMES[name](options, parameters) };
}

/** {q, k, v, logits, weights, out} of words in their order, with schemes. */
function run(words, schemes, { causal, feature = null }) {
    const positions = Positions.arange(words.length);
    const x = embedded(words.map(({ key }) => key), DIM);
    for (const scheme of schemes) scheme.table?.(positions).data.forEach((p, n) => (x.data[n] += p));
    const [q, k, v] = ["query", "key", "value"].map((name) => projected(x, name, HEADS, HEAD_DIM));
    const features = feature ? { [feature[0]]: projected(x, feature[0], HEADS, feature[1]) } : {};
    return { q, k, v, ...attend(schemes, q, k, v, { positions, causal, features }) };
}

/** The attention of a word to each, by the words as typed: before and after the move. */
function moved(before, after, { order, word, head }) {
    const place = order.map((_, n) => order.indexOf(n));
    const typed = before.weights.row(head, word);
    const now = after.weights.row(head, place[word]);
    const found = place.map((at) => now[at]);
    return { typed: Float64Array.from(typed), now: Float64Array.from(found), most: Math.max(...found.map((x, n) => Math.abs(x - typed[n]))) };
}

export const figure = {
    name: "sentence",
    title: "A sentence with and without positions",
    see: "Each word is a fixed random vector, so equal words are equal vectors. Without a scheme their rows and columns are equal too, wherever they "
        + "stand; with one they differ. Choose a word, move it or shuffle the sentence, and compare what it attends to.",
    defaults: {
        text: "the wave wore the rock down while the rock stood", word: 4, pair: true, order: "", shuffle: 0,
        scheme: "rope", options: "", spread: 0.3, head: 1, causal: false, show: "attention",
    },
    another: { text: "a rock, a wave and a stone", word: 3, order: "5,1,0,6,3,4,2", scheme: "t5", options: "num_buckets:8", head: 2, causal: true, show: "scores" },
    controls(state, app) {
        const entry = given.entryOf(app, state.scheme);
        const options = given.optionsOf(entry, state.options, SIZES);
        const learns = Object.keys(SCHEMES[entry.name].learned(options)).length > 0;
        const move = (name, label) => ({ name: "order", label, kind: "button", value: () => name });
        return [
            { name: "text", label: `sentence, up to ${MOST} words`, kind: "text", longest: 240 },
            given.schemeControl(app, { filter: takes }),
            ...given.optionControls(entry, options, FIXED),
            ...(learns ? [{ name: "spread", label: "spread of what it learns", kind: "range", min: 0, max: 1, step: 0.02 }] : []),
            { name: "head", label: "head", kind: "range", min: 1, max: HEADS },
            { name: "show", label: "show", kind: "choice", choices: ["attention", "scores"] },
            ...(entry.for_decoders ? [] : [{ name: "causal", label: "causal", kind: "check" }]),
            move("left", "← Move left"), move("right", "Move right →"),
            { name: "pair", label: "with the word before it", kind: "check" },
            move("shuffle", "Shuffle"), move("typed", "As typed"),
        ];
    },
    change(state, name, value) {
        if (name === "text") return { ...state, text: value, order: "", word: Math.max(0, Math.min(state.word, wordsOf(value).length - 1)) };
        if (name !== "order") return given.change(state, name, value);
        const typed = wordsOf(state.text).map((_, n) => n);
        const order = state.order ? state.order.split(",").map(Number) : typed;
        if (value === "typed") return { ...state, order: "" };
        if (value === "shuffle") return { ...state, shuffle: state.shuffle + 1, order: shuffled(typed, state.shuffle + 1).join() };
        const made = shifted(order, order.indexOf(state.word), state.pair ? 2 : 1, value === "left" ? -1 : 1).join();
        return { ...state, order: made === typed.join() ? "" : made };
    },
    shown: (state, app) => given.optionValues(given.optionsOf(given.entryOf(app, state.scheme), state.options, SIZES)),
    values(state, app) {
        const one = chosen(state, app);
        const { words, order, entry, options, scheme } = one;
        const causal = isCausal(state, entry);
        const how = { causal, feature: FEATURES[entry.name]?.(options) };
        const now = order.map((n) => words[n]);
        const head = state.head - 1;
        const [before, after] = [words, now].map((sentence) => ({
            bare: run(sentence, [], { causal: false }), without: run(sentence, [], { causal }), with: run(sentence, [scheme], how),
        }));
        const kinds = Object.fromEntries(["bare", "without", "with"].map((kind) => [kind, moved(before[kind], after[kind], { order, word: state.word, head })]));
        const twin = words.findIndex(({ key }, n) => key === words[state.word].key && n !== state.word);
        return { ...one, now, causal, after, moved: kinds, shown: ["without", "with"].map((kind) => picture(after[kind], head, causal, state.show)), twins: twin < 0 ? null : { twin, ...twins(after, order, [state.word, twin], head) } };
    },
    line: (state, app) => python(state, chosen(state, app)),
    compared(state, app) {
        const { shown, words } = figure.values(state, app);
        return { shape: [2, words.length, words.length], data: Float64Array.from(shown.flatMap((one) => [...one])) };
    },
    async check(state, { entry, options, parameters, scheme, after, causal, now }, app) {
        if (entry.name in FEATURES) throw new Error("the server has no layer that makes the scheme's features");
        const array = ({ heads, tokens, dim, data }) => given.array([heads, tokens, dim], data);
        const positions = now.map((_, n) => [n]);
        const named = given.named(entry, options, parameters);
        const { q, k, v, out } = after.with;
        const said = await app.ask("attention", { schemes: entry.doors.includes("add") ? [] : [named], query: array(q), key: array(k), value: array(v), positions, causal });
        let most = given.apart(out.data, said.out.data);
        if (scheme.table) most = Math.max(most, given.apart(scheme.table(Positions.arange(now.length)).data, (await app.ask("table", { scheme: named, positions })).table.data));
        return given.agreed(out.data.length, most).replace("these numbers", "the outputs of this attention");
    },
    mount(box, app) {
        const sentence = element("div", { class: "sentence" });
        const map = (label) => {
            const title = element("p", { class: "map-title" });
            const frame = element("div", { class: "scroll" }, title);
            box.append(frame);
            return { frame, title, matrix: app.heat(frame, { label, size: 460 }) };
        };
        box.append(sentence);
        const maps = [map("without a scheme"), map("with the scheme")];
        const table = element("div", { class: "scroll sentence", tabindex: "0", role: "region", "aria-label": "attention of the chosen word, before and after" });
        box.append(table);
        return (state, values) => {
            const { words, order, now, shown, entry } = values;
            const key = words[state.word].key;
            sentence.replaceChildren(...sentences(state, values, (word) => app.set({ word })));
            const marks = order.flatMap((n, row) => (words[n].key === key ? [{ row, column: 0, columns: now.length, color: "#ffffff" }] : []));
            const names = now.map(({ word }, n) => ({ text: order[n] === state.word ? `▸${word}` : word, isMarked: words[order[n]].key === key }));
            const place = (n) => `${now[n].word} (${n + 1})`;
            // One scale for both of attention: the largest weight of the two.
            const high = state.show === "attention" ? Math.max(...shown.flatMap((one) => [...one].filter(Number.isFinite))) : undefined;
            maps.forEach(({ frame, title, matrix }, n) => {
                frame.style.setProperty("--least", `${now.length * 13 + 110}px`); // room for a line of letters at each word
                title.textContent = `${state.show === "scores" ? "Scores" : "Attention"} ${n ? `with ${entry.title}` : "without a scheme"}: a row for each query, a column for each key`;
                const label = `${title.textContent}, head ${state.head}`;
                matrix.draw(shown[n], {
                    rows: now.length, columns: now.length, marks, low: high && 0, high, label,
                    words: names,
                    rowName: (row) => `query ${place(row)}`, columnName: (column) => `key ${place(column)}`,
                });
            });
            table.replaceChildren(changes(state, values));
        };
    },
    describe(state, { words, order, moved: kinds, entry, causal, twins: found }) {
        const word = words[state.word].word;
        const equal = found ? ` The rows of “${word}” (${state.word + 1}) and “${word}” (${found.twin + 1}) differ by at most ${number(found.without)} without a scheme${causal ? " (by the mask)" : ""}, by ${number(found.with)} with ${entry.title}.` : "";
        if (order.every((n, at) => n === at)) return `The sentence stands as typed: move a word or shuffle.${equal}`;
        const said = [`What “${word}” attends to, word by word, after the move: without a scheme and a mask ${nothing(kinds.bare.most)}`];
        if (causal) said.push(`without a scheme under the causal mask by up to ${number(kinds.without.most)}, since other words stand before it now`);
        said.push(`with ${entry.title}${causal ? " and the mask" : ""} ${nothing(kinds.with.most)}`);
        return `${said.join("; ")}.${equal}`;
    },
};

const number = (x) => (x === 0 ? "0" : x < 1e-4 ? x.toExponential(1) : String(Number(x.toPrecision(3))));
const nothing = (most) => (most < 1e-12 ? `nothing changed (largest difference ${number(most)}${most ? ", the rounding of a sum in another order" : ""})` : `the largest change is ${number(most)}`);

function shuffled(order, seed) {
    const [made, random] = [[...order], new Random(seed)];
    for (let n = made.length - 1; n > 0; n--) {
        const other = Math.floor(random.uniform(0, n + 1));
        [made[n], made[other]] = [made[other], made[n]];
    }
    return made;
}

/** The order with `count` words, the last of them at `end`, moved one place, where there is one. */
function shifted(order, end, count, by) {
    const start = Math.max(0, end + 1 - count);
    const rest = [...order.slice(0, start), ...order.slice(end + 1)];
    const to = Math.min(Math.max(start + by, 0), rest.length);
    return [...rest.slice(0, to), ...order.slice(start, end + 1), ...rest.slice(to)];
}

/** The numbers of one head as they are drawn: what the mask hides is NaN among scores and 0 among weights. */
function picture({ logits, weights }, head, causal, show) {
    const N = logits.queries;
    const made = Float64Array.from((show === "scores" ? logits : weights).data.subarray(head * N * N, (head + 1) * N * N));
    if (causal) for (let i = 0; i < N; i++) made.fill(NaN, i * N + i + 1, (i + 1) * N);
    return made;
}

/** How far the rows of two equal words are apart, at most. */
function twins(after, order, [one, other], head) {
    const far = ({ weights }) => given.apart(weights.row(head, order.indexOf(one)), weights.row(head, order.indexOf(other)));
    return { without: far(after.without), with: far(after.with) };
}

/** The words as typed, and as they stand now, each a button that chooses it. */
function sentences({ word, pair }, { words, order }, choose) {
    const at = order.indexOf(word);
    const now = order.map((n, place) => {
        const goesAlong = pair && place === at - 1;
        return element("button", { type: "button", "aria-pressed": String(n === word), class: goesAlong ? "along" : "", onclick: () => choose(n) }, words[n].word);
    });
    return [
        element("p", {}, element("b", {}, "As typed: "), words.map((one) => one.word).join(" ")),
        element("div", { role: "group", "aria-label": "the sentence now; choose a word" }, element("b", {}, "Now: "), ...now),
    ];
}

/** The table of what changed. */
function changes({ word }, { words, order, moved: kinds, entry, causal }) {
    const cell = (x, name = "td") => element(name, name === "th" ? { scope: "col" } : {}, x);
    const place = (n) => order.indexOf(n);
    const [hiddenBefore, hiddenNow] = [(n) => causal && n > word, (n) => causal && place(n) > place(word)];
    const digits = (x, isHidden = false) => (isHidden ? "hidden" : x.toFixed(4));
    const columns = [["without", `no scheme${causal ? ", masked" : ""}`], ["with", entry.title]];
    return element(
        "table", {},
        element("caption", {}, `How much “${words[word].word}” attends to each word, as typed and now`),
        element("thead", {}, element("tr", {}, cell("word", "th"), ...columns.flatMap(([, name]) => [cell(`${name}: typed`, "th"), cell("now", "th"), cell("change", "th")]))),
        element("tbody", {}, ...words.map((one, n) => element(
            "tr", {}, element("th", { scope: "row" }, `${one.word} (${n + 1})`),
            ...columns.flatMap(([kind]) => {
                const { typed, now } = kinds[kind];
                const change = now[n] - typed[n];
                return [cell(digits(typed[n], hiddenBefore(n))), cell(digits(now[n], hiddenNow(n))), cell(Math.abs(change) < 1e-12 ? number(Math.abs(change)) : `${change > 0 ? "+" : "−"}${digits(Math.abs(change))}`)];
            }),
        ))),
    );
}

/** The picture in Python. */
function python(state, { words, order, entry, options, learned }) {
    const causal = isCausal(state, entry);
    const feature = FEATURES[entry.name]?.(options);
    const begin = learned.length
        ? `starts = {${learned.filter(({ start }) => start).map(({ of, start }) => `"${of}": ${start}`).join(", ")}}\n`
            + `for name, learned in scheme.named_parameters():\n    learned.data = starts.get(name, 0.0) + ${state.spread} * normals(name, *learned.shape)\n`
        : "";
    const bound = feature ? `    if encoding.wanted:\n        encoding = encoding.with_projected({"${feature[0]}": layer(x, "${feature[0]}", ${feature[1]})${feature[1] === 1 ? "[..., 0]" : ""}})\n` : "";
    const scores = state.show === "scores";
    const softmax = entry.name === "stick_breaking" ? "scores.exp() if scheme else scores.softmax(-1)  # its scores are logarithms of weights" : "scores.softmax(-1)";
    return `${NORMALS}
words = ${JSON.stringify(order.map((n) => words[n].key))}
positions = posenc.Positions.arange(len(words))
scheme = ${given.python(entry, options)}.double()
${begin}
def layer(x, name, dim):
    weight = normals(name, ${HEADS} * dim, ${DIM})
    return (x @ weight.mT / ${DIM}**0.5).unflatten(-1, (${HEADS}, dim)).transpose(1, 2)

def ${scores ? "scores" : "weights"}(scheme):
    encoding = (scheme or posenc.NoPE())(positions, dtype=torch.float64)
    x = encoding.add(torch.stack([normals(word, ${DIM}) for word in words])[None])
${bound}    scores = posenc.logits(layer(x, "query", ${HEAD_DIM}), layer(x, "key", ${HEAD_DIM}), encoding, is_causal=${causal ? "True" : "False"})[0, ${state.head - 1}]
${causal ? `    hidden = torch.ones(len(words), len(words), dtype=torch.bool).triu(1)\n    scores = scores.masked_fill(hidden, -math.inf)\n` : ""}    return ${scores ? "scores" : causal ? `(${softmax.split("  #")[0]}).masked_fill(hidden, math.nan)` : softmax}

torch.stack((${scores ? "scores" : "weights"}(None), ${scores ? "scores" : "weights"}(scheme)))`;
}
