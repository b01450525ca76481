// Side path of step 2: which of two texts a word is in. Its position does not say it, and a vector for each text does.

import { element, row, tableOf, threeMaps } from "posenc/elements.js";
import { Learned, Sinusoidal } from "posenc/math/add.js";
import { Matrix } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { randn, randnPython } from "posenc/math/special.js";
import { agreed, apart, askTable, named } from "posenc/options.js";
import { shown } from "posenc/panel.js";
import { WAVES, distances } from "posenc/steps/add.js";

const WORDS = "A man sleeps . A man runs .".split(" ");
const [N, { dim: DIM, base: BASE }] = [WORDS.length, WAVES];
const W = { shape: [2, DIM], data: randn(2 * DIM, 0).map((x) => x / 2) }; // as large as the waves, to be seen beside them
const MAPS = { position: "position alone", segment: "segment alone", both: "their sum" };

function positionsOf({ border, second }) {
    const segment = WORDS.map((_, n) => Number(n >= border));
    return new Positions(WORDS.map((_, n) => (second === "anew" && segment[n] ? n - border : n)), { segment });
}

export const figure = {
    name: "segments",
    title: "Distances between the vectors added to two words",
    see: "Move the border between premise and hypothesis. The frame has the pairs of one word of each.",
    defaults: { border: 4, second: "on" },
    another: { border: 3, second: "anew" },
    controls: [
        { name: "border", label: "words of the premise", kind: "range", min: 1, max: N - 1 },
        {
            ...{ name: "second", label: "positions of the hypothesis", kind: "choice" },
            choices: [{ value: "on", name: "go on" }, { value: "anew", name: "start again at 0" }],
        },
    ],
    values(state) {
        const positions = positionsOf(state);
        const P = new Sinusoidal(WAVES).table(positions);
        // A segment is looked up as a position is.
        const S = new Learned({ max_positions: 2, dim: DIM }, { weight: W }).table(new Positions(positions.segment));
        const sum = Matrix.of(N, DIM, (n, c) => P.row(n)[c] + S.row(n)[c]);
        return { positions, P, S, apartBy: [P, S, sum].map((added) => distances(added).data) };
    },
    line(state) {
        const { coords, segment } = positionsOf(state);
        return (
            `positions = posenc.Positions.arange(${N}).with_coords(torch.tensor([[${coords.join(", ")}]]))\n` +
            `positions = positions.with_segment(torch.tensor([[${segment.join(", ")}]]))\n` +
            `position, segment = posenc.Sinusoidal(${DIM}, base=${BASE}), posenc.Segment(2, ${DIM}).double()\n` +
            `segment.weight.data = ${randnPython([2, DIM], 0)} / 2\n` +
            "P, S = (scheme.table(positions, torch.float64)[0] for scheme in (position, segment))\n" +
            "torch.stack([torch.cdist(x, x) for x in (P, S, P + S)])"
        );
    },
    compared: (state, { apartBy }) => ({ shape: [3, N, N], data: apartBy.flatMap((one) => [...one]) }),
    async check(state, { positions, P, S }, app) {
        const theirs = await askTable(app, named({ name: "sinusoidal" }, WAVES), positions);
        const segment = named({ name: "segment" }, { num_segments: 2, dim: DIM }, { weight: W });
        return agreed(2 * N * DIM, Math.max(apart(P.data, theirs), apart(S.data, await askTable(app, segment, positions))));
    },
    mount(box, app) {
        const words = element("div", { class: "wide", "data-part": "border" });
        box.append(words);
        const maps = threeMaps(box, app, Object.values(MAPS), { size: 240 });
        Object.keys(MAPS).forEach((part, n) => (maps[n].map.canvas.parentElement.dataset.part = part));
        return ({ border }, { positions: { coords, segment }, apartBy }) => {
            const look = (n) => `border-bottom: 4px solid ${app.theme().palette[1 + segment[n]]}`;
            const heads = WORDS.map((word, n) => element("span", { style: look(n) }, word));
            const rows = [row("position", [...coords]), row("segment", [...segment])];
            words.replaceChildren(tableOf(["word", ...heads], rows, { class: "wound" }));
            const high = Math.max(...apartBy[2]);
            const marks = [{ row: border, column: 0, rows: N - border, columns: border }];
            const name = (n) => `“${WORDS[n]}” (${n})`;
            apartBy.forEach((one, n) => {
                maps[n].map.draw(one, { ...{ rows: N, columns: N, low: 0, high, centre: null }, marks, rowName: name, columnName: name });
                maps[n].said.textContent = `first words: ${shown(one[border], 2)} apart`;
            });
        };
    },
    pictured: ["said"],
    describe({ border }, { apartBy }) {
        const [first, second] = [WORDS.slice(0, border), WORDS.slice(border)].map((words) => `“${words.join(" ")}”`);
        const [position, segment, both] = apartBy.map((one) => shown(one[border], 2));
        return (
            `Premise: ${first}. Hypothesis: ${second}. Their first words are ${position} apart by position, ` +
            `${segment} by segment and ${both} by their sum.`
        );
    },
};

export const predict = { border: 2 };

export const question = {
    judge({ border, second }) {
        if (second === "on") return "on";
        if (2 * border === N) return "right";
        return 2 * border < N ? "short" : "long";
    },
    examples: {
        right: { second: "anew" },
        on: {},
        short: { border: 2, second: "anew" },
        long: { border: 6, second: "anew" },
    },
};
