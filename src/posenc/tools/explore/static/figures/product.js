// q_i . k_j under RoPE is the same all along a diagonal; under a sinusoid that is added to the input it is not.

import { element } from "posenc/elements.js";
import { fixedInPython, fixedPair, repeated } from "posenc/fixed.js";
import { Heads, dot } from "posenc/math/arrays.js";
import { Sinusoidal } from "posenc/math/add.js";
import { logits } from "posenc/math/attend.js";
import { frequencies, turnedOn } from "posenc/math/phases.js";
import { Positions } from "posenc/math/positions.js";
import { OWN, agreed, apart, array, entryOf, imports, optionsOf, python, schemeOf } from "posenc/options.js";
import { remembered } from "posenc/remembered.js";
import { attended, use } from "posenc/use.js";
import { WEIGHED, weighed } from "posenc/weighed.js";

/** The largest difference between two numbers of one diagonal. */
function alongDiagonals(scores, n) {
    let most = 0;
    for (let r = 1 - n; r < n; r++) {
        let [low, high] = [Infinity, -Infinity];
        for (let i = Math.max(r, 0); i < Math.min(n, n + r); i++) {
            const score = scores[i * n + i - r];
            if (score < low) low = score;
            if (score > high) high = score;
        }
        most = Math.max(most, high - low);
    }
    return most;
}

/** Scores of all queries and keys, under RoPE and with a sinusoid added, and their largest differences. */
const scored = remembered((name, scheme, tokens, dim, base, shift, seed) => {
    const [q, k] = fixedPair(dim, seed);
    const positions = Positions.arange(tokens, shift);
    const options = { positions, keyPositions: positions };
    const rope = logits(scheme, repeated(tokens, q), repeated(tokens, k), options).data;
    const table = new Sinusoidal({ dim, base, layout: "interleaved", axes: 1 }).table(positions);
    const moved = (x) =>
        new Heads(1, tokens, dim).map(dim, (made, _, head, token) =>
            made.set(table.row(token).map((p, c) => p + x[c])),
        );
    const added = logits([], moved(q), moved(k), options).data;
    return { rope, added, differences: { rope: alongDiagonals(rope, tokens), added: alongDiagonals(added, tokens) } };
});

/** The user's own schemes that turn queries and keys, of all heads alike, and do no more. */
const ownTurning = ({ catalog }) =>
    catalog.filter(({ own, doors }) => own?.query?.shape[0] === 1 && doors.join() === "rotate");

/** The scheme that turns: RoPE, or one of the user's own, which has its sizes. */
function turning({ scheme: name, dim, base }, app) {
    const entry = entryOf(app, name);
    const options = entry.own ? optionsOf(entry) : { head_dim: dim, base };
    return { entry, options, scheme: schemeOf(entry, options), dim: options.head_dim };
}

/** How many tokens, and how far on. */
const most = ({ own }) => (own ? { tokens: own.tokens / 2, shift: own.tokens / 2 } : { tokens: 128, shift: 1000 });

/** Both along one diagonal: the scores at whole positions of the query, and what lies between, but of the user's own. */
function along({ tokens, base, shift, distance, seed }, { rope, added }, { dim, entry }) {
    const [q, k] = fixedPair(dim, seed);
    const scheme = new Sinusoidal({ dim, base, layout: "interleaved", axes: 1 });
    const moved = (x, p) => scheme.table(new Positions([p])).row(0).map((y, c) => y + x[c]);
    const x = Float64Array.from({ length: tokens - distance }, (_, j) => j + distance + shift);
    const y = (scores) => x.map((_, j) => scores[(j + distance) * tokens + j]);
    const one = entry.own ? null : turnedOn(q, k, frequencies(dim, base))(distance) / Math.sqrt(dim);
    return [
        { x, y: y(rope), wave: entry.own ? undefined : () => one },
        { x, y: y(added), wave: (p) => dot(moved(q, p), moved(k, p - distance)) / Math.sqrt(dim) },
    ];
}

export const figure = {
    name: "product",
    title: "The product is a function of the distance",
    see:
        "Every query is the same vector q and every key the same k; only their positions differ. Under RoPE a " +
        "diagonal, which is one distance, has one score; with a sinusoid added to q and k it has many. Move all " +
        "tokens by c: only the second map changes. " +
        "Squares mark the ends of the diagonal that the lines follow.",
    defaults: { scheme: "rope", tokens: 64, dim: 32, base: 10000, shift: 0, distance: 8, seed: 0, weighed: false },
    another: { scheme: "rope", tokens: 20, dim: 12, base: 100, shift: 37, distance: 3, seed: 2 },
    controls({ scheme, tokens }, app) {
        const entry = entryOf(app, scheme);
        const choices = ["rope", ...ownTurning(app).map(({ name }) => name)];
        const named = choices.map((value) => ({ value, name: entryOf(app, value).title }));
        return [
            ...(named.length > 1 ? [{ name: "scheme", label: "rotation", kind: "choice", choices: named }] : []),
            { name: "shift", label: "c, added to every position", kind: "range", min: 0, max: most(entry).shift },
            { name: "distance", label: "distance i − j of the lines", kind: "range", min: 0, max: tokens - 2 },
            { name: "tokens", label: "tokens", kind: "range", min: 8, max: most(entry).tokens, step: 4 },
            ...(entry.own
                ? []
                : [
                      { name: "dim", label: "head_dim", kind: "range", min: 4, max: 64, step: 4 },
                      { name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 },
                  ]),
            WEIGHED,
            { name: "seed", label: "Other q and k", kind: "button", value: (seed) => (seed + 1) % 20 },
        ];
    },
    change(values, name, value, app) {
        const made = { ...values, [name]: value };
        const sizes = most(entryOf(app, made.scheme));
        const tokens = Math.min(made.tokens, sizes.tokens);
        return {
            ...made,
            tokens,
            shift: Math.min(made.shift, sizes.shift),
            distance: Math.min(made.distance, tokens - 2),
        };
    },
    values(state, app) {
        const turned = turning(state, app);
        const { tokens, base, shift, seed } = state;
        const found = scored(state.scheme, turned.scheme, tokens, turned.dim, base, shift, seed);
        return { ...found, title: turned.entry.title, curves: along(state, found, turned) };
    },
    use(state, app) {
        const { tokens, shift } = state;
        const { entry, options, dim } = turning(state, app);
        if (entry.own) return use([{ entry, options }], { tokens, causal: true });
        const positions = `query_positions=posenc.Positions.arange(${tokens}, start=${shift})`;
        return attended(python(entry, options), { tokens, dim, more: [shift ? positions : "", "is_causal=True"] });
    },
    line(state, app) {
        const { tokens, base, shift, seed } = state;
        const { entry, options, dim } = turning(state, app);
        return (
            `${imports([entry])}${fixedInPython(dim, seed)}p = posenc.Positions.arange(${tokens}, start=${shift})\n` +
            `turned = ${python(entry, options)}(p, dtype=torch.float64)\n` +
            `rope = posenc.logits(q.expand(1, 1, ${tokens}, -1), k.expand(1, 1, ${tokens}, -1), turned)[0, 0]\n` +
            `table = posenc.Sinusoidal(${dim}, base=${base}).table(p, torch.float64)[0]\n` +
            `added = (q + table) @ (k + table).T / ${dim}**0.5\ntorch.stack((rope, added))${state.weighed ? ".softmax(-1)" : ""}`
        );
    },
    compared(state, app) {
        const { rope, added } = figure.values(state, app);
        const both = Float64Array.from([...rope, ...added]);
        const data = state.weighed ? weighed(both, { keys: state.tokens }) : both;
        return { shape: [2, state.tokens, state.tokens], data };
    },
    async check({ scheme, tokens, dim, base, shift, seed }, { rope }, app) {
        if (entryOf(app, scheme).own) return OWN;
        const n = Math.min(tokens, 32);
        const [q, k] = fixedPair(dim, seed).map((x) => array([1, n, dim], repeated(n, x).data));
        const schemes = [{ name: "rope", options: { head_dim: dim, base } }];
        const positions = Array.from({ length: n }, (_, i) => [shift + i]);
        const said = await app.ask("attention", { schemes, query: q, key: k, value: k, positions });
        const ours = Array.from({ length: n * n }, (_, m) => rope[Math.floor(m / n) * tokens + (m % n)]);
        return agreed(n * n, apart(ours, said.logits.data));
    },
    mount(box, app) {
        const maps = ["turned", "a sinusoid added to q and k"].map((title) => {
            const told = element("div", { style: "font-size: 0.85rem" });
            const part = element("div", { style: "flex: 1 1 15rem; max-width: 22rem" });
            const heading = element("strong", {}, title);
            part.append(heading, told);
            box.append(part);
            return { heading, told, map: app.heat(part, { label: `scores, ${title}`, size: 352 }) };
        });
        const chart = app.lines(box, {
            label: "scores along one diagonal",
            xLabel: "position of the query",
            yLabel: "score (in logits)",
            height: 240,
        });
        return ({ tokens, shift, distance, weighed: isWeighed }, { title, differences, curves, ...scores }) => {
            const [rope, added] = [scores.rope, scores.added].map((x) => (isWeighed ? weighed(x, { keys: tokens }) : x));
            const scale = isWeighed ? { low: 0, centre: null } : { low: undefined, centre: undefined };
            maps[0].heading.textContent = title;
            const rest = tokens - distance;
            const looks = {
                from: shift,
                rowName: (i) => `query at ${i + shift}`,
                columnName: (j) => `key at ${j + shift}`,
                ...scale,
                rows: tokens,
                columns: tokens,
                marks: [0, rest - 1].map((column) => ({ row: column + distance, column })),
            };
            [rope, added].forEach((scores, n) => maps[n].map.draw(scores, looks));
            [differences.rope, differences.added].forEach((x, n) => {
                maps[n].told.textContent = `scores of a diagonal differ by up to ${Number(x.toPrecision(2))}`;
            });
            const names = [title, "a sinusoid added"];
            const weights = (scores) => curves[0].x.map((_, j) => scores[(j + distance) * tokens + j]);
            const series = isWeighed ? [rope, added].map((scores) => ({ y: weights(scores) })) : curves;
            chart.draw(
                curves[0].x,
                series.map((curve, n) => ({ name: names[n], ...curve })),
                { yLabel: isWeighed ? "attention weight" : "score (in logits)" },
            );
        };
    },
    describe: ({ tokens, shift }, { title, differences }) =>
        `Of ${tokens} queries and keys from position ${shift} on, the largest difference within a diagonal is ` +
        `${differences.rope.toPrecision(2)} under ${title}, and ` +
        `${differences.added.toPrecision(3)} with a sinusoid added.`,
};
