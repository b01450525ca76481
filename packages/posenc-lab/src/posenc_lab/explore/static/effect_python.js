// What a scheme does to every two tokens, in Python: the same numbers as effect.js has.

import { axesOf, callOf, ofGrid, ofLine } from "posenc/effect.js";
import { attend } from "posenc/math/attend.js";
import { Positions } from "posenc/math/positions.js";
import { learnedOf, python } from "posenc/options.js";

const DOUBLE = "dtype=torch.float64";

/** Whether it begins with numbers that PyTorch would draw otherwise. */
export function isDrawn({ entry, options }) {
    const learned = Object.values(learnedOf(entry, options));
    const isNot = ({ std, uniform, fill }) => std || uniform || Math.fround(fill) !== fill;
    return entry.name === "cope" || learned.some(isNot);
}

/** The lines of the scheme with these sizes; of what begins at random how many numbers it learns. */
export function pythonOf(one, sizes) {
    const begin = ["import torch, posenc", "", `scheme = ${python(one.entry, one.options)}`];
    const lines = isDrawn(one) ? COUNTED : FAMILIES[one.family](one, callFor(one, sizes));
    return [...begin, ...lines].join("\n");
}

/** The numbers that these lines compute, {shape, data}. */
export function comparedOf(one, { tokens, side, head }) {
    const { scheme, entry, options, parameters, family } = one;
    if (isDrawn(one)) {
        const count = Object.values(parameters).reduce((sum, { data }) => sum + data.length, 0);
        return { shape: [], data: Float64Array.of(count) };
    }
    if (axesOf(entry) > 1) {
        return { shape: [side, side], data: ofGrid(scheme, entry, options, family, side).matrix(head - 1) };
    }
    const shape = [tokens, tokens];
    if (family !== "content") {
        return { shape, data: ofLine(scheme, entry, options, family, tokens).matrix(head - 1) };
    }
    const { q, k, features } = callOf(scheme, entry, options, family, Positions.arange(tokens));
    for (const { data } of [q, k, ...Object.values(features)]) data.fill(0);
    const { logits } = attend(scheme, q, k, k, { causal: true, features });
    return { shape, data: logits.data.slice((head - 1) * tokens ** 2, head * tokens ** 2) };
}

const COUNTED = [
    "# What it learns begins at random, in PyTorch with other numbers than here; this is how many they are.",
    "torch.tensor(sum(parameter.numel() for parameter in scheme.parameters()))",
];

/** The sizes of a call, the line of its positions, the place `at` of what is shown, and a call of posenc.logits. */
function callFor({ entry, options, scheme }, { tokens, side, head }) {
    const axes = axesOf(entry);
    const [N, middle] = axes === 1 ? [tokens, 0] : [side * side, (side >> 1) * (side + 1)];
    const grid = `grid(${side}, ${side}${axes === 3 ? ", frames=1" : ""})`;
    return {
        heads: options.num_heads ?? 1,
        dim: options.head_dim ?? 16,
        N,
        places: `positions = ${typeof scheme.grid === "function" ? "scheme" : "posenc.Positions"}.${axes === 1 ? `arange(${N})` : grid}`,
        at: axes === 1 ? `[0, ${head - 1}]` : `[0, ${head - 1}, ${middle}].reshape(${side}, ${side})`,
        logits: (q, k, more = "") =>
            `posenc.logits(${q}, ${k}, scheme, query_positions=positions, key_positions=positions${more})`,
    };
}

const FAMILIES = {
    add: ({ options }, { places }) => [
        places,
        "P = scheme.table(positions, torch.float64)[0]",
        `P @ P.mT / ${options.dim}`,
    ],
    rotate: (_, { heads, dim, N, places, at, logits }) => [
        places,
        `x = torch.full((1, ${heads}, ${N}, ${dim}), ${dim} ** -0.25, ${DOUBLE})`,
        `${logits("x", "x")}${at}`,
    ],
    bias: (_, { heads, dim, N, places, at, logits }) => [
        places,
        `x = torch.zeros(1, ${heads}, ${N}, ${dim}, ${DOUBLE})`,
        `${logits("x", "x")}${at}`,
    ],
    content({ scheme, entry, options, family }, { heads, dim, N, at }) {
        const [[feature, { dim: width } = {}] = []] = Object.entries(
            callOf(scheme, entry, options, family, Positions.arange(2)).features,
        );
        const projected = `{"${feature}": torch.zeros(1, ${heads}, ${N}${width > 1 ? `, ${width}` : ""}, ${DOUBLE})}`;
        return [
            "# In the picture tokens are Gaussian; here all are 0.",
            `x = torch.zeros(1, ${heads}, ${N}, ${dim}, ${DOUBLE})`,
            `encoding = scheme(posenc.Positions.arange(${N}), ${DOUBLE})${feature ? `.with_projected(${projected})` : ""}`,
            `posenc.logits(x, x, encoding, is_causal=True)${at}`,
        ];
    },
};
