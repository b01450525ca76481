import { number, whole } from "posenc/math/check.js";
import { checkDistance, entriesOf } from "posenc/math/score/distance.js";

const EPSILON = 1e-6;

/** s_ij + f(psi(max(-r, 0)) / (psi(max(T, p_i)) + 10^-6))_h, psi(x) = ln(|c| x + 1), T = |m L|: a small network f makes
 * the bias, of the distance as a share of the query's position. */
export class FIRE {
    static learned({ num_heads, hidden }) {
        const bound = hidden ** -0.5;
        return {
            c: { shape: [1], fill: 0.1 },
            multiple: { shape: [1], fill: 1 },
            "inner.weight": { shape: [hidden, 1], uniform: [-1, 1] },
            "inner.bias": { shape: [hidden], uniform: [-1, 1] },
            "outer.weight": { shape: [num_heads, hidden], uniform: [-bound, bound] },
            "outer.bias": { shape: [num_heads], uniform: [-bound, bound] },
        };
    }

    constructor({ num_heads, hidden, length }, parameters) {
        this.numHeads = whole("num_heads", num_heads);
        this.hidden = whole("hidden", hidden);
        this.c = Math.abs(parameters.c.data[0]);
        this.threshold = Math.abs(parameters.multiple.data[0] * number("length", length, 0));
        this.w1 = parameters["inner.weight"].data;
        this.b1 = parameters["inner.bias"].data;
        this.w2 = entriesOf(parameters["outer.weight"]);
        this.b2 = parameters["outer.bias"].data;
    }

    psi(x) {
        return Math.log1p(this.c * x);
    }

    /** How far the key lies back, as a share of the query's position. */
    share(away, position) {
        return this.psi(Math.max(away, 0)) / (this.psi(Math.max(position, this.threshold)) + EPSILON);
    }

    /** f(x) = W2 relu(w1 x + b1) + b2 in one head. */
    network(head, x) {
        const w2 = this.w2(0, head);
        let sum = this.b2[head];
        for (let n = 0; n < this.hidden; n++) {
            sum += w2[n] * Math.max(this.w1[n] * x + this.b1[n], 0);
        }
        return sum;
    }

    pieces(context) {
        checkDistance("FIRE", context, { heads: this.numHeads });
        const { coords } = context.queryPositions;
        return [{ kind: "bias", at: (head, [r], i) => this.network(head, this.share(-r, coords[i])) }];
    }
}
