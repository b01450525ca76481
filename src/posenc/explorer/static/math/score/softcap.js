// Softcap: a soft cap of the score, with all terms that stand before it.
import { number } from "posenc/math/arguments.js";

/** cap tanh(s_ij / cap) */
export class Softcap {
    static learned() {
        return {};
    }

    constructor({ cap }) {
        this.cap = number("cap", cap, 0);
    }

    pieces() {
        return [{ kind: "function", byDistance: true, apply: (score) => this.cap * Math.tanh(score / this.cap) }];
    }
}
