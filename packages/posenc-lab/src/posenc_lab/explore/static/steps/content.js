// Side path: positions that depend on the content. CoPE counts the words that a query picks, FoX forgets at them.

import { element, row, tableOf } from "posenc/elements.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { must } from "posenc/math/check.js";
import { Positions } from "posenc/math/positions.js";
import { CoPE } from "posenc/math/score/cope.js";
import { FoX } from "posenc/math/score/fox.js";
import { agreed, apart, askAttention, named } from "posenc/options.js";

const WORDS = "the cat sat . the dog ran . it slept".split(" ");
const [N, STRENGTH, MOST] = [WORDS.length, 6, 16]; // sigmoid(6) is nearly 1
const STOPS = WORDS.flatMap((word, n) => (word === "." ? [n] : []));

/** The words that are picked, as numbers. Names what is none. */
function pickedOf({ picked }) {
    const numbers = picked ? picked.split("-").map(Number) : [];
    const isRising = numbers.every((n, at) => Number.isInteger(n) && n >= 0 && n < N && !(n <= numbers[at - 1]));
    must(isRising, `content.picked must be rising whole numbers from 0 to ${N - 1} with "-" between, got "${picked}"`);
    return numbers;
}

/** What a layer computes from each word: large where it is picked. */
const signals = (picked) => Float64Array.from(WORDS, (_, n) => (picked.includes(n) ? STRENGTH : -STRENGTH));

/** The parts of both calls: a query of 1 for every word, keys that are the signals, CoPE's vectors, FoX's gates. */
function parts(picked) {
    const a = signals(picked);
    return {
        a,
        ones: new Heads(1, N, 1, new Float64Array(N).fill(1)),
        keys: new Heads(1, N, 1, a),
        zero: new Heads(1, N, 1),
        e: { shape: [MOST, 1], data: Float64Array.from({ length: MOST }, (_, p) => p) }, // so that q e[p] is p
        forgotten: new Heads(1, N, 1, a.map((x) => -x)),
    };
}

export const figure = {
    name: "content",
    title: "Between each word and the last one",
    see: "Press words to pick them: CoPE counts them, and FoX forgets at them.",
    defaults: { picked: "5" },
    another: { picked: "2-6" },
    controls: [], // the words in the picture are the control
    values(state) {
        const picked = pickedOf(state);
        const { a, ones, keys, zero, e, forgotten } = parts(picked);
        const last = (scores) => scores.data.subarray((N - 1) * N);
        const positions = Positions.arange(N);
        const cope = new CoPE({ head_dim: 1, max_positions: MOST, scaled: true }, { e });
        const counted = last(logits(cope, ones, keys, { positions, causal: true })).map((score, n) => score - a[n]);
        const options = { positions, causal: true, features: { forgotten } };
        const bias = last(logits(new FoX({ num_heads: 1 }), zero, zero, options));
        return { picked, counted, bias, kept: bias.map(Math.exp) };
    },
    line(state) {
        const a = Array.from(signals(pickedOf(state)), (x) => `${x}.0`).join(", ");
        return (
            `a, ones = torch.tensor([[[${a}]]]), torch.ones(1, 1, ${N}, 1)  # a: what a layer makes of each word\n` +
            `cope, fox = posenc.CoPE(1, ${MOST}), ` +
            `posenc.FoX(1)(posenc.Positions.arange(${N})).with_projected({"forgotten": -a})\n` +
            `cope.e.data[:, 0] = torch.arange(${MOST})\n` +
            "counted = posenc.logits(ones, a[..., None], cope, is_causal=True) - a\n" +
            "torch.stack((counted, posenc.logits(0 * ones, ones, fox, is_causal=True)))[:, 0, 0, -1]"
        );
    },
    compared: (state, { counted, bias }) => ({ shape: [2, N], data: [...counted, ...bias] }),
    async check(state, { picked, counted, bias }, app) {
        const { a, ones, keys, zero, e, forgotten } = parts(picked);
        const ask = (scheme, q, k, projected) =>
            askAttention(app, [scheme], [q, k], { positions: Positions.arange(N), causal: true, projected });
        const last = ({ logits: theirs }) => theirs.data.slice((N - 1) * N);
        const cope = named({ name: "cope" }, { head_dim: 1, max_positions: MOST }, { e });
        const fox = named({ name: "fox" }, { num_heads: 1 });
        const theirs = [
            ...last(await ask(cope, ones, keys, {})).map((score, n) => score - a[n]),
            ...last(await ask(fox, zero, zero, { forgotten })),
        ];
        return agreed(2 * N, apart([...counted, ...bias], theirs));
    },
    mount(box, app) {
        let picked = [];
        const toggle = (n) => {
            const next = picked.includes(n) ? picked.filter((other) => other !== n) : [...picked, n];
            app.set({ picked: next.sort((a, b) => a - b).join("-") });
        };
        const rows = WORDS.map((word, n) => {
            const button = element("button", { type: "button", onclick: () => toggle(n) }, word);
            const [count, kept] = [element("span"), element("span")];
            return { button, count, kept, line: row(button, [N - 1 - n, count, kept]) };
        });
        const heads = ["word", "words away", "CoPE: counted", "FoX: weight kept"];
        box.append(tableOf(heads, rows.map(({ line }) => line), { class: "wound" }));
        const bar = (share, words, color) => [
            element("span", { class: "bar", style: `width: ${Math.max(36 * share, 1)}px; background: ${color}` }),
            words,
        ];
        return (state, numbers) => {
            ({ picked } = numbers);
            const { palette } = app.theme();
            rows.forEach(({ button, count, kept }, n) => {
                button.setAttribute("aria-pressed", picked.includes(n));
                count.replaceChildren(...bar(numbers.counted[n] / N, numbers.counted[n].toFixed(1), palette[2]));
                kept.replaceChildren(...bar(numbers.kept[n], percent(numbers.kept[n]), palette[1]));
            });
        };
    },
    pictured: ["said"],
    describe(state, { picked, counted, kept }) {
        const words = picked.map((n) => `“${WORDS[n]}” (word ${n})`).join(", ") || "no word";
        return (
            `Picked: ${words}. From the last word, the first is at CoPE's position ${counted[0].toFixed(1)}, ` +
            `and FoX multiplies its weight by ${kept[0].toPrecision(2)}.`
        );
    },
};

const percent = (x) => `${x < 0.001 ? "< 0.1" : (100 * x).toFixed(x < 0.1 ? 1 : 0)} %`;

export const predict = { picked: "7" };

export const question = {
    judge(values, { picked }) {
        const stops = picked.filter((n) => STOPS.includes(n)).length;
        if (!picked.length) return "none";
        if (picked.length === N) return "all";
        if (stops < picked.length) return "inside";
        return stops === STOPS.length ? "right" : "one";
    },
    examples: {
        right: { picked: "3-7" },
        none: { picked: "" },
        all: { picked: "0-1-2-3-4-5-6-7-8-9" },
        inside: { picked: "1-3-5" },
        one: { picked: "7" },
    },
};
