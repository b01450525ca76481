import { Matrix, linear } from "posenc/math/arrays.js";
import { choice, must, whole } from "posenc/math/check.js";
import { checkDistance, checkWidth, entriesOf } from "posenc/math/score/distance.js";

const EPSILON = 1e-7; // of the layer norm

/** (q_i . k_j + q_i . Kr[c] + k_j . Qr[c]) / sqrt(3 d), c = clamp(b(n) + k, 0, 2k - 1), n = p_i - p_j: one table R of
 * relative positions, projected as queries (Qr = R W_Q) and as keys (Kr = R W_K) are. With num_buckets distances past
 * half of them have logarithmic buckets. */
export class DeBERTa {
    static learned({ num_heads, head_dim, dim, max_distance, num_buckets, normalized }) {
        const width = dim ?? num_heads * head_dim;
        const norm = { weight: { shape: [width], fill: 1 }, bias: { shape: [width], fill: 0 } };
        const weight = { shape: [num_heads * head_dim, width], std: 0.02 };
        const bias = { shape: [num_heads * head_dim], fill: 0 };
        return {
            "relative.rows.weight": { shape: [2 * (num_buckets ?? max_distance), width], std: 0.02 },
            ...(normalized && { "relative.norm.weight": norm.weight, "relative.norm.bias": norm.bias }),
            "query.weight": weight,
            "query.bias": bias,
            "key.weight": weight,
            "key.bias": bias,
        };
    }

    constructor({ num_heads, head_dim, dim, max_distance, num_buckets, normalized, clamp }, parameters) {
        this.numHeads = whole("num_heads", num_heads);
        this.headDim = whole("head_dim", head_dim);
        this.width = whole("dim", dim ?? num_heads * head_dim);
        this.maxDistance = whole("max_distance", max_distance);
        this.half = num_buckets === null ? null : whole("num_buckets", num_buckets, 4) / 2;
        if (this.half !== null) {
            must(num_buckets % 2 === 0, `num_buckets must be even \(half of them on each side\), got ${num_buckets}`);
            must(
                max_distance > this.half + 1,
                `max_distance must be above ${this.half + 1}, the largest distance with its own bucket, ` +
                    `got ${max_distance}`,
            );
        }
        this.span = num_buckets ?? max_distance; // k, half the rows of the table
        this.parameters = parameters;
        this.normalized = choice("normalized", normalized, [true, false]);
        this.clamp = choice("clamp", clamp, ["index", "distance"]);
        must(this.clamp === "index" || this.half !== null, "clamp must be 'index' without num_buckets, got 'distance'");
        this.ofKeys = this.projected("key"); // Kr
        this.ofQueries = this.projected("query"); // Qr
    }

    /** Queries and keys stay as they are: there are three terms in place of one, and so another factor. */
    rotate(q, k) {
        return { q, k, scale: 1 / Math.sqrt(3 * this.headDim) };
    }

    pieces(context) {
        checkDistance("DeBERTa", context, { heads: this.numHeads, integral: true });
        checkWidth("DeBERTa", this.headDim, context);
        return [
            { kind: "meeting", of: "query", byDistance: true, vector: this.ofKeys },
            { kind: "meeting", of: "key", byDistance: true, vector: this.ofQueries },
        ];
    }

    /** A function that gives the row of R for a distance, as one head of the layer projects it; made when it is met. */
    projected(layer) {
        const [weight, bias] = [this.parameters[`${layer}.weight`].data, this.parameters[`${layer}.bias`].data];
        const [d, size] = [this.headDim, this.headDim * this.width];
        const known = new Map();
        return (head, [r]) => {
            const c = this.index(r);
            const name = head * 2 * this.span + c;
            if (!known.has(name)) {
                const W = new Matrix(d, this.width, weight.subarray(head * size, (head + 1) * size));
                known.set(name, linear(this.row(c), W, bias.subarray(head * d, (head + 1) * d)));
            }
            return known.get(name);
        };
    }

    /** R[c], after the layer norm where there is one. */
    row(c) {
        const R = entriesOf(this.parameters["relative.rows.weight"])(0, c);
        if (!this.normalized) {
            return R;
        }
        const [weight, bias] = ["weight", "bias"].map((name) => this.parameters[`relative.norm.${name}`].data);
        const mean = R.reduce((sum, x) => sum + x, 0) / R.length;
        const variance = R.reduce((sum, x) => sum + (x - mean) ** 2, 0) / R.length;
        return R.map((x, n) => ((x - mean) / Math.sqrt(variance + EPSILON)) * weight[n] + bias[n]);
    }

    /** c of a distance r = p_j - p_i. */
    index(r) {
        const furthest = this.clamp === "distance" ? this.maxDistance - 1 : Infinity;
        let n = Math.min(Math.max(-r, -furthest), furthest);
        if (this.half !== null && Math.abs(n) > this.half) {
            const share = Math.log(Math.abs(n) / this.half) / Math.log((this.maxDistance - 1) / this.half);
            n = Math.sign(n) * (this.half + Math.ceil(share * (this.half - 1)));
        }
        return Math.min(Math.max(n + this.span, 0), 2 * this.span - 1);
    }
}
