import { choice } from "posenc/math/check.js";
import { following } from "posenc/math/score/following.js";
import { logSigmoid } from "posenc/math/score/sigmoid.js";

/** ln A_ij, where A_ij = sigmoid(s_ij) times 1 - sigmoid(s_it) for every token t between the key and the query: each
 * key takes a share of what nearer keys have left of a stick of length 1. */
export class StickBreaking {
    static learned() {
        return {};
    }

    constructor({ sees_itself }) {
        this.nearest = choice("sees_itself", sees_itself, [true, false]) ? 0 : 1;
    }

    pieces({ queryPositions, keyPositions }) {
        const { order } = keyPositions;
        const nearer = following(order, false);
        const apply = (head, i, scores, visible) => {
            const takes = scores.map((_, j) => visible[j] && queryPositions.order[i] - order[j] >= this.nearest);
            const left = nearer(scores.map((s, j) => (takes[j] ? logSigmoid(-s) : 0))); // ln(1 - sigmoid(s))
            return scores.map((s, j) => (takes[j] ? logSigmoid(s) + left[j] : -Infinity));
        };
        return [{ kind: "row", weights: true, apply }];
    }
}
