// Distances r = p_j - p_i, each distinct one once: what depends only on the distance is computed for these.

/** {list: [r, ...], index}: the distinct distances, and which of them the pair (i, j) has, at index[i * keys + j]. */
export function distancesOf(queries, keys) {
    const index = new Int32Array(queries.length * keys.length);
    const list = [];
    const span = spanOf(queries, keys);
    const places = new Int32Array(span === null ? 0 : 2 * span + 1); // where in the list a whole number is, from 1 on
    const known = new Map(); // where any other distance is, likewise
    for (let i = 0, n = 0; i < queries.length; i++) {
        for (let j = 0; j < keys.length; j++, n++) {
            const r = span === null ? between(queries, keys, i, j).join() : keys.coords[j] - queries.coords[i];
            let place = span === null ? (known.get(r) ?? 0) : places[r + span];
            if (place === 0) {
                place = list.push(between(queries, keys, i, j));
                span === null ? known.set(r, place) : (places[r + span] = place);
            }
            index[n] = place - 1;
        }
    }
    return { list, index };
}

/** How far tokens are apart at most, where they have one whole coordinate each and that is not too far for a table. */
function spanOf(queries, keys) {
    const all = [...queries.coords, ...keys.coords];
    const span = all.reduce((a, b) => Math.max(a, b), 0) - all.reduce((a, b) => Math.min(a, b), 0);
    return queries.axes === 1 && all.every(Number.isInteger) && span < 2 ** 16 ? span : null;
}

/** Key less query, along each axis. */
export function between(queries, keys, i, j) {
    const r = new Float64Array(queries.axes);
    for (let axis = 0; axis < r.length; axis++) {
        r[axis] = keys.coords[j * r.length + axis] - queries.coords[i * r.length + axis];
    }
    return r;
}
