// The two layouts of channel pairs, and what becomes of a checkpoint of one that runs under the other.

import { element } from "posenc/elements.js";
import { fixedInPython, fixedPair, repeated } from "posenc/fixed.js";
import { logits } from "posenc/math/attend.js";
import { LAYOUTS, frequencies, turnedOn } from "posenc/math/phases.js";
import { Positions } from "posenc/math/positions.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { agreed, apart, array } from "posenc/options.js";
import { svg } from "posenc/svg.js";
import { ordered } from "posenc/theme.js";
import { rope } from "posenc/use.js";

const DISTANCES = 64;

const other = (layout) => LAYOUTS.find((one) => one !== layout);

/** The two channels of each pair. */
function pairsOf(dim, layout) {
    return Array.from({ length: dim / 2 }, (_, k) => (layout === "half" ? [k, k + dim / 2] : [2 * k, 2 * k + 1]));
}

/** The same between whole distances: a function of the distance. */
function waveOf(q, k, base, layout) {
    const [first, second] = [0, 1].map((part) => pairsOf(q.length, layout).map((places) => places[part]));
    const inHalves = (x) => [...first, ...second].map((place) => x[place]);
    const product = turnedOn(inHalves(q), inHalves(k), frequencies(q.length, base));
    return (r) => product(r) / Math.sqrt(q.length);
}

/** Which channel comes to each place, for a rotation in the layout `to`: pair k must find its two numbers there. */
function orderOf(dim, to) {
    const order = new Array(dim);
    const from = pairsOf(dim, other(to));
    pairsOf(dim, to).forEach((places, k) => places.forEach((place, part) => (order[place] = from[k][part])));
    return order;
}

/** The score of q at each distance from k, which stands at 0. */
function scoresOf(q, k, base, layout) {
    const positions = Positions.arange(DISTANCES);
    const scheme = new RoPE({ head_dim: q.length, base, layout });
    return logits(scheme, repeated(DISTANCES, q), repeated(1, k), { positions, keyPositions: Positions.arange(1) })
        .data;
}

export const figure = {
    name: "pair-layouts",
    title: "Two layouts of the same weights",
    see:
        "A rotation has to know which channels make a pair. Arcs join them. Weights trained in one layout give " +
        "wrong scores when they run under the other, " +
        "without an error; one permutation of the rows of the query's and the key's projection repairs them.",
    defaults: { trained: "half", dim: 16, base: 10000, seed: 0 },
    another: { trained: "interleaved", dim: 8, base: 100, seed: 4 },
    controls: [
        { name: "trained", label: "layout of the checkpoint", kind: "choice", choices: LAYOUTS },
        { name: "dim", label: "head_dim", kind: "range", min: 4, max: 32, step: 2 },
        { name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 },
        { name: "seed", label: "Other weights", kind: "button", value: (seed) => (seed + 1) % 20 },
    ],
    values({ trained, dim, base, seed }) {
        const [q, k] = fixedPair(dim, seed);
        const order = orderOf(dim, other(trained));
        const moved = (x) => x.map((_, place) => x[order[place]]);
        const right = scoresOf(q, k, base, trained);
        const wrong = scoresOf(q, k, base, other(trained));
        const repaired = scoresOf(moved(q), moved(k), base, other(trained));
        const curves = [
            { y: right, wave: waveOf(q, k, base, trained) },
            { y: wrong, wave: waveOf(q, k, base, other(trained)) },
        ];
        return { order, curves, right, wrong, repaired, unrepairedBy: apart(right, wrong), repairedTo: apart(right, repaired) };
    },
    use: ({ trained, dim, base }) => rope(dim, { base, layout: trained }),
    line: ({ trained, dim, base, seed }) =>
        `from posenc.huggingface import convert_layout\n${fixedInPython(dim, seed)}` +
        `state = {"q_proj.weight": q[:, None], "k_proj.weight": k[:, None]}  # of one input\n` +
        `repaired = convert_layout(state, "${other(trained)}", ${dim})\n` +
        `def scores(state, layout):\n` +
        `    p = posenc.Positions.arange(${DISTANCES})\n` +
        `    encoding = posenc.RoPE(${dim}, base=${base}, layout=layout)(p, dtype=torch.float64)\n` +
        `    q, k = (state[f"{x}_proj.weight"].T.expand(1, 1, ${DISTANCES}, ${dim}) for x in "qk")\n` +
        `    return posenc.logits(q, k, encoding)[0, 0, :, 0]\n` +
        `right, wrong = scores(state, "${trained}"), scores(state, "${other(trained)}")\n` +
        `torch.stack((right, wrong, scores(repaired, "${other(trained)}")))`,
    compared(state) {
        const { right, wrong, repaired } = figure.values(state);
        return { shape: [3, DISTANCES], data: Float64Array.from([...right, ...wrong, ...repaired]) };
    },
    async check({ trained, dim, base, seed }, { right, wrong }, app) {
        const [q, k] = fixedPair(dim, seed);
        const of = async (layout) =>
            (
                await app.ask("attention", {
                    schemes: [{ name: "rope", options: { head_dim: dim, base, layout } }],
                    query: array([1, DISTANCES, dim], repeated(DISTANCES, q).data),
                    key: array([1, 1, dim], k),
                    value: array([1, 1, dim], k),
                    positions: Array.from({ length: DISTANCES }, (_, r) => [r]),
                    key_positions: [[0]],
                })
            ).logits.data;
        return agreed(2 * DISTANCES, Math.max(apart(right, await of(trained)), apart(wrong, await of(other(trained)))));
    },
    mount(box, app) {
        const diagrams = LAYOUTS.map((layout) => {
            const [name, drawing] = [element("strong"), svg("svg", { role: "img" })];
            box.append(element("div", { style: "flex: 1 1 20rem; max-width: 34rem" }, name, drawing));
            return { layout, name, drawing };
        });
        const order = element("p", { style: "width: 100%; margin: 0; overflow-wrap: anywhere" });
        box.append(order);
        const chart = app.lines(box, {
            label: "scores against the distance",
            xLabel: "distance (query − key)",
            yLabel: "score (in logits)",
            height: 260,
        });
        let dim = 0;
        const arcs = () =>
            diagrams.forEach(({ layout, drawing }) => dim && drawArcs(drawing, dim, layout, app.theme()));
        new ResizeObserver(arcs).observe(diagrams[0].drawing.parentElement);
        return (state, { curves, repaired, order: rows }) => {
            dim = state.dim;
            arcs();
            for (const { layout, name } of diagrams) {
                const turns = layout === "half" ? `k turns with k + ${dim / 2}` : "2k turns with 2k + 1";
                name.textContent = `${layout}${layout === state.trained ? " (as trained)" : ""}: channel ${turns}`;
            }
            const given = `to ${other(state.trained)}: places 0, 1, 2, … take the rows ${rows.join(", ")} of each head`;
            order.textContent = `convert_layout, ${given}.`;
            chart.draw(
                Array.from({ length: DISTANCES }, (_, r) => r),
                [
                    { name: `as trained: ${state.trained}`, ...curves[0] },
                    { name: `the same weights under ${other(state.trained)}`, ...curves[1] },
                    { name: `permuted, under ${other(state.trained)}`, y: repaired, points: true },
                ],
            );
        };
    },
    describe: ({ trained }, { unrepairedBy, repairedTo }) =>
        `Weights trained as ${trained} and run as ${other(trained)} give scores that are off by up to ` +
        `${unrepairedBy.toPrecision(3)} logits; ` +
        `after the permutation the largest difference is ${repairedTo === 0 ? "0" : repairedTo.toExponential(0)}.`,
};

/** Channels as boxes in a row, with an arc over the two of each pair. */
function drawArcs(drawing, dim, layout, theme) {
    const width = Math.max(drawing.parentElement.clientWidth, 200);
    const side = Math.min(width / dim, 34);
    const span = side * (layout === "half" ? dim / 2 : 1);
    const rise = Math.min(span / 2, 80);
    const floor = rise + 4;
    const every = side < 9 ? 8 : side < 16 ? 4 : 1; // channels that have their number under them
    const boxes = Array.from({ length: dim }, (_, c) => {
        const number =
            c % every
                ? ""
                : svg(
                      "text",
                      { x: (c + 0.5) * side, y: floor + 30, "text-anchor": "middle", "font-size": 11, fill: theme.ink },
                      String(c),
                  );
        return [
            svg("rect", {
                x: c * side + 1,
                y: floor,
                width: side - 2,
                height: 16,
                rx: 2,
                fill: "none",
                stroke: theme.faint,
            }),
            number,
        ];
    });
    const arcs = pairsOf(dim, layout).map(([a, b], k) => {
        const [left, right] = [(a + 0.5) * side, (b + 0.5) * side];
        return svg("path", {
            d: `M${left} ${floor} A${span / 2} ${rise} 0 0 1 ${right} ${floor}`,
            fill: "none",
            stroke: ordered(theme, k, dim / 2),
            "stroke-width": 2,
        });
    });
    for (const [name, value] of Object.entries({
        width: side * dim,
        height: floor + 36,
        style: "display: block; max-width: 100%",
    }))
        drawing.setAttribute(name, value);
    drawing.setAttribute(
        "aria-label",
        `pairs of channels in the ${layout} layout: ${pairsOf(dim, layout)
            .map((pair) => pair.join(" and "))
            .join(", ")}`,
    );
    drawing.replaceChildren(...arcs, ...boxes.flat());
}
