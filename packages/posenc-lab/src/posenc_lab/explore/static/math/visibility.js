// Who may see whom, by the same rules as posenc.attention: documents, causality, and windows or chunks.

import { must, whole } from "posenc/math/check.js";

/** [left, right]: how many places back and forth a query sees, itself not counted; null: all. A number n is the last n
 * keys up to the query itself. */
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

/** The chunk that each token lies in, counted along its one coordinate. */
function chunksOf(positions, size) {
    positions.check(1, "a window of chunks");
    return positions.coords.map((p) => Math.floor(p / size));
}

/** 1 where a query may see a key: of its own document, and of an order that causality and the window allow. In place of
 * a window, {chunk: size} lets a query see its own chunk of coordinates alone. */
export function visible(queries, keys, { causal = false, window = null } = {}) {
    const size = window?.chunk === undefined ? null : whole("window.chunk", window.chunk);
    const [left, right] = ends(size === null ? window : null);
    const furthest = causal ? Math.min(0, right ?? 0) : (right ?? Infinity);
    const [chunkOfQuery, chunkOfKey] = size === null ? [] : [chunksOf(queries, size), chunksOf(keys, size)];
    const seen = new Uint8Array(queries.length * keys.length);
    for (let i = 0, n = 0; i < queries.length; i++) {
        for (let j = 0; j < keys.length; j++, n++) {
            const ahead = keys.order[j] - queries.order[i];
            const isOfText = queries.document[i] === keys.document[j] && keys.document[j] !== -1;
            const isNear = ahead <= furthest && (left === null || ahead >= -left);
            seen[n] = isOfText && isNear && (size === null || chunkOfQuery[i] === chunkOfKey[j]);
        }
    }
    return seen;
}
