import { number } from "posenc/math/check.js";

/** cap tanh(s_ij / cap), of the score with all terms that stand before it. */
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
