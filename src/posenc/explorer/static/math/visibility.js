// Who may see whom.

import { must, whole } from "posenc/math/check.js";

/** (left, right): how many places back and forth a query sees, itself not counted; null: all. */
function ends(window) {
    if (window === null) {
        return [null, null];
    }
    if (Array.isArray(window)) {
        must(window.length === 2, `window must be a number of keys or [left, right], got ${JSON.stringify(window)}`);
        return window.map((end) => (end === null ? null : whole("window", end, 0)));
    }
    return [whole("window", window) - 1, 0];
}

/** 1 where a query may see a key: of its own document, and of an order that causality and the window allow. */
export function visible(queries, keys, { causal = false, window = null } = {}) {
    const [left, right] = ends(window);
    const furthest = causal ? Math.min(0, right ?? 0) : (right ?? Infinity);
    const seen = new Uint8Array(queries.length * keys.length);
    for (let i = 0, n = 0; i < queries.length; i++) {
        for (let j = 0; j < keys.length; j++, n++) {
            const ahead = keys.order[j] - queries.order[i];
            const same = queries.document[i] === keys.document[j] && keys.document[j] !== -1;
            seen[n] = same && ahead <= furthest && (left === null || ahead >= -left);
        }
    }
    return seen;
}
