// Vectors of fixed numbers, which look random and which Python can write down as well.

import { Heads } from "posenc/math/arrays.js";

/** sqrt(2) sin(a (c + 1)^2) for c = 0 .. dim - 1: a mean square of about 1. */
export const fixed = (dim, a) => Float64Array.from({ length: dim }, (_, c) => Math.SQRT2 * Math.sin(a * (c + 1) ** 2));

/** The lines of Python that make q and k of these numbers; each seed gives others. */
export const fixedInPython = (dim, seed) =>
    `c = torch.arange(1, ${dim + 1}, dtype=torch.float64)\n` +
    `q, k = (2**0.5 * torch.sin(a * c**2) for a in (${2 * seed + 1}, ${2 * seed + 2}))\n`;

/** The query and the key of a seed. */
export const fixedPair = (dim, seed) => [fixed(dim, 2 * seed + 1), fixed(dim, 2 * seed + 2)];

/** As many tokens, all with this vector. */
export const repeated = (tokens, vector) =>
    new Heads(1, tokens, vector.length).map(vector.length, (made) => made.set(vector));
