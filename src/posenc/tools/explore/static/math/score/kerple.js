import { choice, whole } from "posenc/math/check.js";
import { checkDistance } from "posenc/math/score/distance.js";

const LEAST = 0.01; // of p and of a
const STEEPEST = 2; // a kernel of a higher power is none

/** log: s_ij - p ln(1 + a |r|); power: s_ij - a |r|^p. Each head learns p and a. */
export class KERPLE {
    static learned({ num_heads }) {
        return { p: { shape: [num_heads], uniform: [0, 2] }, a: { shape: [num_heads], uniform: [0, 1] } };
    }

    constructor({ num_heads, form }, { p, a }) {
        this.numHeads = whole("num_heads", num_heads);
        this.form = choice("form", form, ["log", "power"]);
        [this.p, this.a] = [p, a].map(({ data }) => data.map((x) => Math.max(x, LEAST)));
    }

    pieces(context) {
        checkDistance("KERPLE", context, { heads: this.numHeads });
        const at = (head, [r]) => {
            const [p, a, away] = [this.p[head], this.a[head], Math.abs(r)];
            return this.form === "log" ? -p * Math.log1p(a * away) : -a * away ** Math.min(p, STEEPEST);
        };
        return [{ kind: "bias", byDistance: true, at }];
    }
}
