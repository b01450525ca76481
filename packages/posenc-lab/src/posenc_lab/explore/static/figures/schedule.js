// Which layer of a published model has which scheme and window.

import { element, row, scroller, tableOf } from "posenc/elements.js";
import { entryOf } from "posenc/options.js";
import { count, words } from "posenc/panel.js";
import { atEachWidth, svg } from "posenc/svg.js";
import { attended } from "posenc/use.js";

const ROW = 13; // pixels of a layer
const GUTTER = 64; // for the numbers of the layers

const familyOf = (app, name) => app.data.schedules.find((one) => one.name === name);
const letter = (kind) => String.fromCharCode(65 + kind);

/** The first and the last key that a query of a decoder sees: of the last `keys`, or of its own chunk, or of all. */
function seenBy(query, { keys, chunk }) {
    if (chunk !== null) return [chunk * Math.floor(query / chunk), query];
    return [keys === null ? 0 : Math.max(query - keys + 1, 0), query];
}

/** Numbers that rise, three and more in a row as the first and the last: "0-2, 4". */
function ranges(numbers) {
    const runs = [];
    for (const n of numbers) {
        if (runs.length && n === runs.at(-1)[1] + 1) runs.at(-1)[1] = n;
        else runs.push([n, n]);
    }
    return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`)).join(", ");
}

const keysOf = ([first, last]) => `keys ${count(first)} to ${count(last)}, ${count(last - first + 1)} of them`;

export const figure = {
    name: "schedule",
    title: "Which layer has which scheme",
    see: "Models mix layers: some see only a window, some the whole text, and some have no positions. Choose a family, then a layer by pointing at it or with the arrow keys, and move the query.",
    defaults: { family: "gemma3", layer: 0, query: 10000 },
    another: { family: "llama4", layer: 2, query: 8200 },
    controls(values, app) {
        const chosen = familyOf(app, values.family);
        return [
            {
                name: "family",
                label: "model family",
                kind: "choice",
                choices: app.data.schedules.map(({ name, title }) => ({ value: name, name: title })),
            },
            { name: "layer", label: "layer", kind: "range", min: 0, max: (chosen?.num_layers ?? 1) - 1 },
            { name: "query", label: "query", kind: "range", min: 1, max: 32768, log: true, step: 1 },
        ];
    },
    change(values, name, value, app) {
        const made = { ...values, [name]: value };
        return { ...made, layer: Math.min(made.layer, familyOf(app, made.family).num_layers - 1) };
    },
    values({ family, query }, app) {
        const { title, does, num_layers, kinds } = familyOf(app, family);
        const layers = new Uint8Array(num_layers);
        kinds.forEach((kind, n) => kind.layers.forEach((layer) => (layers[layer] = n)));
        const doorsOf = (names) => names.flatMap((name) => entryOf(app, name).doors);
        return {
            title,
            does,
            layers,
            kinds: kinds.map((kind, n) => ({
                ...kind,
                letter: letter(n),
                doors: doorsOf(kind.names),
                seen: seenBy(query, kind),
            })),
        };
    },
    use({ family, layer }, app) {
        const { kinds } = familyOf(app, family);
        const widths = kinds.map(({ scheme }) => Number(scheme.match(/^\w+\((\d+)/)?.[1])).filter(Boolean);
        return attended("scheme", {
            dim: widths[0],
            before: [`scheme, window = posenc.schedules.${family}()[${layer}]  # of layer ${layer}`],
            more: ["is_causal=True", "window=window"],
        });
    },
    line({ family, query }) {
        return [
            `query = ${query}`,
            "def keys(window):",
            "    if isinstance(window, posenc.Chunk):",
            "        return query % window.size + 1",
            "    return query + 1 if window is None else min(window, query + 1)",
            "",
            `torch.tensor([keys(window) for scheme, window in posenc.schedules.${family}()])`,
        ].join("\n");
    },
    compared(values, { layers, kinds }) {
        const keys = ({ seen: [first, last] }) => last - first + 1;
        return { shape: [layers.length], data: Array.from(layers, (kind) => keys(kinds[kind])) };
    },
    mount(box, app) {
        const about = element("p", { class: "see" });
        const picture = element("div", { role: "group", tabindex: "0", style: "width: 100%" });
        const read = element("output", { class: "lines-read", "aria-live": "polite" });
        const table = scroller("the kinds of layers", "numbers wide wordy");
        box.append(element("div", { style: "flex: 1 1 100%" }, about, picture, read));
        app.beneath().append(table);
        let now = null;

        const said = (layer) => {
            const kind = now.numbers.kinds[now.numbers.layers[layer]];
            return `layer ${layer} (${kind.letter}): ${kind.scheme}, ${kind.window}; query ${count(now.query)} sees ${keysOf(kind.seen)}`;
        };
        const paint = atEachWidth(picture, (width) => {
            if (!now) return;
            const { query, layer } = now;
            const { kinds, layers } = now.numbers;
            const reach = width - GUTTER - 4;
            const place = (key) => GUTTER + (reach * key) / (query + 1);
            const { palette } = app.theme();
            const rows = Array.from(layers, (number, n) => {
                const { letter: name, seen } = kinds[number];
                const [y, isChosen] = [n * ROW + 2, n === layer];
                const [left, right] = [place(seen[0]), place(seen[1] + 1)];
                const look = { "text-anchor": "end", "font-size": 11, "font-weight": isChosen ? 700 : 400, fill: "var(--ink)" };
                const middle = { y1: y + ROW / 2, y2: y + ROW / 2, stroke: "var(--faint)", "stroke-dasharray": "1 3" };
                const bar = { x: left, y: y + 2, width: Math.max(right - left, 2), height: ROW - 4 };
                const fill = palette[number % palette.length];
                return svg(
                    "g",
                    {
                        onpointerenter: () => (read.textContent = said(n)),
                        onclick: () => app.set({ layer: n }),
                        style: "cursor: pointer",
                    },
                    svg("rect", { x: 0, y, width, height: ROW, fill: isChosen ? "var(--rule)" : "transparent" }),
                    words(GUTTER - 8, y + 10.5, `${isChosen ? "▸ " : ""}${n} ${name}`, look),
                    svg("line", { x1: GUTTER, x2: GUTTER + reach, ...middle }),
                    svg("rect", { ...bar, fill, stroke: "var(--ink)", "stroke-width": isChosen ? 1.5 : 0 }),
                );
            });
            const foot = layers.length * ROW + 18;
            picture.replaceChildren(
                svg(
                    "svg",
                    { width, height: foot + 6, "aria-hidden": "true", style: "display: block" },
                    ...rows,
                    words(GUTTER, foot, "key 0"),
                    words(GUTTER + reach, foot, `query ${count(query)}`, { "text-anchor": "end" }),
                ),
            );
        });
        picture.addEventListener("keydown", (event) => {
            const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -6, PageDown: 6 }[event.key];
            if (!step || !now) return;
            event.preventDefault();
            app.set({ layer: Math.min(Math.max(now.layer + step, 0), now.numbers.layers.length - 1) });
        });
        return ({ layer, query }, numbers) => {
            now = { layer, query, numbers };
            about.textContent = `${numbers.title}: ${numbers.does}`;
            picture.setAttribute(
                "aria-label",
                `${numbers.title}, ${numbers.layers.length} layers, each with the keys that the query sees; arrow up and down choose a layer`,
            );
            const rows = numbers.kinds.map((kind) => {
                const [layers, scheme] = [ranges(kind.layers), element("code", {}, kind.scheme)];
                return row(kind.letter, [layers, scheme, kind.doors.join(", ") || "none", kind.window, keysOf(kind.seen)]);
            });
            const heads = ["kind", "layers", "scheme", "doors", "window", `query ${count(query)} sees`];
            table.replaceChildren(tableOf(heads, rows, { caption: "The kinds of layers, and where each is" }));
            paint();
            read.textContent = said(layer);
        };
    },
    describe({ query }, { title, layers, kinds }) {
        const each = kinds.map(
            ({ letter: name, layers: of, window, seen }) =>
                `${of.length} of kind ${name}, ${window}, where query ${count(query)} sees ${count(seen[1] - seen[0] + 1)} keys`,
        );
        return `${title} has ${layers.length} layers: ${each.join("; ")}.`;
    },
};
