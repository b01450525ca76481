// Transformer-XL's score in its four terms.

import { WAVE, wave } from "posenc/fixed.js";
import { Heads } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { TransformerXL } from "posenc/math/score/transformer_xl.js";
import { agreed, apart, arrayOf, named } from "posenc/options.js";
import { attended, causalArgument } from "posenc/use.js";
import { WEIGHED, weighed } from "posenc/weighed.js";

const TERMS = [
    { name: "content", label: "content to content", formula: "q · k" },
    { name: "position", label: "content to position", formula: "q · W R" },
    { name: "key", label: "every query to content", formula: "u · k" },
    { name: "distance", label: "every query to position", formula: "v · W R" },
];
const DIM = 16;
const OPTIONS = { num_heads: 1, head_dim: DIM, dim: DIM, base: 10000, share_biases: true, segments: false };

/** Tokens and what is learned, the latter of a standard deviation; seeds 8 draw + 1 .. 8 draw + 5. */
function made({ tokens: N, draw, std }) {
    const learned = (n, ...shape) => ({
        shape,
        data: wave(
            8 * draw + n,
            shape.reduce((a, b) => a * b),
        ).map((x) => std * x),
    });
    const parameters = {
        projection: learned(3, 1, DIM, DIM),
        "biases.content": learned(4, 1, DIM),
        "biases.position": learned(5, 1, DIM),
    };
    const [q, k] = [1, 2].map((n) => new Heads(1, N, DIM, wave(8 * draw + n, N * DIM)));
    return { q, k, parameters, scheme: new TransformerXL(OPTIONS, parameters) };
}

function values(state) {
    const { q, k, scheme } = made(state);
    const positions = Positions.arange(state.tokens);
    const terms = scheme
        .terms({ q, k, heads: 1, scale: DIM ** -0.5, queryPositions: positions, keyPositions: positions })
        .map(({ data }) => data);
    const main = new Float64Array(state.tokens ** 2);
    TERMS.forEach(({ name }, t) => state[name] && terms[t].forEach((x, n) => (main[n] += x)));
    return { terms, main };
}

/** What a causal query does not see is NaN. */
const masked = (data, { causal, tokens: N }) =>
    causal ? data.map((x, n) => (n % N > Math.floor(n / N) ? NaN : x)) : data;

/** The sum as it is drawn: scores, or with the switch weights. */
const shown = (scores, state) => (state.weighed ? weighed(masked(scores, state), { keys: state.tokens }) : scores);

/** The same in Python. */
function inPython(score, { tokens: N, causal, weighed: isWeighed }) {
    if (!isWeighed) return score;
    if (!causal) return `${score}.softmax(-1)`;
    return (
        `hidden = torch.ones(${N}, ${N}, dtype=torch.bool).triu(1)\n` +
        `${score}.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, torch.nan)`
    );
}

export const figure = {
    name: "transformer-xl",
    title: "Transformer-XL: a score in four terms",
    see:
        "The second term goes by the query and the distance, the third is the same in every row, the fourth goes " +
        "by the distance alone. Leave terms out and see what of the sum stays. Tokens are random; so is what is " +
        "learned, larger than it begins (0.02).",
    defaults: {
        tokens: 24,
        std: 0.3,
        draw: 0,
        causal: true,
        weighed: false,
        ...Object.fromEntries(TERMS.map(({ name }) => [name, true])),
    },
    another: {
        tokens: 16,
        std: 0.5,
        draw: 3,
        causal: false,
        content: false,
        position: true,
        key: false,
        distance: true,
    },
    controls: [
        { name: "tokens", label: "tokens", kind: "range", min: 4, max: 64 },
        { name: "std", label: "W, u and v: standard deviation", kind: "range", min: 0.02, max: 1, step: 0.02 },
        { name: "draw", label: "random numbers, draw", kind: "range", min: 0, max: 20 },
        { name: "causal", label: "causal", kind: "check" },
        WEIGHED,
        ...TERMS.map(({ name, label, formula }) => ({ name, label: `${label}, ${formula}`, kind: "check" })),
    ],
    values,
    use: ({ tokens, causal }) =>
        attended("posenc.TransformerXL(num_heads=8, head_dim=64)", { tokens, more: causalArgument(causal) }),
    line(state) {
        const { tokens: N, draw, std } = state;
        const seed = 8 * draw;
        const w = (n) => `${std} * wave(${seed + n}, 1, ${n === 3 ? `${DIM}, ${DIM}` : DIM})`;
        const chosen = TERMS.map(({ name }, n) => state[name] && ["content", "position", "key", "distance"][n]).filter(
            Boolean,
        );
        return (
            `import torch, posenc\n\n${WAVE}\n` +
            `q, k = (wave(seed, 1, 1, ${N}, ${DIM}) for seed in (${seed + 1}, ${seed + 2}))\n` +
            `W, u, v = ${w(3)}, ${w(4)}, ${w(5)}\n\ndef score(q, k, u, v):\n` +
            `    scheme = posenc.TransformerXL(num_heads=1, head_dim=${DIM}, dim=${DIM}).double()\n` +
            `    scheme.load_state_dict({"projection": W, "biases.content": u, "biases.position": v})\n` +
            `    return posenc.logits(q, k, scheme)[0, 0].detach()\n\n` +
            `none = torch.zeros_like\nterms = {\n    "position": score(q, none(k), none(u), none(v)),\n` +
            `    "distance": score(none(q), none(k), none(u), v),\n` +
            `    "key": score(none(q), k, u, none(v)),\n    "content": q[0, 0] @ k[0, 0].mT / ${DIM} ** 0.5,\n}\n` +
            `zeros = torch.zeros(${N}, ${N}, dtype=torch.float64)\n` +
            `score = sum((terms[name] for name in ${JSON.stringify(chosen)}), zeros)\n` +
            inPython("score", state)
        );
    },
    compared: (state) => ({ shape: [state.tokens, state.tokens], data: shown(values(state).main, state) }),
    mount(box, app) {
        const size = 178;
        const maps = TERMS.map(({ label, formula }) =>
            app.heat(box, { label: `${label}, ${formula}`, columnLabel: formula, size }),
        );
        const sum = app.heat(box, {
            label: "the sum of the chosen terms",
            columnLabel: "their sum, the score",
            size: 290,
        });
        return ({ tokens: N, causal, ...state }, { terms, main }) => {
            let reach = 0;
            for (const term of terms) for (const x of term) reach = Math.max(reach, Math.abs(x));
            const options = { rows: N, columns: N, centre: 0, columnName: (j) => `key ${j}` };
            const hidden = (data) => masked(data, { causal, tokens: N });
            TERMS.forEach(({ name, formula }, t) => {
                maps[t].draw(hidden(terms[t]), {
                    ...options,
                    low: -reach,
                    high: reach,
                    columnLabel: `${formula}${state[name] ? "" : ", left out"}`,
                });
                maps[t].canvas.style.opacity = state[name] ? 1 : 0.35;
            });
            const weights = { ...options, low: 0, centre: null, columnLabel: "attention weights of their sum" };
            const scores = { ...options, columnLabel: "their sum, the score" };
            sum.draw(shown(hidden(main), { ...state, tokens: N }), state.weighed ? weights : scores);
        };
    },
    describe(state, { terms }) {
        const spread = (data) => Math.sqrt(data.reduce((sum, x) => sum + x * x, 0) / data.length).toPrecision(2);
        return `How large the terms are, root mean square: ${TERMS.map(({ formula, name }, n) => `${formula} ${spread(terms[n])}${state[name] ? "" : " (left out)"}`).join(", ")}.`;
    },
    async check(state, numbers, app) {
        const small = {
            ...state,
            tokens: Math.min(state.tokens, 32),
            ...Object.fromEntries(TERMS.map(({ name }) => [name, true])),
        };
        const { q, k, parameters } = made(small);
        const { logits } = await app.ask("attention", {
            schemes: [named({ name: "transformer_xl" }, OPTIONS, parameters)],
            query: arrayOf(q),
            key: arrayOf(k),
            value: arrayOf(k),
            positions: Array.from({ length: small.tokens }, (_, n) => [n]),
        });
        return agreed(logits.data.length, apart(values(small).main, logits.data));
    },
};
