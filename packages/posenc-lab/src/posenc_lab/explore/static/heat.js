// A matrix as a picture: one canvas, drawn from a typed array, with a bar of colours and a cell that can be read by
// mouse, touch and arrow keys.

import { element, minus } from "posenc/elements.js";
import { must } from "posenc/math/check.js";

const MOST = 1024; // cells to a side
const APART = { across: 34, down: 22 }; // pixels between the numbers along an edge

/**
 * @param {HTMLElement} box
 * @param {() => Object} theme
 * @param {{label: string, rowLabel?: string, columnLabel?: string, size?: number, onPick?: Function}} options
 *   label: what the picture is, for a screen reader; onPick(row, column): a cell was clicked, or Enter pressed on it
 */
export function heat(box, theme, { label, rowLabel = "query", columnLabel = "key", size = 360, onPick = null }) {
    const canvas = element("canvas", { role: "img", tabindex: "0", "aria-label": label });
    const bar = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });
    const [low, high, read] = [element("span"), element("span"), element("output", { "aria-live": "polite" })];
    const top = element("div", { class: "heat-label" }, columnLabel);
    const side = element("div", { class: "heat-side" }, rowLabel);
    const legend = element("div", { class: "heat-bar" }, low, bar, high);
    const [across, down] = ["across", "down"].map((way) =>
        element("div", { class: `heat-ticks ${way}`, "aria-hidden": "true" }),
    );
    const parts = [top, side, across, down, canvas, legend, read];
    const figure = element("div", { class: "heat", style: `--size: ${size}px` }, ...parts);
    box.append(figure);
    let shown = null;
    let cell = null;
    const [small, pen] = [document.createElement("canvas"), canvas.getContext("2d")];

    const say = () => {
        if (!cell || !shown) return;
        const { values, columns, rowName, columnName, digits } = shown;
        const value = values[cell.row * columns + cell.column];
        const number = Number.isNaN(value) ? "not seen" : minus(Number(value.toPrecision(digits)));
        read.textContent = `${rowName(cell.row)}, ${columnName(cell.column)}: ${number}`;
    };
    const paint = () => {
        const { rows, columns, marks, aspect } = shown;
        const ratio = window.devicePixelRatio || 1;
        const width = Math.max(canvas.clientWidth, 32);
        const height = Math.round(width * aspect);
        if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
            canvas.width = Math.round(width * ratio);
            canvas.height = Math.round(height * ratio);
        }
        number(across, columns, width / APART.across);
        number(down, rows, height / APART.down);
        pen.imageSmoothingEnabled = rows > canvas.height || columns > canvas.width;
        pen.drawImage(small, 0, 0, canvas.width, canvas.height);
        const [w, h] = [canvas.width / columns, canvas.height / rows];
        pen.lineWidth = 2 * ratio;
        for (const mark of [...marks, ...(cell && document.activeElement === canvas ? [cell] : [])]) {
            pen.strokeStyle = mark.color ?? theme().ink;
            pen.strokeRect(
                mark.column * w,
                mark.row * h,
                Math.max(w * (mark.columns ?? 1), 4),
                Math.max(h * (mark.rows ?? 1), 4),
            );
        }
    };
    /** Numbers at the middle of cells along an edge, as many as there is room for. */
    const number = (edge, count, room) => {
        const step = stepOf(count / room);
        const all = shown.words ? [] : Array.from({ length: count }, (_, n) => n);
        const numbers = all.filter((n) => (n + shown.from) % step === 0);
        const signature = `${numbers} ${count} ${shown.from}`;
        if (edge.dataset.shown === signature) return;
        edge.dataset.shown = signature;
        edge.replaceChildren(
            ...numbers.map((n) =>
                element("span", { style: `--at: ${(100 * (n + 0.5)) / count}%` }, (n + shown.from).toLocaleString("en")),
            ),
        );
    };
    const within = (x, count) => Math.min(Math.max(Math.floor(x), 0), count - 1);
    const cellAt = (row, column) => ({ row: within(row, shown.rows), column: within(column, shown.columns) });
    const at = ({ clientX, clientY }) => {
        const { left, top, width, height } = canvas.getBoundingClientRect();
        return cellAt(((clientY - top) / height) * shown.rows, ((clientX - left) / width) * shown.columns);
    };
    const move = (to) => {
        cell = to;
        say();
        paint();
    };
    canvas.addEventListener("pointermove", (event) => shown && move(at(event)));
    canvas.addEventListener("click", (event) => shown && onPick && onPick(at(event).row, at(event).column));
    canvas.addEventListener("keydown", (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!shown) return;
        if (event.key === "Enter" && cell && onPick) onPick(cell.row, cell.column);
        if (!step) return;
        event.preventDefault();
        const from = cell ?? { row: 0, column: 0 };
        move(cellAt(from.row + step[0], from.column + step[1]));
    });
    for (const event of ["focus", "blur"]) canvas.addEventListener(event, () => shown && paint());
    new ResizeObserver(() => shown && paint()).observe(canvas);

    return {
        canvas,
        /**
         * @param {ArrayLike<number>} values rows x columns; NaN and infinities are grey: not seen
         * @param {{rows, columns, centre?: number|null, low?: number, high?: number, marks?: {row, column, rows?, columns?, color?}[],
         *   rowLabel?, columnLabel?, rowName?, columnName?, digits?: number, from?: number, label?: string,
         *   aspect?: number}} options centre:
         *   where the colours part; undefined: 0 where there are both signs; null: sequential; aspect: height by width, or
         *   else cells are square; from: the number of the first row and column; words: {text, isMarked}[], what stands at each row and column, in place of the labels
         */
        draw(values, options) {
            const { rows, columns, marks = [], digits = 4 } = options;
            must(
                rows <= MOST && columns <= MOST && rows * columns === values.length,
                `a picture takes up to ${MOST} x ${MOST} numbers, got ${rows} x ${columns} and ${values.length}`,
            );
            let [least, most] = [options.low ?? Infinity, options.high ?? -Infinity];
            if (options.low === undefined || options.high === undefined) {
                let [below, above] = [Infinity, -Infinity];
                for (let n = 0; n < values.length; n++) {
                    const value = values[n];
                    if (!Number.isFinite(value)) continue;
                    if (value < below) below = value;
                    if (value > above) above = value;
                }
                if (below > above) [below, above] = [0, 1];
                least = options.low ?? below;
                most = options.high ?? above;
            }
            const rounding = 1e-12 * Math.max(Math.abs(least), Math.abs(most));
            const signed = least < -rounding && most > rounding;
            const centre = options.centre === undefined ? (signed ? 0 : null) : options.centre;
            if (centre !== null) {
                const reach = Math.max(centre - least, most - centre, 1e-300);
                [least, most] = [centre - reach, centre + reach];
            }
            const colors = centre === null ? theme().sequential : theme().divergingRamp;
            const unseen = theme().unseenBytes;
            if (small.width !== columns || small.height !== rows) [small.width, small.height] = [columns, rows];
            const image = new ImageData(columns, rows);
            const pixels = new Uint32Array(image.data.buffer);
            const lut = new Uint32Array(colors.buffer);
            const scale = most > least ? 255 / (most - least) : 0;
            for (let n = 0; n < values.length; n++) {
                const value = values[n];
                const place = Math.round((value - least) * scale);
                pixels[n] = Number.isFinite(value) ? lut[place < 0 ? 0 : place > 255 ? 255 : place] : unseen;
            }
            small.getContext("2d").putImageData(image, 0, 0);
            [side.textContent, top.textContent] = [options.rowLabel ?? rowLabel, options.columnLabel ?? columnLabel];
            shown = {
                values,
                rows,
                columns,
                marks,
                digits,
                from: options.from ?? 0,
                words: options.words,
                aspect: options.aspect ?? rows / columns,
                rowName: options.rowName ?? ((row) => `${side.textContent} ${row}`),
                columnName: options.columnName ?? ((column) => `${top.textContent} ${column}`),
            };
            if (cell && (cell.row >= rows || cell.column >= columns)) cell = null;
            const strip = new ImageData(256, 1);
            strip.data.set(colors);
            bar.getContext("2d").putImageData(strip, 0, 0);
            low.textContent = minus(Number(least.toPrecision(3)));
            high.textContent = minus(Number(most.toPrecision(3)));
            if (options.label) canvas.setAttribute("aria-label", options.label);
            if (options.words) {
                for (const edge of [side, top]) named(edge, options.words);
            }
            paint();
            say();
        },
    };
}

/** The least of 1, 2, 5, 10, 20 … that is at least so many. */
function stepOf(least) {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return [1, 2, 5, 10].find((step) => step * power >= least) * power;
}

/** Words along an edge, one for each row or column. */
function named(edge, words) {
    edge.classList.add("words");
    edge.replaceChildren(
        ...words.map(({ text, isMarked }) => element("span", { class: isMarked ? "marked" : undefined }, text)),
    );
}
