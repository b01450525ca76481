// Numbers that stand in for random ones, and that Python makes too, so that a figure's line gives its picture.

import { Heads } from "posenc/math/arrays.js";

/** sqrt(2) sin(seed n^2), n = 0, 1, ..: of mean 0 and variance 1, without a pattern that the eye sees. */
export const wave = (seed, count) =>
    Float64Array.from({ length: count }, (_, n) => Math.SQRT2 * Math.sin(seed * n * n));

/** The same in Python, of a shape. */
export const WAVE = `def wave(seed, *shape):
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (2**0.5 * (seed * n**2).sin()).reshape(shape)
`;

/** The query and the key of a seed: waves from n = 1 on, as the first number of each is 0. */
export const fixedPair = (dim, seed) => [1, 2].map((n) => wave(2 * seed + n, dim + 1).slice(1));

/** The lines of Python that make q and k of these numbers. */
export const fixedInPython = (dim, seed) =>
    `n = torch.arange(1, ${dim + 1}, dtype=torch.float64)\n` +
    `q, k = (2**0.5 * (seed * n**2).sin() for seed in (${2 * seed + 1}, ${2 * seed + 2}))\n`;

/** As many tokens, all with this vector. */
export const repeated = (tokens, vector) =>
    new Heads(1, tokens, vector.length).map(vector.length, (made) => made.set(vector));
