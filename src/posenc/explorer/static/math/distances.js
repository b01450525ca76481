// Distances r = p_j - p_i, each distinct one once: what goes by the distance alone is computed for these.

/** {list: [r, ...], index}: the distinct distances, and which of them the pair (i, j) has, at index[i * keys + j]. */
export function distancesOf(queries, keys) {
    const { axes } = queries;
    const index = new Int32Array(queries.length * keys.length);
    const list = [];
    const known = new Map();
    for (let i = 0, n = 0; i < queries.length; i++) {
        for (let j = 0; j < keys.length; j++, n++) {
            const name = axes === 1 ? keys.coords[j] - queries.coords[i] : between(queries, keys, i, j).join();
            let found = known.get(name);
            if (found === undefined) {
                found = list.push(between(queries, keys, i, j)) - 1;
                known.set(name, found);
            }
            index[n] = found;
        }
    }
    return { list, index };
}

/** Key less query, along each axis. */
export function between(queries, keys, i, j) {
    const r = new Float64Array(queries.axes);
    for (let axis = 0; axis < r.length; axis++) {
        r[axis] = keys.coords[j * r.length + axis] - queries.coords[i * r.length + axis];
    }
    return r;
}
