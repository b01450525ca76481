// Measured: what a training step of each scheme takes, in time and in memory.

import { dropping } from "posenc/dropping.js";
import { element } from "posenc/elements.js";
import { chosen, command, control, source } from "posenc/records.js";

export const figure = {
    name: "length-cost",
    title: "Measured: time and memory of a training step",
    see: "Each scheme over the one without positions, in the same small model. What does a scheme cost that kept its curve level above?",
    defaults: { records: "0", measure: "0" },
    controls: (values, app) => control(app),
    values({ records }, app) {
        const set = chosen(app, records);
        const rows = Object.entries(set.costs).filter(([, cost]) =>
            Object.values(cost).some((value) => value !== null),
        );
        const unit = set.costs[set.against]?.bytes;
        return {
            set,
            rows: rows.map(([scheme, cost]) => ({
                scheme,
                ...cost,
                memory: unit && cost.bytes !== null ? cost.bytes / unit : null,
            })),
        };
    },
    line: ({ records }, app) => command(app, records),
    mount(box, app) {
        const shown = element("div", { class: "wide" });
        const place = element("div", { class: "wide" });
        box.append(shown, place);
        dropping(place, app, this.name);
        return (values, { set, rows }) => {
            shown.replaceChildren(...(rows.length ? measured(set, rows) : [element("p", {}, none(set))]));
        };
    },
    describe(values, { set, rows }) {
        const [part, words] = isTimed(rows) ? ["step", "time"] : ["memory", "peak memory"];
        const told = rows.filter((row) => row[part] !== null).map((row) => `${row.scheme} ${row[part].toFixed(2)}`);
        return told.length
            ? `${set.name}: ${words} of a training step over that of ${set.against}: ${told.join(", ")}.`
            : none(set);
    },
};

const none = ({ name }) =>
    `${name} has no times and no memory: posenc compare measures them, and posenc extend does not.`;

const measured = (set, rows) => [
    element("p", { class: "ends" }, `${source(set)}${isTimed(rows) ? "" : untimed(set)}`),
    element(
        "div",
        { class: "scroll numbers", tabindex: "0", role: "region", "aria-label": "time and memory by scheme" },
        table(set, rows),
    ),
    element(
        "p",
        { class: "ends" },
        "A small model at the trained length, on the machine that made the records: what a scheme costs in a large model, or on longer inputs, posenc bench measures.",
    ),
];

const isTimed = (rows) => rows.some(({ step }) => step !== null);
const untimed = ({ shipped }) =>
    ` ${shipped ? "There are no times of steps, since the machine had other work" : "Steps were not timed"}. posenc compare times them beside the scheme without positions, and posenc bench times attention.`;

const short = (value, scale, unit) =>
    value === null
        ? undefined
        : `${(scale * value).toLocaleString("en", { maximumSignificantDigits: 3 })}\u00a0${unit}`;

const COLUMNS = [
    ["step time", ({ step }) => step?.toFixed(2).concat("\u00a0×")],
    ["memory", ({ memory }) => memory?.toFixed(2).concat("\u00a0×")],
    ["step", ({ seconds }) => short(seconds, 1e3, "ms")],
    ["peak", ({ bytes }) => short(bytes, 1e-6, "MB")],
    ["parameters", ({ parameters }) => parameters?.toLocaleString("en")],
    ["of these, position", ({ position }) => position?.toLocaleString("en")],
];

function table({ name, against }, rows) {
    const th = (scope, words) => element("th", { scope }, words);
    const columns = COLUMNS.filter(([, shown]) => rows.some((row) => shown(row) !== undefined));
    return element(
        "table",
        {},
        element(
            "caption",
            {},
            `${name}: a training step at the trained length; × is over ${against}; the median where there are several seeds`,
        ),
        element("thead", {}, element("tr", {}, th("col", "scheme"), ...columns.map(([head]) => th("col", head)))),
        element(
            "tbody",
            {},
            ...rows.map((row) =>
                element(
                    "tr",
                    {},
                    th("row", row.scheme),
                    ...columns.map(([, shown]) => element("td", {}, shown(row) ?? "missing")),
                ),
            ),
        ),
    );
}
