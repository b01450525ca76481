import { number, pairsOf, whole } from "posenc/math/check.js";
import { checkDistance } from "posenc/math/score/distance.js";

/** s_ij + (sum over k = 1 .. D/2 of cos(r base^(-2k/D)) - D/2) / (8h/H), heads h = 1 .. H: the inner product of the
 * sinusoids of query and key, flatter from head to head. */
export class Sandwich {
    static learned() {
        return {};
    }

    constructor({ num_heads, dim, base }) {
        this.numHeads = whole("num_heads", num_heads);
        number("base", base, 1);
        this.theta = Float64Array.from({ length: pairsOf("dim", dim) }, (_, k) => base ** ((-2 * (k + 1)) / dim));
    }

    pieces(context) {
        checkDistance("Sandwich", context, { heads: this.numHeads });
        const at = (head, [r]) => {
            const below = this.theta.reduce((sum, theta) => sum + Math.cos(r * theta), -this.theta.length);
            return (below * this.numHeads) / (8 * (head + 1));
        };
        return [{ kind: "bias", byDistance: true, at }];
    }
}
