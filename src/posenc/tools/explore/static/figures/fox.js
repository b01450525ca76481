// FoX with forgetting gates that are drawn by hand.

import { element } from "posenc/elements.js";
import { Heads } from "posenc/math/arrays.js";
import { attend } from "posenc/math/attend.js";
import { FoX } from "posenc/math/score/fox.js";
import { agreed, apart, array, entryOf, features } from "posenc/options.js";
import { use } from "posenc/use.js";

const [LOW, HIGH] = [1, 99]; // of a gate, in hundredths
const TOKENS = 24;

/** The gates in hundredths. Names what is none. */
function gatesOf({ gates }) {
    const made = gates.split("-").map(Number);
    if (made.length !== TOKENS || !made.every((g) => Number.isInteger(g) && g >= LOW && g <= HIGH)) {
        throw new RangeError(
            `fox.gates must be ${TOKENS} whole numbers from ${LOW} to ${HIGH} with "-" between, got "${gates}"`,
        );
    }
    return made;
}

const alike = (gate, at = {}) => Array.from({ length: TOKENS }, (_, n) => at[n] ?? gate).join("-");

function values(state) {
    const gates = gatesOf(state);
    const N = TOKENS;
    const forgotten = new Heads(
        1,
        N,
        1,
        Float64Array.from(gates, (g) => Math.log(g / (100 - g))),
    );
    const zero = new Heads(1, N, 1);
    const { logits, weights } = attend(new FoX({ num_heads: 1 }), zero, zero, zero, {
        causal: true,
        features: { forgotten },
    });
    const hidden = (data) => data.map((x, n) => (n % N > Math.floor(n / N) ? NaN : x));
    return { gates, forgotten, main: logits.data, bias: hidden(logits.data), weights: hidden(weights.data) };
}

/** Bars that are drawn by a pointer, and set by arrow keys one at a time. */
function bars(box, theme, set) {
    let gates = [];
    const put = (n, gate) => {
        gates = gates.map((old, m) => (m === n ? Math.min(Math.max(Math.round(gate), LOW), HIGH) : old));
        set({ gates: gates.join("-") });
    };
    const width = 100 / TOKENS;
    const each = Array.from({ length: TOKENS }, (_, n) => {
        const fill = element("div", { style: "position:absolute;bottom:0;left:1px;right:1px" });
        const bar = element(
            "div",
            {
                role: "slider",
                "aria-orientation": "vertical",
                tabindex: n ? "-1" : "0",
                "aria-label": `gate of token ${n}`,
                "aria-valuemin": LOW / 100,
                "aria-valuemax": HIGH / 100,
                style: `position:absolute;top:0;bottom:0;left:${n * width}%;width:${width}%`,
                onkeydown: (event) => key(event, n),
            },
            fill,
        );
        return { bar, fill };
    });
    const key = (event, n) => {
        const step = { ArrowUp: 5, ArrowDown: -5, PageUp: 20, PageDown: -20 }[event.key];
        const to = { ArrowLeft: n - 1, ArrowRight: n + 1, Home: 0, End: TOKENS - 1 }[event.key];
        if (step === undefined && each[to] === undefined) return;
        event.preventDefault();
        if (step !== undefined) put(n, gates[n] + step);
        else focus(to);
    };
    const focus = (n) => {
        each.forEach(({ bar }, m) => bar.setAttribute("tabindex", m === n ? "0" : "-1"));
        each[n].bar.focus();
    };
    const frame = element(
        "div",
        {
            role: "group",
            "aria-label": "forgetting gates, one for each token",
            style: "position:relative;height:120px;touch-action:none;cursor:ns-resize;border-bottom:1px solid var(--faint);border-top:1px dashed var(--rule)",
        },
        ...each.map(({ bar }) => bar),
    );
    const draw = (event) => {
        const place = frame.getBoundingClientRect();
        const n = Math.min(Math.max(Math.floor(((event.clientX - place.left) / place.width) * TOKENS), 0), TOKENS - 1);
        put(n, 100 * (1 - (event.clientY - place.top) / place.height));
        return n;
    };
    frame.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        frame.setPointerCapture(event.pointerId);
        focus(draw(event));
    });
    frame.addEventListener("pointermove", (event) => frame.hasPointerCapture(event.pointerId) && draw(event));
    const words = element(
        "div",
        { style: "display:flex;justify-content:space-between;font-size:0.8rem;color:var(--faint)" },
        element("span", {}, "token 0"),
        element("span", {}, "gates: a full bar forgets nothing"),
        element("span", {}, `token ${TOKENS - 1}`),
    );
    box.append(element("div", { style: "flex:1 1 100%" }, frame, words));
    return (now) => {
        gates = now;
        each.forEach(({ bar, fill }, n) => {
            fill.style.height = `${gates[n]}%`;
            fill.style.background = theme().palette[0];
            bar.setAttribute("aria-valuenow", gates[n] / 100);
        });
    };
}

export const figure = {
    name: "fox",
    title: "FoX: forgetting gates",
    see:
        "Draw the gates: drag over the bars, or move between them with left and right and set one with up and " +
        "down. A gate that is nearly closed hides all tokens before it from itself and all later ones. Gates that " +
        "are all alike are ALiBi, of the slope − ln g.",
    defaults: { gates: alike(90, { 8: 2, 16: 40 }) },
    another: { gates: Array.from({ length: TOKENS }, (_, n) => 99 - 4 * n).join("-") },
    controls: [
        ["all 0.9", () => alike(90)],
        ["all 0.99", () => alike(99)],
        ["forget at two tokens", () => alike(95, { 7: 2, 15: 2 })],
        ["ever more", () => Array.from({ length: TOKENS }, (_, n) => 99 - 3 * n).join("-")],
    ].map(([label, value]) => ({ name: "gates", label, kind: "button", value })),
    values,
    use: (_, app) => use([{ entry: entryOf(app, "fox"), options: { num_heads: 8 } }], { tokens: TOKENS, causal: true }),
    line: (state) =>
        `import torch, posenc\n\ngates = torch.tensor([${gatesOf(state)
            .map((g) => g / 100)
            .join(", ")}], dtype=torch.float64)\n` +
        `encoding = posenc.FoX(num_heads=1)(posenc.Positions.arange(${TOKENS}))\n` +
        'encoding = encoding.with_projected({"forgotten": gates.logit()[None, None]})\n' +
        `x = torch.zeros(1, 1, ${TOKENS}, 8, dtype=torch.float64)\nposenc.logits(x, x, encoding, is_causal=True)[0, 0]`,
    compared: (state) => ({ shape: [TOKENS, TOKENS], data: values(state).main }),
    mount(box, app) {
        const show = bars(
            box,
            () => app.theme(),
            (patch) => app.set(patch),
        );
        const bias = app.heat(box, { label: "bias", columnLabel: "bias D: the gates' logarithms, summed", size: 340 });
        const weights = app.heat(box, {
            label: "attention weights of equal scores",
            columnLabel: "attention weights of equal scores",
            size: 340,
        });
        return (state, { gates, bias: D, weights: A }) => {
            show(gates);
            const options = { rows: TOKENS, columns: TOKENS, columnName: (j) => `key ${j}` };
            bias.draw(D, options);
            weights.draw(A, { ...options, low: 0, high: 1, centre: null });
        };
    },
    async check(state, { forgotten, main }, app) {
        const zero = array([1, TOKENS, 1], new Float64Array(TOKENS));
        const { logits: theirs } = await app.ask("attention", {
            schemes: [{ name: "fox", options: { num_heads: 1 } }],
            query: zero,
            key: zero,
            value: zero,
            positions: Array.from({ length: TOKENS }, (_, n) => [n]),
            causal: true,
            features: features({ forgotten }),
        });
        return agreed(main.length, apart(main, theirs.data));
    },
    describe(state, { gates, main, weights }) {
        const least = gates.indexOf(Math.min(...gates));
        const last = weights.subarray((TOKENS - 1) * TOKENS);
        const past = last.subarray(0, least).reduce((sum, w) => sum + w, 0);
        const first = main[(TOKENS - 1) * TOKENS].toPrecision(3);
        const words = `of its weight ${past.toPrecision(2)} is on the tokens before token ${least}`;
        return `The lowest gate is ${gates[least] / 100}, of token ${least}. The last query's bias to token 0 is ${first}; ${words}.`;
    },
};
