import { tokensOf } from "posenc/math/kinds.js";
import { whole } from "posenc/math/check.js";
import { readings, steps } from "posenc/math/clocks.js";
import { logSigmoid } from "posenc/math/score/sigmoid.js";

/** scale sum_c q_ic k_jc exp(P_ic - P_jc), where P_i is the sum of the logarithms of the gates of the tokens up to i, in
 * the order of its document, a gate for each channel. A key after the query, or of another document, keeps its score.
 *
 * The feature `kept` is what the layer projects each key to, (heads, keys, head_dim): gates are sigmoids of it. */
export class Wall {
    static learned() {
        return {};
    }

    constructor({ num_heads, head_dim }) {
        this.numHeads = whole("num_heads", num_heads);
        this.headDim = whole("head_dim", head_dim);
    }

    pieces({ q, k, scale, features: { kept }, queryPositions: x, keyPositions: y }) {
        const d = this.headDim;
        const given = steps(kept, "Wall", "kept", [this.numHeads, y.length, d]).map(logSigmoid);
        const ofKeys = readings(given, y, y, d);
        const ofQueries = x === y ? ofKeys : readings(given, y, x, d);
        const at = (head, r, i, j) => {
            if (x.document[i] !== y.document[j] || y.order[j] > x.order[i]) return 0;
            const [query, key] = [q.at(head, i), tokensOf(k, head, q.heads)[j]];
            const [here, there] = [(head * x.length + i) * d, (head * y.length + j) * d];
            let sum = 0;
            for (let c = 0; c < d; c++) sum += query[c] * key[c] * Math.expm1(ofQueries[here + c] - ofKeys[there + c]);
            return scale * sum;
        };
        return [{ kind: "bias", at }];
    }
}
