import { whole } from "posenc/math/check.js";
import { checkDistance } from "posenc/math/score/distance.js";
import { logSigmoid } from "posenc/math/score/sigmoid.js";

/** ReLU(s_ij) f(w |r|; v), f(R; v) = (1 + e^v) sigmoid(R - v): the distance rescales the score. */
export class DistanceAware {
    static learned({ num_heads }) {
        return { w: { shape: [num_heads], std: 0.02 }, v: { shape: [num_heads], fill: 0 } };
    }

    constructor({ num_heads }, { w, v }) {
        this.numHeads = whole("num_heads", num_heads);
        this.w = w.data;
        this.v = v.data;
    }

    /** f(w |r|; v), whose logarithm overflows for neither sign of v: ln(1 + e^v) = -logSigmoid(-v). */
    factor(head, r) {
        const v = this.v[head];
        return Math.exp(logSigmoid(this.w[head] * Math.abs(r) - v) - logSigmoid(-v));
    }

    pieces(context) {
        checkDistance("DistanceAware", context, { heads: this.numHeads });
        const apply = (score, head, [r]) => Math.max(score, 0) * this.factor(head, r);
        return [{ kind: "function", byDistance: true, apply }];
    }
}
