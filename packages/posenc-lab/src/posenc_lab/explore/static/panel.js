// Small plots of a step of the lesson, several in one drawing of the width of its box.

import { element, minus } from "posenc/elements.js";
import { atEachWidth, svg } from "posenc/svg.js";

const LETTERS = 12; // pixels

/** A drawing in box. draw(width, ...given) gives {height, parts, label}, `label` what a screen reader says. Gives a
 * function of `given` that draws. */
export function drawing(box, draw) {
    const sheet = svg("svg", { role: "img", style: "display: block; width: 100%" });
    const frame = element("div", { style: "flex: 1 1 100%" }, sheet);
    box.append(frame);
    let given = null;
    const redraw = atEachWidth(frame, (width) => {
        if (!given) return;
        const { height, parts, label } = draw(width, ...given);
        sheet.setAttribute("viewBox", `0 0 ${width} ${height}`);
        sheet.setAttribute("aria-label", label);
        sheet.replaceChildren(...parts);
    });
    return (...now) => {
        given = now;
        redraw();
    };
}

/** Words at a place; `more` are attributes. */
export const words = (x, y, text, more = {}) =>
    svg("text", { x, y, "font-size": LETTERS, fill: "var(--faint)", ...more }, text);

/** A number as it stands in words: with so many digits after the point, and a true minus. */
export const shown = (value, digits) => minus(value.toFixed(digits));

/** A whole number as it stands in words, with commas between thousands. */
export const count = (value) => value.toLocaleString("en");

/**
 * A rectangle of a drawing with a scale for x and for y, a title above it, and ticks.
 * @param {{left, top, width, height, x: [number, number], y: [number, number], title?: string, xTicks?: number[],
 *   yTicks?: number[], yWords?: Function, xLabel?: string}} options yWords: what stands at a tick
 * @returns {{parts: SVGElement[], X: Function, Y: Function, at: Function, path: Function, dots: Function, bar: Function}}
 *   at(x, y): the values at a point; path(ys, look, step, stairs): a line through the values at x = 0, step, 2 step, ..,
 *   or level around each; dots(ys, fill): a dot at each of 0, 1, ..; bar(x, width, value, look): from 0 to the value, x
 *   and width in pixels
 */
export function panel({ left, top, width, height, x, y, title = "", xTicks = [], yTicks = [], yWords, xLabel = "" }) {
    const X = (value) => left + ((value - x[0]) / (x[1] - x[0])) * width;
    const Y = (value) => top + height - ((value - y[0]) / (y[1] - y[0])) * height;
    const at = (px, py) => [x[0] + ((px - left) / width) * (x[1] - x[0]), y[0] + ((top + height - py) / height) * (y[1] - y[0])];
    const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, stroke: "var(--rule)" });
    const tick = (value) => minus(value.toLocaleString("en", { maximumFractionDigits: 6 }));
    const parts = [
        ...xTicks.flatMap((value) => [
            line(X(value), top, X(value), top + height + 4),
            words(X(value), top + height + 4 + LETTERS, tick(value), { "text-anchor": "middle" }),
        ]),
        ...yTicks.flatMap((value) => [
            line(left, Y(value), left + width, Y(value)),
            words(left - 5, Y(value) + LETTERS / 3, (yWords ?? tick)(value), { "text-anchor": "end" }),
        ]),
        words(left, top - 6, title, { fill: "var(--ink)" }),
        words(left + width, top + height + 6 + 2 * LETTERS, xLabel, { "text-anchor": "end" }),
    ];
    const path = (ys, look, step = 1, stairs = false) =>
        svg("polyline", {
            points: Array.from(ys, (value, n) =>
                (stairs ? [Math.max(n - 0.5, x[0]), Math.min(n + 0.5, x[1])] : [n]).map((at) => `${X(at * step).toFixed(1)},${Y(value).toFixed(1)}`).join(" "),
            ).join(" "),
            fill: "none",
            "stroke-width": 1.8,
            "stroke-linejoin": "round",
            ...look,
        });
    const dots = (ys, fill, r = 2.2) =>
        Array.from(ys, (value, n) => svg("circle", { cx: X(n), cy: Y(value), r, fill }));
    const bar = (x, width, value, look) =>
        svg("rect", { x, width, y: Math.min(Y(0), Y(value)), height: Math.abs(Y(value) - Y(0)), ...look });
    return { parts, X, Y, at, path, dots, bar };
}

const LETTER = 0.54 * LETTERS; // the mean width of one, near enough to place words by

/** What is which, in a row that ends at `right`: a sample of each, {name, stroke, "stroke-dasharray"?}, and its name. */
export function legend(right, y, looks) {
    const sizes = looks.map(({ name }) => 24 + LETTER * name.length + 10);
    let x = right - sizes.reduce((a, b) => a + b, -10);
    return looks.flatMap(({ name, ...look }, n) => {
        const at = x;
        x += sizes[n];
        return [
            svg("line", { x1: at, x2: at + 18, y1: y - 4, y2: y - 4, ...look, "stroke-width": 3 }),
            words(at + 23, y, name, { fill: "var(--ink)" }),
        ];
    });
}

/** The colour of a scheme, the same in all figures. */
export const colorOf = (app, scheme) => app.data.looks[scheme][app.theme().dark ? "dark" : "light"].color;
