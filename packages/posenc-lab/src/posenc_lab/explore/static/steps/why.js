// Step 1: the weights and the output of attention for each word, in any order of the words, without a mask and under a
// causal one.

import { element, minus, row } from "posenc/elements.js";
import { SHORT, trained as models } from "posenc/figures/models.js";
import { Heads } from "posenc/math/arrays.js";
import { attend } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, askAttention } from "posenc/options.js";

const VECTORS = { dog: [2, 0, 1], bites: [0, 1, -1], man: [1, 2, 0] }; // queries, keys and values alike
const WORDS = Object.keys(VECTORS);
const GIVEN = WORDS.join(" ");
const [COUNT, DIM, LARGEST] = [3, 3, 2];
const MASKS = [
    { name: "no mask", causal: false },
    { name: "causal mask", causal: true },
];

/** A number with all the digits that the figure compares. */
const digits = (x) => minus(x.toFixed(6));

function vectorsOf(order) {
    const words = order.split(" ");
    if ([...words].sort().join() !== [...WORDS].sort().join())
        throw new RangeError(`why.order must be the words ${WORDS.join(", ")}, each once, got "${order}"`);
    return new Heads(1, COUNT, DIM, Float64Array.from(words.flatMap((word) => VECTORS[word])));
}

const attended = (order) => {
    const x = vectorsOf(order);
    return MASKS.map(({ causal }) => attend([], x, x, x, { causal }));
};

export const figure = {
    name: "why",
    title: "The weights and the output of attention for each word",
    see: "Drag the words into another order, or move the word that has the focus with the arrow keys.",
    defaults: { order: GIVEN },
    another: { order: "man dog bites" },
    controls: [], // the words themselves are moved
    /** Of each mask, {outputs, weights}: a row for each place, and {same, most}: by place, whether every digit of the
     * output is that of the same word in the given order, and how far they are apart; `given` is that order's. */
    values({ order }) {
        const given = attended(GIVEN);
        return attended(order).map(({ out: outputs, weights }, mask) => {
            const before = order.split(" ").map((word) => given[mask].out.at(0, WORDS.indexOf(word)));
            const same = before.map((row, place) =>
                row.every((x, c) => digits(x) === digits(outputs.at(0, place)[c])),
            );
            const most = Math.max(...before.map((row, place) => apart(outputs.at(0, place), row)));
            return { outputs, weights, given: given[mask], same, most };
        });
    },
    line: ({ order }) =>
        `${WORDS.join(", ")} = ` +
        `torch.tensor(${JSON.stringify(Object.values(VECTORS)).replaceAll(",", ", ")}).double()\n` +
        `x = torch.stack([${order.replaceAll(" ", ", ")}])[None, None]  # one text, one head\n` +
        "outputs = [posenc.attention(x, x, x, is_causal=causal) for causal in (False, True)]\n" +
        "torch.cat(outputs)[:, 0]",
    compared: (state, masks) => ({
        shape: [2, COUNT, DIM],
        data: masks.flatMap(({ outputs }) => [...outputs.data]),
    }),
    async check({ order }, masks, app) {
        const x = vectorsOf(order);
        const positions = Positions.arange(COUNT);
        const ask = ({ causal }) => askAttention(app, [], [x, x], { positions, causal });
        const theirs = await Promise.all(MASKS.map(ask));
        const most = theirs.map(({ out }, n) => apart(masks[n].outputs.data, out.data));
        return agreed(2 * COUNT * DIM, Math.max(...most));
    },
    mount(box, app) {
        let [shown, held] = ["", null]; // held: the place of the word that is dragged
        const move = (from, to) => {
            if (!(to in buttons)) return;
            const words = shown.split(" ");
            words.splice(to, 0, ...words.splice(from, 1));
            shown = words.join(" ");
            app.set({ order: shown });
        };
        const over = (x) =>
            buttons.findIndex((one) => {
                const { left, right } = one.parentElement.getBoundingClientRect();
                return x >= left && x < right;
            });
        const buttons = WORDS.map((_, place) =>
            element("button", {
                type: "button",
                title: "drag, or move with the arrow keys",
                onkeydown(event) {
                    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
                    if (!by) return;
                    event.preventDefault(); // else the lesson would go on
                    move(place, place + by);
                    buttons[place + by]?.focus();
                },
                onpointerdown(event) {
                    held = place;
                    event.target.setPointerCapture(event.pointerId);
                },
                onpointermove(event) {
                    const to = held === null ? -1 : over(event.clientX);
                    if (to < 0 || to === held) return;
                    move(held, to);
                    held = to;
                },
                onpointerup: () => (held = null),
                onpointercancel: () => (held = null),
            }),
        );
        const cells = () => MASKS.map(() => WORDS.map(() => element("div")));
        const [given, now] = [cells(), cells()];
        const called = ({ name, causal }) => element("span", { "data-part": causal ? "mask" : undefined }, name);
        const rows = (of) => MASKS.map((one, mask) => row(called(one), of[mask]));
        box.append(
            element(
                "table",
                { class: "orders" },
                element("tbody", {}, row("given", WORDS, "th"), ...rows(given)),
                element("tbody", {}, row("drag the words", buttons, "th"), ...rows(now)),
            ),
        );
        const part = (place) => 4 * Math.round((255 * (place + LARGEST)) / (2 * LARGEST));
        const vector = (numbers) =>
            element(
                "div",
                { title: `output: ${[...numbers].map(digits).join(", ")}`, "data-part": "output" },
                ...[...numbers].map((x) => {
                    const color = app.theme().divergingRamp.slice(part(x), part(x) + 3).join(", ");
                    return element("i", { style: `background: rgb(${color})` });
                }),
            );
        /** The weight of each word for the one at this place, as far as its bar is long. */
        const weighing = (row, words) =>
            words.map((word, key) =>
                element(
                    "div",
                    { class: row[key] > 0 ? "weight" : "weight unseen", style: `--share: ${100 * row[key]}%`, "data-part": row[key] > 0 ? "weight" : "mask" },
                    word,
                    element("span", {}, row[key] > 0 ? row[key].toFixed(2) : "–"),
                ),
            );
        return ({ order }, masks) => {
            shown = order;
            const words = order.split(" ");
            words.forEach((word, place) => (buttons[place].textContent = word));
            masks.forEach(({ outputs, weights, given: before, same }, mask) => {
                for (let place = 0; place < COUNT; place++) {
                    given[mask][place].replaceChildren(
                        ...weighing(before.weights.row(0, place), WORDS),
                        vector(before.out.at(0, place)),
                    );
                    const verdict = same[place] ? "✓ identical" : "✗ different";
                    now[mask][place].replaceChildren(
                        ...weighing(weights.row(0, place), words),
                        vector(outputs.at(0, place)),
                        element("div", { class: same[place] ? "same" : "changed" }, verdict),
                    );
                }
            });
        };
    },
    describe({ order }, masks) {
        if (order === GIVEN) return "The words stand in the given order, so every output is unchanged.";
        const said = masks.map(({ same, most }, mask) => {
            const words = order.split(" ").filter((_, place) => !same[place]);
            const far = most === 0 ? "0" : most.toPrecision(1);
            const rounding = most === 0 ? "" : ", the rounding of a sum in another order";
            return words.length
                ? `With the ${MASKS[mask].name}, the output differs for ${words.join(", ")}.`
                : `With ${MASKS[mask].name}, the output for each word is identical in every digit shown; ` +
                      `the largest difference is ${far}${rounding}.`;
        });
        return `The order is “${order}”. ${said.join(" ")}`;
    },
};

export const trained = models("why", { text: SHORT }, {
    title: "Four trained models, and another order of the words",
    see: "Small decoders of several layers that differ only in their positions. NoPE has none. Shuffle the words: which notices least?",
    asked: ["text", "shuffle"],
    picks: true,
    parts: ["order", "table"],
});

export const predict = { order: "man bites dog" };

export const question = {
    judge({ order }, masks) {
        if (order === GIVEN) return "as-given";
        return masks[1].same[order.split(" ").indexOf("man")] ? "right" : "hidden";
    },
    examples: {
        right: { order: "bites dog man" },
        "as-given": { order: GIVEN },
        hidden: { order: "man bites dog" },
    },
};
