// Asked first: which channels of a sinusoid, or of RoPE, turn fastest.

import { Sinusoidal } from "posenc/math/add.js";
import { frequencies } from "posenc/math/phases.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart } from "posenc/options.js";
import { checkState, question } from "posenc/question.js";
import { added } from "posenc/use.js";

const DASHES = [[], [9, 3], [2, 3]];

const CONTROLS = [
    { name: "dim", label: "dim", kind: "range", min: 8, max: 128, step: 4 },
    { name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 },
    { name: "length", label: "positions", kind: "range", min: 32, max: 512, step: 16 },
];

const ask = ({ dim }) => ({
    asks:
        `A sinusoidal table and RoPE put ${dim} channels into ${dim / 2} pairs, numbered 0 to ${dim / 2 - 1}. ` +
        "Each pair turns at a speed of its own as the position grows. Which one turns fastest?",
    choices: [
        { value: "first", name: "Pair 0, the first", said: "pair 0" },
        { value: "last", name: `Pair ${dim / 2 - 1}, the last`, said: `pair ${dim / 2 - 1}` },
        { value: "middle", name: "One in the middle", said: "one in the middle" },
    ],
    truth: "pair 0",
});

/** The pairs that are drawn: the first, the middle one and the last. */
const drawn = ({ dim }) => [0, dim >> 2, dim / 2 - 1];

export const figure = {
    name: "predict-channel",
    title: "Answer first: which channels turn fastest?",
    see:
        "Choose an answer; then the picture is shown. " +
        "After that, move the base and the number of channels: does the answer change?",
    defaults: { answer: "", dim: 64, base: 10000, length: 64 },
    another: { answer: "last", dim: 16, base: 100, length: 128 },
    waits: ({ answer }) => !answer,
    controls: ({ answer }) => (answer ? CONTROLS : []),
    values(state) {
        const { dim, base, length } = state;
        checkState("predict-channel", state, ask(state).choices, CONTROLS);
        const table = new Sinusoidal({ dim, base, layout: "interleaved", axes: 1 }).table(Positions.arange(length));
        const theta = frequencies(dim, base);
        const lines = drawn(state).map((pair) => ({
            pair,
            y: Float64Array.from({ length }, (_, p) => table.row(p)[2 * pair]),
            wave: (p) => Math.sin(p * theta[pair]),
            wavelength: (2 * Math.PI) / theta[pair],
        }));
        return { table, lines };
    },
    use: ({ dim, base, length }) => added(`posenc.Sinusoidal(dim=${dim}, base=${base})`, { tokens: length, dim }),
    line: (state) =>
        `import torch, posenc\n\npairs = torch.tensor(${JSON.stringify(drawn(state))})\n` +
        `table = posenc.Sinusoidal(${state.dim}, base=${state.base}).table(posenc.Positions.arange(${state.length}), torch.float64)[0]\n` +
        `table[:, 2 * pairs].mT  # channel 2k is the sine of pair k`,
    compared: (state) => ({
        shape: [3, state.length],
        data: Float64Array.from(figure.values(state).lines.flatMap(({ y }) => [...y])),
    }),
    async check({ dim, base }, { table }, app) {
        const N = Math.min(table.rows, 32);
        const said = await app.ask("table", {
            scheme: { name: "sinusoidal", options: { dim, base } },
            positions: Array.from({ length: N }, (_, p) => [p]),
        });
        return agreed(N * dim, apart(table.data.subarray(0, N * dim), said.table.data));
    },
    mount(box, app) {
        const asked = question(box, app, "predict-channel");
        const plot = app.lines(asked.shown, {
            label: "the sine of three pairs against the position",
            xLabel: "position (tokens)",
            yLabel: "sine channel of the pair",
        });
        return (state, { lines }) => {
            if (!asked.draw(state, ask(state))) return;
            const x = Array.from({ length: state.length }, (_, p) => p);
            plot.draw(
                x,
                lines.map(({ pair, y, wave, wavelength }, n) => ({
                    name: `pair ${pair}: a turn in ${tokens(wavelength)}`,
                    y,
                    wave,
                    dash: DASHES[n],
                })),
                { y: [-1.05, 1.05] },
            );
        };
    },
    describe(state, { lines }) {
        if (!state.answer) return ask(state).asks;
        const said = lines.map(({ pair, wavelength }) => `pair ${pair} turns once in ${tokens(wavelength)}`).join(", ");
        return `By θₖ = base^(−2k/dim): ${said}. Pair 0 turns by 1 radian a token, whatever the base; the rest turn slower and slower.`;
    },
};

const tokens = (x) => `${Number(x.toPrecision(3)).toLocaleString("en")} tokens`;
