// Measured: what schemes do at lengths that the model was and was not trained on, with intervals.

import { dropping } from "posenc/dropping.js";
import { element, row, scroller, tableOf } from "posenc/elements.js";
import { bandOf, chosen, command, control, source } from "posenc/records.js";

const LIMITS = {
    text: "A loss that stays low past the trained length does not show that the far context is used; only a loss of the final tokens below the dashed line does. These are small models, trained briefly on one text; on yours the order may be different.",
    extend: "A model that does no worse past its length need not use the text there: it does so where its loss is below the dashed line by more than the intervals. This is one model and one kind of text.",
    answers:
        "These are small models, trained briefly on one task: what a scheme achieves here does not say how good it is in a large model.",
};
const DASHED = {
    text: (trained) => `Dashed: each of the final tokens from exactly the last ${trained}. `,
    extend: (trained) => `Dashed: the plain model, on text cropped to the last ${trained}. `,
};
const FIRST = ["nope", "sinusoidal", "rope", "alibi"]; // of many schemes, those in colour at first
const BASELINE = [3, 3]; // dashes of a line that every longer context is held against
const UNDEFINED = "Undefined means that the scheme has no such positions, not that it is bad there.";

export const figure = {
    name: "length-curves",
    title: "Measured: the loss against the length",
    see: "To the right of the mark, inputs are longer than in training. Which curve stays level, and which does not? Bands are 95 % intervals: where two overlap, the picture decides nothing. The table has the numbers, the best at the longest length first.",
    defaults: { records: "0", measure: "0" },
    controls({ records }, app) {
        const set = chosen(app, records);
        const { kinds } = app.data.measures[set.task];
        const choices = set.measures.map(({ kind }, n) => ({ value: String(n), name: kinds[kind] }));
        return [
            ...control(app),
            ...(choices.length > 1 ? [{ name: "measure", label: "measured on", kind: "choice", choices }] : []),
        ];
    },
    change: (values, name, value) => ({ ...values, ...(name === "records" ? { measure: "0" } : {}), [name]: value }),
    values({ records, measure: number }, app) {
        const set = chosen(app, records);
        const measure = set.measures[Number(number)] ?? null;
        if (!measure && set.measures.length)
            throw new RangeError(`measure must be from 0 to ${set.measures.length - 1}, got ${number}`);
        const task = app.data.measures[set.task];
        return { set, measure, task };
    },
    line: ({ records }, app) => command(app, records),
    mount(box, app) {
        const place = element("div", { class: "wide" });
        const shown = element("div", { class: "wide" });
        const from = element("p", { class: "ends" });
        shown.append(from);
        const chart = app.lines(shown, {
            label: "the loss by length",
            xLabel: "tokens",
            yLabel: "",
            logX: true,
            height: 340,
        });
        const ends = element("p", { class: "ends" });
        const numbers = scroller("the numbers of the curves", "numbers");
        const limits = element("p", { class: "ends" });
        shown.append(ends, numbers, limits);
        box.append(shown, place);
        dropping(place, app);
        return (values, { set, measure, task }) => {
            shown.hidden = !measure;
            if (!measure) return;
            const { lengths, curves, baselines } = measure;
            const { dark, ink, palette } = app.theme();
            const dashes = new Set();
            const there = Object.entries(curves).filter(([, points]) => points.some(([mean]) => mean !== null));
            const series = there.map(([name, points], n) => {
                const { color = palette[n % palette.length], dash } =
                    app.data.looks[name]?.[dark ? "dark" : "light"] ?? {};
                const isAlike = dashes.has(String(dash)); // then a dash by the order: colour alone tells too little
                dashes.add(String(dash));
                return {
                    name,
                    color,
                    dash: isAlike ? undefined : dash,
                    ...bandOf(points),
                    isChosen: FIRST.includes(name),
                };
            });
            const colors = Object.fromEntries(series.map(({ name, color }) => [name, color]));
            // One number: a level line, from the trained length on or, where that was not measured, the last before it.
            const begin = lengths.filter((length) => length <= set.trained).at(-1) ?? lengths[0];
            const level = Object.entries(baselines).filter(([, [mean]]) => mean !== null);
            const dashed = level.map(([name, [mean]]) => ({
                name: name in curves ? `${name}, dashed` : name,
                color: colors[name] ?? ink,
                dash: BASELINE,
                width: 1.2,
                isUnlisted: name in curves,
                of: name,
                y: lengths.map((length) => (length >= begin ? mean : NaN)),
            }));
            chart.draw(lengths, [...series, ...dashed], {
                marks: [{ x: set.trained, name: `trained on ${set.trained.toLocaleString("en")}` }],
                x: [lengths[0] / 1.15, lengths.at(-1) * 1.15],
                ticks: lengths,
                xLabel: task.lengths,
                yLabel: task.unit,
            });
            const trained = set.trained.toLocaleString("en");
            from.textContent = source(set);
            ends.textContent = `${level.length ? (DASHED[set.task] ?? DASHED.text)(trained) : ""}${ending(measure, task)}`;
            numbers.replaceChildren(table(set, measure, task));
            const left = set.left_out
                ? ` ${set.left_out} records of earlier comparisons in this folder are left out.`
                : "";
            const alone = Object.values(set.seeds).filter((count) => count === 1).length;
            const once = alone ? ` Of ${alone === set.schemes.length ? "each scheme" : "some schemes"} there is one seed: its intervals do not cover how much another training would differ.` : "";
            limits.textContent = `${LIMITS[set.task] ?? LIMITS.answers}${once}${left}`;
        };
    },
    describe(values, { set, measure, task }) {
        if (!measure) return `${set.name} has no measurements by length.`;
        const last = measure.lengths.length - 1;
        const words = Object.entries(measure.curves).map(
            ([name, points]) => `${name} ${points[last][0]?.toFixed(3) ?? points[last][3]}`,
        );
        return `${set.name}, ${task.kinds[measure.kind]}: ${task.unit} at ${measure.lengths[last].toLocaleString("en")} ${task.lengths}, ${task.better} is better: ${words.join(", ")}.`;
    },
};

/** Why curves end, or are not there. */
function ending({ lengths, curves }, task) {
    const notes = [];
    let undefinedSome = false;
    for (const [name, points] of Object.entries(curves)) {
        for (const why of ["undefined", "diverged", "not finite", "missing"]) {
            const at = lengths.filter((_, n) => points[n][3] === why);
            if (at.length)
                notes.push(
                    `${name}: ${why} at ${at.length === lengths.length ? "every length" : at.map((length) => length.toLocaleString("en")).join(", ")}`,
                );
            undefinedSome ||= at.length > 0 && why === "undefined";
        }
    }
    return notes.length ? `${notes.join("; ")} (${task.lengths}). ${undefinedSome ? UNDEFINED : ""}` : "";
}

/** Names, the best at the longest length first; last those that have no number there. */
function sorted(curves, { better }, names) {
    const last = (name) => curves[name]?.at(-1)[0] ?? (better === "lower" ? Infinity : -Infinity);
    const sign = better === "lower" ? 1 : -1;
    return [...new Set(names)].sort((a, b) => (last(a) === last(b) ? 0 : sign * (last(a) - last(b))));
}

function table({ name, trained, seeds }, { kind, lengths, curves, baselines }, task) {
    const cell = ([mean, low, high, why] = [null, null, null, ""]) => {
        if (mean === null) return why;
        const range = low === null ? [] : [element("br"), element("small", {}, `${low.toFixed(2)}–${high.toFixed(2)}`)];
        return element("span", {}, mean.toFixed(3), ...range);
    };
    const heads = lengths.map((length) => length.toLocaleString("en") + (length === trained ? " (trained)" : ""));
    const isDashed = Object.keys(baselines).length > 0;
    const rows = sorted(curves, task, [...Object.keys(curves), ...Object.keys(baselines)]).map((scheme) => {
        const points = [...(curves[scheme] ?? lengths.map(() => undefined)), ...(isDashed ? [baselines[scheme]] : [])];
        const made = row(scheme, points.map((point) => cell(point)));
        const count = `${seeds[scheme]} ${seeds[scheme] === 1 ? "seed" : "seeds"}`;
        if (seeds[scheme]) made.firstChild.append(element("br"), element("small", {}, count));
        return made;
    });
    const caption =
        `${name}, ${task.kinds[kind]}: ${task.unit}, ${task.better} is better, by ${task.lengths}; ` +
        "below each mean its 95 % interval";
    return tableOf(["scheme", ...heads, ...(isDashed ? ["dashed line"] : [])], rows, { caption });
}
