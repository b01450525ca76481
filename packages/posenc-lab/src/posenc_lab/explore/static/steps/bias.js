// Step 6: a number is added to the score, by the distance, and the softmax makes weights of it.

import { dragged } from "posenc/drag.js";
import { minus } from "posenc/elements.js";
import { SHORT, trained as models } from "posenc/figures/models.js";
import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { SCHEMES } from "posenc/math/catalog.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, askAttention, entryOf, named, optionsOf, python } from "posenc/options.js";
import { drawing, legend, panel, words } from "posenc/panel.js";
import { svg } from "posenc/svg.js";
import { weighed } from "posenc/weighed.js";

const [FAR, BACK, DIM, HEADS] = [40, 6, 24, 8]; // the distances shown, and the one that the question asks of
const QUERIES = ["“e”", "“,”"]; // two letters that ask, at the same place
const SHAW = { num_heads: null, max_distance: 16, values: false };
const T5 = { num_buckets: 32, max_distance: 128, bidirectional: false };
const CHOICES = [
    { value: "none", name: "No bias", scheme: "nope" },
    { value: "alibi", name: "ALiBi", scheme: "alibi", options: { form: "causal" } },
    { value: "buckets", name: "T5, a head of a trained model", scheme: "t5", options: T5, learns: "weight" },
    { value: "shaw", name: "Shaw, a head of a trained model", scheme: "shaw", options: SHAW, learns: "key_table" },
];

const WHERE = { positions: new Positions(QUERIES.map(() => FAR)), keyPositions: Positions.arange(FAR + 1) };

/** The scheme of a choice, and the call: both queries at the position FAR, and keys from 0 on, all of zeros, so that no
 * score comes from what they say. */
function call({ scheme: value, head: number }, app) {
    const { scheme: name, options: own = {}, learns } = CHOICES.find((one) => one.value === value);
    const head = value === "alibi" ? number - 1 : 0;
    const entry = entryOf(app, name);
    const options = { ...optionsOf(entry, "", { num_heads: HEADS, head_dim: DIM }), ...own };
    const shape = SCHEMES[name].learned(options)[learns]?.shape;
    const { t5, shaw } = app.data.tables; // learned by decoders as those of the view "Models"
    const data = learns && new Float64Array(shape[0] * shape[1]);
    if (learns === "weight") data.forEach((_, n) => (data[n] = t5.bias[Math.floor(n / HEADS)]));
    else data?.set(shaw.key_table.flat()); // no key is ahead, so those rows are not used
    const parameters = learns ? { [learns]: { shape, data } } : {};
    const vectors = Float64Array.from(shaw.queries.flat());
    const q = new Heads(HEADS, QUERIES.length, DIM).map(DIM, (to, _, head, n) =>
        to.set(vectors.subarray(n * DIM, (n + 1) * DIM)),
    );
    return { entry, options, parameters, head, learns, shape, q, k: new Heads(HEADS, FAR + 1, DIM) };
}

function values(state, app) {
    const { entry, options, parameters, head, q, k } = call(state, app);
    const scheme = new SCHEMES[entry.name](options, parameters);
    const scores = logits(scheme, q, k, WHERE);
    const biases = QUERIES.map((_, n) => scores.row(head, n).slice());
    return { biases, weights: biases.map((bias) => weighed(bias)) };
}

const short = (x) => minus(Number(x.toPrecision(2)));

/** Ends of an axis for these rows of numbers, 0 among them, and ticks: round numbers. */
function scaleOf(rows) {
    const all = rows.flatMap((row) => Array.from(row));
    const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
    const unit = 10 ** Math.floor(Math.log10(high - low || 1));
    const step = [1, 2, 5].map((n) => (n * unit) / 2).find((one) => (high - low || 1) / one <= 4);
    const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
    const yTicks = Array.from({ length: last - first + 1 }, (_, n) => Number(((first + n) * step).toPrecision(3)));
    return { y: [first === last ? -step : first * step, last * step], yTicks };
}

export const figure = {
    name: "bias",
    title: "The bias, and the weights after the softmax",
    see: "Two letters are queries at the same place. Choose what is added to their scores, and drag ALiBi's line.",
    defaults: { scheme: "alibi", head: 4 },
    another: { scheme: "shaw", head: 1 },
    controls: ({ scheme }) => [
        { name: "scheme", label: "added to the score", kind: "choice", choices: CHOICES },
        ...(scheme === "alibi" ? [{ name: "head", label: `head, 1 to ${HEADS}:`, kind: "range", min: 1, max: HEADS }] : []),
    ],
    values,
    line(state, app) {
        const { entry, options, head, learns } = call(state, app);
        const learned = (what) => `torch.tensor(tables()${what}, dtype=torch.float64)`;
        const numbers = {
            weight: `scheme.weight.data[:] = ${learned('["t5"]["bias"]')}[:, None]  # by bucket\n`,
            key_table: `scheme.key_table.data[:17] = ${learned('["shaw"]["key_table"]')}  # from 16 tokens back\n`,
        };
        const shape = `[:, None, None].expand(2, ${HEADS}, ${FAR + 1}, ${DIM})`;
        return (
            `from posenc_lab.explore.data import tables  # of trained models\n` +
            `q = ${learned('["shaw"]["queries"]')}${shape}  # ${QUERIES.join(" and ")}\n` +
            `scheme = ${python(entry, options)}${learns ? `.double()\n${numbers[learns]}` : "\n"}` +
            `posenc.logits(q, 0 * q, scheme)[:, ${head}, -1]  # with .softmax(-1) the weights`
        );
    },
    compared: (state, { biases }) => ({
        shape: [QUERIES.length, FAR + 1],
        data: biases.flatMap((x) => Array.from(x)),
    }),
    async check(state, { biases }, app) {
        const { entry, options, parameters, head, q, k } = call(state, app);
        const how = { ...WHERE, causal: true };
        const { logits: theirs } = await askAttention(app, [named(entry, options, parameters)], [q, k], how);
        const ours = biases.flatMap((bias) => Array.from(bias));
        return agreed(ours.length, apart(ours, theirs.data.slice(head * ours.length, (head + 1) * ours.length)));
    },
    mount(box, app) {
        return drawing(box, (width, state, numbers) => {
            const [left, right, top, high] = [44, 14, 24, width < 480 ? 104 : 140];
            const { palette } = app.theme();
            const looks = [{ stroke: palette[2] }, { stroke: palette[1], "stroke-dasharray": "7 5" }];
            const [isALiBi, isT5] = ["alibi", "buckets"].map((one) => one === state.scheme);
            const key = QUERIES.map((name, n) => ({ name, ...looks[n] }));
            const place = { left, width: width - left - right, height: high, x: [0, FAR] };
            const second = top + high + 30;
            const panels = [
                { ...place, top, title: "bias b for each query letter", ...(isALiBi ? SLOPES : scaleOf(numbers.biases)) },
                {
                    ...place,
                    top: second,
                    title: "weights, if all keys are equal",
                    ...scaleOf(numbers.weights),
                    xTicks: [0, BACK, 10, 20, 30, FAR],
                    xLabel: "tokens back",
                },
            ].map(panel);
            const [{ X }] = panels;
            const upright = { x1: X(BACK), x2: X(BACK), y1: top, y2: second + high };
            const curves = [numbers.biases, numbers.weights].flatMap((rows, at) =>
                rows.flatMap((row, n) => [
                    panels[at].path(row.slice().reverse(), { ...looks[n], "data-part": at ? "weight" : "bias" }, 1, isT5),
                    ...panels[at].dots(row.slice().reverse(), looks[n].stroke, 1.6),
                    svg("circle", { cx: X(BACK), cy: panels[at].Y(row[FAR - BACK]), r: 4, fill: looks[n].stroke }),
                ]),
            );
            const lines = width < 480 ? said(numbers) : [said(numbers).join(" ")];
            return {
                height: second + high + 40 + 17 * lines.length,
                parts: [
                    ...panels.flatMap(({ parts }) => parts),
                    svg("line", { ...upright, stroke: "var(--faint)", "stroke-dasharray": "2 3" }),
                    ...legend(width - right, top - 6, key),
                    ...curves,
                    ...(isALiBi ? slopesIn(panels[0], state, app) : []),
                    ...lines.map((line, n) =>
                        words(left, second + high + 48 + 17 * n, line, { fill: "var(--ink)", "font-size": 13 }),
                    ),
                ],
                label: figure.describe(state, numbers),
            };
        });
    },
    pictured: ["said"],
    describe({ scheme, head }, numbers) {
        const { name } = CHOICES.find(({ value }) => value === scheme);
        const which = scheme === "alibi" ? `, head ${head} of slope 1/${2 ** head}` : "";
        return `${name}${which}: ${said(numbers).join(" ")}`;
    },
};

/** The axis of ALiBi's lines: one for all heads, so that the slope is seen. */
const SLOPES = { y: [-FAR / 2, 0], yTicks: [-20, -10, 0] };

/** The lines of all heads, of which one clicks one, and over that of the chosen head what is dragged. */
function slopesIn({ X, Y, at }, { head: chosen }, app) {
    const line = (head, look) =>
        svg("line", { x1: X(0), y1: Y(0), x2: X(FAR), y2: Y(-FAR / 2 ** head), "data-part": "head", ...look });
    const heads = Array.from({ length: HEADS }, (_, n) => n + 1).filter((head) => head !== chosen);
    const set = (head) => app.move("head", head);
    const place = (x, y) => {
        const [distance, bias] = at(x, y);
        return bias < 0 ? Math.log2(Math.max(distance, 1) / -bias) : HEADS;
    };
    const handle = dragged({ now: () => chosen, min: 1, max: HEADS, place, set });
    const thick = { stroke: "transparent", "stroke-width": 9 };
    return [
        ...heads.map((head) => line(head, { stroke: "var(--faint)", "stroke-width": 0.7 })),
        ...heads.map((head) => line(head, { ...thick, class: "chosen-by-click", onclick: () => set(head) })),
        line(chosen, { ...thick, "stroke-width": 16, ...handle }),
    ];
}

/** The bias of the key BACK tokens ago, for each query. */
const ago = ({ biases }) => biases.map((bias) => bias[FAR - BACK]);

const isForAll = (numbers) => Math.max(...ago(numbers)) - Math.min(...ago(numbers)) < 1e-9;

/** The numbers of that key in two parts of a sentence, once where all queries have the same. */
function said(numbers) {
    const rows = isForAll(numbers) ? ago(numbers).slice(0, 1) : ago(numbers);
    const [bias, factor] = [rows, rows.map(Math.exp)].map((all) => all.map(short).join(" and "));
    return [`${BACK} tokens back the bias is ${bias},`, `so the weight is multiplied by ${factor}.`];
}

export const trained = models("bias", { text: SHORT, model: "alibi", byte: 120 }, {
    title: "Where the heads of trained models look",
    see: "ALiBi's steepest head, the first of each layer, sees only the last few bytes, in every text. Choose another model, and click a letter.",
    asked: ["text", "model", "byte"],
    picks: true,
    parts: ["letters", "attention"],
});

export const predict = { scheme: "alibi", head: 1 };

export const question = {
    judge({ scheme }, numbers) {
        const isRight = isForAll(numbers) && Math.abs(Math.exp(ago(numbers)[0]) - 0.22) < 0.005;
        return isRight ? "right" : scheme;
    },
    examples: {
        right: { scheme: "alibi", head: 2 },
        ...Object.fromEntries(["none", "alibi", "buckets", "shaw"].map((scheme) => [scheme, { scheme, head: 4 }])),
    },
};
