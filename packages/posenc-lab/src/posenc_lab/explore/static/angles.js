// The angles of RoPE's pairs: drawn as clocks with the part of the circle that a text shows, and compared with
// posenc's.

import { element } from "posenc/elements.js";
import { Heads } from "posenc/math/arrays.js";
import { Positions } from "posenc/math/positions.js";
import { agreed, apart, askAttention } from "posenc/options.js";
import { svg } from "posenc/svg.js";

/** Compares cos and sin of every pair at a position with posenc's; `factor` lengthens both. */
export async function checkAngles({ dim, base, scaling = null, position, angles, factor = 1 }, app) {
    // In head k the query is channel k, rotated, and the keys are the two channels of pair k: cos and sin.
    const pairs = dim / 2;
    const [q, keys] = [new Heads(pairs, 1, dim), new Heads(pairs, 2, dim)];
    for (let k = 0; k < pairs; k++) q.at(k, 0)[k] = keys.at(k, 0)[k] = keys.at(k, 1)[k + pairs] = 1;
    const rope = { name: "rope", options: { head_dim: dim, base, ...(scaling && { scaling }) } };
    const places = { positions: new Positions([position]), keyPositions: new Positions([0, 0]) };
    const said = await askAttention(app, [rope], [q, keys], places);
    const length = factor ** 2 / Math.sqrt(dim); // queries and keys both have the factor
    const ours = Array.from(angles, (x) => [length * Math.cos(x), length * Math.sin(x)]).flat();
    return agreed(dim, apart(ours, said.logits.data));
}

const RADIUS = 20;

/** The part of the circle from one angle to another, in turns from the right, counted against the clock. */
function arc(from, to, attributes) {
    if (to <= from) return "";
    if (to - from >= 1) return svg("circle", { r: RADIUS, fill: "none", ...attributes });
    const at = (turns) => [RADIUS * Math.cos(2 * Math.PI * turns), -RADIUS * Math.sin(2 * Math.PI * turns)].join(" ");
    const isLong = to - from > 0.5 ? 1 : 0;
    return svg("path", {
        d: `M ${at(from)} A ${RADIUS} ${RADIUS} 0 ${isLong} 0 ${at(to)}`,
        fill: "none",
        ...attributes,
    });
}

/** What colours mean, in a row: pairs of a colour and words. */
export function swatches(marks) {
    const each = ([color, words]) =>
        element("span", {}, element("i", { style: `background: ${color}` }), words);
    return element("p", { class: "legend" }, ...marks.map(each));
}

/**
 * Clocks in box, one for each pair. draw(title, pairs, marks), of each pair {trained, turns, words, next}: the turns
 * that it makes from the first token to the last in training and in the text that is shown, what stands under it, and
 * where it stands one token later, if that is to be marked; marks: more colours for the legend. gripOf(k): the attributes
 * by which the hand of a pair is dragged, none where it is not.
 */
export function dials(box, app, gripOf = () => null) {
    const rows = element("div", { class: "dials", role: "img" });
    const key = element("div");
    box.append(element("div", { class: "wide" }, rows, key));
    const made = [];
    return (title, pairs, marks = []) => {
        const { palette } = app.theme();
        const [known, fresh] = [palette[2], palette[1]];
        key.replaceChildren(swatches([[known, "angles seen in training"], [fresh, "new angles"], ...marks]));
        rows.setAttribute("aria-label", title);
        pairs.forEach((pair, k) => {
            if (k === made.length) rows.append((made[k] = dial(k, gripOf(k))).box);
            made[k].draw(pair, { known, fresh });
        });
    };
}

function dial(k, grip) {
    const sheet = svg("svg", { viewBox: "-26 -26 52 52" }); // it stays, so that a drag goes on while its parts are drawn anew
    const said = element("span");
    const draw = ({ trained, turns, words, next }, { known, fresh }) => {
        const [seen, most] = [Math.min(trained, 1), Math.min(turns, 1)];
        const at = (place, radius) => [radius * Math.cos(2 * Math.PI * place), -radius * Math.sin(2 * Math.PI * place)];
        const [x, y] = at(turns, 15);
        const [cx, cy] = at(next ?? 0, RADIUS);
        const hand = { "data-part": "hand" };
        sheet.replaceChildren(
            svg("circle", { r: RADIUS, fill: "none", stroke: "var(--rule)", "stroke-width": 2 }),
            arc(0, Math.min(seen, most), { stroke: known, "stroke-width": 7, "data-part": "ring" }),
            arc(seen, most, { stroke: fresh, "stroke-width": 7, "data-part": "fresh" }),
            svg("line", { x2: x, y2: y, stroke: "var(--ink)", "stroke-width": 2, ...hand }),
            next === undefined ? "" : svg("circle", { cx, cy, r: 3.5, fill: "var(--ink)", stroke: "var(--paper)", "data-part": "next" }),
            grip ? svg("circle", { cx: x, cy: y, r: 2.5, fill: "var(--ink)", ...hand }) : "",
            grip ? svg("circle", { cx: x, cy: y, r: 9, fill: "transparent", ...hand, ...grip }) : "",
        );
        said.textContent = words;
    };
    return { box: element("div", {}, sheet, element("b", {}, `pair ${k}`), element("br"), said), draw };
}
