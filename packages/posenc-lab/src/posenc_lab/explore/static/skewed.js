// The skew as a picture whose cells move: at each step of it, and between two.

import { element } from "posenc/elements.js";
import { skew, steps } from "posenc/math/skew.js";
import { shown, words } from "posenc/panel.js";
import { atEachWidth, svg } from "posenc/svg.js";
import { ordered } from "posenc/theme.js";

const L = 4; // queries, and keys
const [WIDE, ALL] = [2 * L, (L + 1) * (2 * L - 1)];
const STEPS = steps(L);
export const LAST = STEPS.length - 1;
const PER_SECOND = 0.6; // steps, while it plays
const [LEFT, TOP] = [26, 22]; // room for the numbers of rows and columns
const sizeAt = (width) => Math.min((width - LEFT - 4) / WIDE, 44); // of a cell in a grid
const SAID = [
    "a row for each query, a column for each distance",
    "a zero at the end of each row",
    "the rows one after another, as they lie in memory",
    "zeros at the end, for another row",
    "the same line, read in rows of 7: the diagonals are straight",
    "the first 4 rows and the last 4 columns: queries by keys",
];

/** Where cell n of the line stands after a step: {x, y, size, opacity}. A cell that is not there yet, or no more, is
 * not seen where it comes, or was. */
function place(made, n, step, width) {
    const { shape, places } = made[step];
    const index = places.indexOf(n);
    if (index < 0) return { ...place(made, n, step < LAST ? step + 1 : step - 1, width), opacity: 0 };
    const isLine = shape.length === 1;
    const across = !isLine ? shape[1] : width < 480 ? Math.ceil(ALL / 2) : ALL;
    const [row, column, big] = [Math.floor(index / across), index % across, sizeAt(width)];
    if (!isLine) return { x: LEFT + column * big, y: TOP + row * big, size: big, opacity: 1 };
    const size = (width - 4) / across;
    return { x: 2 + column * size, y: TOP + big + row * (size + 10), size, opacity: 1 };
}

const smooth = (t) => t * t * (3 - 2 * t);

/** Builds the picture into box. Gives draw(moment, numbers): a step, or between two, of the numbers by query and distance.
 * `set(moment)` is called where it is played, stepped or dragged. */
export function skewing(box, app, set) {
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const [sheet, names] = [svg("svg", { role: "img", style: "display: block; width: 100%" }), svg("g")];
    const said = element("p", { class: "ends" });
    const frame = element("div", { class: "skew-sheet" }, sheet, said);
    let [now, goal, made, cells, drawn] = [0, null, [], [], null];

    /** Moves on to a moment; without motion it is there at once. */
    const glide = (time, last = time) => {
        if (goal === null || !box.isConnected) return;
        const far = goal - now;
        const to = still.matches ? goal : now + Math.sign(far) * Math.min(Math.abs(far), (PER_SECOND * (time - last)) / 1000);
        const isThere = to === goal;
        if (isThere) goal = null;
        set(Number(to.toFixed(3)));
        if (!isThere) requestAnimationFrame((next) => glide(next, time));
        else stop();
    };
    const stop = () => {
        goal = null;
        play.textContent = "Play";
    };
    const goTo = (moment) => {
        const isMoving = goal !== null;
        goal = Math.min(Math.max(moment, 0), LAST);
        play.textContent = "Pause";
        if (!isMoving) glide(performance.now());
    };
    const button = (words, onclick) => element("button", { type: "button", onclick }, words);
    const play = button("Play", () => {
        if (goal !== null) return stop();
        if (now === LAST) set((now = 0));
        goTo(LAST);
    });
    const slider = element("input", { type: "range", min: 0, max: LAST, step: 0.05, "aria-label": "moment of the skew" });
    slider.addEventListener("input", () => {
        stop();
        set(Number(slider.value));
    });
    const lines = STEPS.map((line, step) => button(element("code", {}, line), () => goTo(step)));
    const [back, on] = [button("◂ Step", () => goTo(Math.ceil(goal ?? now) - 1)), button("Step ▸", () => goTo(Math.floor(goal ?? now) + 1))];
    const moving = element("div", { class: "skew-moving" }, play, back, on, slider);
    box.append(element("div", { class: "skew" }, frame, element("div", { class: "skew-steps" }, ...lines), moving));

    const build = () => {
        const [{ background }, { shape, places, data }] = [app.theme(), made[0]];
        cells = Array.from({ length: ALL }, (_, n) => {
            const index = places.indexOf(n); // -1: padding
            const [isPadding, query] = [index < 0, Math.floor(index / shape[1])];
            const color = isPadding ? "none" : ordered(app.theme(), query, L);
            const look = isPadding ? { stroke: "var(--faint)", "stroke-dasharray": "3 3" } : { stroke: background };
            const label = isPadding ? "0" : shown((index % shape[1]) - L + 1, 0);
            const name = isPadding ? "padding" : `query ${query}, distance ${label}: ${shown(data[index], 2)}`;
            const middle = { "text-anchor": "middle", "dominant-baseline": "central", fill: isPadding ? "var(--faint)" : background };
            const text = words(0.5, 0.52, label, { ...middle, "font-size": 0.46, "font-weight": 600 });
            const cell = svg("rect", { width: 1, height: 1, fill: color, "vector-effect": "non-scaling-stroke", ...look });
            return svg("g", {}, svg("title", {}, name), cell, text);
        });
        sheet.replaceChildren(...cells, names);
    };
    /** The numbers of rows and columns, where the cells stand in rows. */
    const namesOf = (step, width) => {
        const { shape } = made[step];
        if (shape.length === 1) return [];
        const first = step < 2 ? 1 - L : 0;
        const counts = [Math.min(shape[1], WIDE - 1), shape[0]];
        const [columns, rows] = counts.map((length) => Array.from({ length }, (_, n) => n));
        const [size, middle] = [sizeAt(width), { "text-anchor": "middle" }];
        return [
            ...columns.map((n) => words(LEFT + (n + 0.5) * size, TOP - 7, shown(first + n, 0), middle)),
            ...rows.map((n) => words(LEFT / 2, TOP + (n + 0.5) * size + 4, String(n), middle)),
        ];
    };
    const redraw = atEachWidth(frame, (width) => {
        if (!made.length) return; // a moment that is refused
        const of = `${app.theme().dark} ${made[0].data}`;
        if (of !== drawn) build();
        drawn = of;
        const [step, part] = [Math.floor(now), smooth(now % 1)];
        cells.forEach((cell, n) => {
            const [from, to] = [step, Math.min(step + 1, LAST)].map((one) => place(made, n, one, width));
            const { x, y, size, opacity } = Object.fromEntries(Object.keys(from).map((key) => [key, from[key] + part * (to[key] - from[key])]));
            cell.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${size.toFixed(2)})`);
            cell.setAttribute("opacity", opacity.toFixed(2));
        });
        names.replaceChildren(...(part ? [] : namesOf(step, width)));
        sheet.setAttribute("viewBox", `0 0 ${width} ${TOP + (L + 1) * sizeAt(width) + 2}`);
    });
    return (moment, numbers) => {
        [now, made] = [moment, skew(numbers, L)];
        const step = Math.round(now);
        play.hidden = still.matches;
        said.textContent = `${made[step].shape.join(" × ")}: ${SAID[step]}.`;
        sheet.setAttribute("aria-label", said.textContent);
        lines.forEach((one, n) => one.setAttribute("aria-pressed", String(n === step)));
        slider.value = now;
        slider.setAttribute("aria-valuetext", `${STEPS[step]}, ${said.textContent}`);
        redraw();
    };
}
