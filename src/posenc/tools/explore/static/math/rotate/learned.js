// Turns that are learned: the frequencies, or the matrix whose exponential turns.

import { Matrix, dot } from "posenc/math/arrays.js";
import { choice, must, number, whole } from "posenc/math/check.js";
import { exponential, skew, solve, square, timesVector } from "posenc/math/linear.js";
import { LAYOUTS, Turn, frequencies, ofBoth } from "posenc/math/phases.js";

const size = (shape) => shape.reduce((a, b) => a * b, 1);

/** A view of the numbers of a parameter (axes, heads, ...) or, where no heads are said, (axes, ...). */
function part({ data }, axis, head, heads, each) {
    const start = (axis * heads + head) * each;
    return data.subarray(start, start + each);
}

/** Throws unless keys have the heads that a scheme was made for. */
function checkKeyHeads(k, heads) {
    must(
        heads === null || k.heads === heads,
        `the rotation was made for keys of ${heads} heads, got ${k.heads}: build it for as many heads as keys have`,
    );
}

/** Angles sum_a p_a f[a, head, k] of every head: a Matrix (tokens, pairs) each. */
function anglesOf(positions, heads, frequenciesOf) {
    return Array.from({ length: heads }, (_, head) => {
        const each = Array.from({ length: positions.axes }, (_, axis) => frequenciesOf(axis, head));
        const angles = new Matrix(positions.length, each[0].length);
        for (let token = 0; token < positions.length; token++) {
            const row = angles.row(token);
            positions.at(token).forEach((p, axis) => row.forEach((_, k) => (row[k] += p * each[axis][k])));
        }
        return angles;
    });
}

/** Pairs are mapped by sums of all frequencies that turn once within the training length, the others by 1 and 1. */
export class FoPE {
    static learned({ num_heads, head_dim, length, base, series, strength }) {
        const kept = keptOf(head_dim, base, length).length;
        const shape = [2, num_heads, kept, series];
        return { coefficients: { shape, draw: (random) => mainAndOthers(shape, strength, random) } };
    }

    constructor({ num_heads, head_dim, length, base, layout, series }, parameters) {
        must(whole("head_dim", head_dim, 2) % 2 === 0, `head_dim must be even, got ${head_dim}`);
        Object.assign(this, { numHeads: whole("num_heads", num_heads), all: head_dim / 2, series: whole("series", series) });
        this.layout = choice("layout", layout, LAYOUTS);
        this.theta = keptOf(head_dim, number("base", base, 1), whole("length", length, 7));
        this.coefficients = parameters.coefficients;
    }

    turn(positions) {
        positions.check(1, "FoPE");
        const { all, numHeads, series, theta } = this;
        const turn = new Turn(Array.from({ length: numHeads }, () => new Matrix(positions.length, all)), this.layout);
        for (const [which, waves, wave] of [
            [0, turn.cos, Math.cos],
            [1, turn.sin, Math.sin],
        ]) {
            waves.forEach((made, head) => {
                const of = part(this.coefficients, which, head, numHeads, theta.length * series);
                for (let token = 0; token < positions.length; token++) {
                    const [row, p] = [made.row(token), positions.at(token)[0]];
                    row.fill(1);
                    for (let m = 0; m < series; m++) {
                        row[m] = theta.reduce((sum, each, k) => sum + of[k * series + m] * wave(p * each), 0);
                    }
                }
            });
        }
        return turn;
    }

    rotate(q, k, queryPositions, keyPositions) {
        checkKeyHeads(k, this.numHeads);
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (positions) => this.turn(positions));
        return { q: ofQ.apply(q), k: ofK.apply(k) };
    }
}

/** The frequencies that turn once within the length. */
function keptOf(headDim, base, length) {
    return frequencies(headDim, base).filter((theta) => theta >= (2 * Math.PI) / length);
}

/** 1 for the main frequency of each pair, plus normal numbers. */
function mainAndOthers([, heads, kept, pairs], strength, random) {
    const step = Math.ceil(kept / pairs);
    const std = strength * Math.sqrt(2 / ((heads + kept) * pairs));
    return random.normals(2 * heads * kept * pairs, std).map((x, n) => {
        const [m, k] = [n % pairs, Math.floor(n / pairs) % kept];
        return x + (k === m * step ? 1 : 0);
    });
}

/** Every pair turns by both coordinates of a patch, at learned frequencies of each head. */
export class MixedRoPE {
    static learned({ head_dim, num_heads, base, rotary_dim }) {
        const pairs = (rotary_dim ?? head_dim) / 2;
        return {
            frequencies: {
                shape: [2, num_heads, pairs],
                draw: (random) => alongAndAcross(num_heads, pairs, base, random),
            },
        };
    }

    constructor({ head_dim, num_heads, base, rotary_dim }, parameters) {
        const turning = rotary_dim ?? whole("head_dim", head_dim);
        must(
            Number.isInteger(turning) && turning > 0 && turning % 4 === 0 && turning <= head_dim,
            `rotary_dim must be a multiple of 4 within 4..head_dim = ${head_dim}, got ${turning}`,
        );
        Object.assign(this, { headDim: head_dim, numHeads: whole("num_heads", num_heads), pairs: turning / 2 });
        this.base = number("base", base, 1);
        this.frequencies = parameters.frequencies;
    }

    turn(positions) {
        positions.check(2, "MixedRoPE");
        const { numHeads, pairs } = this;
        const ofAxis = (axis, head) => part(this.frequencies, 1 - axis, head, numHeads, pairs); // columns come first
        return new Turn(anglesOf(positions, numHeads, ofAxis), "interleaved");
    }

    rotate(q, k, queryPositions, keyPositions) {
        checkKeyHeads(k, this.numHeads);
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (positions) => this.turn(positions));
        return { q: ofQ.apply(q), k: ofK.apply(k) };
    }
}

/** m_k = base^(-4k/D) along a random direction of each head, and across it. */
function alongAndAcross(heads, pairs, base, random) {
    const made = new Float64Array(2 * heads * pairs);
    for (let head = 0; head < heads; head++) {
        const along = random.uniform(0, 2 * Math.PI);
        for (let k = 0; k < pairs; k++) {
            const half = pairs / 2;
            const [magnitude, angle] = [base ** ((-2 * (k % half)) / pairs), along + (k < half ? 0 : Math.PI / 2)];
            made[head * pairs + k] = magnitude * Math.cos(angle);
            made[(heads + head) * pairs + k] = magnitude * Math.sin(angle);
        }
    }
    return made;
}

/** Turns by learned generators that commute: RoPE with learned frequencies, in a learned basis P. */
export class STRING {
    static learned({ head_dim, axes, form, num_heads, base }) {
        const heads = num_heads === null ? [] : [num_heads];
        if (form === "circulant") {
            return { circulant: { shape: [axes, ...heads, head_dim], std: 0.02 } };
        }
        const shape = [axes, ...heads, head_dim / 2];
        return {
            frequencies: { shape, draw: (random) => axial(shape, base, random.normals(size(shape), 0.02)) },
            skew: { shape: [...heads, head_dim, head_dim], std: 0.02 },
        };
    }

    constructor({ head_dim, axes, form, num_heads, base }, parameters) {
        must(
            head_dim % 2 === 0 && head_dim >= 2 * whole("axes", axes),
            `head_dim must be even and at least 2 axes = ${2 * axes}, got ${head_dim}`,
        );
        Object.assign(this, { d: whole("head_dim", head_dim, 2), axes, numHeads: num_heads, parameters });
        this.heads = num_heads === null ? 1 : whole("num_heads", num_heads);
        this.form = choice("form", form, ["cayley", "circulant"]);
        this.base = number("base", base, 1);
        this.bases = this.form === "cayley" ? this.#cayley() : [fourier(head_dim)];
    }

    /** P = (I + S)^-1 (I - S) of each head. */
    #cayley() {
        const { d, heads, parameters } = this;
        return Array.from({ length: heads }, (_, head) => {
            const data = part(parameters.skew, 0, head, heads, d * d);
            const S = skew(d, (i, j) => data[i * d + j]);
            const I = (sign) => square(d, (i, j) => (i === j) + sign * S.data[i * d + j]);
            return solve(I(1), I(-1));
        });
    }

    /** f of one axis and head. */
    #frequencies(axis, head) {
        const { d, heads, parameters } = this;
        if (this.form === "cayley") {
            return part(parameters.frequencies, axis, head, heads, d / 2);
        }
        const c = part(parameters.circulant, axis, head, heads, d);
        return Float64Array.from({ length: d / 2 }, (_, m) => 2 * dot(c, wave(Math.sin, m, d)));
    }

    turn(positions) {
        positions.check(this.axes, "STRING");
        const angles = anglesOf(positions, this.heads, (axis, head) => this.#frequencies(axis, head));
        return new Turn(angles, "half");
    }

    #turned(x, turn) {
        const group = x.heads / this.bases.length;
        const inBasis = x.map(x.dim, (made, old, head) => {
            timesVector(this.bases[Math.floor(head / group)], old, made);
        });
        return turn.apply(inBasis);
    }

    rotate(q, k, queryPositions, keyPositions) {
        checkKeyHeads(k, this.numHeads);
        must(q.dim === this.d && k.dim === this.d, `STRING was made for head_dim ${this.d}, got ${q.dim} and ${k.dim}`);
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (positions) => this.turn(positions));
        return { q: this.#turned(q, ofQ), k: this.#turned(k, ofK) };
    }
}

/** The numbers drawn, plus the frequencies of an axial RoPE, where each axis has its share of the pairs. */
function axial(shape, base, drawn) {
    const [axes, pairs] = [shape[0], shape.at(-1)];
    return drawn.map((x, n) => {
        const [axis, k] = [Math.floor(n / (drawn.length / axes)), n % pairs];
        const first = Math.ceil((axis * pairs) / axes); // the first pair of the axis
        const isOwn = Math.floor((k * axes) / pairs) === axis;
        return isOwn ? x + base ** ((-(k - first) * axes) / pairs) : x;
    });
}

/** cos or sin of 2 pi m t/d, t = 0 .. d - 1. */
const wave = (of, m, d) => Float64Array.from({ length: d }, (_, t) => of((((m * t) % d) * 2 * Math.PI) / d));

/** The real Fourier basis: cosines, then sines; the mean and the alternating channel are the pair 0. */
function fourier(d) {
    const half = d / 2;
    const rows = Array.from({ length: d }, (_, n) => (n <= half ? wave(Math.cos, n, d) : wave(Math.sin, n - half, d)));
    return square(d, (n, t) => rows[n][t] * Math.sqrt((n % half === 0 ? 1 : 2) / d));
}

/** Blocks of channels turn by the exponential of a learned skew-symmetric matrix, linear in the coordinates. */
export class LieRE {
    static learned({ head_dim, axes, block, num_heads, extent }) {
        const heads = num_heads === null ? [] : [num_heads];
        const shape = [axes, ...heads, Math.floor(head_dim / block), block, block];
        return { generators: { shape, uniform: [0, (2 * Math.PI) / extent] } };
    }

    constructor({ head_dim, axes, block, num_heads, extent }, parameters) {
        Object.assign(this, {
            headDim: whole("head_dim", head_dim, 2),
            axes: whole("axes", axes),
            numHeads: num_heads,
        });
        this.block = whole("block", block, 2, head_dim);
        this.heads = num_heads === null ? 1 : whole("num_heads", num_heads);
        number("extent", extent, 0);
        this.generators = parameters.generators;
    }

    /** exp(sum_a p_a A_a): of each head, token and block. */
    matrices(positions) {
        positions.check(this.axes, "LieRE");
        const [b, blocks] = [this.block, Math.floor(this.headDim / this.block)];
        const count = (n, what) => Array.from({ length: n }, (_, i) => what(i));
        const generators = count(this.heads * blocks, (n) =>
            count(this.axes, (axis) => {
                const data = part(this.generators, axis, n, this.heads * blocks, b * b);
                return skew(b, (i, j) => data[i * b + j]);
            }),
        );
        return count(this.heads, (head) =>
            count(positions.length, (token) =>
                count(blocks, (n) => exponential(combined(positions.at(token), generators[head * blocks + n]))),
            ),
        );
    }

    #turned(x, matrices) {
        must(x.dim === this.headDim, `the rotation was made for head_dim ${this.headDim}, got ${x.dim}`);
        const b = this.block;
        return x.map(x.dim, (made, old, head, token) => {
            made.set(old);
            matrices[Math.floor((head * this.heads) / x.heads)][token].forEach((R, n) => {
                timesVector(R, old.subarray(n * b, (n + 1) * b), made.subarray(n * b, (n + 1) * b));
            });
        });
    }

    rotate(q, k, queryPositions, keyPositions) {
        checkKeyHeads(k, this.numHeads);
        const [ofQ, ofK] = ofBoth(queryPositions, keyPositions, (positions) => this.matrices(positions));
        return { q: this.#turned(q, ofQ), k: this.#turned(k, ofK) };
    }
}

/** sum_a p_a A_a. */
function combined(coords, matrices) {
    const { rows, columns } = matrices[0];
    const sum = new Matrix(rows, columns);
    matrices.forEach(({ data }, axis) => data.forEach((x, n) => (sum.data[n] += coords[axis] * x)));
    return sum;
}
