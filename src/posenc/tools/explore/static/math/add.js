// Vectors added to the input: the add door.

import { Matrix, dot, linear, matrixOf } from "posenc/math/arrays.js";
import { choice, must, number, pairsOf, whole } from "posenc/math/check.js";
import { frequencies } from "posenc/math/phases.js";
import { drawn, gelu } from "posenc/math/special.js";

/** A vector for each token, written by fill(row, token). */
function table(positions, dim, fill) {
    const made = new Matrix(positions.length, dim);
    for (let token = 0; token < positions.length; token++) {
        fill(made.row(token), token);
    }
    return made;
}

const nothing = () => ({});

/** P[p, k] = exp(-p / tau_k), tau_k = longest^((k + 1) / dim). */
export class ExponentialDecay {
    static learned = nothing;

    constructor({ dim, longest }) {
        this.dim = whole("dim", dim);
        this.longest = number("longest", longest, 1);
    }

    table(positions) {
        positions.check(1, "ExponentialDecay");
        return table(positions, this.dim, (row, token) => {
            const p = positions.document[token] === -1 ? 0 : positions.coords[token];
            must(p >= 0, `ExponentialDecay encodes positions from 0 on, got ${p}`);
            row.forEach((_, k) => (row[k] = Math.exp(-p * this.longest ** (-(k + 1) / this.dim))));
        });
    }
}

/** [cos 2 pi B x | sin 2 pi B x], B drawn once or learned; learned, an MLP follows. With bands the sines come first: of
 * all frequencies ("perceiver"), or of all axes, frequency after frequency ("nerf"). */
export class FourierFeatures {
    static learned({ dim, axes, sigma, learned, hidden }) {
        if (!learned) {
            return {};
        }
        const [first, last] = [1 / Math.sqrt(dim), 1 / Math.sqrt(hidden)]; // as linear layers begin
        return {
            directions: { shape: [dim / 2, axes], std: sigma },
            "mix.0.weight": { shape: [hidden, dim], uniform: [-first, first] },
            "mix.0.bias": { shape: [hidden], uniform: [-first, first] },
            "mix.2.weight": { shape: [dim, hidden], uniform: [-last, last] },
            "mix.2.bias": { shape: [dim], uniform: [-last, last] },
        };
    }

    constructor({ dim, axes, sigma, learned, hidden, seed, bands = null, resolution = null }, parameters) {
        const pairs = pairsOf("dim", dim);
        Object.assign(this, { dim, axes: whole("axes", axes), sigma: number("sigma", sigma, 0), learned });
        whole("hidden", hidden);
        whole("seed", seed, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);
        choice("bands", bands, [null, "perceiver", "nerf"]);
        must(bands === null || pairs % axes === 0, `dim must be a multiple of 2 axes = ${2 * axes}, got ${dim}`);
        must(
            (resolution !== null) === (bands === "perceiver") && (resolution ?? { length: axes }).length === axes,
            `resolution must be ${axes} numbers for bands perceiver, and null otherwise`,
        );
        this.isBanded = bands !== null;
        this.unit = bands === "nerf" ? 1 : 2 * Math.PI;
        this.group = bands === "nerf" ? axes : pairs; // channels of one wave before those of the other
        if (learned) {
            this.directions = matrixOf(parameters.directions);
        } else {
            const numbers = bands
                ? alongAxes(pairs / axes, axes, resolution)
                : drawn(pairs * axes, seed).map((x) => sigma * x);
            this.directions = new Matrix(pairs, axes, numbers);
        }
        this.parameters = parameters;
    }

    table(positions) {
        positions.check(this.axes, "FourierFeatures");
        const { rows: pairs } = this.directions;
        return table(positions, this.dim, (row, token) => {
            for (let k = 0; k < pairs; k++) {
                const angle = this.unit * dot(positions.at(token), this.directions.row(k));
                const [first, second] = this.isBanded ? [Math.sin, Math.cos] : [Math.cos, Math.sin];
                const c = k + this.group * Math.floor(k / this.group);
                row[c] = first(angle);
                row[c + this.group] = second(angle);
            }
            if (this.learned) {
                row.set(this.#mixed(row.map((x) => x / Math.sqrt(this.dim))));
            }
        });
    }

    #mixed(features) {
        const layer = (x, n) => {
            const { [`mix.${n}.weight`]: weight, [`mix.${n}.bias`]: bias } = this.parameters;
            return linear(x, matrixOf(weight), bias.data);
        };
        return layer(layer(features, 0).map(gelu), 2);
    }
}

/** Directions along one axis each, in rows: 2^k of all axes for each k or, with a resolution, those of one axis
 * after another, evenly from 1/2 to resolution / 4. */
function alongAxes(count, axes, resolution) {
    const numbers = new Float64Array(count * axes * axes);
    for (let axis = 0; axis < axes; axis++) {
        for (let k = 0; k < count; k++) {
            const row = resolution ? axis * count + k : k * axes + axis;
            const f = resolution && 1 + (k / Math.max(count - 1, 1)) * (resolution[axis] / 2 - 1);
            numbers[row * axes + axis] = resolution ? f / 2 : 2 ** k;
        }
    }
    return numbers;
}

/** A trainable vector for each position. */
export class Learned {
    static learned = ({ max_positions, dim }) => ({ weight: { shape: [max_positions, dim], std: 0.02 } });

    constructor({ max_positions, dim }, parameters) {
        this.limit = whole("max_positions", max_positions);
        this.dim = whole("dim", dim);
        this.weight = matrixOf(parameters.weight);
    }

    table(positions) {
        const indices = positions.indices(this.limit, "Learned");
        return table(positions, this.dim, (row, token) => row.set(this.weight.row(indices[token])));
    }
}

/** A trainable vector for each segment. */
export class Segment {
    static learned = ({ num_segments, dim }) => ({ weight: { shape: [num_segments, dim], std: 0.02 } });

    constructor({ num_segments, dim }, parameters) {
        this.limit = whole("num_segments", num_segments);
        this.dim = whole("dim", dim);
        this.weight = matrixOf(parameters.weight);
    }

    table({ segment, document, length }) {
        must(segment !== null, "Segment needs positions with a segment per token");
        return table({ length }, this.dim, (row, token) => {
            const index = document[token] === -1 ? 0 : segment[token];
            must(index >= 0 && index < this.limit, `Segment encodes segments 0 to ${this.limit - 1}, got ${index}`);
            row.set(this.weight.row(index));
        });
    }
}

/** Sines and cosines of p theta_k, side by side or the sines first; each axis has a share of the channels. */
export class Sinusoidal {
    static learned = nothing;

    constructor({ dim, base, layout, axes }) {
        must(
            Number.isInteger(dim) && dim > 0 && dim % (2 * whole("axes", axes)) === 0,
            `dim must be a positive multiple of 2 axes = ${2 * axes}, got ${dim}`,
        );
        Object.assign(this, { dim, axes, base: number("base", base, 1) });
        this.layout = choice("layout", layout, ["interleaved", "concatenated", "tensor2tensor"]);
        const width = dim / axes;
        const steeper = layout === "tensor2tensor" ? width / Math.max(width - 2, 1) : 1;
        this.theta = frequencies(width, base ** steeper);
    }

    table(positions) {
        positions.check(this.axes, "Sinusoidal");
        const pairs = this.theta.length;
        const [step, apart] = this.layout === "interleaved" ? [2, 1] : [1, pairs];
        return table(positions, this.dim, (row, token) => {
            positions.at(token).forEach((p, axis) => {
                this.theta.forEach((theta, k) => {
                    const c = 2 * pairs * axis + step * k;
                    row[c] = Math.sin(p * theta);
                    row[c + apart] = Math.cos(p * theta);
                });
            });
        });
    }
}
