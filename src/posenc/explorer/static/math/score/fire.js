// FIRE: a small network makes the bias, of the distance as a share of the query's position.
import { number, whole } from "posenc/math/arguments.js";

const EPSILON = 1e-6;

/** s_ij + f(psi(max(-r, 0)) / (psi(max(T, p_i)) + 10^-6))_h, psi(x) = ln(|c| x + 1), T = |m L| */
export class FIRE {
    static learned({ num_heads, hidden }) {
        const drawn = { uniform: hidden ** -0.5 };
        return {
            c: { shape: [], fill: 0.1 },
            multiple: { shape: [], fill: 1 },
            "inner.weight": { shape: [hidden, 1], uniform: 1 },
            "inner.bias": { shape: [hidden], uniform: 1 },
            "outer.weight": { shape: [num_heads, hidden], ...drawn },
            "outer.bias": { shape: [num_heads], ...drawn },
        };
    }

    constructor({ num_heads, hidden, length }, parameters) {
        this.numHeads = whole("num_heads", num_heads);
        this.hidden = whole("hidden", hidden);
        this.c = Math.abs(parameters.c.data[0]);
        this.threshold = Math.abs(parameters.multiple.data[0] * number("length", length, 0));
        [this.w1, this.b1] = [parameters["inner.weight"].data, parameters["inner.bias"].data];
        [this.w2, this.b2] = [parameters["outer.weight"].data, parameters["outer.bias"].data];
    }

    psi(x) {
        return Math.log1p(this.c * x);
    }

    /** How far the key lies back, as a share of the query's position. */
    share(away, position) {
        return this.psi(Math.max(away, 0)) / (this.psi(Math.max(position, this.threshold)) + EPSILON);
    }

    network(head, share) {
        let bias = this.b2[head];
        for (let n = 0; n < this.hidden; n++) {
            bias += this.w2[head * this.hidden + n] * Math.max(this.w1[n] * share + this.b1[n], 0);
        }
        return bias;
    }

    pieces({ queryPositions }) {
        const at = (head, r, qi) => this.network(head, this.share(-r[0], queryPositions[qi][0]));
        return [{ kind: "bias", numHeads: this.numHeads, at }];
    }
}
