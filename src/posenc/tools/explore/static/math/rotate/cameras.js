// Cameras: matrices of the camera that saw a patch.

import { must, number, whole } from "posenc/math/check.js";
import { inverse, square, times, timesVector, transposed } from "posenc/math/linear.js";
import { Turn, frequencies, phasesOf } from "posenc/math/phases.js";

/** q -> D(P^T) q, k and v -> D(P^-1) k, o -> D(P) o, where P is the projection of the token's view. D multiplies each
 * four of the first channels by a matrix, and turns the next ones by column and row. Without cameras there are those of
 * the catalog, on a circle. */
export class Cameras {
    static learned() {
        return {};
    }

    constructor({ head_dim, cameras, intrinsics, image, camera_dim, rotary_dim, base }) {
        this.headDim = whole("head_dim", head_dim, 4);
        this.cameraDim = camera_dim ?? head_dim / 2;
        this.rotaryDim = rotary_dim ?? head_dim - this.cameraDim;
        must(
            this.cameraDim % 4 === 0 && this.rotaryDim % 4 === 0 && this.cameraDim + this.rotaryDim <= head_dim,
            `camera_dim and rotary_dim must be multiples of 4 with a sum of at most head_dim = ${head_dim}, got ` +
                `${this.cameraDim} and ${this.rotaryDim}`,
        );
        this.base = number("base", base, 1);
        must((intrinsics === null) === (image === null), "intrinsics and image must be given together");
        Object.assign(this, { cameras, intrinsics, image, values: true });
    }

    /** P of a view, a matrix. */
    projection(view) {
        if (this.cameras === null) {
            return around(view);
        }
        const [camera] = [this.cameras[0][view]];
        must(camera !== undefined, `Cameras encodes views 0 to ${this.cameras[0].length - 1}, got ${view}`);
        const P = square(4, (i, j) => camera[i][j]);
        if (this.intrinsics === null) {
            return P;
        }
        const [inner, [height, width]] = [this.intrinsics[0][view], this.image];
        const unit = [width, height, 1];
        const lifted = square(4, (i, j) =>
            i === 3 || j === 3 ? Number(i === j) : inner[i][j] / unit[i] - (j === 2 && i < 2 ? 0.5 : 0),
        );
        return times(lifted, P);
    }

    #mapped(x, positions, matrixOf, isOutput = false) {
        must(x.dim === this.headDim, `the cameras are for head_dim ${this.headDim}, got ${x.dim}`);
        positions.check(3, "Cameras");
        const matrices = Array.from({ length: x.tokens }, (_, token) => {
            const [view] = positions.at(token);
            must(Number.isInteger(view), `Cameras looks cameras up by their view and needs whole numbers, got ${view}`);
            return matrixOf(this.projection(positions.document[token] === -1 ? 0 : view));
        });
        const mapped = x.map(x.dim, (made, old, head, token) => {
            made.set(old);
            for (let c = 0; c < this.cameraDim; c += 4) {
                timesVector(matrices[token], old.subarray(c, c + 4), made.subarray(c, c + 4));
            }
        });
        return this.#turns(positions, isOutput ? 1 : -1).reduce((y, turn) => turn.apply(y), mapped);
    }

    /** By the column, then by the row. */
    #turns(positions, sense) {
        const n = this.rotaryDim / 2;
        const theta = frequencies(n, this.base).map((x) => sense * x);
        return n === 0
            ? []
            : [2, 1].map((axis, half) => {
                  const angles = phasesOf(positions, theta, new Array(n / 2).fill(axis));
                  return new Turn(angles, "half", this.cameraDim + half * n);
              });
    }

    rotate(q, k, queryPositions, keyPositions) {
        return { q: this.#mapped(q, queryPositions, transposed), k: this.#mapped(k, keyPositions, inverse) };
    }

    rotateValue(v, keyPositions) {
        return this.#mapped(v, keyPositions, inverse);
    }

    rotateOutput(out, queryPositions) {
        return this.#mapped(out, queryPositions, (P) => P, true);
    }
}

/** The camera that looks at the origin from a circle around it, at a changing distance. */
function around(view) {
    const [cos, sin] = [Math.cos(0.3 * view), Math.sin(0.3 * view)];
    const rows = [
        [cos, 0, sin, 0],
        [0, 1, 0, 0],
        [-sin, 0, cos, 2 + Math.sin(0.7 * view)],
        [0, 0, 0, 1],
    ];
    return square(4, (i, j) => rows[i][j]);
}
