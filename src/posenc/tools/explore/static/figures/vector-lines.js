// Single dimensions of the vectors over positions.

import * as options from "posenc/options.js";
import { fromPosenc, ownControls, python, schemeControl, schemeOf, shown, useOf, vectors } from "posenc/vectors.js";

/** The dimensions to draw, and what each is: both of a pair, or one where channels stand alone. */
function dimensionsOf({ scheme, dim, first, second, options: text }) {
    const numbers = first === second ? [first] : [first, second];
    if (scheme === "exponential_decay") return numbers.map((k) => ({ k, dimension: k, what: `channel ${k}` }));
    const isSideBySide = scheme === "sinusoidal" && !/layout:(concatenated|tensor2tensor)/.test(text);
    const order = scheme === "sinusoidal" ? ["sine", "cosine"] : ["cosine", "sine"];
    return numbers.flatMap((k) =>
        order.map((wave, n) => {
            const dimension = isSideBySide ? 2 * k + n : k + (n * dim) / 2;
            return { k, wave, dimension, what: `pair ${k}, ${wave} (dimension ${dimension})` };
        }),
    );
}

/** What lies between the positions of one dimension. Undefined where the scheme is another function of them. */
function waveOf(scheme, { k, wave }) {
    if (scheme.longest) return (p) => Math.exp(-p * scheme.longest ** (-(k + 1) / scheme.dim));
    const speed = scheme.theta?.[k] ?? scheme.unit * scheme.directions.row(k)[0];
    const turning = wave === "sine" ? Math.sin : Math.cos;
    return scheme.learned || scheme.isBanded ? undefined : (p) => turning(p * speed);
}

const last = ({ scheme, dim }) => (scheme === "exponential_decay" ? dim : dim / 2) - 1;

/** Positions for one turn, or for a fall to 1/e, of a sinusoid or of the decay. */
function rate(values, app, k) {
    const { dim, scheme } = values;
    const { base, longest } = options.optionsOf(options.entryOf(app, scheme), values.options, { dim });
    if (scheme === "sinusoidal") return `turns once in ${short(2 * Math.PI * base ** ((2 * k) / dim))} positions`;
    if (scheme === "exponential_decay") return `falls to 1/e in ${short(longest ** ((k + 1) / dim))} positions`;
    return "turns at a frequency that was drawn";
}

const short = (x) => Number(x.toPrecision(3)).toLocaleString("en");

export const figure = {
    name: "vector-lines",
    title: "Single dimensions of the vectors",
    see: "Dots are what tokens get, at whole positions. In the sinusoid pair 0 is the fastest, and each further pair is slower by the same factor. Move a pair up, and it hardly changes over a whole text.",
    defaults: { scheme: "sinusoidal", dim: 64, tokens: 100, first: 0, second: 8, options: "" },
    another: { scheme: "exponential_decay", dim: 32, tokens: 64, first: 3, second: 20, options: "longest:500" },
    controls(values, app) {
        const noun = values.scheme === "exponential_decay" ? "channel" : "pair";
        return [
            schemeControl(app),
            { name: "first", label: `first ${noun}`, kind: "range", min: 0, max: last(values) },
            { name: "second", label: `second ${noun}`, kind: "range", min: 0, max: last(values) },
            { name: "dim", label: "dim", kind: "range", min: 8, max: 512, step: 8 },
            { name: "tokens", label: "positions", kind: "range", min: 16, max: 512, step: 4 },
            ...ownControls(values, app),
        ];
    },
    shown,
    change(values, name, value) {
        const made = options.change(values, name, value);
        const most = last(made);
        return { ...made, first: Math.min(made.first, most), second: Math.min(made.second, most) };
    },
    values(values, app) {
        const { rows, columns, data } = vectors(values, app);
        const scheme = schemeOf(values, app);
        const series = dimensionsOf(values).map((one) => ({
            ...one,
            y: Float64Array.from({ length: rows }, (_, p) => data[p * columns + one.dimension]),
            wave: waveOf(scheme, one),
        }));
        return { series, tokens: rows };
    },
    use: useOf,
    line: (values, app) =>
        `${python(values, app)}\nP[:, [${dimensionsOf(values)
            .map(({ dimension }) => dimension)
            .join(", ")}]]`,
    compared(values, app) {
        const { series, tokens } = figure.values(values, app);
        return {
            shape: [tokens, series.length],
            data: Float64Array.from(
                { length: tokens * series.length },
                (_, n) => series[n % series.length].y[Math.floor(n / series.length)],
            ),
        };
    },
    mount(box, app) {
        const plot = app.lines(box, {
            label: "value of single dimensions by position",
            xLabel: "position",
            yLabel: "value",
        });
        return (values, { series, tokens }) => {
            const { palette } = app.theme();
            const colors = new Map([...new Set(series.map(({ k }) => k))].map((k, n) => [k, palette[n]]));
            const drawn = series.map(({ k, what, y, wave }, n) => ({
                name: what,
                y,
                wave,
                color: colors.get(k),
                dash: n > 0 && series[n - 1].k === k ? [6, 4] : [],
                always: true,
            }));
            const reach = values.scheme === "exponential_decay" ? [0, 1.05] : [-1.1, 1.1];
            plot.draw(
                Float64Array.from({ length: tokens }, (_, p) => p),
                drawn,
                { y: reach },
            );
        };
    },
    describe(values, { series }, app) {
        const said = [...new Set(series.map(({ k }) => k))].map(
            (k) => `${values.scheme === "exponential_decay" ? "channel" : "pair"} ${k} ${rate(values, app, k)}`,
        );
        return `Of ${values.dim} dimensions, ${said.join("; ")}.`;
    },
    async check(values, { series }, app) {
        const { rows, data } = await fromPosenc(values, app);
        const most = Math.max(
            ...series.map(({ dimension, y }) =>
                options.apart(
                    Array.from(y.subarray(0, rows)),
                    y.subarray(0, rows).map((_, p) => data[p * values.dim + dimension]),
                ),
            ),
        );
        return options.agreed(rows * series.length, most);
    },
};
