// Words as vectors, and the layers that make queries, keys and values of them: Gaussian numbers that belong to a name,
// the same in JavaScript and in the Python that is printed.

import { Heads, Matrix, dot } from "posenc/math/arrays.js";

const PRIME = 2 ** 31 - 1;
const kept = new Map();

/** `count` numbers from N(0, 1) that belong to a name: Lehmer's generator, begun by its letters, then Box and Muller. */
export function normals(name, count) {
    const found = kept.get(name);
    if (found?.length === count) return found;
    let state = 1;
    for (const letter of name) state = 1 + ((state * 48271 + letter.codePointAt(0)) % (PRIME - 1));
    const uniform = () => (state = (state * 48271) % PRIME) / PRIME;
    const made = Float64Array.from(
        { length: count },
        () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()),
    );
    if (kept.size > 500) kept.clear();
    kept.set(name, made);
    return made;
}

/** `normals` in Python. */
export const NORMALS = `\
import math, torch, posenc

def normals(name, *shape):
    """Numbers from N(0, 1) that belong to a name: Lehmer's generator, then Box and Muller."""
    prime, state, u = 2**31 - 1, 1, []
    for letter in name:
        state = 1 + (state * 48271 + ord(letter)) % (prime - 1)
    for _ in range(2 * math.prod(shape)):
        state = state * 48271 % prime
        u.append(state / prime)
    u = torch.tensor(u, dtype=torch.float64).reshape(*shape, 2)
    return (-2 * u[..., 0].log()).sqrt() * (2 * math.pi * u[..., 1]).cos()
`;

/** The words of a text, and what each is without signs and capitals: `the` and `The,` are the same word. */
export function wordsOf(text) {
    return text
        .split(/\s+/)
        .filter(Boolean)
        .map((word) => ({ word, key: word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "") || word }));
}

/** The vector of each word as a row. */
export function embedded(keys, dim) {
    const x = new Matrix(keys.length, dim);
    keys.forEach((key, token) => x.row(token).set(normals(key, dim)));
    return x;
}

/** x through a linear layer that belongs to a name, cut into heads. */
export function projected(x, name, heads, dim) {
    const weight = normals(name, heads * dim * x.columns);
    const scale = 1 / Math.sqrt(x.columns);
    return new Heads(heads, x.rows, dim).map(dim, (made, _, head, token) => {
        for (let c = 0; c < dim; c++) {
            const start = (head * dim + c) * x.columns;
            made[c] = scale * dot(x.row(token), weight.subarray(start, start + x.columns));
        }
    });
}
