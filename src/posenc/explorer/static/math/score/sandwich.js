// Sandwich: the inner product of two sinusoids as a bias, flatter from head to head.
import { number, whole } from "posenc/math/arguments.js";

/** s_ij + (sum over k = 1 .. D/2 of cos(r base^(-2k/D)) - D/2) / (8h/H), heads h = 1 .. H */
export class Sandwich {
    static learned() {
        return {};
    }

    constructor({ num_heads, dim, base }) {
        this.numHeads = whole("num_heads", num_heads);
        if (whole("dim", dim) % 2) throw new Error(`dim must be even (a cosine is of a pair), got ${dim}`);
        number("base", base, 1);
        this.theta = Float64Array.from({ length: dim / 2 }, (_, k) => base ** ((-2 * (k + 1)) / dim));
    }

    pieces() {
        const at = (head, r) => {
            const below = this.theta.reduce((sum, theta) => sum + Math.cos(r[0] * theta) - 1, 0);
            return (below * this.numHeads) / (8 * (head + 1));
        };
        return [{ kind: "bias", byDistance: true, numHeads: this.numHeads, at }];
    }
}
