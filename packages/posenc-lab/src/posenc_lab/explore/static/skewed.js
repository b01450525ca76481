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
const SAID = [
    "a row for each query, a column for each distance",
    "a zero at the end of each row",
    "the rows one after another, as they lie in memory",
    "zeros at the end, for another row",
    "the same line, read in rows of 7: the slant is straight",
    "the first 4 rows and the last 4 columns: queries by keys",
];

const isPadding = (n) => n >= L * WIDE || n % WIDE === WIDE - 1;
const queryOf = (n) => Math.floor(n / WIDE);
const distanceOf = (n) => (n % WIDE) - L + 1;

/** Where cell n of the line stands after a step: {x, y, size, opacity}. */
function place(n, step, width) {
    const size = Math.min((width - LEFT - 4) / WIDE, 44);
    const at = (row, column, opacity = 1) => ({ x: LEFT + column * size, y: TOP + row * size, size, opacity });
    if (step === 2 || step === 3) {
        const across = width < 480 ? Math.ceil(ALL / 2) : ALL;
        const small = (width - 4) / across;
        const [row, column] = [Math.floor(n / across), n % across];
        return { x: 2 + column * small, y: TOP + size + row * (small + 10), size: small, opacity: step === 3 || n < L * WIDE ? 1 : 0 };
    }
    if (step < 2) return at(queryOf(n), n % WIDE, isPadding(n) && (step < 1 || n >= L * WIDE) ? 0 : 1);
    const [row, column] = [Math.floor(n / (WIDE - 1)), n % (WIDE - 1)];
    if (step === 4) return at(row, column);
    return row < L && column >= L - 1 ? at(row, column - L + 1) : at(row, column - L + 1, 0);
}

const smooth = (t) => t * t * (3 - 2 * t);

/** Builds the picture into box. Gives draw(moment, numbers): a step, or between two, of the numbers by query and distance.
 * `set(moment)` is called where it is played, stepped or dragged. */
export function skewing(box, app, set) {
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const sheet = svg("svg", { role: "img", style: "display: block; width: 100%" });
    const said = element("p", { class: "ends" });
    const frame = element("div", { class: "skew-sheet" }, sheet, said);
    let [now, goal, numbers, cells] = [0, null, [], []];

    /** Moves on to a moment; without motion it is there at once. */
    const glide = (time, last = time) => {
        if (goal === null || !box.isConnected) return;
        const far = goal - now;
        const to = still.matches ? goal : now + Math.sign(far) * Math.min(Math.abs(far), (PER_SECOND * (time - last)) / 1000);
        const isThere = to === goal;
        if (isThere) goal = null;
        set(Number(to.toFixed(3)));
        if (!isThere) requestAnimationFrame((next) => glide(next, time));
        else play.textContent = "Play";
    };
    const goTo = (moment) => {
        const isMoving = goal !== null;
        goal = Math.min(Math.max(moment, 0), LAST);
        if (!isMoving) glide(performance.now());
    };
    const button = (words, onclick) => element("button", { type: "button", onclick }, words);
    const play = button("Play", () => {
        if (goal !== null) {
            goal = null;
            play.textContent = "Play";
            return;
        }
        if (now === LAST) set((now = 0));
        goTo(LAST);
        if (!still.matches) play.textContent = "Pause";
    });
    const slider = element("input", { type: "range", min: 0, max: LAST, step: 0.05, "aria-label": "moment of the skew" });
    slider.addEventListener("input", () => {
        goal = null;
        set(Number(slider.value));
    });
    const lines = STEPS.map((line, step) => button(element("code", {}, line), () => goTo(step)));
    const [back, on] = [button("◂ Step", () => goTo(Math.ceil(now) - 1)), button("Step ▸", () => goTo(Math.floor(now) + 1))];
    play.hidden = still.matches;
    still.addEventListener("change", () => (play.hidden = still.matches));
    const moving = element("div", { class: "skew-moving" }, play, back, on, slider);
    box.append(element("div", { class: "skew" }, frame, element("div", { class: "skew-steps" }, ...lines), moving));

    const build = () => {
        const { background } = app.theme();
        cells = Array.from({ length: ALL }, (_, n) => {
            const color = isPadding(n) ? "none" : ordered(app.theme(), queryOf(n), L);
            const look = isPadding(n) ? { stroke: "var(--faint)", "stroke-dasharray": "3 3" } : { stroke: background };
            const label = isPadding(n) ? "0" : shown(distanceOf(n), 0);
            const name = isPadding(n) ? "padding" : `query ${queryOf(n)}, distance ${label}: ${shown(numbers[n - queryOf(n)], 2)}`;
            const middle = { "text-anchor": "middle", "dominant-baseline": "central", fill: isPadding(n) ? "var(--faint)" : background };
            const text = words(0.5, 0.52, label, { ...middle, "font-size": 0.46, "font-weight": 600 });
            const cell = svg("rect", { width: 1, height: 1, fill: color, "vector-effect": "non-scaling-stroke", ...look });
            return svg("g", {}, svg("title", {}, name), cell, text);
        });
        sheet.replaceChildren(...cells, names);
    };
    const names = svg("g");
    /** The numbers of rows and columns, where the cells stand in rows. */
    const namesOf = (step, width) => {
        if (step === 2 || step === 3) return [];
        const first = step < 2 ? 1 - L : 0;
        const columns = Array.from({ length: step < 2 ? WIDE - 1 : step === 4 ? WIDE - 1 : L }, (_, n) => n);
        const rows = Array.from({ length: step === 4 ? L + 1 : L }, (_, n) => n);
        const { size } = place(0, 0, width);
        const middle = { "text-anchor": "middle" };
        return [
            ...columns.map((n) => words(LEFT + (n + 0.5) * size, TOP - 7, shown(first + n, 0), middle)),
            ...rows.map((n) => words(LEFT / 2, TOP + (n + 0.5) * size + 4, String(n), middle)),
        ];
    };
    let built = "";
    const redraw = atEachWidth(frame, (width) => {
        const of = `${app.theme().dark} ${numbers}`;
        if (of !== built) build();
        built = of;
        const [step, part] = [Math.floor(now), smooth(now % 1)];
        cells.forEach((cell, n) => {
            const [from, to] = [step, Math.min(step + 1, LAST)].map((one) => place(n, one, width));
            const { x, y, size, opacity } = Object.fromEntries(Object.keys(from).map((key) => [key, from[key] + part * (to[key] - from[key])]));
            cell.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${size.toFixed(2)})`);
            cell.setAttribute("opacity", opacity.toFixed(2));
        });
        names.replaceChildren(...(part ? [] : namesOf(step, width)));
        sheet.setAttribute("viewBox", `0 0 ${width} ${TOP + (L + 1) * place(0, 0, width).size + 2}`);
    });
    return (moment, given) => {
        [now, numbers] = [moment, given];
        const step = Math.round(now);
        const { shape } = skew(numbers, L)[step];
        said.textContent = `${shape.join(" × ")}: ${SAID[step]}.`;
        sheet.setAttribute("aria-label", said.textContent);
        lines.forEach((one, n) => one.setAttribute("aria-pressed", String(n === step)));
        slider.value = now;
        slider.setAttribute("aria-valuetext", `${STEPS[step]}, ${said.textContent}`);
        redraw();
    };
}
