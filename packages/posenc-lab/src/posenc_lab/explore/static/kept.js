// A scheme that posenc has computed, as one of math/ has it: vectors that are added, matrices that turn queries and
// keys, and the bias of every score.

import { Heads, Matrix } from "posenc/math/arrays.js";
import { must } from "posenc/math/check.js";

export class Kept {
    constructor({ title, options }, kept) {
        must(!kept.missing, `${title} has no numbers here: ${kept.missing}`);
        const size = Object.fromEntries(options.map(({ name, built }) => [name, built]));
        Object.assign(this, { title, headDim: size.head_dim });
        if (kept.table) {
            const columns = kept.table.length / kept.tokens;
            this.table = this.#table(new Matrix(kept.tokens, columns, Float64Array.from(kept.table)));
        }
        if (kept.query) {
            const [query, key] = [kept.query, kept.key ?? kept.query].map(turning);
            this.rotate = (q, k, queryPositions, keyPositions) => ({
                q: this.#turned(q, query, queryPositions),
                k: this.#turned(k, key, keyPositions),
                scale: kept.scale ?? undefined,
            });
        }
        if (kept.bias) this.pieces = this.#pieces(kept.bias);
    }

    /** The place of a position among the numbers of so many. */
    #place(position, count) {
        must(
            Number.isInteger(position) && position >= 0 && position < count,
            `${this.title} was computed at the positions 0 to ${count - 1}, got ${position}`,
        );
        return position;
    }

    #table(kept) {
        return (positions) => {
            const made = new Matrix(positions.length, kept.columns);
            for (let n = 0; n < positions.length; n++)
                made.row(n).set(kept.row(this.#place(positions.coords[n], kept.rows)));
            return made;
        };
    }

    #turned(x, { heads, width, tokens, matrices }, positions) {
        must(!this.headDim || x.dim === this.headDim, `${this.title} was computed for head_dim ${this.headDim}, got ${x.dim}`);
        must(heads === 1 || x.heads === heads, `${this.title} was computed for ${heads} heads, got ${x.heads}`);
        return x.map(width, (made, old, head, token) => {
            const matrix = matrices.at(heads === 1 ? 0 : head, this.#place(positions.coords[token], tokens));
            for (let row = 0; row < width; row++)
                for (let c = 0; c < old.length; c++) made[row] += matrix[row * old.length + c] * old[c];
        });
    }

    #pieces({ shape: [all, rows, keys], data }) {
        const each = data.length / all;
        const bias = Float64Array.from(data, (x) => x ?? -Infinity);
        const of = (head, n) => bias[(all === 1 ? 0 : head) * each + n];
        const byDistance = keys === undefined;
        const N = byDistance ? (rows + 1) / 2 : rows;
        const far = (r) => this.#place(Math.abs(r), N) * Math.sign(r) + N - 1;
        return ({ heads, queryPositions, keyPositions }) => {
            must(all === 1 || heads === all, `${this.title} was computed for ${all} heads, got ${heads}`);
            const at = byDistance
                ? (head, [r]) => of(head, far(r))
                : (head, r, i, j) =>
                      of(head, this.#place(queryPositions.coords[i], N) * N + this.#place(keyPositions.coords[j], N));
            return [{ kind: "bias", byDistance, at }];
        };
    }
}

/** Matrices by head and token. */
function turning({ shape: [heads, tokens, width, dim], data }) {
    return { heads, width, tokens, matrices: new Heads(heads, tokens, width * dim, Float64Array.from(data)) };
}
