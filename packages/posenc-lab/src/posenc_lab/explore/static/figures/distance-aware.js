// DA-Transformer's family of factors.

import { minus } from "posenc/elements.js";
import { Heads } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { DistanceAware } from "posenc/math/score/distance_aware.js";
import { agreed, apart, askAttention, named } from "posenc/options.js";
import { attended } from "posenc/use.js";

const REACH = 8; // of R, to either side
const STEPS = 321;

const made = (w, v) => new DistanceAware({ num_heads: 1 }, { w: { data: [w] }, v: { data: [v] } });

function values({ w, v, length }) {
    const R = Float64Array.from({ length: STEPS }, (_, n) => (2 * REACH * n) / (STEPS - 1) - REACH);
    const r = Float64Array.from({ length: length + 1 }, (_, n) => n);
    const [back, on] = [made(-1, v), made(1, v)]; // a factor depends on w |r|: R below 0 has w below 0
    return {
        R,
        r,
        bound: 1 + Math.exp(v),
        family: R.map((x) => (x < 0 ? back : on).factor(0, x)),
        main: r.map((x) => made(w, v).factor(0, x)),
        turned: r.map((x) => made(-w, v).factor(0, x)),
    };
}

export const figure = {
    name: "distance-aware",
    title: "DA-Transformer: the distance rescales the score",
    see:
        "A head learns w and v. With w above 0 far keys' scores grow up to the bound 1 + e^v; with w below 0 they " +
        "fade towards 0, which is a score and not a weight of 0. Raise v: the bound rises, and the factor turns " +
        "steeper.",
    defaults: { w: 0.2, v: 1, length: 40 },
    another: { w: -0.35, v: -1.5, length: 64 },
    controls: [
        { name: "w", label: "w", kind: "range", min: -0.5, max: 0.5, step: 0.01 },
        { name: "v", label: "v", kind: "range", min: -4, max: 4, step: 0.1 },
        { name: "length", label: "up to distance", kind: "range", min: 8, max: 512, log: true },
    ],
    values,
    use: () => attended("posenc.DistanceAware(num_heads=8)"),
    line: ({ w, v, length }) =>
        "import torch, posenc\n\nscheme = posenc.DistanceAware(num_heads=1).double()\n" +
        `w, v = torch.tensor([[${w}], [${v}]], dtype=torch.float64)\nscheme.load_state_dict({"w": w, "v": v})\n` +
        `scheme.factor(torch.arange(${length + 1}, dtype=torch.float64))[0].detach()`,
    compared: ({ length }, { main }) => ({ shape: [length + 1], data: main }),
    mount(box, app) {
        const family = app.lines(box, {
            label: "the factor against R = w |i − j|",
            xLabel: "R = w |i − j|",
            yLabel: "factor f(R; v)",
            height: 280,
        });
        const along = app.lines(box, {
            label: "the factor against the distance",
            xLabel: "distance |i − j| (tokens)",
            yLabel: "factor",
            height: 280,
        });
        return ({ w, v }, { R, r, bound, family: f, main, turned }) => {
            const flat = (x, value) => Float64Array.from(x, () => value);
            const { faint, palette } = app.theme();
            const top = { y: [0, 1.08 * bound] };
            const limits = (x) => [
                { name: `bound 1 + e^v = ${bound.toPrecision(3)}`, y: flat(x, bound), color: faint, dash: [2, 3] },
                { name: "1: as it was", y: flat(x, 1), color: faint, dash: [9, 3], width: 1 },
            ];
            family.draw(R, [{ name: `f(R; v = ${v})`, y: f, color: palette[0], dash: [] }, ...limits(R)], {
                ...top,
                marks: [{ x: 0, name: "f(0) = 1" }],
            });
            along.draw(
                r,
                [
                    { name: `w = ${minus(w)}`, y: main, color: palette[0], dash: [] },
                    { name: `w = ${minus(-w)}`, y: turned, color: palette[1], dash: [12, 4, 4, 4] },
                    ...limits(r),
                ],
                top,
            );
        };
    },
    describe: ({ w, v, length }, { bound, main }) =>
        `w = ${w}, v = ${v}: at a distance of ${length} tokens the score is multiplied by ${main[length].toPrecision(3)}; the bound is ${bound.toPrecision(3)}.`,
    async check(state, numbers, app) {
        const N = Math.min(state.length + 1, 32);
        const one = (n) => new Heads(1, n, 1, new Float64Array(n).fill(1)); // every score is 1 without the factor
        const learned = Object.fromEntries(["w", "v"].map((name) => [name, { shape: [1], data: [state[name]] }]));
        const scheme = named({ name: "distance_aware" }, { num_heads: 1 }, learned);
        const where = { positions: Positions.arange(1), keyPositions: Positions.arange(N) };
        const { logits } = await askAttention(app, [scheme], [one(1), one(N)], where);
        return agreed(N, apart(Array.from(numbers.main.subarray(0, N)), logits.data));
    },
};
