import { dot } from "posenc/math/arrays.js";
import { choice, whole } from "posenc/math/check.js";
import { checkWidth, entriesOf } from "posenc/math/score/distance.js";
import { following } from "posenc/math/score/following.js";
import { sigmoid } from "posenc/math/score/sigmoid.js";

/** A position is a count of the tokens that matter to the query: s_ij + c q_i . e[p_ij], where p_ij is the sum of
 * sigmoid(s_it) over the tokens t that the query sees from the key on, and e between two whole numbers is their mix. */
export class CoPE {
    static learned({ head_dim, max_positions }) {
        return { e: { shape: [max_positions, head_dim], fill: 0 } };
    }

    constructor({ head_dim, max_positions, scaled }, { e }) {
        this.headDim = whole("head_dim", head_dim);
        this.maxPositions = whole("max_positions", max_positions);
        this.c = choice("scaled", scaled, [true, false]) ? head_dim ** -0.5 : 1;
        this.entry = entriesOf(e);
    }

    pieces(context) {
        checkWidth("CoPE", this.headDim, context);
        const counted = following(context.keyPositions.order, true);
        const apply = (head, i, scores, visible) => {
            const query = context.q.at(head, i);
            const product = (_, p) => this.c * dot(query, this.entry(0, p));
            const met = Float64Array.from({ length: this.maxPositions }, product);
            return counted(scores.map((s, j) => (visible[j] ? sigmoid(s) : 0))).map((count, j) => {
                const p = Math.min(count, this.maxPositions - 1);
                const f = p - Math.floor(p);
                return scores[j] + (1 - f) * met[Math.floor(p)] + f * met[Math.ceil(p)];
            });
        };
        return [{ kind: "row", apply }];
    }
}
