// The matrix that carries the vector of a position to that of another, k further.

import { Matrix, dot, matrixOf } from "posenc/math/arrays.js";
import { Sinusoidal } from "posenc/math/add.js";
import { solve } from "posenc/math/linear.js";
import { Positions } from "posenc/math/positions.js";
import { agreed } from "posenc/options.js";
import { added } from "posenc/use.js";
import { before } from "posenc/vectors.js";

const FITTED = 64; // pairs of positions that a matrix is fitted to
const TOKENS = 160;

/** M with P[p + k] = M P[p]: each sine and cosine of one frequency are turned by k theta. */
export function rotation({ dim, theta, layout }, k) {
    const M = new Matrix(dim, dim);
    theta.forEach((one, n) => {
        const [sin, cos] = layout === "interleaved" ? [2 * n, 2 * n + 1] : [n, n + theta.length];
        M.row(sin)[sin] = M.row(cos)[cos] = Math.cos(k * one);
        M.row(sin)[cos] = Math.sin(k * one);
        M.row(cos)[sin] = -Math.sin(k * one);
    });
    return M;
}

/** The M that comes closest, in the sum of squares over the first pairs: sum y x^T (sum x x^T)^-1. */
function fitted(P, k) {
    const { columns: dim } = P;
    const [own, across] = [new Matrix(dim, dim), new Matrix(dim, dim)];
    for (let p = 0; p < FITTED; p++) {
        const [x, y] = [P.row(p), P.row(p + k)];
        for (let a = 0; a < dim; a++) {
            for (let b = 0; b < dim; b++) {
                own.row(a)[b] += x[a] * x[b];
                across.row(a)[b] += x[a] * y[b];
            }
        }
    }
    const transposed = solve(own, across);
    return new Matrix(
        dim,
        dim,
        Float64Array.from(transposed.data, (_, n) => transposed.data[(n % dim) * dim + Math.floor(n / dim)]),
    );
}

/** |P[p + k] - M P[p]| / |P[p + k]| of every p. */
function residuals(P, M, k) {
    return Float64Array.from({ length: P.rows - k }, (_, p) => {
        const wanted = P.row(p + k);
        let missed = 0;
        for (let a = 0; a < wanted.length; a++) missed += (wanted[a] - dot(M.row(a), P.row(p))) ** 2;
        return Math.sqrt(missed / dot(wanted, wanted));
    });
}

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

export const figure = {
    name: "linear-map",
    title: "One matrix from each position to the one k further on",
    see: "One matrix carries every vector of the sinusoid k positions on: a rotation, in blocks of two, the fast ones first. For a table before training the best matrix misses, and most of all where it was not fitted.",
    defaults: { dim: 16, k: 3, base: 10000, layout: "interleaved", seed: 0 },
    another: { dim: 24, k: 10, base: 100, layout: "concatenated", seed: 1 },
    controls: [
        { name: "k", label: "k, positions on", kind: "range", min: 1, max: 64 },
        { name: "dim", label: "dim", kind: "range", min: 4, max: 32, step: 2 },
        { name: "base", label: "base", kind: "range", min: 2, max: 1000000, log: true, step: 1 },
        { name: "layout", label: "layout", kind: "choice", choices: ["interleaved", "concatenated", "tensor2tensor"] },
        { name: "seed", label: "seed of the learned table", kind: "range", min: 0, max: 20 },
    ],
    values({ dim, k, base, layout, seed }) {
        const scheme = new Sinusoidal({ dim, base, layout, axes: 1 });
        const P = scheme.table(Positions.arange(TOKENS));
        const learned = matrixOf(before({ max_positions: TOKENS, dim }, seed));
        const [turn, fit] = [rotation(scheme, k), fitted(learned, k)];
        return { P, turn, fit, exact: residuals(P, turn, k), missed: residuals(learned, fit, k) };
    },
    use: ({ dim, base, layout }) =>
        added(`posenc.Sinusoidal(dim=${dim}, base=${base}, layout="${layout}")`, { tokens: TOKENS, dim }),
    line({ dim, k, base, layout, seed }) {
        return [
            "from posenc.rotation.phases import drawn",
            `# So a posenc.Learned(${TOKENS}, ${dim}) may begin:`,
            `W = 0.02 * drawn(${TOKENS * dim}, ${seed}).view(${TOKENS}, ${dim})`,
            `fit = torch.linalg.lstsq(W[:${FITTED}], W[${k}:${FITTED + k}]).solution.T`,
            `scheme = posenc.Sinusoidal(${dim}, base=${base}, layout="${layout}")`,
            `torch.stack([scheme.linear_map([${k}]), fit])`,
        ].join("\n");
    },
    compared(values) {
        const { turn, fit } = figure.values(values);
        return { shape: [2, values.dim, values.dim], data: Float64Array.of(...turn.data, ...fit.data) };
    },
    mount(box, app) {
        const size = 260;
        const [turned, fitting] = ["sinusoid", "learned, best fit"].map((what) =>
            app.heat(box, {
                label: `M of the ${what}`,
                rowLabel: `to dimension (${what})`,
                columnLabel: "from dimension",
                size,
            }),
        );
        const plot = app.lines(box, {
            label: "what the matrix misses, by position",
            xLabel: "position p",
            yLabel: "|P[p+k] − M P[p]| / |P[p+k]|",
        });
        return ({ dim, k }, { turn, fit, exact, missed }) => {
            turned.draw(turn.data, { rows: dim, columns: dim, low: -1, high: 1, centre: 0 });
            fitting.draw(fit.data, { rows: dim, columns: dim, centre: 0 });
            const series = [
                { name: "sinusoid, its rotation", y: exact },
                { name: "learned table before training, best fit", y: missed },
            ];
            const top = Math.max(1.1, 1.05 * Math.max(...missed));
            plot.draw(
                Float64Array.from(exact, (_, p) => p),
                series,
                {
                    spans: [{ from: 0, to: FITTED - 1, name: "fitted to these" }],
                    y: [-0.05, Math.ceil(10 * top) / 10],
                    x: [0, TOKENS - k - 1],
                },
            );
        };
    },
    describe({ k }, { exact, missed }) {
        const [seen, unseen] = [mean(missed.subarray(0, FITTED)), mean(missed.subarray(FITTED))];
        return `Over ${k} positions the sinusoid's rotation misses at most ${Math.max(...exact).toExponential(0)} of a vector's length. The best matrix for the learned table misses ${seen.toFixed(2)} on the positions that it was fitted to and ${unseen.toFixed(2)} on the others, on average.`;
    },
    async check({ dim, k, base, layout }, { P, turn }, app) {
        const positions = Array.from({ length: 32 }, (_, p) => [p + k]);
        const { table } = await app.ask("table", {
            scheme: { name: "sinusoidal", options: { dim, base, layout, axes: 1 } },
            positions,
        });
        let most = 0;
        for (let p = 0; p < 32; p++) {
            for (let a = 0; a < dim; a++)
                most = Math.max(most, Math.abs(dot(turn.row(a), P.row(p)) - table.data[p * dim + a]));
        }
        return agreed(32 * dim, most);
    },
};
