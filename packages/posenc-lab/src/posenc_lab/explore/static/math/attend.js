// Attention with positions, dense and in doubles: the numbers of posenc.logits and of attention(backend="reference").
//
// A scheme has some of these methods:
//
//     table(positions)                  add door: a Matrix (tokens, dim), added to the input by the model
//     rotate(q, k, queryPositions, keyPositions, context)
//                                       rotate door: {q, k}, with a `scale` where it changes the width
//     pieces(context)                   pair doors: what is done to the scores, from left to right
//
// and context = {q, k, heads, scale, queryPositions, keyPositions, visible, distances(), causal, features, length}.
// Features are what a layer projects for a scheme, by name: Heads of the keys. Pieces:
//
//     {kind: "bias", at(head, r, i, j)}                   adds a number
//     {kind: "meeting", vector(head, r, i, j)}            adds scale times the query's product with a vector
//     {kind: "function", apply(score, head, r, i, j)}     the score becomes a function of itself
//     {kind: "row", apply(head, i, scores, visible)}      a row becomes another, a Float64Array
//     {kind: "value", vector(head, r, i, j)}              adds to the value of the key, as the query sees it
//
// r is a Float64Array of the key's coordinates less the query's; i and j say which query and key. With `byDistance` a
// piece looks at r alone: it is asked once for each distance, and i and j are not given.

import { Heads, Pairs } from "posenc/math/arrays.js";
import { must } from "posenc/math/check.js";
import { distancesOf } from "posenc/math/distances.js";
import { KINDS, ofPairs, products, tokensOf } from "posenc/math/kinds.js";
import { Positions } from "posenc/math/positions.js";
import { visible } from "posenc/math/visibility.js";

/** The scores, after the rotate and score doors, before mask and softmax: Pairs (heads, queries, keys). */
export function logits(schemes, q, k, options = {}) {
    return scored(list(schemes), bound(q, k, options)).scores;
}

/** {logits, weights, out}: attention with one scheme, or with several in their order. */
export function attend(schemes, q, k, v, options = {}) {
    const context = bound(q, k, options);
    const { scores, values } = scored(list(schemes), context);
    const weights = softmax(scores, context.visible, options.sinks ?? null);
    return { logits: scores, weights, out: mean(weights, v, values, context) };
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
    let distances = null;
    return {
        q,
        k,
        heads: q.heads,
        scale,
        queryPositions: positions,
        keyPositions,
        visible: visible(positions, keyPositions, { causal, window }),
        distances: () => (distances ??= distancesOf(positions, keyPositions)), // for those who ask
        causal,
        features,
        length: length ?? Math.max(positions.reach, keyPositions.reach),
    };
}

/** {scores, values}: the scores, and the pieces of the value door. */
function scored(schemes, context) {
    const { queryPositions, keyPositions } = context;
    let { q, k } = context;
    let brought = null;
    for (const scheme of schemes) {
        const turned = scheme.rotate?.(q, k, queryPositions, keyPositions, context) ?? { q, k };
        [q, k, brought] = [turned.q, turned.k, brought ?? turned.scale ?? null];
    }
    const turned = { ...context, q, k, scale: context.scale ?? brought ?? 1 / Math.sqrt(q.dim) };
    const pieces = schemes.flatMap((scheme) => scheme.pieces?.(turned) ?? []);
    const scores = products(q, k, turned.scale);
    for (const piece of pieces) {
        KINDS[piece.kind](piece, scores, turned);
    }
    return { scores, values: pieces.filter((piece) => piece.kind === "value") };
}

/** The softmax of what is visible. A query that sees nothing has no weights; a sink takes its share of a row. */
export function softmax(scores, seen, sinks = null) {
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
            const share = (sinks === null ? 1 : 1 / (1 + Math.exp(sinks[head] - highest - Math.log(sum)))) / sum;
            for (let j = 0; j < row.length; j++) {
                made[j] *= share;
            }
        }
    }
    return weights;
}

/** The mean of the values under the weights, with what the value door adds to them. */
function mean(weights, v, pieces, context) {
    const out = new Heads(weights.heads, weights.queries, v.dim);
    for (let head = 0; head < weights.heads; head++) {
        const values = tokensOf(v, head, weights.heads);
        const added = pieces.map((piece) => ofPairs(piece, (...pair) => piece.vector(...pair), head, context));
        for (let i = 0; i < weights.queries; i++) {
            const [row, made] = [weights.row(head, i), out.at(head, i)];
            for (let j = 0; j < row.length; j++) {
                if (row[j] !== 0) {
                    addTo(made, row[j], values[j]);
                    added.forEach((vector) => addTo(made, row[j], vector(i, j)));
                }
            }
        }
    }
    return out;
}

function addTo(made, weight, vector) {
    for (let c = 0; c < made.length; c++) {
        made[c] += weight * vector[c];
    }
}
