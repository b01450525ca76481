// A scheme of the user's own, or a composition, as numbers that posenc computed of it: vectors that are added, matrices
// that turn queries and keys, and the bias of every score, at the positions 0 .. tokens - 1.

import { Heads, Matrix } from "posenc/math/arrays.js";
import { must } from "posenc/math/check.js";

export class Kept {
    constructor({ title, own, options }) {
        must(!own.missing, `${title} has no numbers here: ${own.missing}`);
        const size = Object.fromEntries(options.map(({ name, built }) => [name, built]));
        Object.assign(this, { title, tokens: own.tokens, numHeads: size.num_heads, headDim: size.head_dim });
        if (own.table) this.table = this.#table(new Matrix(own.tokens, size.dim, Float64Array.from(own.table)));
        if (own.query) {
            const [query, key] = [own.query, own.key].map(turning);
            this.rotate = (q, k, queryPositions, keyPositions) => ({
                q: this.#turned(q, query, queryPositions),
                k: this.#turned(k, key, keyPositions),
                scale: own.scale ?? undefined,
            });
        }
        if (own.bias) this.pieces = this.#pieces(own.bias);
    }

    /** The place of a position among the numbers. */
    #place(position) {
        must(
            Number.isInteger(position) && position >= 0 && position < this.tokens,
            `${this.title} was computed at the positions 0 to ${this.tokens - 1}, got ${position}`,
        );
        return position;
    }

    #table(kept) {
        return (positions) => {
            const made = new Matrix(positions.length, kept.columns);
            for (let n = 0; n < positions.length; n++) made.row(n).set(kept.row(this.#place(positions.coords[n])));
            return made;
        };
    }

    #turned(x, { heads, width, matrices }, positions) {
        must(x.dim === this.headDim, `${this.title} was computed for head_dim ${this.headDim}, got ${x.dim}`);
        must(heads === 1 || x.heads === heads, `${this.title} was computed for ${heads} heads, got ${x.heads}`);
        return x.map(width, (made, old, head, token) => {
            const at = this.#place(positions.coords[token]);
            const matrix = matrices.at(heads === 1 ? 0 : head, at);
            for (let row = 0; row < width; row++)
                for (let c = 0; c < old.length; c++) made[row] += matrix[row * old.length + c] * old[c];
        });
    }

    #pieces({ shape: [all, , keys], data }) {
        const N = this.tokens;
        const each = data.length / all;
        const bias = Float64Array.from(data, (x) => x ?? -Infinity);
        const of = (head, n) => bias[(all === 1 ? 0 : head) * each + n];
        const byDistance = keys === undefined;
        const far = (r) => this.#place(Math.abs(r)) * Math.sign(r) + N - 1;
        return ({ heads, queryPositions, keyPositions }) => {
            must(heads === this.numHeads, `${this.title} was computed for ${this.numHeads} heads, got ${heads}`);
            const at = byDistance
                ? (head, [r]) => of(head, far(r))
                : (head, r, i, j) =>
                      of(head, this.#place(queryPositions.coords[i]) * N + this.#place(keyPositions.coords[j]));
            return [{ kind: "bias", byDistance, at }];
        };
    }
}

/** Matrices by head and token. */
function turning({ shape: [heads, tokens, width, dim], data }) {
    return { heads, width, matrices: new Heads(heads, tokens, width * dim, Float64Array.from(data)) };
}
