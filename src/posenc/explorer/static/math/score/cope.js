// CoPE: a position is a count of the tokens that matter to the query.
import { checkFlag, whole } from "posenc/math/arguments.js";
import { following } from "posenc/math/score/following.js";
import { sigmoid } from "posenc/math/score/sigmoid.js";

/** s_ij + c q_i . e[p_ij], p_ij the sum of sigmoid(s_it) over the tokens t that i sees from the key j on. */
export class CoPE {
    static learned({ head_dim, max_positions }) {
        return { e: { shape: [max_positions, head_dim], fill: 0 } };
    }

    constructor({ head_dim, max_positions, scaled }, { e }) {
        this.headDim = whole("head_dim", head_dim);
        this.maxPositions = whole("max_positions", max_positions);
        checkFlag("scaled", scaled);
        this.c = scaled ? head_dim ** -0.5 : 1;
        this.e = e;
    }

    pieces({ query, keyOrder }) {
        const counted = following(keyOrder, true);
        const apply = (head, i, scores, visible) => {
            const p = counted(scores.map((s, j) => (visible[j] ? sigmoid(s) : 0)));
            const met = this.met(query, head, i);
            return scores.map((s, j) => {
                const count = Math.min(p[j], this.maxPositions - 1);
                const [low, high] = [Math.floor(count), Math.ceil(count)];
                return s + (1 - (count - low)) * met[low] + (count - low) * met[high];
            });
        };
        return [{ kind: "row", apply }];
    }

    /** c q_i . e[p] for every whole p. */
    met(query, head, i) {
        if (query.dim !== this.headDim) {
            throw new Error(`CoPE was made for head_dim ${this.headDim}, got queries of head_dim ${query.dim}`);
        }
        const start = (head * query.tokens + i) * query.dim;
        return Float64Array.from({ length: this.maxPositions }, (_, p) => {
            let product = 0;
            for (let c = 0; c < query.dim; c++) product += query.data[start + c] * this.e.data[p * query.dim + c];
            return this.c * product;
        });
    }
}
