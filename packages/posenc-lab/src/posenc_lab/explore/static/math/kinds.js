// What the pieces of pair doors do to scores.

import { Pairs, dot } from "posenc/math/arrays.js";
import { between } from "posenc/math/distances.js";

/** scale * q_i . k_j. Fewer heads of keys are each shared by a group of heads of queries. */
export function products(q, k, scale) {
    const scores = new Pairs(q.heads, q.tokens, k.tokens);
    for (let head = 0, n = 0; head < q.heads; head++) {
        const keys = tokensOf(k, head, q.heads);
        for (let i = 0; i < q.tokens; i++) {
            const query = q.at(head, i);
            for (let j = 0; j < k.tokens; j++, n++) {
                scores.data[n] = scale * dot(query, keys[j]);
            }
        }
    }
    return scores;
}

/** Views of all tokens of keys or values, of the head that a head of queries meets. */
export function tokensOf(x, head, heads) {
    const shared = Math.floor((head * x.heads) / heads);
    return Array.from({ length: x.tokens }, (_, token) => x.at(shared, token));
}

/** What make(head, r, i, j) gives of the pairs of a head, as a function of i and j. Where the piece depends
 * only on the distance it is asked once for each. */
export function ofPairs(piece, make, head, { distances, queryPositions, keyPositions }) {
    if (!piece.byDistance) {
        return (i, j) => make(head, between(queryPositions, keyPositions, i, j), i, j);
    }
    const { list, index } = distances();
    const made = list.map((r) => make(head, r));
    return (i, j) => made[index[i * keyPositions.length + j]];
}

/** Changes all scores: score becomes what(score, i, j), by the function that ofHead(head) gives. */
function change(scores, ofHead) {
    const { data } = scores;
    for (let head = 0, n = 0; head < scores.heads; head++) {
        const what = ofHead(head);
        for (let i = 0; i < scores.queries; i++) {
            for (let j = 0; j < scores.keys; j++, n++) {
                data[n] = what(data[n], i, j);
            }
        }
    }
}

/** By the kind of a piece, how it changes the scores. */
export const KINDS = {
    bias(piece, scores, context) {
        change(scores, (head) => {
            const at = ofPairs(piece, (...pair) => piece.at(...pair), head, context);
            return (score, i, j) => score + at(i, j);
        });
    },

    meeting(piece, scores, context) {
        const { q, scale } = context;
        change(scores, (head) => {
            const vector = ofPairs(piece, (...pair) => piece.vector(...pair), head, context);
            return (score, i, j) => score + scale * dot(q.at(head, i), vector(i, j));
        });
    },

    function(piece, scores, context) {
        change(scores, (head) => {
            const r = ofPairs({ byDistance: true }, (_, r) => r, head, context);
            return (score, i, j) => piece.apply(score, head, r(i, j), i, j);
        });
    },

    row(piece, scores, { visible: seen }) {
        for (let head = 0; head < scores.heads; head++) {
            for (let i = 0; i < scores.queries; i++) {
                const row = scores.row(head, i);
                row.set(piece.apply(head, i, row, seen.subarray(i * scores.keys, (i + 1) * scores.keys)));
            }
        }
    },

    value() {}, // the value door's: it leaves the scores alone
};
