import { Matrix, Pairs, dot, linear } from "posenc/math/arrays.js";
import { choice, must, number, pairsOf, whole } from "posenc/math/check.js";
import { between } from "posenc/math/distances.js";
import { frequencies } from "posenc/math/phases.js";
import { checkDistance, checkWidth, entriesOf } from "posenc/math/score/distance.js";

/** scale (q_i . k_j + q_i . W R_r + u . k_j + v . W R_r), R_r = [sin(-r theta) | cos(-r theta)], r = p_j - p_i:
 * relative attention in four terms;
 * with segments also scale (q_i + w) . e[segment_i != segment_j]. */
export class TransformerXL {
    static learned({ num_heads, head_dim, dim, segments }) {
        return {
            projection: { shape: [num_heads, head_dim, dim ?? num_heads * head_dim], std: 0.02 },
            "biases.content": { shape: [num_heads, head_dim], std: 0.02 },
            "biases.position": { shape: [num_heads, head_dim], std: 0.02 },
            ...(segments && {
                "biases.segment": { shape: [num_heads, head_dim], std: 0.02 },
                segment: { shape: [2, num_heads, head_dim], std: 0.02 },
            }),
        };
    }

    constructor({ num_heads, head_dim, dim, base, share_biases, segments }, parameters) {
        this.numHeads = whole("num_heads", num_heads);
        this.headDim = whole("head_dim", head_dim);
        this.dim = dim ?? num_heads * head_dim;
        pairsOf("dim", this.dim);
        this.theta = frequencies(this.dim, number("base", base, 1));
        choice("share_biases", share_biases, [true, false]); // between layers; in one there is nothing to share
        this.segments = choice("segments", segments, [true, false]);
        this.parameters = parameters;
        this.W = new Matrix(num_heads * head_dim, this.dim, parameters.projection.data);
        this.known = new Map(); // W R_r of all heads, by r
        this.u = entriesOf(parameters["biases.content"]);
        this.v = entriesOf(parameters["biases.position"]);
    }

    /** W R_r of one head, made once. */
    projected(head, r) {
        let ofHeads = this.known.get(r);
        if (!ofHeads) {
            ofHeads = linear(this.sinusoid(r), this.W);
            this.known.set(r, ofHeads);
        }
        return ofHeads.subarray(head * this.headDim, (head + 1) * this.headDim);
    }

    sinusoid(r) {
        const pairs = this.theta.length;
        const R = new Float64Array(this.dim);
        this.theta.forEach((theta, k) => {
            R[k] = Math.sin(-r * theta);
            R[pairs + k] = Math.cos(-r * theta);
        });
        return R;
    }

    /** All terms but the first, which is the score itself. */
    pieces(context) {
        this.check(context);
        const [u, v] = [(head) => this.u(0, head), (head) => this.v(0, head)];
        const vector = (head, r) => this.projected(head, r[0]);
        return [
            { kind: "meeting", of: "key", byDistance: true, vector: u },
            { kind: "meeting", of: "query", byDistance: true, shift: v, vector },
            ...(this.segments ? [this.ofSegments(context)] : []),
        ];
    }

    ofSegments({ queryPositions, keyPositions }) {
        const [x, y] = [queryPositions.segment, keyPositions.segment];
        must(x !== null && y !== null, "TransformerXL needs positions with a segment per token");
        const [w, e] = [entriesOf(this.parameters["biases.segment"]), this.parameters.segment.data];
        const vector = (head, _, i, j) => {
            const start = ((x[i] === y[j] ? 0 : this.numHeads) + head) * this.headDim;
            return e.subarray(start, start + this.headDim);
        };
        return { kind: "meeting", of: "query", shift: (head) => w(0, head), vector };
    }

    /** The four terms in the order of the formula, each Pairs (heads, queries, keys) and scaled: their sum is the
     * score. The context is that of `pieces`: q, k, heads, scale, queryPositions and keyPositions. */
    terms(context) {
        this.check(context);
        const { q, k, scale, queryPositions, keyPositions } = context;
        const terms = Array.from({ length: 4 }, () => new Pairs(q.heads, q.tokens, k.tokens));
        for (let head = 0; head < q.heads; head++) {
            const [u, v] = [this.u(0, head), this.v(0, head)];
            for (let i = 0; i < q.tokens; i++) {
                for (let j = 0; j < k.tokens; j++) {
                    const [r] = between(queryPositions, keyPositions, i, j);
                    const WR = this.projected(head, r);
                    const [query, key] = [q.at(head, i), k.at(Math.floor((head * k.heads) / q.heads), j)];
                    const products = [dot(query, key), dot(query, WR), dot(u, key), dot(v, WR)];
                    products.forEach((product, n) => (terms[n].row(head, i)[j] = scale * product));
                }
            }
        }
        return terms;
    }

    check(context) {
        checkDistance("TransformerXL", context, { heads: this.numHeads });
        checkWidth("TransformerXL", this.headDim, context);
    }
}
