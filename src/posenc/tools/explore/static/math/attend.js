// Attention with positions, dense and in doubles: the numbers of posenc.logits and of attention(backend="reference").
//
// A scheme has some of these methods:
//
//     table(positions)                  add door: a Matrix (tokens, dim), added to the input by the model
//     rotate(q, k, queryPositions, keyPositions, context)
//                                       rotate door: {q, k}, with a `scale` where it changes the width, and `bands`
//                                       where distant pairs are rotated differently: [{reach, q, k}, ...], reaches rising, for
//                                       pairs with p_i - p_j >= reach, counted in chunks of coordinates with a `chunk`
//     rotateValue(v, keyPositions), rotateOutput(out, queryPositions)     where values turn too
//     pieces(context)                   pair doors: what is done to the scores, from left to right
//
// and context = {q, k, heads, scale, queryPositions, keyPositions, visible, distances(), causal, features, length}.
// Features are what a layer projects for a scheme, by name: Heads of the keys for a clock, else of the queries. Pieces:
//
//     {kind: "bias", at(head, r, i, j)}                   adds a number
//     {kind: "meeting", of, vector(head, r, i, j)}        adds scale times the query's (of: "query") or the key's
//                                                         product with a vector; `shift(head)` is added to the query,
//                                                         or a `feature` (a Heads) takes its place, not scaled
//     {kind: "function", apply(score, head, r, i, j)}     the score becomes a function of itself
//     {kind: "row", apply(head, i, scores, visible)}      a row becomes another, a Float64Array; with `weights` it
//                                                         is the logarithms of the weights themselves: no softmax
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
    schemes = list(schemes);
    const context = bound(q, k, options);
    const { queryPositions, keyPositions } = context;
    const { scores, values, gives } = scored(schemes, context);
    must(!gives || !options.sinks, "sinks take a share of weights that sum to 1, and the scheme's weights do not");
    const weights = softmax(scores, context.visible, gives, options.sinks ?? null);
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

/** {scores, values, gives}: the scores, the pieces of the value door, and whether scores are logarithms of weights. */
function scored(schemes, context) {
    const { queryPositions, keyPositions } = context;
    let brought = null;
    let bands = [{ reach: -Infinity, q: context.q, k: context.k }];
    let chunk = null;
    for (const scheme of schemes) {
        const turned = bands.map(
            ({ q, k }) => scheme.rotate?.(q, k, queryPositions, keyPositions, context) ?? { q, k },
        );
        const own = turned[0].scale ?? null;
        must(own === null || brought === null, `only one rotation can set the softmax scale, got ${brought} and ${own}`);
        brought ??= own;
        if (turned[0].bands) {
            must(bands.length === 1, "only one scheme can rotate distant pairs differently");
            chunk = turned[0].chunk ?? null;
            bands = [{ reach: -Infinity, q: turned[0].q, k: turned[0].k }, ...turned[0].bands];
        } else {
            bands = bands.map(({ reach }, n) => ({ reach, q: turned[n].q, k: turned[n].k }));
        }
    }
    const scale = context.scale ?? brought ?? 1 / Math.sqrt(bands[0].q.dim);
    const made = bands.map(({ q, k }) => {
        const pieces = schemes.flatMap((scheme) => scheme.pieces?.({ ...context, q, k, scale }) ?? []);
        must(
            bands.length === 1 || pieces.every(({ kind }) => kind !== "row"),
            "a score term that needs whole rows of scores cannot be composed with a scheme that rotates distant pairs differently",
        );
        const scores = products(q, k, scale);
        for (const piece of pieces) {
            KINDS[piece.kind](piece, scores, { ...context, q, k, scale });
        }
        return { scores, pieces };
    });
    const values = made[0].pieces.filter((piece) => piece.kind === "value");
    return { scores: picked(made, bands, chunk, context), values, gives: made[0].pieces.some((p) => p.weights) };
}

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
export function softmax(scores, seen, gives = false, sinks = null) {
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
