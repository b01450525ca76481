import { choice, must, whole } from "posenc/math/check.js";

/** Head h subtracts m_h times the distance from the score. */
export class ALiBi {
    static learned() {
        return {};
    }

    constructor({ num_heads, form }) {
        this.numHeads = whole("num_heads", num_heads);
        this.form = choice("form", form, ["causal", "bidirectional", "directed"]);
        const halved = form === "directed";
        must(
            !halved || num_heads % 2 === 0,
            `num_heads must be even for form='directed', got ${num_heads}`,
        );
        this.slopes = slopes(halved ? num_heads / 2 : num_heads);
    }

    pieces({ heads }) {
        must(heads === this.numHeads, `ALiBi was made for ${this.numHeads} heads, got ${heads}`);
        return [{ kind: "bias", byDistance: true, at: (head, [r]) => this.#bias(head, r) }];
    }

    #bias(head, r) {
        if (this.form === "causal") {
            return this.slopes[head] * r;
        }
        const hidden = this.form === "directed" && (head < this.numHeads / 2 ? r > 0 : r < 0);
        return hidden ? -Infinity : -this.slopes[head % this.slopes.length] * Math.abs(r);
    }
}

/** Of a power of two of heads 2^(-8h/H), h = 1 .. H. Of others those of the largest power below, then every other slope
 * of twice that many. */
export function slopes(heads) {
    const power = 2 ** Math.floor(Math.log2(heads));
    return Array.from(
        { length: heads },
        (_, h) => 2 ** -(h < power ? (8 * (h + 1)) / power : (8 * (2 * (h - power) + 1)) / (2 * power)),
    );
}
