// Who may see whom, by the same rules as posenc.attention: documents, causality, and windows or chunks.

export const PADDING = -1; // the document of padding: nobody sees it, and it sees nobody

function whole(value, least) {
    return Number.isInteger(value) && value >= least;
}

/**
 * How many places back and forth a query sees, itself not counted: [left, right], null for all of them.
 * A number n is the last n keys up to the query itself, as models count them: [n - 1, 0].
 */
function endsOf(window) {
    if (window === null) return [null, null];
    if (whole(window, 1)) return [window - 1, 0];
    const isPair = Array.isArray(window) && window.length === 2;
    if (isPair && window.every((end) => end === null || whole(end, 0))) return window;
    throw new Error(`window must be a number of keys, [left, right], {chunk} or null, got ${JSON.stringify(window)}`);
}

/** The number of the chunk that each token lies in, counted along its one coordinate; 0 for all where there are none. */
function chunksOf(tokens, size) {
    if (size === null) return new Float64Array(tokens.order.length);
    if (!whole(size, 1)) throw new Error(`window.chunk must be a whole number above 0, got ${size}`);
    return Float64Array.from(tokens.coords, (coords) => {
        if (coords.length !== 1) throw new Error(`chunks go by one coordinate per token, got ${coords.length}`);
        return Math.floor(coords[0] / size);
    });
}

/**
 * Which key each query sees: 1 or 0 for every pair, row by row.
 *
 * Queries and keys are {coords, order, document}, an entry per token: a query sees keys of its own document. With
 * `causal` it sees none of a higher order than its own, with a `window` none outside of it, and with {chunk: size} in
 * the place of a window those of its own chunk alone.
 */
export function visible(queries, keys, { causal = false, window = null } = {}) {
    const chunk = window?.chunk ?? null;
    const [left, right] = endsOf(chunk === null ? window : null);
    const furthest = Math.min(causal ? 0 : Infinity, right ?? Infinity);
    const [chunkOfQuery, chunkOfKey] = [chunksOf(queries, chunk), chunksOf(keys, chunk)];
    const [M, N] = [queries.order.length, keys.order.length];
    const seen = new Uint8Array(M * N);
    for (let i = 0; i < M; i++) {
        for (let j = 0; j < N; j++) {
            const isOfText = keys.document[j] === queries.document[i] && keys.document[j] !== PADDING;
            const ahead = keys.order[j] - queries.order[i];
            const isNear = ahead <= furthest && ahead >= -(left ?? Infinity);
            seen[i * N + j] = isOfText && isNear && chunkOfKey[j] === chunkOfQuery[i] ? 1 : 0;
        }
    }
    return seen;
}
