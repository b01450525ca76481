// Step 8: a text longer than those of training. What is new to ALiBi, to T5 and to RoPE.

import { checkAngles, dials } from "posenc/angles.js";
import { element } from "posenc/elements.js";
import { slopes } from "posenc/math/score/alibi.js";
import { T5 } from "posenc/math/score/t5.js";
import { frequencies } from "posenc/math/phases.js";
import { entryOf } from "posenc/options.js";
import { every } from "posenc/records.js";
import { atEachWidth, svg } from "posenc/svg.js";

export const [TRAINED, DIM, BASE] = [2048, 16, 10000]; // 8 pairs: few enough to see each
const [MOST, HEADS, BUCKETS] = [8 * TRAINED, 8, 32];
const PAIR = 6; // the one that the question asks for
const SCHEMES = ["rope", "alibi", "t5"];

const count = (x) => x.toLocaleString("en");
const signed = (x) => x.toFixed(1).replace("-", "−");
const t5 = new T5(
    { num_heads: 1, num_buckets: BUCKETS, max_distance: 128, bidirectional: false, axis: 0, axes: 1, factor: 1 },
    { weight: { shape: [BUCKETS, 1], data: new Float64Array(BUCKETS) } },
);
const LAST = t5.edges.at(-1); // the distance from which on all have the last bucket
const flattest = slopes(HEADS).at(-1);

/** The first comparison of these schemes by length among the records that ship with the page; undefined without one. */
function measured(app) {
    const set = every(app).find(
        ({ shipped, task, schemes }) => shipped && task === "text" && SCHEMES.every((name) => schemes.includes(name)),
    );
    const measure = set?.measures.find(({ kind }) => kind === "sliding");
    return measure && { set, ...measure, task: app.data.measures[set.task] };
}

/** A curve against the distance up to MOST, drawn up to `far`, with training shaded. `isNew` where the values past
 * training are. */
function panel(width, { name, at, far, low, high, isNew }, palette) {
    const [left, top, height] = [4, 18, 76];
    const reach = width - left - 4;
    const x = (distance) => left + (reach * distance) / MOST;
    const y = (value) => top + height * (1 - (value - low) / (high - low));
    const known = isNew ? Math.min(far, TRAINED - 1) : far;
    const line = (from, to, color) =>
        svg("polyline", {
            points: Array.from({ length: 129 }, (_, n) => from + Math.round(((to - from) * n) / 128))
                .map((distance) => `${x(distance)},${y(at(distance))}`)
                .join(" "),
            fill: "none",
            stroke: color,
            "stroke-width": 3,
        });
    const word = (place, anchor, words) =>
        svg("text", { x: place, y: top + height + 14, "font-size": 11, "text-anchor": anchor, fill: "var(--faint)" }, words);
    return [
        svg("text", { x: left, y: 12, "font-size": 12, fill: "var(--ink)" }, name),
        svg("rect", { x: left, y: top, width: x(TRAINED) - left, height, fill: "var(--rule)" }),
        svg("line", { x1: left, x2: left + reach, y1: top + height, y2: top + height, stroke: "var(--faint)" }),
        line(0, known, palette[2]),
        line(known, far, palette[1]),
        svg("circle", { cx: x(far), cy: y(at(far)), r: 4.5, fill: palette[far > known ? 1 : 2] }),
        word(left, "start", "distance 0"),
        word(left + reach, "end", count(MOST)),
    ];
}

export const figure = {
    name: "longer",
    title: "A text longer than in training",
    see: `The model was trained on texts of ${count(TRAINED)} tokens. Make the text longer: what is new to each scheme between its first and its last token?`,
    defaults: { tokens: 2 * TRAINED },
    another: { tokens: 8192 },
    controls: [{ name: "tokens", label: "tokens of the text", kind: "range", min: 1024, max: MOST, step: 128 }],
    values({ tokens }) {
        const theta = frequencies(DIM, BASE);
        const turns = (distance) => theta.map((x) => (distance * x) / (2 * Math.PI));
        const [far, trained] = [tokens - 1, turns(TRAINED - 1)];
        const shown = turns(far);
        return {
            far,
            trained,
            shown,
            fresh: trained.filter((x, k) => x < 1 && shown[k] > x).length,
            bias: -flattest * far,
            bucket: t5.bucket(-far),
        };
    },
    line: ({ tokens }) =>
        `rope, alibi, t5 = posenc.RoPE(${DIM}), posenc.ALiBi(${HEADS}), posenc.T5(${HEADS})\n` +
        `t5.weight.data[:] = torch.arange(${BUCKETS})[:, None]  # so that its bias is the number of the bucket\n` +
        `first, last, q = posenc.Positions.arange(1), posenc.Positions.arange(1, start=${tokens - 1}), torch.zeros(1, ${HEADS}, 1, ${DIM})\n` +
        "biases = [posenc.logits(q, q, scheme, query_positions=last, key_positions=first)[0, -1, 0] for scheme in (alibi, t5)]\n" +
        `torch.cat((${tokens - 1} / (2 * torch.pi) * rope.frequencies()[0][0], *biases))`,
    compared(state) {
        const { shown, bias, bucket } = figure.values(state);
        return { shape: [DIM / 2 + 2], data: Float64Array.from([...shown, bias, bucket]) };
    },
    check: (state, { far, shown }, app) =>
        checkAngles({ dim: DIM, base: BASE, position: far, angles: shown.map((x) => 2 * Math.PI * x) }, app),
    mount(box, app) {
        const curves = element("div", { class: "wide", role: "img" });
        box.append(curves);
        const clocks = dials(box, app);
        const said = element("p", { class: "ends" });
        app.beneath().append(said);
        const axes = { xLabel: "tokens", yLabel: "", logX: true, height: 200 };
        const chart = measured(app) && app.lines(app.beneath(), { label: "measured loss by length", ...axes });
        let now = null;
        const paint = atEachWidth(curves, (width) => {
            if (!now) return;
            const { far, bias, bucket } = now;
            const half = (width - 16) / 2;
            const alibi = { at: (distance) => -flattest * distance, low: -flattest * MOST, high: 0, isNew: true };
            const t5s = { at: (distance) => t5.bucket(-distance), low: 0, high: BUCKETS, isNew: false };
            const both = [
                { ...alibi, name: `ALiBi's bias: ${signed(bias)}`, far },
                { ...t5s, name: `T5's bucket: ${bucket}`, far },
            ];
            const drawn = both.map((one, n) =>
                svg("g", { transform: `translate(${n * (half + 16)} 0)` }, ...panel(half, one, app.theme().palette)),
            );
            curves.replaceChildren(svg("svg", { width, height: 112, style: "display: block" }, ...drawn));
        });
        return ({ tokens }, numbers) => {
            now = numbers;
            curves.setAttribute("aria-label", `ALiBi's bias and T5's bucket up to distance ${count(numbers.far)}`);
            paint();
            const turns = (x) => (x < 10 ? x.toFixed(2) : count(Math.round(x)));
            clocks(
                `RoPE's ${DIM / 2} pairs, with new angles: ${numbers.fresh}`,
                Array.from(numbers.shown, (shown, k) => ({
                    trained: numbers.trained[k],
                    shown,
                    words: `${turns(shown)} turns`,
                })),
                [["var(--rule)", "distances in training"]],
            );
            drawMeasured(chart, said, tokens, app);
        };
    },
    describe: ({ tokens }, { far, fresh, bias, bucket }) =>
        `In a text of ${count(tokens)} tokens the farthest key is at distance ${count(far)}. ALiBi's flattest head adds ${signed(bias)} to its score, ` +
        `T5 takes bucket ${bucket}, the last of which begins at distance ${LAST}, and of RoPE's ${DIM / 2} pairs ${fresh} have angles that training did not show.`,
};

/** The curves of the records, with a mark where the text is as many times longer than trained. */
function drawMeasured(chart, said, tokens, app) {
    const found = measured(app);
    if (!found) {
        said.textContent = "No measurements of these schemes are on this page.";
        return;
    }
    const { set, lengths, curves, task } = found;
    const { palette } = app.theme();
    const series = SCHEMES.map((name, n) => {
        const of = (part) => curves[name].map((point) => point[part] ?? NaN);
        const { title } = entryOf(app, name);
        return { name: title, color: palette[[4, 3, 6][n]], y: of(0), low: of(1), high: of(2), markers: true };
    });
    const times = Number((tokens / TRAINED).toFixed(2));
    const trainings = Math.min(...SCHEMES.map((name) => set.seeds[name]));
    said.textContent =
        `Measured (${set.name}): small models, trained on texts of ${count(set.trained)} tokens, ${trainings === 1 ? "once" : `${trainings} times`} each. ` +
        `The mark is at ${times} times that length. Bands are 95 % intervals.`;
    chart.draw(lengths, series, {
        marks: [{ x: Math.min(times * set.trained, lengths.at(-1)) }],
        x: [lengths[0] / 1.15, lengths.at(-1) * 1.15],
        ticks: lengths,
        xLabel: task.lengths,
        yLabel: `${task.unit}, ${task.better} is better`,
    });
}

export const question = {
    judge({ tokens }, { shown }) {
        if (tokens <= TRAINED) return "trained";
        if (shown[PAIR] < 1) return "gap";
        return shown[PAIR] < 1.06 ? "right" : "long";
    },
    examples: {
        right: { tokens: 6400 },
        trained: { tokens: TRAINED },
        gap: { tokens: 5120 },
        long: { tokens: MOST },
    },
};
