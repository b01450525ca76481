// Vectors added to the input: the add door.

import { Matrix, matrixOf } from "posenc/math/arrays.js";
import { choice, must, number, whole } from "posenc/math/check.js";
import { frequencies } from "posenc/math/phases.js";

/** A vector for each token, written by fill(row, token). */
function table(positions, dim, fill) {
    const made = new Matrix(positions.length, dim);
    for (let token = 0; token < positions.length; token++) {
        fill(made.row(token), token);
    }
    return made;
}

/** A trainable vector for each position. */
export class Learned {
    static learned = ({ max_positions, dim }) => ({ weight: { shape: [max_positions, dim], std: 0.02 } });

    constructor({ max_positions, dim }, parameters) {
        this.limit = whole("max_positions", max_positions);
        this.dim = whole("dim", dim);
        this.weight = matrixOf(parameters.weight);
    }

    table(positions) {
        const indices = positions.indices(this.limit, "Learned");
        return table(positions, this.dim, (row, token) => row.set(this.weight.row(indices[token])));
    }
}

/** Sines and cosines of p theta_k, side by side or the sines first; each axis has a share of the channels. */
export class Sinusoidal {
    static learned = () => ({});

    constructor({ dim, base, layout, axes }) {
        must(
            Number.isInteger(dim) && dim > 0 && dim % (2 * whole("axes", axes)) === 0,
            `dim must be a positive multiple of 2 axes = ${2 * axes}, got ${dim}`,
        );
        Object.assign(this, { dim, axes, base: number("base", base, 1) });
        this.layout = choice("layout", layout, ["interleaved", "concatenated", "tensor2tensor"]);
        const width = dim / axes;
        const steeper = layout === "tensor2tensor" ? width / Math.max(width - 2, 1) : 1;
        this.theta = frequencies(width, base ** steeper);
    }

    table(positions) {
        positions.check(this.axes, "Sinusoidal");
        const pairs = this.theta.length;
        const [step, apart] = this.layout === "interleaved" ? [2, 1] : [1, pairs];
        return table(positions, this.dim, (row, token) => {
            positions.at(token).forEach((p, axis) => {
                this.theta.forEach((theta, k) => {
                    const c = 2 * pairs * axis + step * k;
                    row[c] = Math.sin(p * theta);
                    row[c + apart] = Math.cos(p * theta);
                });
            });
        });
    }
}
