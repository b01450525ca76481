// What each scaling does to the wavelengths of RoPE's pairs.

import { Heads } from "posenc/math/arrays.js";
import { logits } from "posenc/math/attend.js";
import { frequencies } from "posenc/math/phases.js";
import { Positions } from "posenc/math/positions.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { scaled } from "posenc/math/scalings.js";
import { agreed, apart, askAttention } from "posenc/options.js";
import { attended } from "posenc/use.js";

/** Of each scaling its class in posenc, and its arguments. */
export const SCALINGS = {
    linear: { of: "PositionInterpolation", given: ({ factor }) => ({ factor }) },
    ntk: { of: "NTKAware", given: ({ factor }) => ({ factor }) },
    dynamic: { of: "DynamicNTK", given: ({ length }) => ({ factor: 1, original_length: length }) },
    yarn: { of: "YaRN", given: ({ factor, length }) => ({ factor, original_length: length }) },
    llama3: { of: "Llama3", given: ({ factor, length }) => ({ factor, original_length: length }) },
    longrope: {
        of: "LongRoPE",
        given: ({ factor, length, dim, longrope }) => {
            const lambda = numbersOf(longrope, dim / 2);
            return { short_factor: lambda, long_factor: lambda, original_length: length, factor };
        },
    },
    proportional: { of: "Proportional", given: ({ share }) => ({ share }) },
};

function numbersOf(text, pairs) {
    const numbers = text
        .split(/[\s,[\]]+/)
        .filter(Boolean)
        .map(Number);
    if (numbers.length !== pairs || !numbers.every((x) => Number.isFinite(x) && x > 0)) {
        throw new RangeError(
            `LongRoPE's list must be ${pairs} numbers above 0, one for each pair, got ${numbers.length}`,
        );
    }
    return numbers;
}

const DASHES = [[9, 3], [2, 3], [9, 3, 2, 3], [5, 2], [12, 4, 4, 4], [1, 2], []]; // of each scaling

/** The names of the scalings that are drawn. */
const chosen = (state) =>
    Object.keys(SCALINGS).filter((name) => (name === "longrope" ? state.longrope.trim() : state[name]));

/** A scaling as JavaScript has it, and as Python writes it. */
export const built = (name, state) => ({ kind: name, ...SCALINGS[name].given(state) });
export const python = (name, state) =>
    `posenc.scalings.${SCALINGS[name].of}(${Object.entries(SCALINGS[name].given(state))
        .map(([key, value]) => `${key}=${JSON.stringify(value)}`)
        .join(", ")})`;

/** The pair, as a fraction, whose plain wavelength is that length. */
const meets = (length, { base, dim }) => ((dim / 2) * Math.log(length / (2 * Math.PI))) / Math.log(base);

export const figure = {
    name: "scalings",
    title: "Wavelengths under every scaling",
    see:
        "A pair whose wavelength is above the trained length L has not completed a turn in training: a longer text shows " +
        "the model angles that are new to it, unless the pair is slowed down by the factor. YaRN's bands are shaded: " +
        "fast pairs stay, slow ones are divided by the factor, and those between are mixed.",
    defaults: {
        factor: 4,
        length: 4096,
        tokens: 16384,
        base: 10000,
        dim: 128,
        share: 0.25,
        linear: true,
        ntk: true,
        dynamic: false,
        yarn: true,
        llama3: true,
        proportional: false,
        longrope: "",
    },
    another: {
        factor: 8,
        length: 1024,
        tokens: 5120,
        base: 500000,
        dim: 8,
        share: 0.5,
        linear: false,
        dynamic: true,
        proportional: true,
        longrope: "1, 1.5, 4, 8",
    },
    controls: ({ dynamic, proportional }) => [
        { name: "factor", label: "factor", kind: "range", min: 1, max: 64, log: true, step: 0.25 },
        { name: "length", label: "trained length L", kind: "range", min: 256, max: 131072, log: true, step: 256 },
        { name: "base", label: "base", kind: "range", min: 100, max: 10_000_000, log: true, step: 1 },
        { name: "dim", label: "head_dim", kind: "range", min: 8, max: 256, step: 8 },
        ...["linear", "ntk", "dynamic", "yarn", "llama3", "proportional"].map((name) => ({
            name,
            label: name,
            kind: "check",
        })),
        ...(dynamic
            ? [
                  {
                      name: "tokens",
                      label: "dynamic: tokens of the text",
                      kind: "range",
                      min: 256,
                      max: 2 ** 20,
                      log: true,
                      step: 256,
                  },
              ]
            : []),
        ...(proportional
            ? [{ name: "share", label: "proportional: share that turns", kind: "range", min: 0, max: 1, step: 0.05 }]
            : []),
        {
            name: "longrope",
            label: "longrope: the long_factor of a configuration, a number for each pair (there is no formula)",
            kind: "text",
            longest: 8000,
        },
    ],
    values(state) {
        const theta = frequencies(state.dim, state.base);
        const lines = chosen(state).map((name) => {
            const { theta: found, factor } = scaled(built(name, state), theta, state.tokens);
            return {
                name,
                theta: found,
                factor,
                wavelength: found.map((x) => (x ? (2 * Math.PI) / x : NaN)),
                divided: theta.map((x, k) => (found[k] ? x / found[k] : NaN)),
            };
        });
        return {
            theta,
            lines,
            wavelength: theta.map((x) => (2 * Math.PI) / x),
            past: theta.filter((x) => (2 * Math.PI) / x > state.length).length,
        };
    },
    use(state) {
        const [name] = chosen(state);
        const scaling = name ? `, scaling=${python(name, state)}` : "";
        return attended(`posenc.RoPE(head_dim=${state.dim}, base=${state.base}${scaling})`, {
            dim: state.dim,
            more: ["is_causal=True"],
        });
    },
    line: (state) =>
        `scalings = [\n    None,\n${chosen(state)
            .map((name) => `    ${python(name, state)},\n`)
            .join("")}]\n` +
        `ropes = [posenc.RoPE(${state.dim}, base=${state.base}, scaling=scaling) for scaling in scalings]\n` +
        `n = torch.tensor([${state.tokens}])  # the tokens of the text, which some scalings depend on\n` +
        `torch.stack([rope.frequencies(lengths=n if rope.needs_lengths else None)[0][0] for rope in ropes])`,
    compared: ({ dim }, { theta, lines }) => ({
        shape: [lines.length + 1, dim / 2],
        data: [theta, ...lines.map((one) => one.theta)].flatMap((x) => [...x]),
    }),
    async check(state, { lines }, app) {
        const { dim, base, tokens } = state;
        // A query of ones at 0 and keys of ones at places up to the last of the text, whose length scalings see.
        const places = Array.from({ length: 32 }, (_, n) => Math.round((tokens - 1) ** (n / 31)));
        const [one, many] = [
            new Heads(1, 1, dim, new Float64Array(dim).fill(1)),
            new Heads(1, 32, dim, new Float64Array(32 * dim).fill(1)),
        ];
        const options = { positions: new Positions([0]), keyPositions: new Positions(places) };
        let most = 0;
        for (const { name } of lines) {
            const scheme = new RoPE({ head_dim: dim, base, scaling: built(name, state) });
            const ours = logits(scheme, one, many, options).data;
            const scaling = { ...built(name, state), kind: SCALINGS[name].of };
            const rope = { name: "rope", options: { head_dim: dim, base, scaling } };
            const said = await askAttention(app, [rope], [one, many], options);
            most = Math.max(most, apart(ours, said.logits.data));
        }
        const reach = tokens.toLocaleString("en");
        return `${agreed(32 * lines.length, most)} (scores by these frequencies, up to ${reach} tokens)`;
    },
    mount(box, app) {
        const above = app.lines(box, {
            label: "wavelengths of the pairs",
            xLabel: "pair of channels (0 turns fastest)",
            yLabel: "wavelength (tokens per turn)",
            height: 340,
            logY: true,
        });
        const below = app.lines(box, {
            label: "by what frequencies are divided",
            xLabel: "pair of channels (0 turns fastest)",
            yLabel: "frequency divided by",
            height: 340,
        });
        return (state, { lines, wavelength }) => {
            const { factor, length, dim } = state;
            const pairs = Array.from({ length: dim / 2 }, (_, k) => k);
            const { ink, faint, palette } = app.theme();
            const level = (name, at, dash) => ({ name, y: pairs.map(() => at), color: faint, dash, width: 1, isFixed: true });
            const look = ({ name }) => {
                const n = Object.keys(SCALINGS).indexOf(name);
                return { color: palette[1 + (n % (palette.length - 1))], dash: DASHES[n] };
            };
            const label = ({ name, factor: of }) =>
                of === 1 ? name : `${name}, cos and sin × ${Number(of.toPrecision(3))}`;
            const place = meets(length, state);
            const marks = place >= 0 && place <= pairs.at(-1) ? [{ x: place, name: "wavelength L" }] : [];
            const spans = bandsOf(lines, state, app.theme());
            const plain = { name: "no scaling", y: wavelength, color: ink, dash: [], width: 3, isFixed: true };
            const levels = [level("trained length L", length, [2, 2]), level("wanted length", factor * length, [6, 6])];
            const scaledLines = lines.map((one) => ({ name: label(one), y: one.wavelength, ...look(one) }));
            above.draw(pairs, [plain, ...scaledLines, ...levels], { marks, spans });
            const dividedLines = lines.map((one) => ({ name: one.name, y: one.divided, ...look(one) }));
            const nameless = (all) => all.map((one) => ({ ...one, name: "" })); // said above
            below.draw(pairs, [level("the factor", factor, [6, 6]), ...dividedLines], {
                marks: nameless(marks),
                spans: nameless(spans),
            });
        };
    },
    describe(state, { lines, past }) {
        const words = (x) => Number(x.toPrecision(3)).toLocaleString("en");
        const says = lines.flatMap(({ name, divided, theta }) => {
            const slowest = divided.filter(Number.isFinite).at(-1);
            const still = theta.filter((x) => x === 0).length;
            return [
                ...(slowest ? [`${name} divides the slowest turning pair by ${words(slowest)}`] : []),
                ...(still ? [`under ${name} ${still} pairs do not turn`] : []),
            ];
        });
        const [trained, wanted] = [state.length, state.factor * state.length].map((x) => x.toLocaleString("en"));
        return (
            `${past} of ${state.dim / 2} pairs do not complete a turn in ${trained} tokens; ${wanted} tokens are wanted. ` +
            (says.length ? `${says.join("; ")}.` : "No scaling is chosen.")
        );
    },
};

/** YaRN's three bands, read off its frequencies. */
function bandsOf(lines, { factor, dim }, theme) {
    const divided = lines.find((one) => one.name === "yarn")?.divided;
    if (!divided || factor === 1) return [];
    const near = (x, y) => Math.abs(x - y) < 1e-9 * y;
    const [kept, slow] = [divided.filter((x) => near(x, 1)).length, divided.filter((x) => near(x, factor)).length];
    const last = dim / 2 - 1;
    const [low, high] = [Math.min(Math.max(kept - 0.5, 0), last), Math.min(Math.max(last - slow + 0.5, 0), last)];
    return [
        { from: 0, to: low, color: "transparent", name: "kept" },
        { from: low, to: high, color: theme.grid, name: "ramp" },
        { from: high, to: last, color: theme.unseen, name: "YaRN: divided" },
    ].filter(({ from, to }) => to > from);
}
