// Step 8: a text longer than those of training. What is new to ALiBi, to T5 and to RoPE.

import { checkAngles, dials } from "posenc/angles.js";
import { dragged, turnedTo } from "posenc/drag.js";
import { element, row, scroller, tableOf } from "posenc/elements.js";
import { trained as models } from "posenc/figures/models.js";
import { slopes } from "posenc/math/score/alibi.js";
import { T5 } from "posenc/math/score/t5.js";
import { frequencies } from "posenc/math/phases.js";
import { entryOf } from "posenc/options.js";
import { colorOf, count, drawing, panel, shown } from "posenc/panel.js";
import { bandOf, every } from "posenc/records.js";
import { svg } from "posenc/svg.js";

export const [TRAINED, DIM, BASE] = [2048, 16, 10000]; // 8 pairs: few enough to see each
const [LEAST, MOST, STEP, HEADS, BUCKETS] = [TRAINED / 2, 8 * TRAINED, 128, 8, 32];
const PAIR = 6; // the one that the question asks for
const SCHEMES = ["rope", "alibi", "t5"];

const THETA = frequencies(DIM, BASE);

/** What is new to each family past the trained length. */
const CAUSES = {
    nope: "counts of keys that are higher than any in training; and attention becomes flatter",
    sinusoidal: "vectors that were never added to a word",
    learned: "the table has no more rows: there is no answer",
    rope: "angles of the slow pairs",
    alibi: "lower points of the same line, where weights were close to zero before",
    t5: "nothing: all far distances share the last bucket",
    shaw: "nothing: all far distances share the last vector",
    transformer_xl: "vectors of distances that were never projected",
};

const t5 = new T5(
    { num_heads: 1, num_buckets: BUCKETS, max_distance: 128, bidirectional: false, axis: 0, axes: 1, factor: 1 },
    { weight: { shape: [BUCKETS, 1], data: new Float64Array(BUCKETS) } },
);
const LAST = t5.edges.at(-1); // the distance from which on all have the last bucket
const biasOf = (distance) => -slopes(HEADS).at(-1) * distance; // of the flattest head

/** The first comparison of these schemes by length among the records that ship with the page; undefined without one. */
function measured(app) {
    const set = every(app).find(
        ({ shipped, task, schemes }) => shipped && task === "text" && SCHEMES.every((name) => schemes.includes(name)),
    );
    const measure = set?.measures.find(({ kind }) => kind === "sliding");
    return measure && { set, ...measure, task: app.data.measures[set.task] };
}

/** ALiBi's bias and T5's bucket up to the distance `far`, on scales that do not move. Training is shaded, and what is
 * new past it has a colour of its own. */
function curves(width, { far, bias, bucket }, steps, app) {
    const [room, { palette }] = [width / 2, app.theme()];
    const one = (left, { title, at, ends: y, color, part }) => {
        const box = { left: left + 32, top: 18, width: room - 56, height: 72 };
        const { parts, X, Y, at: valueAt, path } = panel({ ...box, x: [0, MOST], y, title, xTicks: [TRAINED, MOST], yTicks: y });
        const upTo = (distance) => Array.from({ length: 1 + Math.round(distance / STEP) }, (_, n) => at(n * STEP));
        const seen = { x: X(0), y: box.top, width: X(TRAINED) - X(0), height: box.height, fill: "var(--rule)" };
        const handle = dragged({ ...steps, place: (x, y) => valueAt(x, y)[0] / STEP, jumps: true });
        return [
            svg("rect", seen),
            ...parts,
            path(upTo(far), { stroke: color, "stroke-width": 3, "data-part": part }, STEP),
            path(upTo(Math.min(far, TRAINED)), { stroke: palette[2], "stroke-width": 3, "data-part": part }, STEP),
            svg("circle", { cx: X(far), cy: Y(at(far)), r: 4.5, fill: far < TRAINED ? palette[2] : color, "data-part": "tokens" }),
            svg("rect", { ...seen, width: box.width, fill: "transparent", style: "touch-action: pan-y", ...handle }),
        ];
    };
    return [
        ...one(0, {
            title: `ALiBi's bias: ${shown(bias, 1)}`,
            at: biasOf,
            ends: [biasOf(MOST), 0],
            color: palette[1],
            part: "alibi",
        }),
        ...one(room, {
            title: `T5's bucket: ${bucket}`,
            at: (distance) => t5.bucket(-distance),
            ends: [0, BUCKETS - 1],
            color: palette[2],
            part: "bucket",
        }),
    ];
}

export const figure = {
    name: "longer",
    title: "A text longer than in training",
    see:
        `The model was trained on texts of ${count(TRAINED)} tokens. Make the text longer: what is new to each ` +
        "scheme between its first and its last token?",
    defaults: { tokens: 2 * TRAINED },
    another: { tokens: 8192 },
    controls: [{ name: "tokens", label: "tokens of the text", kind: "range", min: LEAST, max: MOST, step: STEP }],
    values({ tokens }) {
        const far = tokens - 1;
        const [trained, turns] = [TRAINED - 1, far].map((distance) => THETA.map((x) => (distance * x) / (2 * Math.PI)));
        return {
            far,
            trained,
            turns,
            fresh: trained.filter((x, k) => x < 1 && turns[k] > x).length,
            bias: biasOf(far),
            bucket: t5.bucket(-far),
        };
    },
    line: ({ tokens }) =>
        `rope, alibi, t5 = posenc.RoPE(${DIM}), posenc.ALiBi(${HEADS}), posenc.T5(${HEADS})\n` +
        `t5.weight.data[:] = torch.arange(${BUCKETS})[:, None]  # so that its bias is the number of the bucket\n` +
        `first, last, q = posenc.Positions.arange(1), posenc.Positions.arange(1, start=${tokens - 1}), ` +
        `torch.zeros(1, ${HEADS}, 1, ${DIM})\n` +
        "biases = [posenc.logits(q, q, scheme, query_positions=last, key_positions=first)[0, -1, 0] " +
        "for scheme in (alibi, t5)]\n" +
        `torch.cat((${tokens - 1} / (2 * torch.pi) * rope.frequencies()[0][0], *biases))`,
    compared: (state, { turns, bias, bucket }) => ({ shape: [DIM / 2 + 2], data: [...turns, bias, bucket] }),
    check: (state, { far, turns }, app) =>
        checkAngles({ dim: DIM, base: BASE, position: far, angles: turns.map((x) => 2 * Math.PI * x) }, app),
    mount(box, app) {
        let last = LEAST; // tokens
        const range = { min: LEAST / STEP, max: MOST / STEP, set: (n) => app.set({ tokens: n * STEP }) };
        const steps = { ...range, now: () => last / STEP };
        /** A hand is dragged, of a pair that is slower than a step: the distance is its angle, divided by the speed. */
        const gripOf = (k) => {
            const place = (x, y, n) => (turnedTo(Math.atan2(-y, x), THETA[k], n * STEP - 1) + 1) / STEP;
            return THETA[k] * STEP < Math.PI ? dragged({ ...steps, place }) : null;
        };
        const plots = drawing(box, (width, numbers) => ({
            height: 108,
            parts: curves(width, numbers, steps, app),
            label: `ALiBi's bias and T5's bucket up to distance ${count(numbers.far)}`,
        }));
        const clocks = dials(box, app, gripOf);
        const said = element("p", { class: "ends" });
        app.beneath().append(said);
        const axes = { xLabel: "tokens", yLabel: "", logX: true, height: 200 };
        const chart = measured(app) && app.lines(app.beneath(), { label: "measured loss by length", ...axes });
        app.beneath().append(whyOf(app));
        return ({ tokens }, numbers) => {
            last = tokens;
            plots(numbers);
            // Rounded down: 0.998 is not a turn yet.
            const short = (x) => (x < 10 ? (Math.floor(100 * x) / 100).toFixed(2) : count(Math.floor(x)));
            clocks(
                `RoPE's ${DIM / 2} pairs, with new angles: ${numbers.fresh}`,
                Array.from(numbers.turns, (turns, k) => ({
                    trained: numbers.trained[k],
                    turns,
                    words: `${short(turns)} turns`,
                })),
                [["var(--rule)", "distances in training"]],
            );
            drawMeasured(chart, said, tokens, app);
        };
    },
    pictured: ["said"],
    describe: ({ tokens }, { far, fresh, bias, bucket }) =>
        `In a text of ${count(tokens)} tokens the farthest key is at distance ${count(far)}. ALiBi's flattest head ` +
        `adds ${shown(bias, 1)} to its score, T5 takes bucket ${bucket}, the last of which begins at distance ` +
        `${LAST}, and of RoPE's ${DIM / 2} pairs ${fresh} have angles that training did not show.`,
};

/** What is new to each family, and its measured loss at the ends of the lengths from the trained one on. */
function whyOf(app) {
    const { set, lengths = [], curves = {} } = measured(app) ?? {};
    const ends = set ? [lengths.indexOf(set.trained), lengths.length - 1] : [];
    const loss = (name, at) => {
        const once = app.data.tables[name]?.bits?.[lengths[at]];
        if (!curves[name]) return once ? `${once.toFixed(2)}*` : "not measured";
        const found = curves[name][at]?.[0];
        return Number.isFinite(found) ? found.toFixed(2) : "undefined";
    };
    const heading = ["what is new", ...ends.map((at) => `bits per byte at ${count(lengths[at])}`)];
    const rows = Object.entries(CAUSES).map(([name, cause]) =>
        row(entryOf(app, name).title, [cause, ...ends.map((at) => loss(name, at))]),
    );
    const there = ends.map((at) => app.data.models.models.rope.bits.float[lengths[at]].toFixed(2)).join(" and ");
    const caption = `* Trained once, on plays, four times as long; RoPE has ${there} there`;
    return scroller("what is new to each scheme", "wordy", tableOf(["scheme", ...heading], rows, { caption: there && caption }));
}

/** The curves of the records, with a mark where the text is as many times longer than trained. */
function drawMeasured(chart, said, tokens, app) {
    const found = measured(app);
    if (!found) {
        said.textContent = "No measurements of these schemes are on this page.";
        return;
    }
    const { set, lengths, curves, task } = found;
    const series = SCHEMES.map((name) => ({
        ...{ name: entryOf(app, name).title, color: colorOf(app, name) },
        ...bandOf(curves[name]),
    }));
    const times = Number((tokens / TRAINED).toFixed(2));
    const trainings = Math.min(...SCHEMES.map((name) => set.seeds[name]));
    said.textContent =
        `Above, training is on ${count(TRAINED)} tokens. Measured are small models, trained on ${count(set.trained)} ` +
        `${task.lengths} (“${set.name}”), ${trainings === 1 ? "once" : `${trainings} times`} each. The mark is at ` +
        `${times} times that length. ${task.better[0].toUpperCase() + task.better.slice(1)} is better; bands are 95 % intervals.`;
    chart.draw(lengths, series, {
        marks: [{ x: Math.min(times * set.trained, lengths.at(-1)) }],
        x: [lengths[0] / 1.15, lengths.at(-1) * 1.15],
        ticks: lengths,
        xLabel: task.lengths,
        yLabel: task.unit,
    });
}

export const trained = models("longer", {}, {
    title: "Trained models past byte 128",
    see: "The length of training is 128 bytes. Past it RoPE's loss rises sharply. Those of ALiBi and T5 change only as this one text does: some of its bytes are harder. On many texts, above, they stay as they were.",
    asked: ["text"],
    parts: ["loss", "table"],
});

export const predict = { tokens: 8192 };

export const question = {
    judge({ tokens }, { turns }) {
        if (tokens <= TRAINED) return "trained";
        if (turns[PAIR] < 1) return turns[PAIR] < 0.99 ? "gap" : "nearly";
        return turns[PAIR] < 1.06 ? "right" : "long";
    },
    examples: {
        right: { tokens: 6400 },
        trained: { tokens: TRAINED },
        gap: { tokens: 5120 },
        nearly: { tokens: 6272 },
        long: { tokens: MOST },
    },
};
