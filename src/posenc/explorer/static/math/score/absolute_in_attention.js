// Absolute in attention: a learned vector per key position, multiplied with the query as the key is.
import { whole } from "posenc/math/arguments.js";
import { rowOf, tableIndex } from "posenc/math/score/tables.js";

/** s_ij + scale q_i . R[p_j] */
export class AbsoluteInAttention {
    static learned({ max_positions, head_dim }) {
        return { weight: { shape: [max_positions, head_dim], std: head_dim ** -0.5 } };
    }

    constructor({ max_positions, head_dim }, { weight }) {
        this.maxPositions = whole("max_positions", max_positions);
        this.headDim = whole("head_dim", head_dim);
        this.weight = weight;
    }

    pieces({ keyPositions }) {
        const index = tableIndex(keyPositions, "AbsoluteInAttention", this.maxPositions);
        return [{ kind: "meeting", of: "query", vector: (head, r, qi, kj) => rowOf(this.weight, head, index[kj]) }];
    }
}
