// What a scheme of the user's own does to every two tokens, as posenc has computed it: as effect.js gives it of the
// catalog's.

import { goesBy } from "posenc/effect.js";

/** Of the tokens of a line, as `ofLine`. */
export function lineOf({ shape: [heads, N], values }) {
    const data = numbers(values);
    const by = goesBy({ heads, data }, [...new Array(N).keys()], N);
    const row = (head, n) => data.subarray((head * N + n) * N, (head * N + n + 1) * N);
    const along = {
        distance: (head) => Float64Array.of(...row(head, N - 1), ...row(head, 0).subarray(1)),
        key: (head) => row(head, N - 1),
        query: (head) => Float64Array.from({ length: N }, (_, n) => row(head, n)[0]),
    }[by];
    return { by, heads, matrix: (head) => data.slice(head * N * N, (head + 1) * N * N), along, between: () => undefined };
}

/** Of a patch in the middle of a frame and every other one, as `ofGrid`. */
export function gridOf({ axes, shape: [heads, , keys], values }) {
    const data = numbers(values);
    const side = Math.round(keys ** (1 / axes));
    const middle = side >> 1;
    const frame = axes === 3 ? middle * side * side : 0;
    const query = frame + middle * (side + 1);
    const matrix = (head) => data.slice((head * keys + query) * keys + frame).subarray(0, side * side);
    const x = Float64Array.from({ length: side }, (_, n) => n - middle);
    const lines = (head) => [
        { name: "rows apart", y: x.map((_, n) => matrix(head)[n * side + middle]) },
        { name: "columns apart", y: matrix(head).slice(middle * side, (middle + 1) * side) },
    ];
    return { x, side, middle, heads, matrix, lines };
}

const numbers = (values) => Float64Array.from(values, (x) => x ?? NaN);
