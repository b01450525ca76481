// Who sees whom: causality, windows, chunks, documents, padding, and what a sink takes.

import { Heads } from "posenc/math/arrays.js";
import { attend } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, array, askAttention } from "posenc/options.js";
import { attended, causalArgument, takes } from "posenc/use.js";

/** [positions, the same in Python] of tokens laid out so. */
const LAYOUTS = {
    "one text": (N) => [Positions.arange(N), `posenc.Positions.arange(${N})`],
    "three documents, packed"(N) {
        const lengths = [N >> 1, N >> 2];
        lengths.push(N - lengths[0] - lengths[1]);
        const coords = lengths.flatMap((length) => Array.from({ length }, (_, n) => n));
        const document = lengths.flatMap((length, n) => new Array(length).fill(n));
        return [new Positions(coords, { document }), `posenc.Positions.packed([${lengths.join(", ")}])`];
    },
    "padded on the left": (N) => padded(N, N >> 2, N),
    "padded on the right": (N) => padded(N, 0, N - (N >> 2)),
};

/** Tokens from start to stop of N, padding around them. */
function padded(N, start, stop) {
    const count = Array.from({ length: N }, (_, n) => Math.min(Math.max(n - start, 0), stop - start - 1));
    const document = count.map((_, n) => (n >= start && n < stop ? 0 : -1));
    return [
        new Positions(count, { order: count, document }),
        `posenc.Positions.padded(torch.tensor([[${start} <= n < ${stop} for n in range(${N})]]))`,
    ];
}

const WINDOWS = ["all keys", "window", "chunks"];

const windowOf = ({ kind, left, right, chunk }) =>
    kind === "window" ? [left, right] : kind === "chunks" ? { chunk } : null;

const windowInPython = ({ kind, left, right, chunk }) =>
    ({ window: `(${left}, ${right})`, chunks: `posenc.Chunk(${chunk})`, "all keys": "None" })[kind];

export const figure = {
    name: "windows",
    title: "Who sees whom: windows, chunks, documents and sinks",
    see:
        "Attention weights of equal scores: each query spreads one unit of weight over the keys that it sees; " +
        "grey is never seen. Turn the sink on and raise its logit: it takes weight most where a query sees few " +
        "keys.",
    defaults: {
        tokens: 32,
        layout: "one text",
        causal: true,
        kind: "window",
        left: 7,
        right: 0,
        chunk: 8,
        sink: false,
        logit: 1,
    },
    another: {
        tokens: 24,
        layout: "three documents, packed",
        causal: false,
        kind: "chunks",
        chunk: 5,
        sink: true,
        logit: 0.5,
    },
    controls: ({ causal, kind, sink }) => [
        { name: "tokens", label: "tokens", kind: "range", min: 8, max: 128 },
        { name: "layout", label: "tokens are", kind: "choice", choices: Object.keys(LAYOUTS) },
        { name: "causal", label: "causal", kind: "check" },
        { name: "kind", label: "a query sees", kind: "choice", choices: WINDOWS },
        ...(kind === "window"
            ? [
                  { name: "left", label: "back", kind: "range", min: 0, max: 64 },
                  ...(causal ? [] : [{ name: "right", label: "ahead", kind: "range", min: 0, max: 64 }]),
              ]
            : []),
        ...(kind === "chunks" ? [{ name: "chunk", label: "tokens of a chunk", kind: "range", min: 1, max: 64 }] : []),
        { name: "sink", label: "a sink", kind: "check" },
        ...(sink ? [{ name: "logit", label: "the sink's logit", kind: "range", min: -4, max: 6, step: 0.1 }] : []),
    ],
    values(state) {
        const { tokens: N, layout, causal, sink, logit } = state;
        const [positions] = LAYOUTS[layout](N);
        const x = new Heads(1, N, 1);
        const { weights } = attend([], x, x, x, {
            positions,
            causal,
            window: windowOf(state),
            sinks: sink ? [logit] : null,
        });
        const seen = Float64Array.from(weights.data, (w) => (w > 0 ? w : NaN));
        const keys = new Float64Array(N);
        const taken = new Float64Array(N).fill(NaN);
        for (let i = 0; i < N; i++) {
            keys[i] = seen.subarray(i * N, (i + 1) * N).reduce((sum, w) => sum + Number(w > 0), 0);
            if (keys[i]) taken[i] = sink ? 1 / (1 + keys[i] * Math.exp(-logit)) : 0;
        }
        return { main: weights.data, seen, keys, taken };
    },
    use(state) {
        const { tokens: N, layout, causal, sink } = state;
        const positions = LAYOUTS[layout](N)[1];
        return attended("posenc.RoPE(head_dim=64)", {
            tokens: N,
            before: sink ? [takes("sinks, learned", "heads", [8])] : [],
            more: [
                layout === "one text" ? "" : `query_positions=${positions}`,
                ...causalArgument(causal),
                state.kind === "all keys" ? "" : `window=${windowInPython(state)}`,
                sink ? "sinks=sinks" : "",
            ],
        });
    },
    line(state) {
        const { tokens: N, layout, causal, sink, logit } = state;
        return (
            `import torch, posenc\n\npositions = ${LAYOUTS[layout](N)[1]}\n` +
            `x = torch.zeros(1, 1, ${N}, 8, dtype=torch.float64)\n` +
            `values = torch.eye(${N}, dtype=torch.float64)[None, None]  # so the output is the weights\n` +
            "posenc.attention(x, x, values, query_positions=positions, key_positions=positions, " +
            `is_causal=${causal ? "True" : "False"}, window=${windowInPython(state)}, ` +
            `sinks=${sink ? `torch.tensor([${logit}], dtype=torch.float64)` : "None"}, backend="reference")[0, 0]`
        );
    },
    compared: ({ tokens }, { main }) => ({ shape: [tokens, tokens], data: main }),
    mount(box, app) {
        const matrix = app.heat(box, { label: "attention weights of equal scores" });
        const chart = app.lines(box, {
            label: "the share of the weight that the sink takes, by query",
            xLabel: "query",
            yLabel: "share of the weight",
            height: 260,
        });
        return ({ tokens: N, sink }, { seen, keys, taken }) => {
            matrix.draw(seen, { rows: N, columns: N, low: 0, high: 1, centre: null });
            const x = Float64Array.from(keys, (_, i) => i);
            const each = keys.map((count, i) => (count ? (1 - taken[i]) / count : NaN));
            const series = [{ name: "each key that is seen", y: each, always: true, dots: true }];
            chart.draw(x, sink ? [{ name: "the sink", y: taken, dots: true }, ...series] : series, { y: [0, 1.05] });
        };
    },
    async check(state, { main }, app) {
        const { tokens: N, layout, causal, kind, left, right, chunk, sink, logit } = state;
        const [positions] = LAYOUTS[layout](N);
        const zero = new Heads(1, N, 1);
        const unit = new Heads(1, N, N, main.map((_, n) => Number(n % (N + 1) === 0))); // so the output is the weights
        const { out } = await askAttention(app, [], [zero, zero, unit], {
            positions,
            document: Array.from(positions.document),
            causal,
            window: kind === "window" ? [left, right] : null,
            chunk: kind === "chunks" ? chunk : null,
            sinks: sink ? array([1], [logit]) : null,
        });
        return agreed(N * N, apart(main, out.data));
    },
    describe({ tokens: N, sink }, { keys, taken }) {
        const [least, most] = [Math.min(...keys), Math.max(...keys)];
        const share = taken.filter(Number.isFinite);
        const words =
            sink && share.length
                ? ` The sink takes from ${Math.min(...share).toPrecision(3)} to ${Math.max(...share).toPrecision(3)} of the weight.`
                : "";
        const none = keys.filter((count) => count === 0).length;
        return `${N} queries see from ${least} to ${most} keys.${none ? ` ${none} see none, and their output is zero.` : ""}${words}`;
    },
};
