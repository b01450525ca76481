// Schemes that rotate distant pairs of tokens differently.

import { Matrix } from "posenc/math/arrays.js";
import { choice, must, number, pairsOf, whole } from "posenc/math/check.js";
import { LAYOUTS, Turn, frequencies } from "posenc/math/phases.js";

const same = (p) => p;

/** s_ij = q_i . R(-f) k_j: a pair of tokens is turned by a distance f of its own, by f theta_m in channel pair m.
 *
 * A subclass says f by its `bands`, [{reach, query, key}, ...]. Of a pair the last one holds with g(p_i) - g(p_j) >=
 * reach: the query stands at query(p_i), the key at key(p_j). g(p) is p, or floor(p / chunk) with a `chunk`. */
class Banded {
    chunk = null;

    static learned() {
        return {};
    }

    constructor({ head_dim, base, layout }) {
        pairsOf("head_dim", head_dim);
        this.theta = frequencies(head_dim, number("base", base, 1));
        this.layout = choice("layout", layout, LAYOUTS);
    }

    /** f, the distance that a query at p_i and a key at p_j are turned by. */
    turnedBy(x, y) {
        const g = (p) => (this.chunk === null ? p : Math.floor(p / this.chunk));
        const band = this.bands.findLast(({ reach }) => g(x) - g(y) >= reach);
        return band.query(x) - band.key(y);
    }

    rotate(q, k, queryPositions, keyPositions) {
        const [near, ...far] = this.bands.map(({ reach, query, key }) => ({
            reach,
            q: this.turned(q, queryPositions, query),
            k: this.turned(k, keyPositions, key),
        }));
        return { q: near.q, k: near.k, bands: far, chunk: this.chunk };
    }

    turned(x, positions, place) {
        const { coords } = positions.check(1, this.constructor.name);
        const pairs = this.theta.length;
        must(x.dim === 2 * pairs, `the rotation was made for head_dim ${2 * pairs}, got q or k of head_dim ${x.dim}`);
        const angles = new Matrix(x.tokens, pairs);
        coords.forEach((p, token) => this.theta.forEach((theta, m) => (angles.row(token)[m] = place(p) * theta)));
        return new Turn(angles, this.layout).apply(x);
    }
}

/** Dual chunk attention: with steps of c = chunk - local tokens, by the place within a step; to keys of the step before
 * a query stands a step ahead, and to all earlier ones at the end of the chunk. */
export class DualChunk extends Banded {
    constructor(options) {
        super(options);
        const chunk = whole("chunk", options.chunk);
        const c = chunk - whole("local", options.local, 0, chunk - 1);
        const placed = (p) => p - c * Math.floor(p / c);
        const last = Math.min(2 * c - 1, chunk);
        this.chunk = c;
        this.bands = [
            { reach: -Infinity, query: placed, key: placed },
            { reach: 1, query: (p) => Math.min(placed(p) + c, chunk), key: placed },
            { reach: 2, query: () => last, key: placed },
        ];
    }
}

/** ReRoPE: by the distance d up to a window w, and by w + leak (d - w) past it. */
export class ReRoPE extends Banded {
    constructor(options) {
        super(options);
        const [w, leak] = [whole("window", options.window), number("leak", options.leak)];
        must(leak >= 0 && leak < 1, `leak must be within [0, 1), got ${leak}`);
        this.bands = [
            { reach: -Infinity, query: same, key: same },
            { reach: w, query: (p) => leak * p + (1 - leak) * w, key: (p) => leak * p },
        ];
    }
}

/** Self-Extend: by the distance up to a window w, and by the distance of groups of G tokens past it. */
export class SelfExtend extends Banded {
    constructor(options) {
        super(options);
        const [G, w] = [whole("group", options.group), whole("window", options.window)];
        const grouped = (p) => Math.floor(p / G);
        this.bands = [
            { reach: -Infinity, query: same, key: same },
            { reach: w, query: (p) => grouped(p) + w - grouped(w), key: grouped },
        ];
    }
}
