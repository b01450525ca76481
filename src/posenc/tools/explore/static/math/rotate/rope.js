// RoPE, and the schemes that are RoPE but for one thing.

import { Matrix } from "posenc/math/arrays.js";
import { choice, must, number, whole } from "posenc/math/check.js";
import { LAYOUTS, Turn, frequencies, ofBoth, phasesOf } from "posenc/math/phases.js";
import { scaled } from "posenc/math/scalings.js";

/** Channel pair k of q and k is turned by p theta_k. A subclass gives the options, or changes `frequencies`. */
export class RoPE {
    static learned() {
        return {};
    }

    constructor({ head_dim, base, layout = "half", rotary_dim = null, axes = 1, allocation = null, ...rest }) {
        const { scaling = null, first_channel = 0, heads = null, num_heads = null, values = false } = rest;
        const { imaginary = null } = rest;
        const name = this.constructor.name;
        const room = whole("head_dim", head_dim, 2) - whole("first_channel", first_channel, 0, head_dim - 2);
        const turning = rotary_dim ?? room;
        const each = 2 * (allocation ? 1 : whole("axes", axes));
        must(
            Number.isInteger(turning) && turning > 0 && turning % each === 0 && turning <= room,
            `rotary_dim of ${name} must be a multiple of ${each} within ${each}..${room}, got ${turning}`,
        );
        const pairs = turning / 2;
        must(
            allocation === null || (allocation.length === pairs && allocation.every((a) => a >= 0 && a < axes)),
            `allocation must be one axis for each of ${pairs} pairs, got ${JSON.stringify(allocation)}`,
        );
        must(
            (heads === null || imaginary === null) && ((heads ?? imaginary) === null) === (num_heads === null),
            "heads or imaginary must be given with num_heads (the rotated or imaginary heads, and the total)",
        );
        must(
            heads === null || (0 <= heads[0] && heads[0] < heads[1] && heads[1] <= num_heads),
            `heads must be a non-empty [first, end] within 0..${num_heads}, got ${JSON.stringify(heads)}`,
        );
        Object.assign(this, {
            headDim: head_dim,
            rotaryDim: turning,
            axes,
            scaling,
            values,
            heads,
            numHeads: num_heads,
            imaginary,
        });
        this.base = number("base", base, 1);
        this.layout = choice("layout", layout, LAYOUTS);
        this.first = first_channel;
        this.isAllotted = allocation !== null;
        this.allocation = allocation ?? Array.from({ length: pairs }, (_, k) => Math.floor((k * axes) / pairs));
    }

    /** {theta, factor}: theta of every pair for a text of that length, and the factor of cos and sin. */
    frequencies(length = 0) {
        const each = frequencies(this.isAllotted ? this.rotaryDim : this.rotaryDim / this.axes, this.base);
        const { theta, factor } = scaled(this.scaling, each, length);
        return { theta: this.allocation.map((_, k) => theta[k % theta.length]), factor };
    }

    /** The turn of every token, of queries and keys or, with values, not lengthened. */
    turn(positions, length, values = false) {
        positions.check(this.axes, this.constructor.name);
        const { theta, factor } = this.frequencies(length);
        return new Turn(phasesOf(positions, theta, this.allocation), this.layout, this.first, values ? 1 : factor);
    }

    /** The turn of queries: by a quarter less in heads from imaginary[0] to below imaginary[1], in steps. */
    #ofQueries(turn) {
        if (this.imaginary === null) {
            return turn;
        }
        const [start, stop, step = 1] = this.imaginary;
        const angles = Array.from({ length: this.numHeads }, (_, h) => {
            const late = h >= start && h < stop && (h - start) % step === 0 ? Math.PI / 2 : 0;
            const [{ rows, columns, data }] = turn.angles;
            return new Matrix(
                rows,
                columns,
                data.map((angle) => angle - late),
            );
        });
        return new Turn(angles, turn.layout, turn.first, turn.factor);
    }

    #apply(turn, x) {
        must(x.dim === this.headDim, `the rotation was made for head_dim ${this.headDim}, got ${x.dim}`);
        if (this.heads === null) {
            return turn.apply(x);
        }
        const turning = this.heads.map((end) => (end * x.heads) / this.numHeads);
        must(
            turning.every(Number.isInteger),
            `the rotated heads ${this.heads.join("..")} of ${this.numHeads} must be whole heads of q or k, got ${x.heads} heads`,
        );
        return turn.apply(x, turning);
    }

    rotate(q, k, queryPositions, keyPositions, { length }) {
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (positions) => this.turn(positions, length));
        return { q: this.#apply(this.#ofQueries(ofQ), q), k: this.#apply(ofK, k) };
    }

    rotateValue(v, keyPositions) {
        return this.values ? this.#apply(this.turn(keyPositions, 0, true), v) : v;
    }

    rotateOutput(out, queryPositions) {
        return this.values ? this.#apply(this.turn(queryPositions, 0, true).inverse(), out) : out;
    }
}

/** RoPE whose frequencies are each times e^alpha, learned. */
export class LeRoPE extends RoPE {
    static learned({ head_dim, rotary_dim, first_channel }) {
        return { alpha: { shape: [(rotary_dim ?? head_dim - first_channel) / 2], fill: 0 } };
    }

    constructor({ head_dim, base, layout, rotary_dim, scaling, first_channel }, parameters) {
        super({ head_dim, base, layout, rotary_dim, scaling, first_channel });
        this.alpha = parameters.alpha.data;
    }

    frequencies(length) {
        const { theta, factor } = super.frequencies(length);
        return { theta: theta.map((x, k) => x * Math.exp(this.alpha[k])), factor };
    }
}

/** The first of the last channels that turn. */
function firstOfLast(name, turning, headDim) {
    must(
        Number.isInteger(turning) && turning > 1 && turning % 2 === 0 && turning <= headDim,
        `${name} must be even and within 2..head_dim = ${headDim}, got ${turning}`,
    );
    return headDim - turning;
}

/** The last channels of queries and keys turn; YaRN may bring a factor of the scores along. */
export class MLA extends RoPE {
    constructor({ head_dim, rope_dim, base, layout, scaling }) {
        const first_channel = firstOfLast("rope_dim", rope_dim, head_dim);
        super({ head_dim, base, layout, rotary_dim: rope_dim, scaling, first_channel });
        const { kind, factor, mscale_all_dim: all = null } = scaling ?? {};
        const grown = kind === "yarn" && all !== null ? 0.1 * all * Math.log(factor) + 1 : 1;
        this.scale = grown ** 2 / Math.sqrt(head_dim);
    }

    rotate(...given) {
        return { ...super.rotate(...given), scale: this.scale };
    }
}

/** The last channels of values turn too, and the output turns back. */
export class RotatedValues extends RoPE {
    constructor({ head_dim, rotary_dim, base, layout, scaling }) {
        const first_channel = firstOfLast("rotary_dim", rotary_dim, head_dim);
        super({ head_dim, base, layout, rotary_dim, scaling, first_channel, values: true });
    }
}
