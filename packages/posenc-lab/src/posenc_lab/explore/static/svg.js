// SVG elements in one line, as elements.js has those of the page. Colours are the style sheet's: "var(--ink)".

import { dressed } from "posenc/elements.js";

/** svg("rect", {x: 0, fill: "var(--ink)"}, child): attributes by name, listeners by "on…". */
export const svg = (name, attributes = {}, ...children) =>
    dressed(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/** Draws again when the width of a box changes: draw(width). Gives a function that draws now. */
export function atEachWidth(box, draw) {
    let last = 0;
    const now = () => {
        last = box.clientWidth;
        if (last > 0) draw(last);
    };
    new ResizeObserver(() => box.clientWidth !== last && now()).observe(box);
    return now;
}
