// Stick-breaking: each key takes a share of what nearer keys have left of a stick of length 1.
import { checkFlag } from "posenc/math/arguments.js";
import { following } from "posenc/math/score/following.js";
import { logSigmoid } from "posenc/math/score/sigmoid.js";

/** ln A_ij, A_ij = sigmoid(s_ij) times 1 - sigmoid(s_it) for every token t between the key j and the query i. */
export class StickBreaking {
    static learned() {
        return {};
    }

    constructor({ sees_itself }) {
        checkFlag("sees_itself", sees_itself);
        this.seesItself = sees_itself;
    }

    pieces({ queryOrder, keyOrder }) {
        const nearer = following(keyOrder, false);
        const apply = (head, i, scores, visible) => {
            const takes = scores.map((_, j) => {
                const back = queryOrder[i] - keyOrder[j];
                return visible[j] && (back > 0 || (this.seesItself && back === 0)) ? 1 : 0;
            });
            const left = nearer(scores.map((s, j) => (takes[j] ? logSigmoid(-s) : 0))); // ln(1 - b)
            return scores.map((s, j) => (takes[j] ? logSigmoid(s) + left[j] : -Infinity));
        };
        return [{ kind: "row", weights: true, apply }];
    }
}
