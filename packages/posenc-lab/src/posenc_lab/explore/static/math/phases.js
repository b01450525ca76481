// Phases p theta_k, and the turn of pairs of channels by them.

import { Matrix } from "posenc/math/arrays.js";
import { must } from "posenc/math/check.js";

export const LAYOUTS = ["half", "interleaved"];

/** theta_k = base^(-2k/dim) radians per position, k = 0 .. dim/2 - 1. Index 0 is the fastest. */
export function frequencies(dim, base) {
    return Float64Array.from({ length: dim / 2 }, (_, k) => base ** ((-2 * k) / dim));
}

/** p_a theta_k of every token and pair, a = axes[k] the axis that turns pair k. */
export function phasesOf(positions, theta, axes) {
    const at = (token, k) => positions.coords[token * positions.axes + axes[k]] * theta[k];
    return Matrix.of(positions.length, theta.length, at);
}

/** What make gives of the positions of queries and of keys, made once where they are the same. */
export function ofBoth(queryPositions, keyPositions, make) {
    const made = make(queryPositions);
    return [made, keyPositions === queryPositions ? made : make(keyPositions)];
}

/** Turns pairs of channels by angles, a Matrix (tokens, pairs): (a, b) -> (a cos - b sin, a sin + b cos). Pair k is the
 * channels (k, k + pairs) in the "half" layout and (2k, 2k + 1) in the "interleaved" one, counted from the first
 * channel; "apart" is "half" of the first and of the second half of the pairs. cos and sin may be longer by a factor. */
export class Turn {
    constructor(angles, layout, first = 0, factor = 1) {
        Object.assign(this, { layout, first });
        const { rows, columns, data } = angles;
        const part = (wave) =>
            new Matrix(
                rows,
                columns,
                data.map((angle) => factor * wave(angle)),
            );
        [this.cos, this.sin] = [part(Math.cos), part(Math.sin)];
    }

    apply(x) {
        const { rows, columns: pairs } = this.cos;
        must(rows === x.tokens, `the rotation was made for ${rows} tokens, got ${x.tokens}`);
        const apart = { half: pairs, interleaved: 1, apart: pairs / 2 }[this.layout];
        const step = this.layout === "interleaved" ? 2 : 1;
        return x.map(x.dim, (made, old, _, token) => {
            made.set(old);
            const [cos, sin] = [this.cos.row(token), this.sin.row(token)];
            for (let k = 0, c = this.first; k < pairs; k++, c += step) {
                c += this.layout === "apart" && k === apart ? apart : 0;
                const [a, b] = [old[c], old[c + apart]];
                made[c] = a * cos[k] - b * sin[k];
                made[c + apart] = a * sin[k] + b * cos[k];
            }
        });
    }
}
