import { whole } from "posenc/math/check.js";
import { checkDistance, checkWidth, entriesOf, within } from "posenc/math/score/distance.js";

/** s_ij + scale q_i . R[r + N - 1]: the query meets a learned vector for every distance. */
export class Relative1D {
    static learned({ max_positions, head_dim, num_heads }) {
        const shape = [...(num_heads === null ? [] : [num_heads]), 2 * max_positions - 1, head_dim];
        return { weight: { shape, std: head_dim ** -0.5 } };
    }

    constructor({ max_positions, head_dim, num_heads }, { weight }) {
        this.maxPositions = whole("max_positions", max_positions);
        this.headDim = whole("head_dim", head_dim);
        this.numHeads = num_heads === null ? null : whole("num_heads", num_heads);
        this.entry = entriesOf(weight);
    }

    pieces(context) {
        const N = this.maxPositions;
        checkDistance("Relative1D", context, { heads: this.numHeads, integral: true, reach: [N] });
        checkWidth("Relative1D", this.headDim, context);
        const vector = (head, [r]) => this.entry(head, within(r, N) + N - 1);
        return [{ kind: "meeting", of: "query", byDistance: true, vector }];
    }
}
