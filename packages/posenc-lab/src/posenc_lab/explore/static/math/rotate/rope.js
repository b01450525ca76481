// RoPE.

import { choice, must, number, whole } from "posenc/math/check.js";
import { LAYOUTS, Turn, frequencies, ofBoth, phasesOf } from "posenc/math/phases.js";
import { scaled } from "posenc/math/scalings.js";

/** Channel pair k of q and k is turned by p theta_k. A subclass gives the options, or changes `frequencies`. */
export class RoPE {
    static learned() {
        return {};
    }

    constructor({ head_dim, base, layout = "half", rotary_dim = null, axes = 1, allocation = null, ...rest }) {
        const { scaling = null, first_channel = 0, values = false, heads = null, imaginary = null } = rest;
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
            !values && heads === null && imaginary === null,
            "values, heads and imaginary must be left out: this page turns queries and keys of all heads alike",
        );
        Object.assign(this, { headDim: head_dim, rotaryDim: turning, axes, scaling });
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

    /** The turn of every token, of queries and keys. */
    turn(positions, length) {
        positions.check(this.axes, this.constructor.name);
        const { theta, factor } = this.frequencies(length);
        return new Turn(phasesOf(positions, theta, this.allocation), this.layout, this.first, factor);
    }

    rotate(q, k, queryPositions, keyPositions, { length }) {
        const apply = (turn, x) => {
            must(x.dim === this.headDim, `the rotation was made for head_dim ${this.headDim}, got ${x.dim}`);
            return turn.apply(x);
        };
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (positions) => this.turn(positions, length));
        return { q: apply(ofQ, q), k: apply(ofK, k) };
    }
}
