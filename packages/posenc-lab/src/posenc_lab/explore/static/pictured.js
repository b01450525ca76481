// Rotary schemes of several axes, with the tokens of a picture or a video and of the text around it.

import { Positions } from "posenc/math/positions.js";
import { AxialRoPE, MRoPE, RoPE3D } from "posenc/math/rotate/axes.js";
import { literal } from "posenc/options.js";

const AFTER = 2; // tokens of text after the picture

export const SCHEMES = [
    { value: "mrope-sections", name: "MRoPE, sections (Qwen2-VL)" },
    { value: "mrope-interleaved", name: "MRoPE, interleaved (Qwen3-VL)" },
    { value: "mrope-ernie", name: "MRoPE, ernie (ERNIE 4.5 VL)" },
    { value: "axial-index", name: "AxialRoPE, index (Heo et al.)" },
    { value: "axial-llama4", name: "AxialRoPE, llama4" },
    { value: "axial-dinov3", name: "AxialRoPE, dinov3" },
    { value: "rope_3d", name: "RoPE3D (Wan 2.1), of a video" },
];

export const isText = ({ scheme }) => scheme.startsWith("mrope");
/** The shares of the channels whose pairs turn by the row, in the models that are named above. */
export const ROW_SHARE = { sections: 24 / 128, interleaved: 20 / 128, ernie: 22 / 128 };

export const isVideo = ({ scheme }) => scheme === "rope_3d";

/** {name, options, scheme, positions, groups, python}: what a state names. Groups say which tokens lie where. */
export function named(state) {
    const { scheme, dim, base, each, height, width, text, frames } = state;
    const [family, form] = scheme.split("-");
    const patches = height * width;
    if (family === "mrope") {
        const options = { head_dim: dim, sections: [dim / 2 - 2 * each, each, each], form, base };
        const last = text + Math.max(1, height, width); // where the text goes on
        const line = (n, from) => Array.from({ length: n }, (_, i) => new Array(3).fill(from + i));
        const image = Array.from({ length: patches }, (_, n) => [
            text,
            text + Math.floor(n / width),
            text + (n % width),
        ]);
        return {
            name: "mrope",
            options,
            scheme: new MRoPE(options),
            letters: "thw",
            positions: new Positions([...line(text, 0), ...image, ...line(AFTER, last)]),
            groups: [
                { name: "text", count: text },
                { name: "image", count: patches },
                { name: "text", count: AFTER },
            ],
            python: [
                `posenc.MRoPE(${dim}, ${literal(options.sections)}, "${form}", base=${base})`,
                `posenc.Positions.multimodal([${text}, (1, ${height}, ${width}), ${AFTER}])`,
            ],
        };
    }
    if (family === "axial") {
        const options = { head_dim: dim, convention: form };
        const left = { base: null, rotary_dim: null, extent: null, shift: null, jitter: null, rescale: null };
        const axial = new AxialRoPE({ ...options, ...left });
        return {
            name: "axial_rope",
            options,
            scheme: axial,
            letters: "hw",
            positions: axial.grid(height, width, { prefix: 1 }),
            groups: [
                { name: "class token", count: 1 },
                { name: "image", count: patches },
            ],
            python: [`posenc.AxialRoPE(${dim}, "${form}")`, `scheme.grid(${height}, ${width}, prefix=1)`],
        };
    }
    const options = { head_dim: dim, shares: null, base, form: "rotation" };
    return {
        name: "rope_3d",
        options: { head_dim: dim, base },
        scheme: new RoPE3D(options),
        letters: "thw",
        positions: Positions.grid(height, width, { frames }),
        groups: Array.from({ length: frames }, (_, t) => ({ name: `frame ${t}`, count: patches })),
        python: [`posenc.RoPE3D(${dim}, base=${base})`, `posenc.Positions.grid(${height}, ${width}, frames=${frames})`],
    };
}

/** The most pairs of the row: interleaved, every third pair is one, and more would be cut off at the last. */
export const mostOf = ({ scheme, dim }) => Math.floor(dim / (scheme === "mrope-interleaved" ? 6 : 4));

export const tokensOf = ({ scheme, height, width, text, frames }) =>
    height * width * (isVideo({ scheme }) ? frames : 1) +
    (isText({ scheme }) ? text + AFTER : isVideo({ scheme }) ? 0 : 1);
