// Attention as a diagram, with the four doors where position can enter it.

import { element, row } from "posenc/elements.js";
import * as options from "posenc/options.js";
import { atEachWidth, svg } from "posenc/svg.js";
import { use } from "posenc/use.js";

const DOORS = { add: "the input", rotate: "queries and keys", score: "the logits", value: "the output" };
const NONE = "none";

/** What attention does, step by step; a step with a door is one. */
const STEPS = [
    { title: "tokens", sub: "vectors x" },
    { door: "add" },
    { title: "q, k, v", sub: "projected" },
    { door: "rotate" },
    { title: "scores", sub: "q · k / √d" },
    { door: "score" },
    { title: "weights", sub: "softmax" },
    { door: "value" },
    { title: "out", sub: "weights · v" },
];
const [PROJECTED, OUT] = [2, STEPS.length - 1];
const NARROW = 860; // pixels; below, the steps stand under one another

function place(width) {
    if (width < NARROW) {
        const w = Math.min(150, width * 0.45);
        return { height: STEPS.length * 72 + 14, at: (n) => ({ x: 34, y: 10 + n * 72, w, h: 50 }), isNarrow: true };
    }
    const step = (width - 12) / STEPS.length;
    return { height: 232, at: (n) => ({ x: 6 + n * step, y: 54, w: step - 22, h: 60 }), isNarrow: false };
}

const text = (x, y, words, more = {}) =>
    svg("text", { x, y, "font-size": 12, fill: "var(--ink)", "text-anchor": "middle", ...more }, words);
const arrow = (d) =>
    svg("path", { d, fill: "none", stroke: "var(--faint)", "stroke-width": 1.5, "marker-end": "url(#doors-arrow)" });

function diagram(width, open) {
    const { height, at, isNarrow } = place(width);
    const head = svg(
        "marker",
        { id: "doors-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
        svg("path", { d: "M0 0 8 4 0 8z", fill: "var(--faint)" }),
    );
    const shapes = STEPS.map(({ door, title, sub }, n) => {
        const { x, y, w, h } = at(n);
        const middle = x + w / 2;
        if (!door) {
            return svg(
                "g",
                {},
                svg("rect", { x, y, width: w, height: h, rx: 6, fill: "var(--code)", stroke: "var(--rule)" }),
                text(middle, y + h / 2 - 4, title, { "font-weight": 600, "font-size": 13 }),
                text(middle, y + h / 2 + 13, sub, { fill: "var(--faint)" }),
            );
        }
        const by = open[door];
        const names = by.join(" + ");
        const says = isNarrow ? { x: x + w + 10, "text-anchor": "start" } : { x: middle };
        const below = isNarrow ? y + h / 2 : y + h + 18;
        return svg(
            "g",
            {},
            svg("rect", {
                x,
                y,
                width: w,
                height: h,
                rx: 6,
                fill: by.length ? "var(--good)" : "none",
                stroke: by.length ? "var(--link)" : "var(--faint)",
                "stroke-width": by.length ? 3 : 1.2,
                "stroke-dasharray": by.length ? undefined : "5 4",
            }),
            text(middle, y + h / 2 - 4, door, { "font-weight": 600, "font-size": 13 }),
            text(middle, y + h / 2 + 13, by.length ? "open door" : "closed door", {
                fill: by.length ? "var(--ink)" : "var(--faint)",
                "font-weight": by.length ? 700 : 400,
            }),
            text(0, below - (isNarrow ? 4 : 0), names, { ...says, "font-weight": 600 }),
            text(0, below + (isNarrow ? (names ? 13 : 4) : 16), DOORS[door], { ...says, fill: "var(--faint)" }),
        );
    });
    const steps = STEPS.slice(1).map((_, n) => {
        const [from, to] = [at(n), at(n + 1)];
        return isNarrow
            ? arrow(`M${from.x + from.w / 2} ${from.y + from.h}V${to.y - 1}`)
            : arrow(`M${from.x + from.w} ${from.y + from.h / 2}H${to.x - 1}`);
    });
    // Values pass the scores by: from the projections straight to the output.
    const [from, to] = [at(PROJECTED), at(OUT)];
    const values = isNarrow
        ? [arrow(`M${from.x} ${from.y + from.h / 2}H16V${to.y + to.h / 2}H${to.x - 1}`), text(9, from.y + 60, "v")]
        : [
              arrow(
                  `M${from.x + from.w / 2} ${from.y + from.h}V${from.y + from.h + 64}H${to.x + to.w / 2}V${to.y + to.h + 1}`,
              ),
              text(from.x + from.w / 2 + 10, from.y + from.h + 58, "v", { "text-anchor": "start" }),
          ];
    // Every layer does what stands from the projections on.
    const frame = isNarrow
        ? { x: 2, y: from.y - 10, width: width - 4, height: to.y + to.h - from.y + 14 }
        : { x: from.x - 10, y: 22, width: to.x + to.w - from.x + 14, height: height - 30 };
    const layer = [
        svg("rect", { ...frame, rx: 8, fill: "none", stroke: "var(--rule)", "stroke-width": 1.5 }),
        isNarrow
            ? text(width - 10, from.y + 8, "every layer", { "text-anchor": "end", fill: "var(--faint)" })
            : text(frame.x + 10, 40, "every layer", { "text-anchor": "start", fill: "var(--faint)" }),
    ];
    return svg(
        "svg",
        { width, height, "aria-hidden": "true", style: "display: block" },
        svg("defs", {}, head),
        ...layer,
        ...values,
        ...steps,
        ...shapes,
    );
}

/** Words with `code` in them. */
const worded = (words) => words.split("`").map((part, n) => (n % 2 ? element("code", {}, part) : part));

function about(entry) {
    const rows = [
        ["what it does", entry.does],
        ["cost", entry.cost],
        ["learned", entry.learned],
        ["limit", entry.limits],
    ].filter(([, words]) => words);
    const formula = element("div", {
        class: "formula",
        tabindex: "0",
        role: "group",
        "aria-label": `formula of ${entry.title}`,
    });
    formula.innerHTML = entry.formula ?? "";
    const lines = rows.map(([name, words]) => row(name, [element("span", {}, ...worded(words))]));
    const caption = element("caption", {}, element("strong", {}, entry.title));
    const table = element("table", {}, caption, element("tbody", {}, ...lines));
    return element("div", { style: "flex: 1 1 22rem" }, table, ...(entry.formula ? [formula] : []));
}

const AXES = { one: "one coordinate", two: "two coordinates", three: "three coordinates" };

/** Why two schemes cannot be composed, or nothing where they can. */
function refusal(first, second, app) {
    const [a, b] = [first, second].map((name) => options.entryOf(app, name));
    if (a === b) return `${a.title} is composed with another scheme, and not with itself`;
    if (a.axes !== "any" && b.axes !== "any" && a.axes !== b.axes) {
        return `${a.title} takes ${AXES[a.axes]} of each token and ${b.title} ${AXES[b.axes]}, so they cannot be composed`;
    }
    return app.data.refused[`${first}+${second}`];
}

export const figure = {
    name: "doors",
    title: "Positions enter at four points",
    see: "Attention without a mask knows no order. Choose a scheme to see at which of four points, called doors, it tells attention where tokens are. Add a second one to see both at work.",
    defaults: { first: "rope", second: NONE },
    another: { first: "shaw", second: "sinusoidal" },
    controls(values, app) {
        const first = options.schemeControl(app, { name: "first", label: "scheme" });
        const second = options.schemeControl(app, {
            name: "second",
            label: "and",
            filter: ({ name }) => !refusal(values.first, name, app),
        });
        const none = { value: NONE, name: "nothing else", group: second.choices[0]?.group ?? "" };
        return [first, { ...second, choices: [none, ...second.choices] }];
    },
    change(values, name, value, app) {
        const made = { ...values, [name]: value };
        return made.second !== NONE && refusal(made.first, made.second, app) ? { ...made, second: NONE } : made;
    },
    values({ first, second }, app) {
        const entries = [first, second].filter((name) => name !== NONE).map((name) => options.entryOf(app, name));
        const why = entries.length === 2 && refusal(first, second, app);
        if (why) throw new RangeError(why);
        const open = Object.fromEntries(
            Object.keys(DOORS).map((door) => [
                door,
                entries.filter(({ doors }) => doors.includes(door)).map(({ title }) => title),
            ]),
        );
        return { entries, open };
    },
    use: (values, app) =>
        use(
            figure.values(values, app).entries.map((entry) => ({ entry, options: options.optionsOf(entry) })),
            { causal: true },
        ),
    line(values, app) {
        const { entries } = figure.values(values, app);
        const schemes = entries.map((entry) => options.python(entry, options.optionsOf(entry)));
        return `${options.imports(entries)}from posenc.encoding.encoding import DOORS  # ${Object.keys(DOORS).join(", ")}\nscheme = ${schemes.join(" + ")}\ntorch.tensor([float(door in scheme.doors) for door in DOORS])`;
    },
    compared: (values, { open }) => ({ shape: [4], data: Object.values(open).map((by) => Number(by.length > 0)) }),
    mount(box, app) {
        const picture = element("div", { style: "flex: 1 1 100%" });
        const words = element("ul", { style: "flex: 1 1 16rem; margin: 0; padding-left: 1.2rem" });
        const schemes = element("div", { class: "parts", style: "flex: 2 1 22rem" });
        box.append(picture, words, schemes);
        let now = null;
        const paint = atEachWidth(picture, (width) => now && picture.replaceChildren(diagram(width, now)));
        return (values, { entries, open }) => {
            now = open;
            paint();
            words.replaceChildren(
                ...Object.entries(open).map(([door, by]) =>
                    element(
                        "li",
                        {},
                        `${door} (${DOORS[door]}): `,
                        element("strong", {}, by.length ? `open, by ${by.join(" and ")}` : "closed"),
                    ),
                ),
            );
            schemes.replaceChildren(...entries.map(about));
        };
    },
    describe(values, { entries, open }) {
        const names = Object.keys(open).filter((door) => open[door].length);
        const through = names.length
            ? `opens the ${names.join(" and ")} door${names.length > 1 ? "s" : ""}`
            : "opens no door";
        return `${entries.map(({ title }) => title).join(" + ")} ${through}.`;
    },
};
