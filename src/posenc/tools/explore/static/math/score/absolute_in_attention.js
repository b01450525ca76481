import { whole } from "posenc/math/check.js";
import { checkWidth, entriesOf } from "posenc/math/score/distance.js";

/** s_ij + scale q_i . R[p_j]: a learned vector per key position, multiplied with the query as the key is. */
export class AbsoluteInAttention {
    static learned({ max_positions, head_dim }) {
        return { weight: { shape: [max_positions, head_dim], std: head_dim ** -0.5 } };
    }

    constructor({ max_positions, head_dim }, { weight }) {
        this.maxPositions = whole("max_positions", max_positions);
        this.headDim = whole("head_dim", head_dim);
        this.entry = entriesOf(weight);
    }

    pieces(context) {
        checkWidth("AbsoluteInAttention", this.headDim, context);
        const index = context.keyPositions.indices(this.maxPositions, "AbsoluteInAttention");
        return [{ kind: "meeting", of: "query", vector: (head, r, i, j) => this.entry(head, index[j]) }];
    }
}
