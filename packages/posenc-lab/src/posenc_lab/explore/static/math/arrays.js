// Arrays of doubles with their sizes. Views share memory with what they are views of.

/** (rows, columns). */
export class Matrix {
    constructor(rows, columns, data = new Float64Array(rows * columns)) {
        Object.assign(this, { rows, columns, data });
    }

    /** The matrix of at(row, column). */
    static of(rows, columns, at) {
        const made = new Matrix(rows, columns);
        for (let row = 0, n = 0; row < rows; row++) for (let c = 0; c < columns; c++, n++) made.data[n] = at(row, c);
        return made;
    }

    /** A view of one row. */
    row(i) {
        return this.data.subarray(i * this.columns, (i + 1) * this.columns);
    }
}

/** (heads, tokens, dim): queries, keys, values or the output. */
export class Heads {
    constructor(heads, tokens, dim, data = new Float64Array(heads * tokens * dim)) {
        Object.assign(this, { heads, tokens, dim, data });
    }

    /** A view of one token's vector in one head. */
    at(head, token) {
        const start = (head * this.tokens + token) * this.dim;
        return this.data.subarray(start, start + this.dim);
    }

    /** As many heads and tokens, each vector made of the old one by fill(new, old, head, token). */
    map(dim, fill) {
        const made = new Heads(this.heads, this.tokens, dim);
        for (let head = 0; head < this.heads; head++) {
            for (let token = 0; token < this.tokens; token++) {
                fill(made.at(head, token), this.at(head, token), head, token);
            }
        }
        return made;
    }
}

/** (heads, queries, keys): scores or weights. */
export class Pairs {
    constructor(heads, queries, keys, data = new Float64Array(heads * queries * keys)) {
        Object.assign(this, { heads, queries, keys, data });
    }

    /** A view of one query's row in one head. */
    row(head, query) {
        const start = (head * this.queries + query) * this.keys;
        return this.data.subarray(start, start + this.keys);
    }
}

/** The inner product. */
export function dot(a, b) {
    let sum = 0;
    for (let c = 0; c < a.length; c++) sum += a[c] * b[c];
    return sum;
}

/** A parameter {shape, data} of two axes as a matrix. */
export function matrixOf({ shape, data }) {
    return new Matrix(shape[0], shape[1], data);
}
