import { must, number, whole } from "posenc/math/check.js";
import { checkDistance, entriesOf } from "posenc/math/score/distance.js";

/** s_ij + r_ih . B[p_i - p_j] where 0 <= p_i - p_j < extent: each query mixes a bias for itself out of learned
 * profiles. With a length n, query and bias grow by 1 + strength ln max(1, (p_i + 1) / n). With a clip, r is first
 * shortened to it where it is longer.
 *
 * The feature `profile` is r, what the layer projects each query to: (heads, queries, width). */
export class Inkling {
    static learned({ width, extent }) {
        return { B: { shape: [extent, width], std: 0.02 } };
    }

    constructor({ num_heads, width, extent, length, strength, clip = null }, { B }) {
        this.numHeads = whole("num_heads", num_heads);
        this.width = whole("width", width);
        this.extent = whole("extent", extent);
        this.length = length === null ? null : whole("length", length);
        this.strength = number("strength", strength);
        this.clip = clip === null ? Infinity : number("clip", clip, 0);
        this.entry = entriesOf(B);
    }

    /** Queries, or what they are projected to, as they grow in a global layer. */
    grown(x, positions) {
        if (this.length === null) {
            return x;
        }
        return x.map(x.dim, (made, old, head, token) => {
            const n = positions.coords[token] + 1;
            const factor = 1 + this.strength * Math.log(Math.max(1, n / this.length));
            old.forEach((value, c) => (made[c] = value * factor));
        });
    }

    rotate(q, k, queryPositions) {
        return { q: this.grown(q, queryPositions.check(1, "Inkling")), k };
    }

    pieces(context) {
        const { profile } = context.features;
        const { length } = context.queryPositions;
        checkDistance("Inkling", context, { heads: this.numHeads, integral: true });
        must(profile !== undefined, "Inkling needs the feature 'profile' of every query: give it in features");
        must(
            profile.heads === this.numHeads && profile.tokens === length && profile.dim === this.width,
            `feature 'profile' must be (${this.numHeads}, ${length}, ${this.width}), ` +
                `got (${profile.heads}, ${profile.tokens}, ${profile.dim})`,
        );
        const nothing = new Float64Array(this.width);
        const vector = (head, [r]) => (-r >= 0 && -r < this.extent ? this.entry(head, -r) : nothing);
        const clipped = profile.map(this.width, (made, old) => {
            const factor = Math.min(1, this.clip / (Math.hypot(...old) + 1e-6));
            old.forEach((value, c) => (made[c] = value * factor));
        });
        const feature = this.grown(clipped, context.queryPositions);
        return [{ kind: "meeting", of: "query", byDistance: true, feature, vector }];
    }
}
