// A sentence whose words can be moved: which order they stand in, their attention with schemes, and the Python for it.

import { FEATURES, isForDecoders } from "posenc/effect.js";
import { Kept } from "posenc/kept.js";
import { attend } from "posenc/math/attend.js";
import { must } from "posenc/math/check.js";
import { Positions } from "posenc/math/positions.js";
import { isByNumbers, noteOf, numbersOf } from "posenc/numbers.js";
import * as given from "posenc/options.js";
import { Random } from "posenc/random.js";
import { NORMALS, embedded, normals, projected, wordsOf } from "posenc/words.js";

const [DIM, HEAD_DIM] = [64, 16];
export const [HEADS, MOST] = [4, 24];
export const SIZES = { dim: DIM, num_heads: HEADS, head_dim: HEAD_DIM, max_positions: 64 };
/** Options that are as the sentence has them, or that no weight depends on. */
export const FIXED = ["num_heads", "head_dim", "dim", "max_positions", "axes", "rotary_dim", "rope_dim", "values"];
/** Schemes of one coordinate, but for segments, which no order of words changes. */
export const takes = ({ axes, name }) => ["one", "any"].includes(axes) && name !== "segment";
/** Whether no word sees those after it: as the user says, or as the scheme, so built, has to have it. */
export const isCausal = (state, { entry, options }) => state.causal || isForDecoders(entry, options);

/** Sentences to begin with: "the rock" early and late, and words whose order is what they say. */
const SENTENCES = [
    "the wave wore the rock down while the rock stood",
    "the rock stood while the wave wore down",
    "the wave wore down while the rock stood",
    "only who can prevent forest fires",
    "who can prevent forest fires only",
    "The quick brown fox",
    "fox brown quick The",
];

/** The control that picks one, or `usual`, which a figure begins with; a text of one's own is among them. */
export function picking(text, usual = SENTENCES[0]) {
    const name = (value) => (value.length > 60 ? `${value.slice(0, 40)}…` : value);
    const choices = [...new Set([usual, ...SENTENCES, text])].map((value) => ({ value, name: name(value) }));
    return { name: "text", label: "sentence", kind: "choice", choices };
}

/** {words, order, entry, options, scheme, learned, parameters} of a state. */
export function chosen({ text, word, order: places, scheme: name, options: said, spread }, app) {
    const words = wordsOf(text);
    const isWithin = words.length >= 2 && words.length <= MOST;
    must(isWithin, `the sentence must have 2 to ${MOST} words, got ${words.length}`);
    const order = places ? places.split(",").map(Number) : words.map((_, n) => n);
    const hasEach = [...order].sort((a, b) => a - b).join() === words.map((_, n) => n).join();
    must(hasEach, `order must be the numbers 0 to ${words.length - 1}, each once, got ${places}`);
    must(word in words, `word must be one of 0 to ${words.length - 1}, got ${word}`);
    const entry = given.entryOf(app, name);
    must(takes(entry), `scheme must be one that tells the words of a line apart, got ${entry.title}`);
    const wanted = given.optionsOf(entry, said, SIZES);
    const counted = { words, order, entry, learned: [], parameters: {} };
    if (isByNumbers(entry)) {
        const { options, kept } = numbersOf(entry, app, wanted);
        const scheme = new Kept(entry, kept);
        return { ...counted, options: entry.own ? wanted : options, scheme, note: noteOf(entry, app, wanted) };
    }
    const options = wanted;
    const learned = Object.entries(given.learnedOf(entry, options)).map(([of, { shape, fill, uniform }]) => ({
        of,
        shape,
        start: fill ?? (uniform ? (uniform[0] + uniform[1]) / 2 : 0),
    }));
    const parameters = Object.fromEntries(
        learned.map(({ of, shape, start }) => {
            const data = normals(
                of,
                shape.reduce((a, b) => a * b, 1),
            ).map((x) => start + spread * x);
            return [of, { shape, data }];
        }),
    );
    return { ...counted, options, learned, parameters, scheme: given.schemeOf(entry, options, parameters) };
}

/** {q, k, v, logits, weights, out} of words in their order, with schemes. */
function run(words, schemes, { causal, feature = null }) {
    const positions = Positions.arange(words.length);
    const x = embedded(
        words.map(({ key }) => key),
        DIM,
    );
    for (const scheme of schemes) scheme.table?.(positions).data.forEach((p, n) => (x.data[n] += p));
    const [q, k, v] = ["query", "key", "value"].map((name) => projected(x, name, HEADS, HEAD_DIM));
    const features = feature ? { [feature[0]]: projected(x, feature[0], HEADS, feature[1]) } : {};
    return { q, k, v, features, ...attend(schemes, q, k, v, { positions, causal, features }) };
}

/** The attention of a word to each, by the words as typed: before and after the move. */
function moved(before, after, { order, word, head }) {
    const place = order.map((_, n) => order.indexOf(n));
    const typed = before.weights.row(head, word);
    const now = after.weights.row(head, place[word]);
    const found = place.map((at) => now[at]);
    return {
        typed: Float64Array.from(typed),
        now: Float64Array.from(found),
        most: Math.max(...found.map((x, n) => Math.abs(x - typed[n]))),
    };
}

export function shuffled(order, seed) {
    const [made, random] = [[...order], new Random(seed)];
    for (let n = made.length - 1; n > 0; n--) {
        const other = Math.floor(random.uniform(0, n + 1));
        [made[n], made[other]] = [made[other], made[n]];
    }
    return made;
}

/** The order with `count` words, the last of them at `end`, moved one place, where there is one. */
export function shifted(order, end, count, by) {
    const start = Math.max(0, end + 1 - count);
    const rest = [...order.slice(0, start), ...order.slice(end + 1)];
    const to = Math.min(Math.max(start + by, 0), rest.length);
    return [...rest.slice(0, to), ...order.slice(start, end + 1), ...rest.slice(to)];
}

/** The numbers of one head as they are drawn: what the mask hides is NaN among scores and 0 among weights. */
function picture({ logits, weights }, head, causal, show) {
    const N = logits.queries;
    const made = Float64Array.from(
        (show === "scores" ? logits : weights).data.subarray(head * N * N, (head + 1) * N * N),
    );
    if (causal) for (let i = 0; i < N; i++) made.fill(NaN, i * N + i + 1, (i + 1) * N);
    return made;
}

/** How far the rows of two equal words are apart, at most. */
function twins(after, order, [one, other], head) {
    const far = ({ weights }) =>
        given.apart(weights.row(head, order.indexOf(one)), weights.row(head, order.indexOf(other)));
    return { without: far(after.without), with: far(after.with) };
}

/** The picture in Python. */
export function python(state, { words, order, entry, options, learned }) {
    const causal = isCausal(state, { entry, options });
    const [feature, width] = FEATURES[entry.name]?.(options) ?? [];
    const starts = learned.filter(({ start }) => start).map(({ of, start }) => `"${of}": ${start}`);
    const drawn = `
starts = {${starts.join(", ")}}
for name, learned in scheme.named_parameters():
    learned.data = starts.get(name, 0.0) + ${state.spread} * normals(name, *learned.shape)
`;
    const projecting = `
    if encoding.wanted:
        encoding = encoding.with_projected({"${feature}": layer(x, "${feature}", ${width})${width === 1 ? "[..., 0]" : ""}})`;
    const hiding = `
    hidden = torch.ones(len(words), len(words), dtype=torch.bool).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)`;
    const weights = `scores.softmax(-1)${causal ? ".masked_fill(hidden, math.nan)" : ""}`;
    return `${NORMALS}
${given.imports([entry])}words = [${order.map((n) => JSON.stringify(words[n].key)).join(", ")}]
positions = posenc.Positions.arange(len(words))
scheme = ${given.python(entry, options)}.double()
${learned.length ? drawn : ""}
def layer(x, name, dim):
    weight = normals(name, ${HEADS} * dim, ${DIM})
    return (x @ weight.mT / ${DIM}**0.5).unflatten(-1, (${HEADS}, dim)).transpose(1, 2)

def shown(scheme):
    encoding = (scheme or posenc.NoPE())(positions, dtype=torch.float64)
    x = encoding.add(torch.stack([normals(word, ${DIM}) for word in words])[None])${feature ? projecting : ""}
    q, k = layer(x, "query", ${HEAD_DIM}), layer(x, "key", ${HEAD_DIM})
    scores = posenc.logits(q, k, encoding, is_causal=${given.literal(causal)})[0, ${state.head - 1}]${causal ? hiding : ""}
    return ${state.show === "scores" ? "scores" : weights}

torch.stack((shown(None), shown(scheme)))`;
}

/** All that is shown of a state. Attention is of the words as typed and as they stand now, `bare` of scheme and mask,
 * `without` a scheme, and `with` it. */
export function values(state, app) {
    const one = chosen(state, app);
    const { words, order, entry, options, scheme } = one;
    const causal = isCausal(state, one);
    const how = { causal, feature: FEATURES[entry.name]?.(options) };
    const now = order.map((n) => words[n]);
    const head = state.head - 1;
    const [before, after] = [words, now].map((sentence) => ({
        bare: run(sentence, [], { causal: false }),
        without: run(sentence, [], { causal }),
        with: run(sentence, [scheme], how),
    }));
    const kinds = Object.fromEntries(
        ["bare", "without", "with"].map((kind) => [
            kind,
            moved(before[kind], after[kind], { order, word: state.word, head }),
        ]),
    );
    const twin = words.findIndex(({ key }, n) => key === words[state.word].key && n !== state.word);
    const shown = ["without", "with"].map((kind) => picture(after[kind], head, causal, state.show));
    const found = twin < 0 ? null : { twin, ...twins(after, order, [state.word, twin], head) };
    return { ...one, now, causal, after, moved: kinds, shown, twins: found };
}
