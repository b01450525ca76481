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

/** As many tokens, all with this vector. */
export const repeated = (tokens, vector) =>
    new Heads(1, tokens, vector.length).map(vector.length, (made) => made.set(vector));
