// Attention with positions, dense and in doubles: the numbers of posenc.logits and of attention(backend="reference").
//
// A scheme has some of these methods:
//
//     table(positions)                  add door: a Matrix (tokens, dim), added to the input by the model
//     rotate(q, k, queryPositions, keyPositions, context)
//                                       rotate door: {q, k}, with a `scale` where it changes the width, and `bands` where
//                                       far pairs are turned otherwise: [{reach, q, k}, ...], reaches rising, for pairs
//                                       with p_i - p_j >= reach, counted in chunks of coordinates with a `chunk`
//     rotateValue(v, keyPositions), rotateOutput(out, queryPositions)     where values turn too
//     pieces(context)                   pair doors: what is done to the scores, from left to right
//
// and context = {q, k, heads, scale, queryPositions, keyPositions, visible, causal, features, length}. Pieces:
//
//     {kind: "bias", at(head, r, i, j)}                   adds a number
//     {kind: "meeting", of, vector(head, r, i, j)}        adds scale times the query's (of: "query") or the key's
//                                                         product with a vector; with `shift(head)` added to it, or with
//                                                         a `feature` (a Heads of the queries) in its place, not scaled
//     {kind: "function", apply(score, head, r, i, j)}     the score becomes a function of itself
//     {kind: "row", apply(head, i, scores, visible)}      a row becomes another, a Float64Array; with `weights` it
//                                                         is the logarithms of the weights themselves: no softmax
//     {kind: "value", vector(head, r, i, j)}              adds to the value of the key, as the query sees it
//
// r is a Float64Array of the key's coordinates less the query's; i and j say which query and key. With `byDistance` a
// piece looks at r alone: it is asked once for each distance, and i and j are not given.

import { Heads, Pairs, dot } from "posenc/math/arrays.js";
import { must } from "posenc/math/check.js";
import { between, distancesOf } from "posenc/math/distances.js";
import { Positions } from "posenc/math/positions.js";
import { visible } from "posenc/math/visibility.js";

/** The scores, after the rotate and score doors, before mask and softmax: Pairs (heads, queries, keys). */
export function logits(schemes, q, k, options = {}) {
    return scored(list(schemes), bound(q, k, options)).scores;
}

/** {logits, weights, out}: attention with one scheme, or with several in their order. */
export function attend(schemes, q, k, v, options = {}) {
    schemes = list(schemes);
    const context = bound(q, k, options);
    const { queryPositions, keyPositions } = context;
    const { scores, values, gives } = scored(schemes, context);
    const weights = weighed(scores, context.visible, gives, options.sinks ?? null);
    for (const scheme of schemes) {
        v = scheme.rotateValue?.(v, keyPositions) ?? v;
    }
    let out = mean(weights, v, values, context);
    for (const scheme of [...schemes].reverse()) {
        out = scheme.rotateOutput?.(out, queryPositions) ?? out;
    }
    return { logits: scores, weights, out };
}

const list = (schemes) => (Array.isArray(schemes) ? schemes : [schemes]);

/** What schemes may need to know of a call. Left out, keys are at 0 .. N - 1 and queries are the last of them. */
function bound(q, k, { positions, keyPositions, causal = false, window = null, scale = null, features = {}, length }) {
    must(q.heads % k.heads === 0, `keys must have a number of heads that divides ${q.heads}, got ${k.heads}`);
    keyPositions ??= positions && q.tokens === k.tokens ? positions : Positions.arange(k.tokens);
    positions ??= q.tokens === k.tokens ? keyPositions : keyPositions.slice(k.tokens - q.tokens);
    for (const [name, x, p] of [
        ["queries", q, positions],
        ["keys", k, keyPositions],
    ]) {
        must(x.tokens === p.length, `positions must be of the ${x.tokens} ${name}, got ${p.length}`);
    }
    return {
        q,
        k,
        heads: q.heads,
        scale,
        queryPositions: positions,
        keyPositions,
        visible: visible(positions, keyPositions, { causal, window }),
        causal,
        features,
        length: length ?? Math.max(positions.reach, keyPositions.reach),
    };
}

/** {scores, values, gives}: the scores, the pieces of the value door, and whether scores are logarithms of weights. */
function scored(schemes, context) {
    const { queryPositions, keyPositions } = context;
    let scale = context.scale;
    let bands = [{ reach: -Infinity, q: context.q, k: context.k }];
    let chunk = null;
    for (const scheme of schemes) {
        const turned = bands.map(
            ({ q, k }) => scheme.rotate?.(q, k, queryPositions, keyPositions, context) ?? { q, k },
        );
        scale ??= turned[0].scale ?? null;
        if (turned[0].bands) {
            must(bands.length === 1, "one scheme alone can turn far pairs otherwise than near ones");
            chunk = turned[0].chunk ?? null;
            bands = [{ reach: -Infinity, q: turned[0].q, k: turned[0].k }, ...turned[0].bands];
        } else {
            bands = bands.map(({ reach }, n) => ({ reach, q: turned[n].q, k: turned[n].k }));
        }
    }
    scale ??= 1 / Math.sqrt(bands[0].q.dim);
    const distances = distancesOf(queryPositions, keyPositions);
    const made = bands.map(({ q, k }) => {
        const pieces = schemes.flatMap((scheme) => scheme.pieces?.({ ...context, q, k, scale }) ?? []);
        const scores = products(q, k, scale);
        for (const piece of pieces) {
            KINDS[piece.kind](piece, scores, { ...context, q, k, scale, distances });
        }
        return { scores, pieces };
    });
    const values = made[0].pieces.filter((piece) => piece.kind === "value");
    return { scores: picked(made, bands, chunk, context), values, gives: made[0].pieces.some((p) => p.weights) };
}

/** scale * q_i . k_j. Fewer heads of keys are each shared by a group of heads of queries. */
function products(q, k, scale) {
    const scores = new Pairs(q.heads, q.tokens, k.tokens);
    const group = q.heads / k.heads;
    for (let head = 0, n = 0; head < q.heads; head++) {
        const shared = Math.floor(head / group);
        for (let i = 0; i < q.tokens; i++) {
            const query = q.at(head, i);
            for (let j = 0; j < k.tokens; j++, n++) {
                const start = (shared * k.tokens + j) * k.dim;
                let sum = 0;
                for (let c = 0; c < query.length; c++) {
                    sum += query[c] * k.data[start + c];
                }
                scores.data[n] = scale * sum;
            }
        }
    }
    return scores;
}

/** Calls what(head, i, j, n, given) for each pair, n counting them; given is what make(head, r, i, j) gave, which is
 * asked once for each distance where the piece goes by it. */
function each(piece, scores, make, { queryPositions, keyPositions, distances }, what) {
    const pairs = scores.queries * scores.keys;
    for (let head = 0; head < scores.heads; head++) {
        const made = piece.byDistance ? distances.list.map((r) => make(head, r)) : null;
        for (let i = 0, n = 0; i < scores.queries; i++) {
            for (let j = 0; j < scores.keys; j++, n++) {
                const given = made
                    ? made[distances.index[n]]
                    : make(head, between(queryPositions, keyPositions, i, j), i, j);
                what(head, i, j, head * pairs + n, given);
            }
        }
    }
}

const KINDS = {
    bias(piece, scores, context) {
        const { data } = scores;
        each(
            piece,
            scores,
            (...pair) => piece.at(...pair),
            context,
            (head, i, j, n, bias) => {
                data[n] += bias;
            },
        );
    },
    meeting(piece, scores, context) {
        const group = context.q.heads / context.k.heads;
        const shifted =
            piece.shift &&
            context.q.map(context.q.dim, (made, old, head) => {
                const shift = piece.shift(head);
                made.forEach((_, c) => (made[c] = old[c] + shift[c]));
            });
        const queries = piece.feature ?? shifted ?? context.q;
        const scale = piece.feature ? 1 : context.scale;
        each(
            piece,
            scores,
            (...pair) => piece.vector(...pair),
            context,
            (head, i, j, n, vector) => {
                const x = piece.of === "key" ? context.k.at(Math.floor(head / group), j) : queries.at(head, i);
                scores.data[n] += scale * dot(x, vector);
            },
        );
    },
    function(piece, scores, { queryPositions, keyPositions }) {
        for (let head = 0, n = 0; head < scores.heads; head++) {
            for (let i = 0; i < scores.queries; i++) {
                for (let j = 0; j < scores.keys; j++, n++) {
                    const r = between(queryPositions, keyPositions, i, j);
                    scores.data[n] = piece.apply(scores.data[n], head, r, i, j);
                }
            }
        }
    },
    row(piece, scores, { visible: seen }) {
        for (let head = 0; head < scores.heads; head++) {
            for (let i = 0; i < scores.queries; i++) {
                const row = scores.row(head, i);
                row.set(piece.apply(head, i, row, seen.subarray(i * scores.keys, (i + 1) * scores.keys)));
            }
        }
    },
    value() {},
};

/** Of each pair the score of its band. */
function picked(made, bands, chunk, { queryPositions, keyPositions }) {
    const { scores } = made[0];
    const place = (p) => (chunk === null ? p : Math.floor(p / chunk));
    for (let b = 1; b < bands.length; b++) {
        for (let n = 0; n < scores.data.length; n++) {
            const [i, j] = [Math.floor(n / scores.keys) % scores.queries, n % scores.keys];
            if (place(queryPositions.coords[i]) - place(keyPositions.coords[j]) >= bands[b].reach) {
                scores.data[n] = made[b].scores.data[n];
            }
        }
    }
    return scores;
}

/** The softmax of what is visible. A query that sees nothing has no weights; a sink takes its share of a row. */
function weighed(scores, seen, gives, sinks) {
    const weights = new Pairs(scores.heads, scores.queries, scores.keys);
    for (let head = 0; head < scores.heads; head++) {
        for (let i = 0; i < scores.queries; i++) {
            const [row, made] = [scores.row(head, i), weights.row(head, i)];
            let highest = -Infinity;
            for (let j = 0; j < row.length; j++) {
                made[j] = seen[i * row.length + j] ? row[j] : -Infinity;
                highest = Math.max(highest, made[j]);
            }
            if (highest === -Infinity) {
                made.fill(0);
                continue;
            }
            let sum = 0;
            for (let j = 0; j < row.length; j++) {
                made[j] = Math.exp(made[j] - highest);
                sum += made[j];
            }
            const sink = sinks === null ? 1 : 1 / (1 + Math.exp(sinks[head] - highest - Math.log(sum)));
            const share = sink * (gives ? Math.exp(highest) : 1 / sum);
            for (let j = 0; j < row.length; j++) {
                made[j] *= share;
            }
        }
    }
    return weights;
}

/** The mean of the values under the weights, with what the value door adds to them. */
function mean(weights, v, values, { queryPositions, keyPositions, distances }) {
    const out = new Heads(weights.heads, weights.queries, v.dim);
    const group = weights.heads / v.heads;
    for (let head = 0; head < weights.heads; head++) {
        for (let i = 0; i < weights.queries; i++) {
            const [row, made] = [weights.row(head, i), out.at(head, i)];
            for (let j = 0; j < row.length; j++) {
                const value = v.at(Math.floor(head / group), j);
                for (let c = 0; row[j] && c < made.length; c++) {
                    made[c] += row[j] * value[c];
                }
            }
        }
    }
    distances ??= values.some((piece) => piece.byDistance) ? distancesOf(queryPositions, keyPositions) : null;
    for (const piece of values) {
        const make = (...pair) => piece.vector(...pair);
        each(piece, weights, make, { queryPositions, keyPositions, distances }, (head, i, j, n, vector) => {
            const made = out.at(head, i);
            for (let c = 0; weights.data[n] && c < made.length; c++) {
                made[c] += weights.data[n] * vector[c];
            }
        });
    }
    return out;
}
