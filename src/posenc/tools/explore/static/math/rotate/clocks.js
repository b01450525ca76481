// Turns by angles that are sums of numbers that a layer projects from tokens.

import { Matrix } from "posenc/math/arrays.js";
import { choice, must, number, whole } from "posenc/math/check.js";
import { readings, steps } from "posenc/math/clocks.js";
import { LAYOUTS, Turn, frequencies, ofBoth } from "posenc/math/phases.js";

/** Pairs of channels turn by a clock of each head of keys. A subclass has `feature`, its name and width, `stepsOf`, the
 * steps (heads, keys, pairs) of it, and `theta`, a factor of each pair. */
class ClockRotary {
    static learned() {
        return {};
    }

    constructor({ num_heads, head_dim, layout }) {
        must(whole("head_dim", head_dim, 2) % 2 === 0, `head_dim must be even, got ${head_dim}`);
        Object.assign(this, { headDim: head_dim, pairs: head_dim / 2, numHeads: whole("num_heads", num_heads) });
        this.layout = choice("layout", layout, LAYOUTS);
    }

    rotate(q, k, queryPositions, keyPositions, { features }) {
        const { numHeads, pairs, theta } = this;
        must(
            k.heads === numHeads,
            `the rotation was made for keys of ${numHeads} heads, got ${k.heads}: build it for as many heads as keys have`,
        );
        const [name, width] = this.feature;
        const size = [numHeads, keyPositions.length, width];
        const given = this.stepsOf(steps(features[name], this.constructor.name, name, size));
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (at) => {
            const angles = readings(given, keyPositions, at, pairs).map((x, n) => x * theta[n % pairs]);
            const each = at.length * pairs;
            const ofHead = (_, head) => new Matrix(at.length, pairs, angles.slice(head * each, (head + 1) * each));
            return new Turn(Array.from({ length: numHeads }, ofHead), this.layout);
        });
        return { q: ofQ.apply(q), k: ofK.apply(k) };
    }
}

/** Each token has a number for each pair; their sums turn it. */
export class SelectiveRoPE extends ClockRotary {
    constructor({ num_heads, head_dim, base, layout }) {
        super({ num_heads, head_dim, layout });
        this.base = number("base", base, 1);
        this.theta = frequencies(head_dim, base);
        this.feature = ["turned", this.pairs];
    }

    stepsOf(said) {
        return said;
    }
}

/** Each token has a frequency f between 0 and 1; pair k is turned by the sum of f^k. */
export class CARoPE extends ClockRotary {
    constructor({ num_heads, head_dim, layout }) {
        super({ num_heads, head_dim, layout });
        this.theta = new Float64Array(this.pairs).fill(1);
        this.feature = ["frequency", 1];
    }

    stepsOf(said) {
        const { pairs } = this;
        const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
        return Float64Array.from({ length: said.length * pairs }, (_, n) => {
            const f = 1 / (1 + softplus(said[Math.floor(n / pairs)]));
            return f ** (n % pairs);
        });
    }
}
