import { dot } from "posenc/math/arrays.js";
import { must, number, whole } from "posenc/math/check.js";
import { checkDistance, entriesOf } from "posenc/math/score/distance.js";

/** s_ij + r_ih . B[p_i - p_j] where 0 <= p_i - p_j < extent: each query mixes a bias for itself out of learned profiles.
 * With a length n, query and bias grow by 1 + strength ln max(1, (p_i + 1) / n).
 *
 * The feature `profile` is r, what the layer projects each query to: (heads, queries, width). */
export class Inkling {
    static learned({ width, extent }) {
        return { B: { shape: [extent, width], std: 0.02 } };
    }

    constructor({ num_heads, width, extent, length, strength }, { B }) {
        this.numHeads = whole("num_heads", num_heads);
        this.width = whole("width", width);
        this.extent = whole("extent", extent);
        this.length = length === null ? null : whole("length", length);
        this.strength = number("strength", strength);
        this.entry = entriesOf(B);
    }

    /** What query and bias grow by, in a global layer. */
    factor(position) {
        return this.length === null ? 1 : 1 + this.strength * Math.log(Math.max(1, (position + 1) / this.length));
    }

    rotate(q, k, queryPositions) {
        queryPositions.check(1, "Inkling");
        const grown = q.map(q.dim, (made, old, head, token) => {
            const factor = this.factor(queryPositions.coords[token]);
            old.forEach((x, c) => (made[c] = x * factor));
        });
        return { q: grown, k };
    }

    pieces(context) {
        const { profile } = context.features;
        const { coords, length } = context.queryPositions;
        checkDistance("Inkling", context, { heads: this.numHeads, integral: true });
        must(profile !== undefined, "Inkling needs the feature 'profile' of every query: give it in features");
        must(
            profile.heads === this.numHeads && profile.tokens === length && profile.dim === this.width,
            `feature 'profile' must be (${this.numHeads}, ${length}, ${this.width}), ` +
                `got (${profile.heads}, ${profile.tokens}, ${profile.dim})`,
        );
        const at = (head, [r], i) => {
            const isInside = -r >= 0 && -r < this.extent;
            return isInside ? this.factor(coords[i]) * dot(profile.at(head, i), this.entry(head, -r)) : 0;
        };
        return [{ kind: "bias", at }];
    }
}
