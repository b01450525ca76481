// What terms that go by the distance of two tokens ask of a call, as posenc's Distance says it.

import { must, whole } from "posenc/math/check.js";

/** Throws unless queries have the heads, and positions the axes, that a scheme's term is for. With `integral`, entries
 * stand in a table; with a `reach`, tokens of one document lie less than that apart along each axis. */
export function checkDistance(scheme, context, { heads = null, axes = 1, integral = false, reach = null }) {
    const { queryPositions, keyPositions } = context;
    must(heads === null || context.heads === heads, `${scheme} was made for ${heads} heads, got ${context.heads}`);
    for (const positions of [queryPositions, keyPositions]) {
        positions.check(axes, scheme);
        const broken = integral ? positions.coords.find((p) => !Number.isInteger(p)) : undefined;
        must(
            broken === undefined,
            `${scheme} looks distances up in a table and needs whole coordinates, got ${broken}`,
        );
    }
    if (reach !== null) {
        checkReach(scheme, queryPositions, keyPositions, reach);
    }
}

function checkReach(scheme, queries, keys, reach) {
    for (let i = 0; i < queries.length; i++) {
        for (let j = 0; j < keys.length; j++) {
            if (queries.document[i] !== keys.document[j] || keys.document[j] === -1) {
                continue;
            }
            reach.forEach((limit, axis) => {
                const apart = Math.abs(keys.at(j)[axis] - queries.at(i)[axis]);
                const along = reach.length === 1 ? "" : ` along axis ${axis}`;
                must(apart < limit, `${scheme} encodes distances up to ${limit - 1}${along}, got ${apart}`);
            });
        }
    }
}

/** The nearest of the distances -reach + 1 .. reach - 1. Pairs of two documents, which see nothing of one another, may
 * lie further apart. */
export function within(r, reach) {
    return Math.min(Math.max(r, 1 - reach), reach - 1);
}

/** entry(head, n): a view of row n of a table of vectors, (entries, dim) for all heads or (heads, entries, dim). */
export function entriesOf({ shape, data }) {
    const [entries, dim] = shape.slice(-2);
    const isByHead = shape.length === 3;
    return (head, n) => {
        const start = ((isByHead ? head * entries : 0) + n) * dim;
        return data.subarray(start, start + dim);
    };
}

/** Throws unless queries are as wide as the vectors that they meet. */
export function checkWidth(scheme, headDim, { q }) {
    must(q.dim === headDim, `${scheme} was made for head_dim ${headDim}, got queries of head_dim ${q.dim}`);
}

/** Height and width, each at least 1. */
export function sides(name, grid) {
    must(Array.isArray(grid) && grid.length === 2, `${name} must be [height, width], got ${JSON.stringify(grid)}`);
    return grid.map((side, axis) => whole(`${name}[${axis}]`, side));
}
