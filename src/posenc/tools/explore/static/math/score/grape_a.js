import { dot } from "posenc/math/arrays.js";
import { choice, must, whole } from "posenc/math/check.js";
import { checkDistance, checkWidth, entriesOf } from "posenc/math/score/distance.js";
import { slopes } from "posenc/math/score/alibi.js";

/** ln(1 + e^x). */
const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

/** s_ij - max(p_i - p_j, 0) omega_h g_ijh: ALiBi at a rate that is gated by the key, the query, or both. */
export class GRAPEA {
    static learned({ num_heads, head_dim, gates }) {
        const vectors = { shape: [num_heads, head_dim], std: head_dim ** -0.5 };
        return {
            w: { shape: [num_heads], fill: Math.log(Math.expm1(1)) },
            ...(gates !== "query" && { u: vectors }),
            ...(gates !== "key" && { v: vectors }),
        };
    }

    constructor({ num_heads, head_dim, gates }, { w, u, v }) {
        this.numHeads = whole("num_heads", num_heads);
        this.headDim = whole("head_dim", head_dim);
        choice("gates", gates, ["key", "query", "both"]);
        this.omega = slopes(num_heads).map((m, head) => m * softplus(w.data[head]));
        [this.u, this.v] = [u, v].map((vectors) => (vectors ? entriesOf(vectors) : null));
    }

    #gate(vectors, head, x) {
        if (vectors === null) {
            return 0;
        }
        const direction = vectors(0, head);
        return softplus(dot(direction, x) / (Math.hypot(...direction) * Math.sqrt(this.headDim)));
    }

    pieces(context) {
        const { q, k, queryPositions, keyPositions } = context;
        checkDistance("GRAPEA", context, { heads: this.numHeads });
        checkWidth("GRAPEA", this.headDim, context);
        must(q.heads === this.numHeads, `GRAPEA was made for ${this.numHeads} heads, got ${q.heads}`);
        const apply = (head, i, scores) => {
            const ofQuery = this.#gate(this.v, head, q.at(head, i));
            return scores.map((s, j) => {
                const away = Math.max(0, queryPositions.coords[i] - keyPositions.coords[j]);
                const key = k.at(Math.floor((head * k.heads) / q.heads), j);
                return s - away * this.omega[head] * (ofQuery + this.#gate(this.u, head, key));
            });
        };
        return [{ kind: "row", apply }];
    }
}
