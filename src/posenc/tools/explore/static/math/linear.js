// Linear algebra of small square matrices.

import { Matrix } from "posenc/math/arrays.js";
import { must } from "posenc/math/check.js";

/** The matrix with these entries. */
export function square(n, entry) {
    const made = new Matrix(n, n);
    for (let i = 0; i < n; i++) {
        for (let j = 0; j < n; j++) {
            made.data[i * n + j] = entry(i, j);
        }
    }
    return made;
}

/** A B. */
export function times(A, B) {
    const made = new Matrix(A.rows, B.columns);
    for (let i = 0; i < A.rows; i++) {
        for (let m = 0; m < A.columns; m++) {
            const a = A.data[i * A.columns + m];
            for (let j = 0; j < B.columns; j++) {
                made.data[i * B.columns + j] += a * B.data[m * B.columns + j];
            }
        }
    }
    return made;
}

/** Writes A x into an array. */
export function timesVector(A, x, made) {
    for (let i = 0, n = 0; i < A.rows; i++) {
        let sum = 0;
        for (let j = 0; j < A.columns; j++, n++) {
            sum += A.data[n] * x[j];
        }
        made[i] = sum;
    }
}

/** A^T. */
export function transposed(A) {
    return square(A.rows, (i, j) => A.data[j * A.columns + i]);
}

/** A^-1, by Gauss and Jordan. */
export function inverse(A) {
    const n = A.rows;
    const rows = Array.from({ length: n }, (_, i) => [...A.row(i), ...Array.from({ length: n }, (_, j) => Number(i === j))]);
    for (let i = 0; i < n; i++) {
        let best = i;
        for (let m = i; m < n; m++) {
            best = Math.abs(rows[m][i]) > Math.abs(rows[best][i]) ? m : best;
        }
        [rows[i], rows[best]] = [rows[best], rows[i]];
        rows[i] = rows[i].map((x) => x / rows[i][i]);
        for (let m = 0; m < n; m++) {
            if (m !== i) {
                rows[m] = rows[m].map((x, j) => x - rows[m][i] * rows[i][j]);
            }
        }
    }
    return square(n, (i, j) => rows[i][n + j]);
}

/** The skew-symmetric matrix U - U^T, U the upper triangle of the entries without the diagonal. */
export function skew(n, entry) {
    return square(n, (i, j) => (i < j ? entry(i, j) : i > j ? -entry(j, i) : 0));
}

/** e^A: its series of A/2^s, whose norm is at most 1/2, squared s times. */
export function exponential(A) {
    const n = A.rows;
    let norm = 0;
    for (let i = 0; i < n; i++) {
        norm = Math.max(
            norm,
            A.row(i).reduce((sum, x) => sum + Math.abs(x), 0),
        );
    }
    const squarings = norm > 0.5 ? Math.ceil(Math.log2(norm)) + 1 : 0;
    let [sum, term] = [0, 1].map(() => square(n, (i, j) => Number(i === j)));
    // (1/2)^15 / 15! is below the rounding of 1.
    for (let k = 1; k <= 14; k++) {
        term = times(term, A);
        for (let m = 0; m < n * n; m++) {
            term.data[m] /= k * 2 ** squarings;
            sum.data[m] += term.data[m];
        }
    }
    for (let s = 0; s < squarings; s++) {
        sum = times(sum, sum);
    }
    return sum;
}

/** The X with A X = B, by elimination with the largest pivot of each column. */
export function solve(A, B) {
    const n = A.rows;
    const left = new Matrix(n, n, A.data.slice());
    const right = new Matrix(n, B.columns, B.data.slice());
    for (let c = 0; c < n; c++) {
        let pivot = c;
        for (let i = c + 1; i < n; i++) {
            pivot = Math.abs(left.row(i)[c]) > Math.abs(left.row(pivot)[c]) ? i : pivot;
        }
        must(left.row(pivot)[c] !== 0, "A must be invertible to be solved for, got a singular matrix");
        for (const M of [left, right]) {
            const [a, b] = [M.row(c).slice(), M.row(pivot).slice()];
            M.row(c).set(b);
            M.row(pivot).set(a);
        }
        for (let i = 0; i < n; i++) {
            const share = i === c ? 0 : left.row(i)[c] / left.row(c)[c];
            for (const M of share === 0 ? [] : [left, right]) {
                const [row, from] = [M.row(i), M.row(c)];
                from.forEach((x, j) => (row[j] -= share * x));
            }
        }
    }
    for (let i = 0; i < n; i++) {
        const pivot = left.row(i)[i];
        right.row(i).forEach((x, j, row) => (row[j] = x / pivot));
    }
    return right;
}
