import { choice, must, number, whole } from "posenc/math/check.js";
import { checkDistance, entriesOf } from "posenc/math/score/distance.js";

/** s_ij + W[bucket(n), h], n = p_i - p_j: near distances have a bucket to themselves, far ones share, in logarithmic
 * steps. The causal form has buckets for n >= 0 alone, the bidirectional one half of them to each side. In a document p
 * is one of several coordinates, and the bias is multiplied by a factor. */
export class T5 {
    static learned({ num_heads, num_buckets }) {
        const bound = Math.sqrt(6 / (num_buckets + num_heads));
        return { weight: { shape: [num_buckets, num_heads], uniform: [-bound, bound] } };
    }

    constructor({ num_heads, num_buckets, max_distance, bidirectional, axis, axes, factor }, { weight }) {
        this.numHeads = whole("num_heads", num_heads);
        this.numBuckets = whole("num_buckets", num_buckets, 2);
        this.bidirectional = choice("bidirectional", bidirectional, [true, false]);
        must(
            !bidirectional || (num_buckets >= 4 && num_buckets % 2 === 0),
            `num_buckets must be even and at least 4 if bidirectional, got ${num_buckets}`,
        );
        const side = bidirectional ? num_buckets / 2 : num_buckets;
        const alone = Math.floor(side / 2);
        must(
            whole("max_distance", max_distance) > alone,
            `max_distance must be above ${alone}, the largest distance with its own bucket, ` +
                `got ${max_distance}`,
        );
        this.axes = whole("axes", axes);
        this.axis = whole("axis", axis, 0, axes - 1);
        this.factor = number("factor", factor);
        this.edges = edgesOf(side, max_distance);
        this.entry = entriesOf(weight);
    }

    bucket(r) {
        const away = this.bidirectional ? Math.abs(r) : Math.max(-r, 0);
        const ofSide = this.edges.filter((edge) => away >= edge).length;
        return this.bidirectional && r >= 1 ? ofSide + this.numBuckets / 2 : ofSide;
    }

    pieces(context) {
        checkDistance("T5", context, { heads: this.numHeads, axes: this.axes, integral: this.axes === 1 });
        const at = (head, r) => this.factor * this.entry(0, this.bucket(r[this.axis]))[head];
        return [{ kind: "bias", byDistance: true, at }];
    }
}

/** The distances n at which the buckets 1, 2, .. of a side begin. That of e + m, e = floor(B / 2), has
 * n^(B - e) >= D^m e^(B - e - m) first: whole numbers, of which nothing is rounded. */
function edgesOf(side, maxDistance) {
    const alone = Math.floor(side / 2);
    const shared = side - alone;
    const edges = Array.from({ length: alone }, (_, n) => n + 1);
    let n = BigInt(alone);
    for (let m = 1; m < shared; m++) {
        const start = BigInt(maxDistance) ** BigInt(m) * BigInt(alone) ** BigInt(shared - m);
        while (n ** BigInt(shared) < start) {
            n++;
        }
        edges.push(Number(n));
    }
    return edges;
}
