import { dot } from "posenc/math/arrays.js";
import { must, whole } from "posenc/math/check.js";
import { checkDistance, entriesOf, sides, within } from "posenc/math/score/distance.js";
import { sigmoid } from "posenc/math/score/sigmoid.js";

const STEEPEST = 100; // the greatest scale of a head
const SHORTEST = 1e-12; // what a vector is divided by at least, as torch.nn.functional.normalize does

/** cos(q_i, k_j) exp(min(tau, ln 100)) + 16 sigmoid(W2 relu(W1 x + b1))_h, where x are the differences of the patches
 * along both axes on a logarithmic scale, as shares of the window of training. So attention goes by cosines, and the
 * bias is there for any window. */
export class SwinV2 {
    static learned({ num_heads, hidden }) {
        return {
            tau: { shape: [num_heads], fill: Math.log(10) },
            "inner.weight": { shape: [hidden, 2], std: 0.02 },
            "inner.bias": { shape: [hidden], fill: 0 },
            "outer.weight": { shape: [num_heads, hidden], std: 0.02 },
        };
    }

    constructor({ grid, num_heads, trained, hidden }, parameters) {
        this.grid = sides("grid", grid);
        this.trained = trained === null ? this.grid : sides("trained", trained);
        this.numHeads = whole("num_heads", num_heads);
        whole("hidden", hidden);
        this.scales = parameters.tau.data.map((tau) => Math.min(Math.exp(tau), STEEPEST));
        this.w1 = parameters["inner.weight"].data;
        this.b1 = parameters["inner.bias"].data;
        this.w2 = entriesOf(parameters["outer.weight"]);
        this.known = new Map();
    }

    /** Unit vectors; those of queries are as long as the head's scale, so the factor of their product is 1. */
    rotate(q, k) {
        must(q.heads === this.numHeads, `SwinV2 was made for ${this.numHeads} heads, got queries of ${q.heads}`);
        const unit = (x, lengths) =>
            x.map(x.dim, (made, old, head) => {
                const length = Math.max(Math.sqrt(dot(old, old)), SHORTEST);
                old.forEach((value, c) => (made[c] = (value / length) * (lengths ? lengths[head] : 1)));
            });
        return { q: unit(q, this.scales), k: unit(k), scale: 1 };
    }

    /** space(u) = sign(u) log2(|8u| + 1) / log2 8, of a difference as a share of the window of training. */
    space(difference, axis) {
        const u = difference / Math.max(this.trained[axis] - 1, 1); // a window of one row has no differences to count
        return (Math.sign(u) * Math.log2(Math.abs(8 * u) + 1)) / 3;
    }

    pieces(context) {
        checkDistance("SwinV2", context, { heads: this.numHeads, axes: 2, integral: true, reach: this.grid });
        const at = (head, r) => 16 * sigmoid(dot(this.w2(0, head), this.units(r)));
        return [{ kind: "bias", byDistance: true, at }];
    }

    /** relu(W1 x + b1) of a difference, made once for all heads. */
    units(r) {
        const name = r.join();
        if (!this.known.has(name)) {
            const [u, v] = this.grid.map((side, axis) => this.space(-within(r[axis], side), axis));
            this.known.set(
                name,
                this.b1.map((b, n) => Math.max(this.w1[2 * n] * u + this.w1[2 * n + 1] * v + b, 0)),
            );
        }
        return this.known.get(name);
    }
}
