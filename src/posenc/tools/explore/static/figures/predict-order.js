// Asked first: whether a causal model without positions tells orders apart.

import { element } from "posenc/elements.js";
import { Matrix } from "posenc/math/arrays.js";
import { attend } from "posenc/math/attend.js";
import { agreed, apart, arrayOf } from "posenc/options.js";
import { checkState, question } from "posenc/question.js";
import { attended, causalArgument } from "posenc/use.js";
import { NORMALS, embedded, projected, wordsOf } from "posenc/words.js";

const [DIM, HEADS, HEAD_DIM, MOST] = [16, 2, 8, 5];

const CONTROLS = [{ name: "text", label: `words, 3 to ${MOST}`, kind: "text", longest: 60 }];

const KINDS = [
    { name: "causal, one layer", causal: true, layers: 1 },
    { name: "causal, two layers", causal: true, layers: 2 },
    { name: "no mask, two layers", causal: false, layers: 2 },
];

function ask({ text }) {
    const words = keysOf(text);
    const last = words.at(-1);
    const before = words.slice(0, -1).join(" ");
    return {
        asks:
            `A causal model of attention alone, without any positional encoding, reads “${words.join(" ")}”. ` +
            `Then the words before “${last}” (${before}) are put into another order. Can its output at “${last}” tell?`,
        choices: [
            { value: "no", name: "No: without positions it is the same for every order", said: "no" },
            { value: "two", name: "From the second layer on, not after the first", said: "from the second layer on" },
            {
                value: "one",
                name: "After one layer already, since the mask shows where a word stands",
                said: "after one layer already",
            },
            {
                value: "bare",
                name: "It could even without the mask, with enough layers",
                said: "even without the mask",
            },
        ],
        truth: "from the second layer on, and only under the mask",
    };
}

function keysOf(text) {
    const keys = wordsOf(text).map(({ key }) => key);
    if (keys.length < 3 || keys.length > MOST)
        throw new RangeError(`the sentence must have 3 to ${MOST} words, got ${keys.length}`);
    if (new Set(keys.slice(0, -1)).size < 2)
        throw new RangeError(`the words before the last must not all be the same, got ${keys.join(" ")}`);
    return keys;
}

/** All orders of some words, that as typed first. */
function orders(words) {
    if (words.length < 2) return [words];
    return words.flatMap((word, n) =>
        orders([...words.slice(0, n), ...words.slice(n + 1)]).map((rest) => [word, ...rest]),
    );
}

/** {x, calls}: the vectors after the layers, each x + attention(x), and the attention of each. */
function layers(words, { causal, layers: count }) {
    let x = embedded(words, DIM);
    const calls = [];
    for (let n = 1; n <= count; n++) {
        const [q, k, v] = ["query", "key", "value"].map((name) => projected(x, `layer ${n} ${name}`, HEADS, HEAD_DIM));
        const { out } = attend([], q, k, v, { causal });
        calls.push({ q, k, v, out });
        const joined = new Matrix(x.rows, DIM);
        for (let token = 0; token < x.rows; token++) {
            for (let head = 0; head < HEADS; head++) joined.row(token).set(out.at(head, token), head * HEAD_DIM);
        }
        const added = projected(joined, `layer ${n} output`, 1, DIM).data;
        x = new Matrix(
            x.rows,
            DIM,
            x.data.map((one, c) => one + added[c]),
        );
    }
    return { x, calls };
}

export const figure = {
    name: "predict-order",
    title: "Answer first: can a causal model without positions tell orders apart?",
    see: `Choose an answer; then the numbers are shown. The words are yours to choose, 3 to ${MOST} of them.`,
    defaults: { answer: "", text: "a b c d" },
    another: { answer: "no", text: "the wave wore rock down" },
    controls: CONTROLS,
    waits: ({ answer }) => !answer,
    values(state) {
        checkState("predict-order", state, ask(state).choices, CONTROLS);
        const words = keysOf(state.text);
        const all = orders(words.slice(0, -1)).map((before) => [...before, words.at(-1)]);
        const columns = KINDS.map((kind) => {
            const outputs = all.map((one) => layers(one, kind).x.row(words.length - 1));
            return outputs.map((one) => Math.max(...one.map((x, c) => Math.abs(x - outputs[0][c]))));
        });
        return { all, columns, most: columns.map((column) => Math.max(...column)) };
    },
    use: () => attended("posenc.NoPE()", { more: causalArgument(true) }),
    line: ({ text }) => `${NORMALS}
from itertools import permutations

def layer(x, name):
    weight = normals(name, ${DIM}, ${DIM})
    return x @ weight.mT / ${DIM}**0.5

def last(words, is_causal, layers):
    x = torch.stack([normals(word, ${DIM}) for word in words])[None]
    for n in range(1, layers + 1):
        q, k, v = (layer(x, f"layer {n} {name}") for name in ("query", "key", "value"))
        q, k, v = (each.unflatten(-1, (${HEADS}, ${HEAD_DIM})).transpose(1, 2) for each in (q, k, v))
        out = posenc.attention(q, k, v, is_causal=is_causal)
        x = x + layer(out.transpose(1, 2).flatten(2), f"layer {n} output")
    return x[0, -1]

*before, end = ${JSON.stringify(keysOf(text))}
kinds = [(True, 1), (True, 2), (False, 2)]  # causal or not, layers
outputs = [torch.stack([last([*order, end], *kind) for kind in kinds]) for order in permutations(before)]
(torch.stack(outputs) - outputs[0]).abs().amax(-1)`,
    compared(state) {
        const { all, columns } = figure.values(state);
        return {
            shape: [all.length, KINDS.length],
            data: Float64Array.from(all.flatMap((_, n) => columns.map((column) => column[n]))),
        };
    },
    async check({ text }, numbers, app) {
        const words = keysOf(text);
        let [count, most] = [0, 0];
        for (const kind of KINDS.slice(1)) {
            for (const { q, k, v, out } of layers(words, kind).calls) {
                const said = await app.ask("attention", {
                    schemes: [],
                    query: arrayOf(q),
                    key: arrayOf(k),
                    value: arrayOf(v),
                    positions: words.map((_, n) => [n]),
                    causal: kind.causal,
                });
                count += out.data.length;
                most = Math.max(most, apart(out.data, said.out.data));
            }
        }
        return agreed(count, most)
            .replace("these numbers", "the outputs of attention")
            .replace("too:", "too, in the order as typed:");
    },
    mount(box, app) {
        const asked = question(box, app, "predict-order");
        const frame = element("div", {
            class: "scroll",
            tabindex: "0",
            role: "region",
            "aria-label": "how the output at the last word differs, by order",
        });
        asked.shown.append(frame);
        return (state, { all, columns }) => {
            if (!asked.draw(state, ask(state))) return;
            const head = (text) => element("th", { scope: "col" }, text);
            frame.replaceChildren(
                element(
                    "table",
                    {},
                    element(
                        "caption",
                        {},
                        "The output at the last word: its largest difference from the order as typed",
                    ),
                    element("thead", {}, element("tr", {}, head("order"), ...KINDS.map(({ name }) => head(name)))),
                    element(
                        "tbody",
                        {},
                        ...all.map((words, n) =>
                            element(
                                "tr",
                                {},
                                element("th", { scope: "row" }, words.join(" ")),
                                ...columns.map((column) => element("td", {}, number(column[n]))),
                            ),
                        ),
                    ),
                ),
            );
        };
    },
    describe(state, { all, most }) {
        if (!state.answer) return ask(state).asks;
        const [one, two, bare] = most.map(number);
        return (
            `Over ${all.length} orders the output at the last word differs by at most ${one} after one causal layer, ` +
            `${two} after two, and ${bare} after two without the mask (below 1e-12 is the rounding of sums in another order). ` +
            "In layer 1 the last word attends to the same set of words in every order. But each word before it has seen another " +
            "set, those before itself, so in layer 2 it attends to other vectors. Without the mask every word sees the same set " +
            "in every layer."
        );
    },
};

const number = (x) => (x === 0 ? "0" : x < 1e-3 ? x.toExponential(1) : String(Number(x.toPrecision(3))));
