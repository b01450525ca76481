// The decoder of posenc.models in doubles, as posenc compare trains it: bytes in, logits out. What was computed for the
// bytes before a change is kept, since a causal mask makes it depend on nothing later.

import { Heads } from "posenc/math/arrays.js";
import { SCHEMES } from "posenc/math/catalog.js";
import { Positions } from "posenc/math/positions.js";
import { erf } from "posenc/math/special.js";

const EPSILON = 1e-5; // of a layer norm
export const BYTES = 256;

/** A file of weights as arrays by name: floats, then whole numbers that the scale of their row multiplies. */
export function weightsOf(parameters, file) {
    const size = (shape) => shape.reduce((a, b) => a * b, 1);
    const count = parameters.reduce((sum, { shape, is_int8 }) => sum + (is_int8 ? shape[0] : size(shape)), 0);
    const floats = new Float32Array(file.slice(0, 4 * count));
    const integers = new Int8Array(file, 4 * count);
    let [at, atInteger] = [0, 0];
    return Object.fromEntries(
        parameters.map(({ name, shape, is_int8 }) => {
            const scales = floats.subarray(at, (at += is_int8 ? shape[0] : size(shape)));
            if (!is_int8) return [name, { shape, data: Float64Array.from(scales) }];
            const rows = integers.subarray(atInteger, (atInteger += size(shape)));
            return [name, { shape, data: Float64Array.from(rows, (x, n) => x * scales[Math.floor(n / shape[1])]) }];
        }),
    );
}

/** y = W x + b for each of some tokens, four at a time, so that a weight is read once for them. */
function linear({ data, shape: [outputs, inputs] }, bias, x, tokens) {
    const y = new Float64Array(tokens * outputs);
    for (let n = 0; n < tokens; n += 4) {
        // The last ones are computed more than once where fewer than four are left.
        const [a, b, c, d] = [0, 1, 2, 3].map((more) => Math.min(n + more, tokens - 1));
        for (let row = 0; row < outputs; row++) {
            let [p, q, r, s] = [0, 0, 0, 0];
            for (let k = 0, at = row * inputs; k < inputs; k++) {
                const w = data[at + k];
                p += w * x[a * inputs + k];
                q += w * x[b * inputs + k];
                r += w * x[c * inputs + k];
                s += w * x[d * inputs + k];
            }
            const more = bias ? bias.data[row] : 0;
            y[a * outputs + row] = p + more;
            y[b * outputs + row] = q + more;
            y[c * outputs + row] = r + more;
            y[d * outputs + row] = s + more;
        }
    }
    return y;
}

function normed(x, tokens, { data: weight }, { data: bias }) {
    const dim = weight.length;
    const y = new Float64Array(x.length);
    for (let n = 0; n < tokens; n++) {
        const row = x.subarray(n * dim, (n + 1) * dim);
        const mean = row.reduce((a, b) => a + b, 0) / dim;
        const variance = row.reduce((a, b) => a + (b - mean) ** 2, 0) / dim;
        const scale = 1 / Math.sqrt(variance + EPSILON);
        for (let c = 0; c < dim; c++) y[n * dim + c] = (row[c] - mean) * scale * weight[c] + bias[c];
    }
    return y;
}

/** Weights of numbers by the softmax, in their place. */
function softmax(scores) {
    const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    let sum = 0;
    for (let n = 0; n < scores.length; n++) sum += scores[n] = Math.exp(scores[n] - most);
    for (let n = 0; n < scores.length; n++) scores[n] /= sum;
    return scores;
}

export class Decoder {
    /** @param {{layers, heads, weights, scheme: string, options: Object, longest: number}} about the arrays of
     *   weightsOf, and a scheme of math/catalog.js with its options, for texts of at most `longest` bytes */
    constructor({ layers, heads, weights, scheme, options, longest }) {
        Object.assign(this, { layers, heads, weights, longest });
        this.dim = weights["embedding.weight"].shape[1];
        this.scheme = new SCHEMES[scheme](options, { weight: weights["trunk.position.weight"] });
        const cache = () => new Float64Array(longest * this.dim);
        this.kept = Array.from({ length: layers }, () => ({ q: cache(), k: cache(), v: cache() }));
        this.logits = new Float64Array(longest * BYTES);
        this.bytes = [];
        const positions = Positions.arange(1);
        const [piece] = this.scheme.pieces?.({ heads, queryPositions: positions, keyPositions: positions }) ?? [];
        // By head and distance.
        this.bias = Array.from({ length: heads }, (_, head) =>
            Float64Array.from({ length: longest }, (_, n) => piece?.at(head, [-n]) ?? 0),
        );
    }

    /** Reads a text, of which what is as it was before is kept: the rows of `logits` of its bytes are set. */
    read(bytes) {
        if (bytes.length > this.longest) throw new RangeError(`a text must have at most ${this.longest} bytes, got ${bytes.length}`);
        const start = this.shared(bytes);
        this.bytes = Array.from(bytes);
        const tokens = bytes.length - start;
        if (!tokens) return;
        const { weights, dim } = this;
        const x = new Float64Array(tokens * dim);
        for (let n = 0; n < tokens; n++) {
            const row = bytes[start + n] * dim;
            x.set(weights["embedding.weight"].data.subarray(row, row + dim), n * dim);
        }
        for (let layer = 0; layer < this.layers; layer++) this.#block(layer, x, start, tokens);
        const out = normed(x, tokens, weights["trunk.norm.weight"], weights["trunk.norm.bias"]);
        this.logits.set(linear(weights["head.weight"], null, out, tokens), start * BYTES);
    }

    /** How many bytes a text has in common with the last one, from the beginning. */
    shared(bytes) {
        let count = 0;
        while (count < bytes.length && bytes[count] === this.bytes[count]) count++;
        return count;
    }

    #block(layer, x, start, tokens) {
        const of = (name) => this.weights[`trunk.blocks.${layer}.${name}`];
        const add = (y) => y.forEach((value, n) => (x[n] += value));
        const before = normed(x, tokens, of("attention_norm.weight"), of("attention_norm.bias"));
        const project = (name) => linear(of(`attention.${name}.weight`), null, before, tokens);
        const [q, k] = this.#turned(project("query"), project("key"), start, tokens);
        const kept = this.kept[layer];
        for (const [name, some] of Object.entries({ q, k, v: project("value") })) kept[name].set(some, start * this.dim);
        add(linear(of("attention.out.weight"), null, this.#attended(kept, layer, start, tokens), tokens));
        const hidden = normed(x, tokens, of("mlp_norm.weight"), of("mlp_norm.bias"));
        const inner = linear(of("mlp.0.weight"), of("mlp.0.bias"), hidden, tokens);
        for (let n = 0; n < inner.length; n++) inner[n] *= (1 + erf(inner[n] * Math.SQRT1_2)) / 2;
        add(linear(of("mlp.2.weight"), of("mlp.2.bias"), inner, tokens));
    }

    /** Queries and keys, turned by their positions where the scheme turns them. */
    #turned(q, k, start, tokens) {
        if (!this.scheme.rotate) return [q, k];
        const size = this.dim / this.heads; // a head of a token is as a token of one head at that token's position
        const positions = new Positions(Array.from({ length: tokens * this.heads }, (_, n) => start + Math.floor(n / this.heads)));
        const [ofQ, ofK] = [q, k].map((data) => new Heads(1, tokens * this.heads, size, data));
        const turned = this.scheme.rotate(ofQ, ofK, positions, positions, { length: this.longest });
        return [turned.q.data, turned.k.data];
    }

    /** The mean of the values before each token, by its weights. */
    #attended({ v }, layer, start, tokens) {
        const [size, dim] = [this.dim / this.heads, this.dim];
        const out = new Float64Array(tokens * dim);
        for (let n = 0; n < tokens; n++) {
            for (let head = 0; head < this.heads; head++) {
                const weights = this.weightsOf(layer, head, start + n);
                const sum = out.subarray(n * dim + head * size, n * dim + (head + 1) * size);
                for (let j = 0; j < weights.length; j++) {
                    const [weight, at] = [weights[j], j * dim + head * size];
                    for (let c = 0; c < size; c++) sum[c] += weight * v[at + c];
                }
            }
        }
        return out;
    }

    /** The attention of a byte to those up to itself. */
    weightsOf(layer, head, byte) {
        const { dim, bias } = this;
        const { q, k } = this.kept[layer];
        const [size, root] = [dim / this.heads, Math.sqrt(dim / this.heads)];
        const query = q.subarray(byte * dim + head * size, byte * dim + (head + 1) * size);
        const scores = new Float64Array(byte + 1);
        for (let j = 0; j <= byte; j++) {
            const at = j * dim + head * size;
            let sum = 0;
            for (let c = 0; c < size; c++) sum += query[c] * k[at + c];
            scores[j] = sum / root + bias[head][byte - j];
        }
        return softmax(scores);
    }

    /** The probabilities of the byte after one. */
    next(byte) {
        return softmax(this.logits.slice(byte * BYTES, (byte + 1) * BYTES));
    }

    /** The loss of each byte after the first, in bits. */
    get bits() {
        return Float64Array.from(this.bytes.slice(1), (target, n) => -Math.log2(this.next(n)[target]));
    }
}
