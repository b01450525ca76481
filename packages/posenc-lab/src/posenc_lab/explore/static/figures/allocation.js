// Which axis turns which pair of channels, and what a query so turned sees of a picture and the text around it.

import { element } from "posenc/elements.js";
import { repeated } from "posenc/fixed.js";
import { logits } from "posenc/math/attend.js";
import { agreed, apart, array } from "posenc/options.js";
import { isText, isVideo, mostOf, named, ROW_SHARE, SCHEMES, tokensOf } from "posenc/pictured.js";
import { attended } from "posenc/use.js";

const AXES = { t: "time", h: "row", w: "column" };

export const figure = {
    name: "allocation",
    title: "Pairs for time, row and column",
    see:
        "Each pair of channels turns by one coordinate; the strip shows which, the fastest pair first. Each token " +
        "shows its coordinates and the score of the chosen token's query with an equal key there: 1 is the score " +
        "with itself. Choose another token. In sections " +
        "the column has the slow pairs alone, so that patches of one row score almost alike.",
    defaults: {
        scheme: "mrope-interleaved",
        dim: 64,
        each: 10,
        base: 10000,
        height: 4,
        width: 4,
        text: 3,
        frames: 2,
        token: 8,
    },
    another: {
        scheme: "mrope-sections",
        dim: 32,
        each: 4,
        base: 500,
        height: 3,
        width: 5,
        text: 2,
        frames: 2,
        token: 1,
    },
    controls: (state) => [
        { name: "scheme", label: "scheme", kind: "choice", choices: SCHEMES },
        { name: "token", label: "token", kind: "range", min: 0, max: tokensOf(state) - 1, step: 1 },
        { name: "dim", label: "head_dim", kind: "range", min: 16, max: 128, step: 16 },
        ...(isText(state)
            ? [
                  {
                      name: "each",
                      label: "pairs of the row, and of the column",
                      kind: "range",
                      min: 0,
                      max: mostOf(state),
                      step: 1,
                  },
              ]
            : []),
        ...(isText(state) || isVideo(state)
            ? [{ name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 }]
            : []),
        { name: "height", label: "rows of patches", kind: "range", min: 2, max: 6, step: 1 },
        { name: "width", label: "columns of patches", kind: "range", min: 2, max: 6, step: 1 },
        ...(isText(state)
            ? [{ name: "text", label: "tokens of text before", kind: "range", min: 1, max: 6, step: 1 }]
            : []),
        ...(isVideo(state) ? [{ name: "frames", label: "frames", kind: "range", min: 1, max: 4, step: 1 }] : []),
    ],
    change(values, name, value) {
        const next = { ...values, [name]: value };
        if (isText(next) && ["dim", "scheme"].includes(name)) {
            next.each = Math.floor(ROW_SHARE[next.scheme.split("-")[1]] * next.dim);
        }
        return { ...next, token: Math.min(next.token, tokensOf(next) - 1) };
    },
    values(state) {
        const { scheme, positions, letters, groups } = named(state);
        const ones = repeated(positions.length, new Float64Array(state.dim).fill(1));
        const query = repeated(1, ones.at(0, 0));
        const at = { positions: positions.slice(state.token, state.token + 1), keyPositions: positions };
        const scores = logits(scheme, query, ones, at).data.map((x) => x / Math.sqrt(state.dim));
        const { theta } = scheme.frequencies();
        return {
            letters,
            groups,
            positions,
            scores,
            axes: scheme.allocation,
            wavelengths: Array.from(theta, (x) => (2 * Math.PI) / x),
        };
    },
    use(state) {
        const [scheme, positions] = named(state).python;
        return attended("scheme", {
            tokens: tokensOf(state),
            dim: state.dim,
            before: [`scheme = ${scheme}`, `positions = ${positions}`],
            more: ["query_positions=positions"],
        });
    },
    line(state) {
        const [scheme, positions] = named(state).python;
        const n = tokensOf(state);
        return (
            `scheme = ${scheme}\npositions = ${positions}\n` +
            `x = torch.ones(1, 1, ${n}, ${state.dim}, dtype=torch.float64)\n` +
            `scores = posenc.logits(x, x, scheme(positions, dtype=torch.float64))[0, 0]\n` +
            `scores[${state.token}] / ${state.dim}**0.5`
        );
    },
    compared: (state) => ({ shape: [tokensOf(state)], data: figure.values(state).scores }),
    async check(state, { positions, scores }, app) {
        const { name, options } = named(state);
        const [n, { dim }] = [positions.length, state];
        const ones = new Float64Array(n * dim).fill(1);
        const coords = Array.from({ length: n }, (_, token) => Array.from(positions.at(token)));
        const said = await app.ask("attention", {
            schemes: [{ name, options }],
            query: array([1, 1, dim], ones.subarray(0, dim)),
            key: array([1, n, dim], ones),
            value: array([1, n, dim], ones),
            positions: [coords[state.token]],
            key_positions: coords,
        });
        const ours = scores.map((x) => x * Math.sqrt(dim));
        return agreed(n, apart(ours, said.logits.data));
    },
    mount(box, app) {
        const strip = element("div", { role: "img", style: "display: flex; flex-wrap: wrap; gap: 2px 1px" });
        const key = element("ul", { class: "lines-key" });
        const picture = element("div", {
            style: "display: flex; flex-wrap: wrap; gap: 0.75rem 1.25rem; align-items: flex-start",
        });
        box.append(element("div", { style: "width: 100%" }, key, strip), picture);
        let [made, buttons] = ["", []];

        const build = (state, { groups }) => {
            let token = 0;
            buttons = [];
            picture.replaceChildren(
                ...groups.map(({ name, count }) => {
                    const cells = Array.from({ length: count }, () => {
                        const index = token++;
                        const style = "padding: 2px; font-size: 11px; line-height: 1.25; min-height: 38px";
                        const onclick = () => app.set({ token: index });
                        const cell = element("button", { type: "button", style, onclick });
                        buttons.push(cell);
                        return cell;
                    });
                    const columns = name === "image" || name.startsWith("frame") ? state.width : Math.min(count, 6);
                    return element(
                        "div",
                        { role: "group", "aria-label": name },
                        element("div", { style: "font-size: 0.8rem" }, name),
                        element(
                            "div",
                            { style: `display: grid; grid-template-columns: repeat(${columns}, 3.05rem); gap: 3px` },
                            ...cells,
                        ),
                    );
                }),
            );
        };
        return (state, numbers) => {
            const { letters, positions, scores, axes, wavelengths } = numbers;
            const theme = app.theme();
            const colors = { t: theme.palette[1], h: theme.palette[2], w: theme.palette[3] };
            const fill = (letter) => `background: ${colors[letter]}; color: ${inkOn(colors[letter])}`;
            const shape = [state.scheme, state.height, state.width, state.text, state.frames].join();
            if (shape !== made) build(state, numbers);
            made = shape;
            strip.replaceChildren(
                ...Array.from(axes, (axis, k) => {
                    const letter = letters[axis];
                    return element(
                        "span",
                        {
                            title: `pair ${k}: ${AXES[letter]}, wavelength ${Number(wavelengths[k].toPrecision(3))}`,
                            style: `width: 18px; text-align: center; font-size: 12px; ${fill(letter)}`,
                        },
                        letter,
                    );
                }),
            );
            strip.setAttribute(
                "aria-label",
                `pairs from the fastest to the slowest: ${Array.from(axes, (axis) => letters[axis]).join(" ")}`,
            );
            key.replaceChildren(
                ...Array.from(letters, (letter, axis) => {
                    const own = wavelengths.filter((_, k) => axes[k] === axis);
                    const reach = own.length
                        ? `, wavelengths ${short(Math.min(...own))} to ${short(Math.max(...own))}`
                        : "";
                    return element(
                        "li",
                        {},
                        element("span", { style: `padding: 0 5px; ${fill(letter)}` }, letter),
                        `${AXES[letter]}: ${own.length} pairs${reach}`,
                    );
                }),
            );
            const lowest = scores.reduce((a, b) => Math.min(a, b));
            buttons.forEach((cell, token) => {
                const [r, g, b] = theme.sequential.subarray(
                    4 * Math.round((255 * (scores[token] - lowest)) / (1 - lowest || 1)),
                );
                const here = token === state.token;
                const coords = Array.from(positions.at(token), (x) => Number(x.toFixed(2)));
                const said = coords.map((x, axis) => `${AXES[letters[axis]]} ${x}`);
                cell.replaceChildren(coords.join(", "), element("br"), element("b", {}, scores[token].toFixed(2)));
                cell.style.background = `rgb(${r}, ${g}, ${b})`;
                cell.style.color = inkOn([r, g, b]);
                cell.style.border = here ? `3px solid ${theme.ink}` : "";
                cell.setAttribute("aria-pressed", here);
                cell.setAttribute(
                    "aria-label",
                    `token ${token}, ${said.join(", ")}: score ${scores[token].toFixed(2)}`,
                );
            });
        };
    },
    describe({ token }, { letters, positions, scores }) {
        const best = Array.from(scores, (score, at) => ({ score, at }))
            .filter(({ at }) => at !== token)
            .sort((a, b) => b.score - a.score)[0];
        const coords = (at) =>
            `(${[...letters].join(", ")}) = (${Array.from(positions.at(at), (x) => Number(x.toFixed(3))).join(", ")})`;
        return (
            `The query is token ${token} at ${coords(token)}. Of the other tokens it scores highest with token ` +
            `${best.at} at ${coords(best.at)}: ${best.score.toFixed(3)}.`
        );
    },
};

const short = (x) => (x < 100 ? String(Number(x.toPrecision(2))) : Math.round(x).toLocaleString("en"));

/** Black or white, whichever has the higher contrast to a colour. */
function inkOn(color) {
    const parts = typeof color === "string" ? [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)) : color;
    const [r, g, b] = Array.from(parts, (part) =>
        part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4,
    );
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
