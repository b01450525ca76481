// The skew of relative attention: each query's numbers by distance become numbers by key, by padding and reshaping.

/** What is done to the numbers of L queries by the distances 1 - L .. L - 1, as Python writes it. */
export const steps = (L) => [
    "x = q @ table.T",
    "x = pad(x, (0, 1))",
    "x = x.flatten()",
    `x = pad(x, (0, ${L - 1}))`,
    `x = x.view(${L + 1}, ${2 * L - 1})`,
    `x = x[:${L}, ${L - 1}:]`,
];

/** The shape and the numbers after each of these steps, where each number stands in the line that is read in another
 * width: {shape, places, data}; a place without a number is a zero of the padding. */
export function skew(x, L) {
    const [wide, all] = [2 * L, (L + 1) * (2 * L - 1)];
    const line = Float64Array.from({ length: all }, (_, n) => (n < L * wide && n % wide < wide - 1 ? x[n - Math.floor(n / wide)] : 0));
    const count = (length, each = (n) => n) => Array.from({ length }, (_, n) => each(n));
    const sliced = (n) => Math.floor(n / L) * (wide - 1) + L - 1 + (n % L);
    const made = [
        [[L, wide - 1], count(L * (wide - 1), (n) => n + Math.floor(n / (wide - 1)))],
        [[L, wide], count(L * wide)],
        [[L * wide], count(L * wide)],
        [[all], count(all)],
        [[L + 1, wide - 1], count(all)],
        [[L, L], count(L * L, sliced)],
    ];
    return made.map(([shape, places]) => ({ shape, places, data: Float64Array.from(places, (place) => line[place]) }));
}
