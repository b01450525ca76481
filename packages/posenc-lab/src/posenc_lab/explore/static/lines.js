// Lines against a number, by uPlot: with a list of what is which, intervals, and values read by mouse or arrow keys.

import { element, minus } from "posenc/elements.js";
import { keyOf } from "posenc/lines_key.js";
import uPlot from "posenc/vendor/uPlot.esm.js";

/** A line's look: what tells it apart without colour too. */
const DASHES = [[], [9, 3], [2, 3], [9, 3, 2, 3], [5, 2], [12, 4, 4, 4]];

/** Steps between ticks of what is counted: tokens, positions, heads. */
const WHOLE = [1, 2, 5].flatMap((x) => Array.from({ length: 8 }, (_, power) => x * 10 ** power)).sort((a, b) => a - b);
const CLOSE = 24; // pixels from a line at which one points at it
const SAMPLES = 256; // of a curve, for how far it reaches beyond its dots
const ROOM = 5; // pixels that a dot needs

/**
 * @param {HTMLElement} box
 * @param {() => Object} theme
 * @param {{label: string, xLabel: string, yLabel: string, height?: number, logX?: boolean, logY?: boolean}} options
 */
export function lines(box, theme, { label, xLabel, yLabel, height = 300, logX = false, logY = false }) {
    const list = element("ul", { class: "lines-key" });
    const frame = element("div", { class: "lines", role: "group", tabindex: "0", "aria-label": label });
    const read = element("output", { class: "lines-read", "aria-live": "polite" });
    box.append(element("div", { class: "lines-box" }, list, frame, read));
    let [plot, made, shown, marks, spans, at, reach] = [null, "", null, [], [], null, []];
    const key = keyOf(list, (isOther) => {
        if (isOther) redo();
        else plot?.redraw(false, false);
        say(at);
    });

    const say = (to) => {
        at = to ?? at; // a plot that is made anew points at nothing
        if (!shown || at === null || shown.x[at] === undefined) return;
        const words = shown.series
            .filter((one) => Number.isFinite(one.y[at]) && !key.isGrey(one))
            .map((one) => `${one.name} ${minus(Number(one.y[at].toPrecision(4)))}`);
        read.textContent = `${shown.xLabel} ${minus(Number(shown.x[at].toPrecision(6)))}: ${words.join(", ")}`;
    };
    /** The line that is pointed at, of many. */
    const pointAt = (u) => {
        const { left, top, idx } = u.cursor;
        if (!key.isMany() || left === null) return;
        const away = (one) => Math.abs(u.valToPos(one.y[idx], "y") - top);
        const near = left < 0 || top < 0 ? [] : shown.series.filter((one) => away(one) < CLOSE);
        key.point(near.sort((a, b) => away(a) - away(b))[0] ?? null);
    };
    const axis = (words, log) => ({
        label: words,
        stroke: theme().ink,
        labelSize: 22,
        labelFont: "12px system-ui, sans-serif",
        font: "12px system-ui, sans-serif",
        grid: { stroke: theme().grid, width: 1 },
        ticks: { stroke: theme().grid, width: 1, size: 5 },
        values: (_, splits) =>
            splits.map((x) =>
                x === null
                    ? ""
                    : log && !/^1|^2|^5/.test(String(x)) && splits.length > 8
                      ? ""
                      : x !== 0 && Math.abs(x) < 1e-3
                        ? minus(x.toExponential(0))
                        : minus(
                            Number(x.toPrecision(6)).toLocaleString("en", Math.abs(x) < 1e5 ? {} : { notation: "compact" }),
                          ),
            ),
    });
    /** A pen for the plot of u alone. */
    const penOf = (u) => {
        const pen = u.ctx;
        pen.save();
        pen.beginPath();
        pen.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
        pen.clip();
        return pen;
    };
    // Vertical lines and bands, under the lines.
    const underlay = (u) => {
        const pen = penOf(u);
        const { top, height } = u.bbox;
        for (const { from, to, color } of spans) {
            const [left, right] = [u.valToPos(from, "x", true), u.valToPos(to, "x", true)];
            pen.fillStyle = color ?? theme().grid;
            pen.globalAlpha = 0.5;
            pen.fillRect(left, top, right - left, height);
            pen.globalAlpha = 1;
        }
        for (const { x } of marks) {
            const place = u.valToPos(x, "x", true);
            pen.strokeStyle = theme().faint;
            pen.lineWidth = uPlot.pxRatio;
            pen.setLineDash([4 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
            pen.beginPath();
            pen.moveTo(place, top);
            pen.lineTo(place, top + height);
            pen.stroke();
        }
        pen.restore();
    };
    // A word at each, over the lines, with an edge of paper, and whole at the edge of the plot.
    const names = (u) => {
        const pen = penOf(u);
        const ratio = uPlot.pxRatio;
        const { left, top, width, height } = u.bbox;
        pen.font = `${11 * ratio}px system-ui, sans-serif`;
        pen.textAlign = "left"; // the axes left both as they needed them
        pen.textBaseline = "alphabetic";
        pen.lineJoin = "round";
        pen.lineWidth = 4 * ratio;
        pen.strokeStyle = theme().background;
        pen.fillStyle = theme().faint;
        const write = (name, x, y) => {
            pen.strokeText(name, x, y);
            pen.fillText(name, x, y);
        };
        for (const { from, name } of spans.filter((one) => one.name)) {
            const last = left + width - pen.measureText(name).width - 4 * ratio;
            write(name, Math.min(Math.max(u.valToPos(from, "x", true), left) + 4 * ratio, last), top + 13 * ratio);
        }
        for (const { x, name } of marks.filter((one) => one.name)) {
            const place = u.valToPos(x, "x", true);
            const isRight = place > left + width / 2;
            pen.textAlign = isRight ? "right" : "left";
            write(name, place + (isRight ? -4 : 4) * ratio, top + height - 6 * ratio);
        }
        pen.restore();
    };
    /** A curve through every pixel of the plot, of a line that is known between its numbers. */
    const wave = (n) => (u, _, from, to) => {
        const path = new Path2D();
        const [left, right] = [from, to].map((index) => u.valToPos(u.data[0][index], "x", true));
        for (let x = left; ; x = Math.min(x + 1, right)) {
            path.lineTo(x, u.valToPos(shown.series[n].wave(u.posToVal(x, "x", true)), "y", true));
            if (!(x < right)) break;
        }
        return { stroke: path, fill: null, clip: null, band: null, gaps: null, flags: 1 };
    };
    const hasRoom = (u, _, from, to) => u.bbox.width / uPlot.pxRatio >= ROOM * (to - from);
    const build = (series, ranges) => {
        plot?.destroy();
        frame.replaceChildren();
        const all = [{}];
        const bands = [];
        for (const [n, one] of series.entries()) {
            const place = all.length;
            const color = () => (key.isGrey(shown.series[n]) ? `${theme().faint}73` : one.color);
            const isDotted = Boolean(one.dots || one.wave);
            const hasPoints = Boolean(one.points || one.markers);
            all.push({
                label: one.name,
                stroke: color,
                width: one.points ? 0 : (one.width ?? 2),
                dash: one.dash,
                spanGaps: false,
                points: { show: isDotted ? hasRoom : hasPoints, size: isDotted ? 5 : 7, fill: color, stroke: color },
                paths: one.points ? () => null : one.wave && wave(n),
            });
            if (one.low) {
                all.push(
                    { stroke: "transparent", points: { show: false } },
                    { stroke: "transparent", points: { show: false } },
                );
                const fill = one.fill ?? `${one.color}33`;
                bands.push({
                    series: [place + 2, place + 1],
                    fill: () => (key.isGrey(shown.series[n]) ? "transparent" : fill),
                });
            }
        }
        plot = new uPlot(
            {
                width: Math.max(frame.clientWidth, 120),
                height,
                bands,
                series: all,
                legend: { show: false },
                pxAlign: 0,
                scales: {
                    x: {
                        time: false,
                        distr: logX ? 3 : 1,
                        range: (u, low, high) => ranges.x ?? (low === high ? [low - 1, high + 1] : [low, high]),
                    },
                    y: {
                        distr: logY ? 3 : 1,
                        range: (u, low, high) => 
                            ranges.y ??
                            (logY ? [low / 1.2, high * 1.2] : pad(Math.min(low, ...reach), Math.max(high, ...reach))),
                    },
                },
                axes: [
                    {
                        ...axis(ranges.xLabel ?? xLabel, logX),
                        size: 30,
                        labelSize: 18,
                        ...(ranges.isWhole && !logX && { incrs: WHOLE }),
                        ...(ranges.ticks && { splits: () => ranges.ticks, filter: (u, splits) => splits }),
                    },
                    { ...axis(ranges.yLabel ?? yLabel, logY), size: 62 },
                ],
                cursor: { drag: { x: false, y: false }, points: { size: 7 } },
                hooks: { setCursor: [pointAt, (u) => say(u.cursor.idx)], drawAxes: [underlay], draw: [names] },
            },
            [[]],
            frame,
        );
        for (const canvas of frame.querySelectorAll("canvas")) canvas.setAttribute("aria-hidden", "true");
    };
    frame.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
        if (!step || !shown || !plot) return;
        event.preventDefault();
        const to = Math.min(Math.max((plot.cursor.idx ?? 0) + step, 0), shown.x.length - 1);
        plot.setCursor({ left: plot.valToPos(shown.x[to], "x"), top: -10 });
        say(to);
    });
    // A frame that leaves the page is told of as a change of its size. uPlot keeps every plot, with its listeners on the
    // window, until it is destroyed.
    new ResizeObserver(() => {
        if (!frame.isConnected) {
            plot?.destroy();
            plot = null;
        } else if (plot && frame.clientWidth > 0) {
            plot.setSize({ width: Math.max(frame.clientWidth, 120), height });
        }
    }).observe(frame);

    let redo = () => {};
    const drawn = {
        frame,
        /**
         * @param {ArrayLike<number>} x rising numbers, common to all
         * @param {{name, y, wave?, dots?, color?, dash?, low?, high?, points?, markers?, width?, isUnlisted?, of?, isChosen?, isFixed?}[]} series
         *   y: as long as x; NaN: a gap; dots: each number is a dot where there is room; wave: the curve through them, a
         *   function of x; of: the name of the line it belongs to;
         *   isChosen: of more than six lines, those in colour at first; isFixed: always in colour
         * @param {{marks?: {x, name?}[], spans?: {from, to, name?, color?}[], x?: [number, number], y?: [number, number],
         *   xLabel?: string, yLabel?: string, ticks?: number[]}} options: of x, where ticks are to stand
         */
        draw(x, series, options = {}) {
            const given = [x, series, options];
            redo = () => drawn.draw(...given);
            series = series.map((one, n) => ({
                ...one,
                color: one.color ?? theme().palette[n % theme().palette.length],
                dash: one.dash ?? DASHES[n % DASHES.length],
            }));
            key.show(series);
            series.sort((a, b) => Number(key.isGrey(b)) - Number(key.isGrey(a))); // what is in colour lies above
            options = { ...options, isWhole: Array.prototype.every.call(x, Number.isInteger) };
            shown = { x, series, xLabel: options.xLabel ?? xLabel };
            const waves = options.y ? [] : series.flatMap(({ wave }) => wave ?? []);
            const places = Array.from({ length: SAMPLES + 1 }, (_, n) => x[0] + ((x.at(-1) - x[0]) * n) / SAMPLES);
            reach = waves.flatMap((wave) => places.map(wave));
            [marks, spans] = [options.marks ?? [], options.spans ?? []];
            const signature = JSON.stringify([
                series.map(({ name, color, dash, low, points, markers, width, wave, dots }) => [
                    ...[name, color, dash, points, markers, width],
                    ...[Boolean(low), Boolean(wave), dots],
                ]),
                options.isWhole,
                options.x,
                options.y,
                options.xLabel,
                options.yLabel,
                options.ticks,
                theme().dark,
            ]);
            if (signature !== made || !plot) {
                build(series, options);
                made = signature;
            }
            const finite = (y) => Array.from(y, (value) => (Number.isFinite(value) ? value : null));
            plot.setData([
                Array.from(x),
                ...series.flatMap((one) =>
                    one.low ? [finite(one.y), finite(one.low), finite(one.high)] : [finite(one.y)],
                ),
            ]);
        },
    };
    return drawn;
}

function pad(low, high) {
    if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    const room = 0.05 * (high - low > 1e-9 * size ? high - low : size || 1); // numbers apart by rounding alone are one
    return [low - room, high + room];
}
