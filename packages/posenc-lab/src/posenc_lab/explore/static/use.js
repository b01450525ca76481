// What one copies: a call of posenc with the scheme of a figure. Comments before it say which tensors it takes, and of
// which shape, as tests make them.

import { FEATURES, axesOf } from "posenc/effect.js";
import { SCHEMES } from "posenc/math/catalog.js";
import { literal, python } from "posenc/options.js";

/** A comment that says what a tensor of the caller's is. */
export const takes = (names, dims, shape) => `# ${names}: (${dims}), here (${shape.join(", ")})`;

/** A call of attention with a scheme in Python; `before` are lines that it needs, `more` arguments after the scheme. */
export function attended(scheme, { heads = 8, tokens = 64, dim = 64, before = [], more = [] } = {}) {
    const call = ["q", "k", "v", scheme, ...more].filter(Boolean).join(", ");
    return [
        takes("q, k, v", "batch, heads, tokens, head_dim", [2, heads, tokens, dim]),
        ...before,
        `out = posenc.attention(${call})`,
    ].join("\n");
}

/** The scheme's vectors added to the tokens at these positions. */
export const added = (scheme, { tokens, dim, positions = `posenc.Positions.arange(${tokens})` }) =>
    `${takes("x", "batch, tokens, dim", [2, tokens, dim])}\nx = ${scheme}(${positions}).add(x)`;

export const causalArgument = (causal) => (causal ? ["is_causal=True"] : []);

/** The scheme, or several added, {entry, options}[], in a model with their sizes: in a line of tokens, or a picture of
 * `side` patches to a side. */
export function use(parts, sizes) {
    const imports = [...new Set(parts.map(({ entry }) => entry.own?.imports).filter(Boolean))];
    return [...imports, ...(imports.length ? [""] : []), called(parts, sizes)].join("\n");
}

function called(parts, { tokens = 64, side = 8, causal = false } = {}) {
    const scheme = parts.map(({ entry, options }) => entry.own?.call ?? python(entry, options)).join(" + ");
    const options = Object.assign({}, ...parts.map((part) => part.options));
    const doors = parts.flatMap(({ entry }) => entry.doors);
    const axes = Math.max(...parts.map(({ entry }) => axesOf(entry)));
    const N = axes === 1 ? tokens : side * side;
    const [heads, dim, width] = [options.num_heads ?? 8, options.head_dim ?? 64, options.dim ?? 512];
    const grid = `grid(${side}, ${side}${axes === 3 ? ", frames=1" : ""})`;
    const hasOwnGrid = parts.some(({ entry }) => typeof SCHEMES[entry.name]?.prototype.grid === "function");
    const isSegment = parts.some(({ entry }) => entry.needs_segments);
    const positions =
        axes > 1
            ? `${hasOwnGrid ? "scheme" : "posenc.Positions"}.${grid}`
            : `posenc.Positions.arange(${N})${isSegment ? ".with_segment(segment)" : ""}`;
    const segment = isSegment ? [takes("segment, whole numbers", "batch, tokens", [1, N])] : [];
    if (doors.length && doors.every((door) => door === "add"))
        return [
            ...segment,
            added(scheme.includes(" + ") ? `(${scheme})` : scheme, { tokens: N, dim: width, positions }),
        ].join("\n");
    const more = causalArgument(causal);
    const sizes = { heads, tokens: N, dim };
    const features = parts.flatMap(({ entry, options: own }) =>
        entry.name.split("+").flatMap((name) => (FEATURES[name] ? [FEATURES[name](own)] : [])),
    );
    if (!features.length && !doors.includes("add")) {
        if (axes === 1) return attended(scheme, { ...sizes, more });
        if (!hasOwnGrid) return attended(scheme, { ...sizes, more: [`query_positions=${positions}`, ...more] });
        const before = [`scheme = ${scheme}`];
        return attended("scheme", { ...sizes, before, more: [`query_positions=${positions}`, ...more] });
    }
    const projected = features.map(([name]) => `"${name}": ${name}`).join(", ");
    const before = [
        ...segment,
        ...features.map(([name, each]) =>
            takes(
                `${name}, what the layer projects`,
                `batch, heads, tokens${each > 1 ? ", width" : ""}`,
                [2, heads, N, ...(each > 1 ? [each] : [])],
            ),
        ),
        ...(doors.includes("add") ? [takes("x", "batch, tokens, dim", [2, N, width])] : []),
        `scheme = ${scheme}`,
        `encoding = scheme(${positions})${projected ? `.with_projected({${projected}})` : ""}`,
        ...(doors.includes("add") ? ["x = encoding.add(x)  # before q, k and v are made of it"] : []),
    ];
    return attended("encoding", { ...sizes, before, more });
}

/** RoPE in a decoder. */
export function rope(dim, options) {
    const given = Object.entries(options).map(([key, value]) => `, ${key}=${literal(value)}`);
    return attended(`posenc.RoPE(head_dim=${dim}${given.join("")})`, { dim, more: causalArgument(true) });
}
