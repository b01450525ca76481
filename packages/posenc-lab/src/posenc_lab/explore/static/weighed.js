// Scores as weights. A figure of scores, or of what is added to them, has a switch that shows what the softmax makes of
// them: the control WEIGHED among its controls, `weighed: false` in its defaults, and weighed(scores) in its values.

import { Pairs } from "posenc/math/arrays.js";
import { softmax } from "posenc/math/attend.js";

/** The switch. In Python it is `.softmax(-1)`. */
export const WEIGHED = { name: "weighed", label: "as weights, after the softmax", kind: "check" };

/** The weights of scores in rows of `keys` numbers, one row for each query; by default all are one row. Where a query
 * does not see a key, the score is NaN, and so is the weight: heat.js draws both as "not seen". With `causal`, the last
 * query sees all keys, and each one before it sees one key less. */
export function weighed(scores, { keys = scores.length, causal = false } = {}) {
    const queries = scores.length / keys;
    const isAfter = (n) => (n % keys) - Math.floor(n / keys) > keys - queries;
    const seen = Uint8Array.from(scores, (score, n) => !Number.isNaN(score) && !(causal && isAfter(n)));
    const { data } = softmax(new Pairs(1, queries, keys, Float64Array.from(scores)), seen);
    return data.map((weight, n) => (seen[n] ? weight : NaN));
}
