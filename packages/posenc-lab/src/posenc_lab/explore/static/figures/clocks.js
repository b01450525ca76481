// RoPE's pairs of channels as hands, each of which turns at its own speed.

import { checkAngles } from "posenc/angles.js";
import { element } from "posenc/elements.js";
import { frequencies } from "posenc/math/phases.js";
import { atEachWidth, svg } from "posenc/svg.js";
import { ordered } from "posenc/theme.js";
import { rope } from "posenc/use.js";

const MOST = 1024; // the last position
const PER_SECOND = 4; // positions, while it plays

const short = (x) => (x < 100 ? x.toFixed(1) : Math.round(x).toLocaleString("en"));

export const figure = {
    name: "clocks",
    title: "Each pair of channels is a clock",
    see:
        "RoPE turns pair k of queries and keys by position × θₖ. Pair 0 is the fastest, one radian per token; the " +
        "last pairs hardly move. Under each clock is its wavelength, the number of tokens in one turn. Raise the base: the " +
        "slow clocks become slower.",
    defaults: { dim: 32, base: 10000, position: 20 },
    another: { dim: 8, base: 500, position: 333 },
    controls: [
        { name: "position", label: "position", kind: "range", min: 0, max: MOST, step: 1 },
        { name: "dim", label: "head_dim", kind: "range", min: 4, max: 128, step: 4 },
        { name: "base", label: "base", kind: "range", min: 10, max: 1_000_000, log: true, step: 1 },
    ],
    values({ dim, base, position }) {
        const theta = frequencies(dim, base);
        return { theta, main: theta.map((x) => position * x), wavelengths: theta.map((x) => (2 * Math.PI) / x) };
    },
    use: ({ dim, base }) => rope(dim, { base }),
    line: ({ dim, base, position }) =>
        `theta, _ = posenc.RoPE(${dim}, base=${base}).frequencies()\n${position} * theta[0]`,
    compared: ({ dim }, { main }) => ({ shape: [dim / 2], data: main }),
    check: ({ dim, base, position }, { main }, app) => checkAngles({ dim, base, position, angles: main }, app),
    mount(box, app) {
        const clocks = element("div", {
            style: "display: grid; gap: 6px; width: 100%",
            role: "img",
        });
        const button = element("button", { type: "button" });
        box.append(element("div", { style: "width: 100%" }, button), clocks);
        const still = matchMedia("(prefers-reduced-motion: reduce)");
        let [hands, shown, playing] = [[], null, false];

        const words = () => (button.textContent = still.matches ? "Next token" : playing ? "Pause" : "Play");
        const goTo = (position) => app.set({ position: position > MOST ? 0 : position });
        const play = (now, last = now) => {
            if (playing && (!box.isConnected || still.matches)) playing = false;
            if (!playing) return words();
            goTo(Math.round(100 * (shown.position + (PER_SECOND * (now - last)) / 1000)) / 100);
            requestAnimationFrame((next) => play(next, now));
        };
        button.addEventListener("click", () => {
            if (still.matches) return goTo(Math.floor(shown.position) + 1);
            playing = !playing;
            words();
            if (playing) requestAnimationFrame((now) => play(now));
            else goTo(Math.round(shown.position));
        });
        words();

        const build = (pairs) => {
            const { ink, faint } = app.theme();
            hands = Array.from({ length: pairs }, (_, k) => {
                const color = ordered(app.theme(), k, pairs);
                const hand = svg("line", { x2: 17, stroke: color, "stroke-width": 3, "stroke-linecap": "round" });
                const tip = svg("circle", { cx: 17, r: 3.5, fill: color });
                const turning = svg("g", {}, hand, tip);
                const rim = svg("circle", { r: 22, fill: "none", stroke: faint });
                const start = svg("line", { x1: 19, x2: 25, stroke: ink });
                const clock = svg("svg", { viewBox: "-26 -26 52 52", width: 52, height: 52 }, rim, start, turning);
                const wave = element("span");
                const label = element(
                    "div",
                    { style: "font-size: 11px; line-height: 1.25; font-variant-numeric: tabular-nums" },
                    `pair ${k}`,
                    element("br"),
                    wave,
                );
                return { turning, rim, wave, box: element("div", { style: "text-align: center" }, clock, label) };
            });
            clocks.replaceChildren(...hands.map((one) => one.box));
            arrange();
        };
        // As few rows as there is room for, all as long as possible.
        const arrange = atEachWidth(clocks, (width) => {
            const rows = Math.ceil(hands.length / Math.max(1, Math.floor(width / 72)));
            clocks.style.gridTemplateColumns = `repeat(${Math.ceil(hands.length / rows)}, minmax(0, 1fr))`;
        });
        return (state, { main, wavelengths }) => {
            shown = state;
            if (hands.length !== main.length) build(main.length);
            hands.forEach(({ turning, rim, wave }, k) => {
                // y runs down on the screen, and angles count against the clock as in mathematics.
                turning.setAttribute("transform", `rotate(${((-main[k] * 180) / Math.PI) % 360})`);
                const round = state.position >= wavelengths[k];
                rim.setAttribute("stroke-width", round ? 2.5 : 1);
                rim.setAttribute("stroke-dasharray", round ? "none" : "3 3");
                wave.textContent = short(wavelengths[k]);
            });
            clocks.setAttribute(
                "aria-label",
                `${main.length} clocks, one for each pair of channels: ${said(state, wavelengths)}`,
            );
        };
    },
    describe: (state, { wavelengths }) =>
        `${said(state, wavelengths)} A solid rim: the pair has completed at least one turn; a dashed one: not yet, so ` +
        "longer texts show the model angles that this one does not.",
};

function said({ position, dim }, wavelengths) {
    const round = wavelengths.filter((x) => position >= x).length;
    return (
        `At position ${position}, ${round} of ${dim / 2} pairs have completed a turn. Wavelengths go from ` +
        `${short(wavelengths[0])} tokens (pair 0) to ${short(wavelengths.at(-1))} (pair ${dim / 2 - 1}).`
    );
}
