// DA-Transformer: the distance rescales the score by a learned sigmoid.
import { whole } from "posenc/math/arguments.js";
import { logSigmoid } from "posenc/math/score/sigmoid.js";

/** ReLU(s_ij) f(w |r|; v), f(R; v) = (1 + e^v) sigmoid(R - v) */
export class DistanceAware {
    static learned({ num_heads }) {
        return { w: { shape: [num_heads], std: 0.02 }, v: { shape: [num_heads], fill: 0 } };
    }

    constructor({ num_heads }, { w, v }) {
        this.numHeads = whole("num_heads", num_heads);
        [this.w, this.v] = [w.data, v.data];
    }

    factor(head, distance) {
        const v = this.v[head]; // ln(1 + e^v) = -logSigmoid(-v)
        return Math.exp(logSigmoid(this.w[head] * Math.abs(distance) - v) - logSigmoid(-v));
    }

    pieces() {
        const apply = (score, head, r) => Math.max(score, 0) * this.factor(head, r[0]);
        return [{ kind: "function", byDistance: true, numHeads: this.numHeads, apply }];
    }
}
