// Step 4: a learned table has a row for each position, and none past its last. The sinusoid is a formula.

import { dragged } from "posenc/drag.js";
import { Matrix } from "posenc/math/arrays.js";
import { Learned, Sinusoidal } from "posenc/math/add.js";
import { Positions } from "posenc/math/positions.js";
import { randnPython } from "posenc/math/special.js";
import { agreed, apart, askTable, named } from "posenc/options.js";
import { colorOf, drawing, legend, panel, shown, words } from "posenc/panel.js";
import { remembered } from "posenc/remembered.js";
import { svg } from "posenc/svg.js";
import { before, products, unit } from "posenc/vectors.js";

const [ROWS, DIM, SHOWN] = [32, 32, 40]; // rows of the table, their channels, and the positions that are drawn
const SHADES = 8; // of each sign
const SIZES = { max_positions: ROWS, dim: DIM };
const WEIGHT = before(SIZES);
const learned = new Learned(SIZES, { weight: WEIGHT });
const sinusoid = new Sinusoidal({ dim: DIM, base: 10000, layout: "interleaved", axes: 1 });

const alike = (vectors) => products(unit(vectors));
const table = learned.table(Positions.arange(ROWS));
const [OF_LEARNED, OF_SINUSOID] = [alike(table), alike(sinusoid.table(Positions.arange(SHOWN)))];

/** What posenc says where the table has no row for a position; "" where it has one. Its words are the library's, which
 * the tests compare. */
function refusal(position) {
    try {
        learned.table(new Positions([position]));
        return "";
    } catch (error) {
        return error.message;
    }
}

function values({ position }, app) {
    const refused = refusal(position);
    const { positions, cosines } = app.data.tables.minilm; // 127 times each, as bytes
    const row = atob(cosines).slice(position * positions, (position + 1) * positions);
    return {
        trained: Float64Array.from(Int8Array.from(row, (x) => x.charCodeAt(0)), (x) => x / 127),
        refused,
        learned: refused ? null : OF_LEARNED.subarray(position * ROWS, (position + 1) * ROWS),
        sinusoid: OF_SINUSOID.subarray(position * SHOWN, (position + 1) * SHOWN),
    };
}

export const figure = {
    name: "table",
    title: "A table of learned vectors, and its edge",
    see: "Move the position along the table, and past its last row.",
    defaults: { position: 12 },
    another: { position: 31 },
    controls: [{ name: "position", label: "position", kind: "range", min: 0, max: SHOWN - 1, step: 1 }],
    values,
    line: ({ position }) =>
        `learned = posenc.Learned(max_positions=${ROWS}, dim=${DIM}).double()\n` +
        `learned.weight.data = 0.02 * ${randnPython([ROWS, DIM], 0)}  # one possible start\n` +
        `row = learned.table(posenc.Positions.arange(1, start=${position}), torch.float64)[0]\n` +
        `torch.cosine_similarity(row, learned.weight)`,
    compared: (state, { learned: data }) => data && { shape: [ROWS], data },
    async check({ position }, { refused, learned: ofLearned, sinusoid: ofSinusoid }, app) {
        if (refused) return "the words of this error are posenc's own: the tests compare them";
        const alongIn = async (scheme, size) => {
            const said = await askTable(app, scheme, Positions.arange(size));
            const cosines = alike(new Matrix(size, DIM, Float64Array.from(said)));
            return cosines.subarray(position * size, (position + 1) * size);
        };
        const theirs = await alongIn(named({ name: "learned" }, SIZES, { weight: WEIGHT }), ROWS);
        const formula = await alongIn({ name: "sinusoidal", options: { dim: DIM } }, SHOWN);
        return agreed(ROWS + SHOWN, Math.max(apart(ofLearned, theirs), apart(ofSinusoid, formula)));
    },
    mount(box, app) {
        const cellsOf = remembered((width, dark, place) => cellsIn(app.theme(), place));
        return drawing(box, (width, state, numbers) => {
            const [left, right, high] = width < 480 ? [34, 10, 96] : [34, 10, 128];
            const place = { left, width: width - left - right, x: [-0.5, SHOWN - 0.5] };
            const cells = { ...place, top: 22, height: high, y: [0, DIM] };
            const top = cells.top + cells.height + 26;
            const below = { ...place, top, height: 1.36 * high, y: [-0.6, 1.05] };
            const [learned, sinusoid, trained] = ["learned", "sinusoidal", "rope"].map((name) => colorOf(app, name));
            const looks = { learned, sinusoid, trained };
            return {
                height: top + below.height + 34,
                parts: [
                    ...cellsOf(width, app.theme().dark, cells),
                    ...marks(cells, below, state),
                    ...curvesIn(looks, below, state, numbers),
                    handle(cells, below, state, app),
                ],
                label: figure.describe(state, numbers),
            };
        });
    },
    describe({ position }, { refused, learned: ofLearned, sinusoid: ofSinusoid }) {
        const next = position === 0 ? 1 : position - 1;
        const cosine = shown(ofSinusoid[next], 2);
        const formula = `The sinusoid has a vector there: its cosine with that of position ${next} is ${cosine}.`;
        if (refused) return `Position ${position}: the table has no such row. posenc says: ${refused}. ${formula}`;
        const row = shown(ofLearned[next], 2);
        return `Position ${position}: the cosine of its row with row ${next} is ${row}. ${formula}`;
    },
};

export const predict = { position: 36 };

export const question = {
    judge({ position }) {
        if (position === ROWS) return "right";
        if (position === ROWS - 1) return "last";
        return position < ROWS ? "inside" : "beyond";
    },
    examples: {
        right: { position: ROWS },
        last: { position: ROWS - 1 },
        inside: { position: 20 },
        beyond: { position: 36 },
    },
};

/** The table: a column for each position, and after its last row empty places. */
function cellsIn({ divergingRamp }, place) {
    const { parts, X } = panel({ ...place, title: `the table of ${ROWS} rows, each drawn as a column` });
    const [w, h] = [X(1) - X(0), place.height / DIM];
    // One path for each of a few colours: as many elements as there are numbers would be slow.
    const byShade = new Map();
    WEIGHT.data.forEach((value, n) => {
        const shade = Math.round(SHADES * (1 + Math.max(-1, Math.min(1, value / 0.05))));
        const [x, y] = [X(Math.floor(n / DIM) - 0.5), place.top + (n % DIM) * h];
        byShade.set(shade, `${byShade.get(shade) ?? ""}M${x},${y}h${w + 0.3}v${h + 0.3}h${-w - 0.3}z`);
    });
    const cells = Array.from(byShade, ([shade, d]) => {
        const at = 4 * Math.round((255 * shade) / (2 * SHADES));
        return svg("path", { d, fill: `rgb(${divergingRamp.subarray(at, at + 3).join()})`, "data-part": "table" });
    });
    const empty = {
        x: X(ROWS - 0.5) + 1,
        y: place.top + 0.5,
        width: (SHOWN - ROWS) * w - 2,
        height: place.height - 1,
        fill: "none",
        stroke: "var(--faint)",
        "stroke-dasharray": "4 3",
        "data-part": "edge",
    };
    const [from, to] = [X(ROWS - 0.5), X(SHOWN - 0.5)];
    return [
        ...parts,
        ...cells,
        svg("rect", empty),
        words((from + to) / 2, place.top - 6, "no rows", { "text-anchor": "middle", fill: "var(--ink)", "data-part": "edge" }),
    ];
}

/** How alike the row of the position is to each other, and the same of the sinusoid. */
function curvesIn(looks, place, { position }, { refused, trained, learned: ofLearned, sinusoid: ofSinusoid }) {
    const { parts, X, Y, path, dots } = panel({
        ...place,
        title: place.width < 400 ? "cosine" : `cosine with position ${position}`,
        xTicks: [0, 8, 16, 24, 32, 39],
        yTicks: [0, 1],
        xLabel: "position",
    });
    const ours = { stroke: looks.learned, "stroke-width": 2, "data-part": "learned" };
    const formula = { stroke: looks.sinusoid, "stroke-dasharray": "6 3", "data-part": "sinusoid" };
    const real = { stroke: looks.trained, "stroke-width": 2, "data-part": "trained" };
    const key = [
        { name: "random", ...ours },
        { name: "MiniLM", ...real },
        { name: "sinusoid", ...formula },
    ];
    const [x, y] = [X(0), Y(-0.15)];
    const said = [
        svg("rect", { x, y, width: X(SHOWN - 1) - x, height: 24, rx: 4, fill: "var(--bad)" }),
        words(x + 6, y + 16, `posenc: ${refused}`, { fill: "var(--ink)" }),
    ];
    return [
        ...parts,
        ...legend(place.left + place.width, place.top - 6, key),
        path(ofSinusoid, formula),
        path(trained, real),
        ...(refused ? said : [path(ofLearned, { ...ours, "stroke-width": 1 }), ...dots(ofLearned, ours.stroke)]),
    ];
}

/** The position, round its row and behind the curves. */
function marks(cells, below, { position }) {
    const { X } = panel(cells);
    const place = { x: X(position - 0.5) - 1, width: X(1) - X(0) + 2, "data-part": "position" };
    const frame = { y: cells.top - 1, height: cells.height + 2, stroke: "var(--ink)", "stroke-width": 2 };
    return [
        svg("rect", { ...place, ...frame, fill: "none" }),
        svg("rect", { ...place, y: below.top, height: below.height, fill: "var(--rule)" }),
    ];
}

/** What one drags: all of the picture, where the position comes to. */
function handle(cells, below, { position }, app) {
    const { at } = panel(cells);
    const place = { x: cells.left, y: cells.top, width: cells.width, height: below.top + below.height - cells.top };
    const drag = { now: () => position, min: 0, max: SHOWN - 1, place: (x, y) => at(x, y)[0], jumps: true };
    const set = (position) => app.set({ position });
    return svg("rect", { ...place, fill: "transparent", style: "touch-action: pan-y", ...dragged({ ...drag, set }) });
}
