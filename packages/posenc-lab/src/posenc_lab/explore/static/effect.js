// What a scheme does to every two tokens, by itself: what is drawn of it, and the call of attention that shows it. As
// posenc_lab.plot.overview has it.

import { Heads, dot } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { must } from "posenc/math/check.js";
import { Positions } from "posenc/math/positions.js";
import { Random } from "posenc/random.js";

export const WHAT = {
    add: "inner product ÷ dim",
    rotate: "score of equal tokens",
    bias: "bias",
    factor: "factor",
    content: "change of the score",
};

/** Tokens of a line that are drawn, of what depends on more than the distance. */
export const MOST = 96;

/** Scores before the scheme, of what looks at them alone. */
export const SCORES = Float64Array.from({ length: 201 }, (_, n) => 2 * n - 200);

/** By scheme of the catalog, what it wants a layer to project beside queries and keys: the feature and its width. */
export const FEATURES = {
    carope: () => ["frequency", 1],
    fox: () => ["forgotten", 1],
    inkling: ({ width }) => ["profile", width],
    re_po: () => ["position", 1],
    selective_rope: ({ head_dim }) => ["turned", head_dim / 2],
    wall: ({ head_dim }) => ["kept", head_dim],
};

/** Whether keys after a query mean nothing to it. */
export const isForDecoders = (entry, options) =>
    entry.for_decoders || options.form === "causal" || options.bidirectional === false;

/** The one of WHAT that is drawn of a scheme in JavaScript. */
export function familyOf(scheme, { name }) {
    if (scheme.table) return "add";
    if (name in FEATURES || name === "cope") return "content";
    if (!scheme.pieces) return "rotate";
    return name === "distance_aware" ? "factor" : "bias";
}

/** The fewest coordinates of a token that the scheme takes. */
export const axesOf = ({ axes }) => ({ one: 1, two: 2, three: 3, any: 1 })[axes];

/** Queries and keys that show what the scheme does: {q, k, positions, keyPositions, causal, scale, features}. Keys are
 * zero where a bias is asked for, so that of terms with the query the part of the position is left; the query is then a
 * Gaussian one, the same everywhere. A score of equal tokens, and one that is multiplied, is 1 without the scheme. */
export function callOf(scheme, entry, options, family, positions, keyPositions = positions, seed = 0) {
    const heads = options.num_heads ?? 1;
    const dim = options.head_dim ?? 16;
    const random = new Random(seed);
    const all = (tokens, fill) => new Heads(heads, tokens, dim).map(dim, fill);
    const alike = (made) => made.fill(dim ** -0.25);
    const gaussian = (made) => made.set(random.normals(dim));
    const call = { positions, keyPositions, causal: false, features: {} };
    const both = (fill) => ({ q: all(positions.length, fill), k: all(keyPositions.length, fill) });
    if (["rotate", "factor"].includes(family)) return { ...call, ...both(alike) };
    if (family === "content") {
        const [feature, width] = FEATURES[entry.name]?.(options) ?? [];
        const projected = (N) => new Heads(heads, N, width, random.normals(heads * N * width));
        const features = feature ? { [feature]: projected(positions.length) } : {};
        return { ...call, ...both(gaussian), causal: true, features };
    }
    const fixed = Array.from({ length: heads }, () => random.normals(dim));
    return {
        ...call,
        q: all(positions.length, (made, _, head) => made.set(fixed[head])),
        k: all(keyPositions.length, () => {}),
    };
}

/** The numbers of some queries and all keys, Pairs-like {heads, queries, keys, data}. */
function numbersOf(scheme, entry, options, family, positions, keyPositions, seed) {
    if (family === "add") return products(scheme.table(positions), scheme.table(keyPositions));
    const { q, k, ...call } = callOf(scheme, entry, options, family, positions, keyPositions, seed);
    const scores = logits(scheme, q, k, call);
    if (family === "content") {
        const plain = logits([], q, k, call);
        plain.data.forEach((x, n) => (scores.data[n] -= x));
    }
    return scores;
}

function products(P, Q) {
    const data = new Float64Array(P.rows * Q.rows);
    for (let i = 0, n = 0; i < P.rows; i++) {
        const row = P.row(i);
        for (let j = 0; j < Q.rows; j++, n++) data[n] = dot(row, Q.row(j)) / P.columns;
    }
    return { heads: 1, queries: P.rows, keys: Q.rows, data };
}

const close = (a, b, slack) => Object.is(a, b) || a === b || Math.abs(a - b) <= slack;

/** Whether all heads are alike. */
function alike({ heads, data }) {
    const each = data.length / heads;
    return data.every((x, n) => close(x, data[n % each], 1e-12));
}

/** What it does to the tokens 0 .. N - 1 of a line: {by, heads, matrix(head), along(head), between(head)}. `by` says what it
 * depends on, the "distance", the "key" or the "query", which is read off a few rows; "" for more than one of these. Of
 * what depends only on the distance only those rows are computed. along(head) has its numbers by that: for the distances
 * 1 - N .. N - 1, or for each token; between(head) is what lies between these, where that is something. */
export function ofLine(scheme, entry, options, family, N, seed = 0) {
    const tooMany = `${entry.title} depends on more than the distance: it is drawn for up to ${MOST} tokens, got ${N}`;
    const isWhole = family === "content";
    must(N <= MOST || !isWhole, tooMany);
    const tokens = Positions.arange(N);
    const all = () => numbersOf(scheme, entry, options, family, tokens, tokens, seed);
    const rows = [...new Set([0, 1, N >> 1, N - 2, N - 1])];
    const whole = isWhole ? all() : null;
    const few = whole ?? numbersOf(scheme, entry, options, family, picked(tokens, rows), tokens, seed);
    const by = whole ? "" : goesBy(few, rows, N);
    const heads = alike(few) ? 1 : few.heads;
    if (by === "distance") {
        const row = (head, n) => few.data.subarray((head * rows.length + n) * N, (head * rows.length + n + 1) * N);
        const along = (head) => Float64Array.of(...row(head, rows.length - 1), ...row(head, 0).subarray(1));
        const matrix = (head) => ofDistances(along(head), N);
        const isFine = entry.claims.includes("fractional") && N <= FINE_TOKENS && N > 1;
        const between = isFine ? betweenOf(scheme, entry, options, family, N, seed) : () => undefined;
        return { by, heads, matrix, along, between };
    }
    must(N <= MOST, tooMany);
    const { data } = whole ?? all();
    const matrix = (head) => data.slice(head * N * N, (head + 1) * N * N);
    const step = by === "key" ? 1 : N;
    return {
        by,
        heads,
        matrix,
        along: (head) => Float64Array.from({ length: N }, (_, n) => data[head * N * N + n * step]),
        between: () => undefined,
    };
}

const FINE = 4; // numbers from one whole distance to the next
const FINE_TOKENS = 64; // with more of them a wave is seen without these

/** A head's numbers between whole distances, a function of the distance; of a scheme that takes any real position. */
function betweenOf(scheme, entry, options, family, N, seed) {
    const places = new Positions(Array.from({ length: FINE * (N - 1) + 1 }, (_, n) => n / FINE));
    const ends = [N - 1, 0].map((end) => numbersOf(scheme, entry, options, family, new Positions([end]), places, seed));
    return (head) => (r) => {
        const { data, keys } = ends[r > 0 ? 1 : 0];
        const at = FINE * (r > 0 ? r : r + N - 1);
        const below = Math.min(Math.floor(at), keys - 2);
        const [low, high] = data.subarray(head * keys + below, head * keys + below + 2);
        return low + (high - low) * (at - below);
    };
}

/** The positions of these tokens alone. */
const picked = (positions, tokens) =>
    new Positions(
        tokens.map((n) => positions.at(n)),
        { order: tokens.map((n) => positions.order[n]) },
    );

/** The matrix of N tokens of what depends only on the distance. */
export function ofDistances(along, N) {
    const made = new Float64Array(N * N);
    for (let i = 0; i < N; i++) made.set(along.subarray(N - 1 - i, 2 * N - 1 - i), i * N);
    return made;
}

/** What these queries' rows go by: the "distance", the "key", the "query", or "" where by more than one of these. */
export function goesBy({ heads, data }, queries, N) {
    let [low, high] = [Infinity, -Infinity];
    for (const x of data) if (Number.isFinite(x)) [low, high] = [Math.min(low, x), Math.max(high, x)];
    const slack = 1e-7 * (high - low) + 1e-12;
    const places = { distance: (i, j) => j - i + N, key: (i, j) => j, query: (i) => i };
    for (const [name, place] of Object.entries(places)) {
        let same = true;
        for (let head = 0; same && head < heads; head++) {
            const known = new Map();
            for (let row = 0; same && row < queries.length; row++) {
                for (let j = 0; same && j < N; j++) {
                    const [at, value] = [place(queries[row], j), data[(head * queries.length + row) * N + j]];
                    if (known.has(at)) same = close(known.get(at), value, slack);
                    else known.set(at, value);
                }
            }
        }
        if (same) return name;
    }
    return "";
}

/** The patches of a frame, at the coordinates that the scheme gives them. */
export function framed(scheme, axes, side) {
    if (typeof scheme.grid === "function") return scheme.grid(side, side);
    const time = axes === 3 ? [0] : [];
    return new Positions(Array.from({ length: side * side }, (_, n) => [...time, Math.floor(n / side), n % side]));
}

/** What it does to the patch in the middle of a frame and every other one: {x, middle, heads, matrix(head),
 * lines(head)}; lines(head) are {name, y}, one for each axis, for the distances x along it. */
export function ofGrid(scheme, entry, options, family, side, seed = 0) {
    const axes = axesOf(entry);
    const middle = side >> 1;
    const patches = framed(scheme, axes, side);
    const query = patches.slice(middle * (side + 1), middle * (side + 1) + 1);
    const scoresOf = (keys) => numbersOf(scheme, entry, options, family, query, keys, seed);
    const scores = scoresOf(patches);
    const x = Float64Array.from({ length: side }, (_, n) => n - middle);
    const times = axes === 3 && scoresOf(new Positions(Array.from(x, (r) => [r, middle, middle])));
    const of = ({ data, keys }, head) => data.slice(head * keys, (head + 1) * keys);
    const matrix = (head) => of(scores, head);
    const lines = (head) => [...(times ? [{ name: "frames apart", y: of(times, head) }] : []), ...across(matrix(head), side)];
    return { x, middle, heads: alike(scores) ? 1 : scores.heads, matrix, lines };
}

/** What the patch in the middle of a frame has along its column and along its row. */
export function across(frame, side) {
    const middle = side >> 1;
    const column = Float64Array.from({ length: side }, (_, n) => frame[n * side + middle]);
    return [
        { name: "rows apart", y: column },
        { name: "columns apart", y: frame.slice(middle * side, (middle + 1) * side) },
    ];
}
