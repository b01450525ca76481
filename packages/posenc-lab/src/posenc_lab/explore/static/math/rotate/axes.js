// RoPE for images, videos and texts with images in them: which axis turns which pair.

import { choice, must, whole } from "posenc/math/check.js";
import { frequencies } from "posenc/math/phases.js";
import { Positions } from "posenc/math/positions.js";
import { RoPE } from "posenc/math/rotate/rope.js";

const CONVENTIONS = {
    index: { base: 100, layout: "interleaved", axes: [1, 0], unit: 1 },
    llama4: { base: 10000, layout: "interleaved", axes: [1, 0], unit: 1 },
    pe: { base: 10000, layout: "interleaved", axes: [1, 0], unit: 1 },
    eva: { base: 10000, layout: "interleaved", axes: [0, 1], unit: 1 },
    dinov3: { base: 100, layout: "half", axes: [0, 1], unit: 2 * Math.PI },
    gemma4: { base: 100, layout: "half", axes: [1, 0], unit: 1, apart: true },
    step3: { base: 10000, layout: "half", axes: [1, 0], unit: 1 },
};

/** Half of the channels turn by the row of a patch and half by its column, under a named convention. */
export class AxialRoPE extends RoPE {
    constructor({ head_dim, convention, base, rotary_dim, extent, shift, jitter, rescale }) {
        const means = CONVENTIONS[choice("convention", convention, Object.keys(CONVENTIONS))];
        const turning = rotary_dim ?? whole("head_dim", head_dim);
        must(
            Number.isInteger(turning) && turning % 4 === 0 && turning > 0 && turning <= head_dim,
            `rotary_dim must be a multiple of 4 within 4..head_dim = ${head_dim}, got ${turning}`,
        );
        must(
            (extent === null) === (convention !== "eva"),
            `extent must be ${convention === "eva" ? "[height, width]" : "null"} for convention ${convention}`,
        );
        must(
            convention === "dinov3" || (shift === null && jitter === null && rescale === null),
            `shift, jitter and rescale must be null for convention ${convention}`,
        );
        const allocation = means.axes.flatMap((axis) => new Array(turning / 4).fill(axis));
        super({ head_dim, base: base ?? means.base, layout: means.layout, rotary_dim: turning, axes: 2, allocation });
        Object.assign(this, { convention, extent, unit: means.unit });
        this.layout = means.apart ? "apart" : means.layout;
    }

    frequencies() {
        const theta = frequencies(this.rotaryDim / 2, this.base).map((x) => this.unit * x);
        return { theta: [...theta, ...theta], factor: 1 };
    }

    /** The positions of an image's patches in raster order, after a prefix of tokens that are not turned. Training's
     * moves of "dinov3" are left out. */
    grid(height, width, { prefix = 0 } = {}) {
        const raster = Positions.grid(height, width, { prefix });
        const moved = {
            index: ([i, j]) => [i, j],
            gemma4: ([i, j]) => [i, j],
            step3: ([i, j]) => [i, j],
            llama4: ([i, j]) => [i + 1, j + 1],
            pe: ([i, j]) => [i + 1, j + 1],
            eva: ([i, j]) => [i * (this.extent[0] / height), j * (this.extent[1] / width)],
            dinov3: ([i, j]) => [(2 * i + 1) / height - 1, (2 * j + 1) / width - 1],
        }[this.convention];
        const coords = Array.from({ length: raster.length }, (_, n) => (n < prefix ? [0, 0] : moved(raster.at(n))));
        return new Positions(coords);
    }
}

/** The pairs of RoPE, dealt out to time, row and column. */
export class MRoPE extends RoPE {
    constructor({ head_dim, sections, form, base }) {
        choice("form", form, ["sections", "interleaved", "ernie", "videorope"]);
        must(
            sections.length === 3 && sections.reduce((a, b) => a + whole("sections", b, 0), 0) === head_dim / 2,
            `sections must be three numbers with the sum head_dim/2 = ${head_dim / 2}, got ${JSON.stringify(sections)}`,
        );
        must(
            !["ernie", "videorope"].includes(form) || sections[1] === sections[2],
            `sections must be as many pairs of row as of column for form ${form}, got ${JSON.stringify(sections)}`,
        );
        const layout = form === "ernie" ? "interleaved" : "half";
        super({ head_dim, base, layout, axes: 3, allocation: dealt(form, ...sections) });
    }
}

/** The axis of every pair: 0 time, 1 row, 2 column. */
function dealt(form, t, h, w) {
    const line = (n, axis) => Array.from({ length: n }, (_, k) => axis(k));
    if (form === "sections") {
        return [...line(t, () => 0), ...line(h, () => 1), ...line(w, () => 2)];
    }
    if (["ernie", "videorope"].includes(form)) {
        return [...line(2 * h, (k) => 1 + (k % 2)), ...line(t, () => 0)];
    }
    const ends = [0, 3 * h, 3 * w];
    return line(t + h + w, (k) => (k < ends[k % 3] ? k % 3 : 0));
}

/** (a, b) -> (a cos_a - b sin_a, a sin_b + b cos_b) for pairs of consecutive channels, where channel c of an axis with
 * so many pairs has the angle of pair c mod pairs. It is no rotation. */
class OfEachChannel {
    constructor(turn, pairs) {
        Object.assign(this, { turn, pairs });
    }

    apply(x) {
        const { cos, sin } = this.turn;
        return x.map(x.dim, (made, old, head, token) => {
            made.set(old);
            for (let c = 0; c < 2 * cos.columns; c++) {
                const at = Math.floor(c / (2 * this.pairs)) * this.pairs + (c % this.pairs);
                const [ofThis, ofOther] = [cos.row(token)[at], sin.row(token)[at]];
                made[c] = old[c] * ofThis + (c % 2 ? old[c - 1] : -old[c + 1]) * ofOther;
            }
        });
    }
}

/** Shares of the channels turn by the frame, the row and the column of a patch, each as a RoPE of its own. In the form
 * "vjepa2" each channel of a pair has an angle of its own. */
export class RoPE3D extends RoPE {
    constructor({ head_dim, shares, base, form, layout = "interleaved" }) {
        const isRotation = choice("form", form, ["rotation", "vjepa2"]) === "rotation";
        const share = 2 * Math.floor(whole("head_dim", head_dim, isRotation ? 2 : 6) / 6);
        const each = shares ?? [isRotation ? head_dim - 2 * share : share, share, share];
        const turning = each.reduce((a, b) => a + b, 0);
        must(
            each.length === 3 && each.every((n) => n >= 0 && n % 2 === 0) && turning >= 2 && turning <= head_dim,
            `shares must be three even numbers with a sum of 2..head_dim = ${head_dim}, got ${JSON.stringify(each)}`,
        );
        const allocation = each.flatMap((n, axis) => new Array(n / 2).fill(axis));
        super({ head_dim, base, layout, rotary_dim: turning, axes: 3, allocation });
        this.shares = each;
        this.isRotation = isRotation;
    }

    turn(positions, length) {
        const turn = super.turn(positions, length);
        return this.isRotation ? turn : new OfEachChannel(turn, this.shares[0] / 2);
    }

    frequencies() {
        return { theta: this.shares.flatMap((share) => [...frequencies(share, this.base)]), factor: 1 };
    }
}
