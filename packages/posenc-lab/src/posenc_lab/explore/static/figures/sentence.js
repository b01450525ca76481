// Attention in a sentence whose words can be moved: without a scheme it goes with the words, with one it does not.

import { isForDecoders } from "posenc/effect.js";
import { element, row, scroller, tableOf } from "posenc/elements.js";
import { Positions } from "posenc/math/positions.js";
import { changed, isByNumbers, shownOptions, usualOf, valuesOf } from "posenc/numbers.js";
import * as given from "posenc/options.js";
import { FIXED, HEADS, MOST, SIZES, chosen, isCausal, picking, python, shifted, shuffled, takes, values } from "posenc/sentence.js";
import { use } from "posenc/use.js";
import { wordsOf } from "posenc/words.js";

export const figure = {
    name: "sentence",
    title: "A sentence with and without positions",
    see:
        "Each word is a fixed random vector, so equal words are equal vectors. Without a scheme their rows and " +
        "columns are equal too, wherever they stand; with most schemes they differ. Choose a word, move it or shuffle the sentence, " +
        "and compare what it attends to.",
    defaults: {
        text: "the wave wore the rock down while the rock stood",
        word: 4,
        pair: true,
        order: "",
        shuffle: 0,
        scheme: "rope",
        options: "",
        spread: 0.3,
        head: 1,
        causal: false,
        show: "attention",
    },
    another: {
        text: "a rock, a wave and a stone",
        word: 3,
        order: "5,1,0,6,3,4,2",
        scheme: "t5",
        options: "num_buckets:8",
        head: 2,
        causal: true,
        show: "scores",
    },
    controls(state, app) {
        const entry = given.entryOf(app, state.scheme);
        const options = given.optionsOf(entry, state.options, SIZES);
        const learns = Object.keys(given.learnedOf(entry, options)).length > 0;
        const move = (name, label) => ({ name: "order", label, kind: "button", value: () => name });
        return [
            picking(state.text),
            { name: "text", label: `or your own, up to ${MOST} words`, kind: "text", longest: 240 },
            given.schemeControl(app, {
                filter: takes,
                missing: (one) => (isByNumbers(one) ? usualOf(one, app).kept.missing : ""),
            }),
            ...given.optionControls(entry, options, FIXED, (name) =>
                isByNumbers(entry) ? valuesOf(entry, name, app) : null,
            ),
            ...(learns
                ? [{ name: "spread", label: "spread of what it learns", kind: "range", min: 0, max: 1, step: 0.02 }]
                : []),
            { name: "head", label: "head", kind: "range", min: 1, max: HEADS },
            { name: "show", label: "show", kind: "choice", choices: ["attention", "scores"] },
            ...(isForDecoders(entry, options) ? [] : [{ name: "causal", label: "causal", kind: "check" }]),
            move("left", "← Move left"),
            move("right", "Move right →"),
            { name: "pair", label: "with the word before it", kind: "check" },
            move("shuffle", "Shuffle"),
            move("typed", "As typed"),
        ];
    },
    change(state, name, value, app) {
        if (name === "text")
            return {
                ...state,
                text: value,
                order: "",
                word: Math.max(0, Math.min(state.word, wordsOf(value).length - 1)),
            };
        if (name !== "order") return changed(state, name, value, app);
        const typed = wordsOf(state.text).map((_, n) => n);
        const order = state.order ? state.order.split(",").map(Number) : typed;
        if (value === "typed") return { ...state, order: "" };
        if (value === "shuffle")
            return { ...state, shuffle: state.shuffle + 1, order: shuffled(typed, state.shuffle + 1).join() };
        const made = shifted(order, order.indexOf(state.word), state.pair ? 2 : 1, value === "left" ? -1 : 1).join();
        return { ...state, order: made === typed.join() ? "" : made };
    },
    shown: (state, app) => shownOptions(state, app, SIZES),
    values,
    use(state, app) {
        const one = chosen(state, app);
        return use([one], { tokens: one.words.length, causal: isCausal(state, one) });
    },
    formula: ({ scheme }, app) => app.data.formulas.sentence + given.entryOf(app, scheme).formula,
    line: (state, app) => python(state, chosen(state, app)),
    compared: (state, { shown, words }) => ({
        shape: [2, words.length, words.length],
        data: shown.flatMap((one) => [...one]),
    }),
    async check(state, { entry, options, parameters, scheme, after, causal, now }, app) {
        if (isByNumbers(entry)) return given.COMPUTED;
        const positions = Positions.arange(now.length);
        const named = given.named(entry, options, parameters);
        const { q, k, v, out, features: projected } = after.with;
        const schemes = entry.doors.includes("add") ? [] : [named];
        const said = await given.askAttention(app, schemes, [q, k, v], { positions, causal, projected });
        let most = given.apart(out.data, said.out.data);
        if (scheme.table) {
            const table = await given.askTable(app, named, positions);
            most = Math.max(most, given.apart(scheme.table(positions).data, table));
        }
        return given.agreed(out.data.length, most).replace("these numbers", "the outputs of this attention");
    },
    mount(box, app) {
        const sentence = element("div", { class: "sentence" });
        const map = (label) => {
            const title = element("p", { class: "map-title" });
            const frame = element("div", { class: "scroll" }, title);
            box.append(frame);
            return { frame, title, matrix: app.heat(frame, { label, size: 460 }) };
        };
        box.append(sentence);
        const maps = [map("without a scheme"), map("with the scheme")];
        const table = scroller("attention of the chosen word, before and after", "sentence");
        box.append(table);
        return (state, numbers) => {
            const { words, order, now, shown, entry } = numbers;
            const key = words[state.word].key;
            sentence.replaceChildren(...sentences(state, numbers, (word) => app.set({ word })));
            const color = state.show === "scores" ? undefined : "#ffffff";
            const marks = order.flatMap((n, row) =>
                words[n].key === key ? [{ row, column: 0, columns: now.length, color }] : [],
            );
            const names = now.map(({ word }, n) => ({
                text: order[n] === state.word ? `▸${word}` : word,
                isMarked: words[order[n]].key === key,
            }));
            const place = (n) => `${now[n].word} (${n + 1})`;
            // One scale for both of attention: the largest weight of the two.
            const high =
                state.show === "attention"
                    ? Math.max(...shown.flatMap((one) => [...one].filter(Number.isFinite)))
                    : undefined;
            maps.forEach(({ frame, title, matrix }, n) => {
                // Room for a line of letters at each word.
                frame.style.setProperty("--least", `${now.length * 13 + 110}px`);
                const [what, how] = [
                    state.show === "scores" ? "Scores" : "Attention",
                    n ? `with ${entry.title}` : "without a scheme",
                ];
                title.textContent = `${what} ${how}: a row for each query, a column for each key`;
                const label = `${title.textContent}, head ${state.head}`;
                matrix.draw(shown[n], {
                    rows: now.length,
                    columns: now.length,
                    marks,
                    low: high && 0,
                    high,
                    label,
                    words: names,
                    rowName: (row) => `query ${place(row)}`,
                    columnName: (column) => `key ${place(column)}`,
                });
            });
            table.replaceChildren(changes(state, numbers));
        };
    },
    describe(state, { words, order, moved: kinds, entry, causal, twins: found, note = "" }) {
        const word = words[state.word].word;
        const rows =
            found && `The rows of “${word}” (${state.word + 1}) and “${word}” (${found.twin + 1}) differ by at most`;
        const bare = found && `${number(found.without)} without a scheme${causal ? " (by the mask)" : ""}`;
        const equal = found ? ` ${rows} ${bare}, by ${number(found.with)} with ${entry.title}.` : "";
        if (order.every((n, at) => n === at)) return `The sentence is as typed: move a word or shuffle.${equal}${note}`;
        const said = [`without a scheme and a mask ${nothing(kinds.bare.most)}`];
        if (causal) {
            const most = number(kinds.without.most);
            said.push(
                `without a scheme under the mask the largest change is ${most}, since other words stand before it now`,
            );
        }
        said.push(`with ${entry.title}${causal ? " and the mask" : ""} ${nothing(kinds.with.most)}`);
        return `What “${word}” attends to, word by word, after the move: ${said.join("; ")}.${equal}${note}`;
    },
};

const number = (x) => (x === 0 ? "0" : x < 1e-4 ? x.toExponential(1) : String(Number(x.toPrecision(3))));

function nothing(most) {
    if (most >= 1e-12) return `the largest change is ${number(most)}`;
    return `nothing changed (largest difference ${number(most)}${most ? ", the rounding of a sum in another order" : ""})`;
}

/** The words as typed, and as they stand now, each a button that chooses it. */
function sentences({ word, pair }, { words, order }, choose) {
    const at = order.indexOf(word);
    const now = order.map((n, place) => {
        const goesAlong = pair && place === at - 1;
        return element(
            "button",
            {
                type: "button",
                "aria-pressed": String(n === word),
                class: goesAlong ? "along" : "",
                onclick: () => choose(n),
            },
            words[n].word,
        );
    });
    return [
        element("p", {}, element("b", {}, "As typed: "), words.map((one) => one.word).join(" ")),
        element(
            "div",
            { role: "group", "aria-label": "the sentence now; choose a word" },
            element("b", {}, "Now: "),
            ...now,
        ),
    ];
}

/** The table of what changed. */
function changes({ word }, { words, order, moved: kinds, entry, causal }) {
    const place = (n) => order.indexOf(n);
    const [hiddenBefore, hiddenNow] = [(n) => causal && n > word, (n) => causal && place(n) > place(word)];
    const digits = (x, isHidden = false) => (isHidden ? "hidden" : x.toFixed(4));
    const rows = words.map((one, n) => {
        const cells = ["without", "with"].flatMap((kind) => {
            const { typed, now } = kinds[kind];
            const change = now[n] - typed[n];
            const much = Math.abs(change);
            const signed = much < 1e-12 ? number(much) : `${change > 0 ? "+" : "−"}${digits(much)}`;
            return [digits(typed[n], hiddenBefore(n)), digits(now[n], hiddenNow(n)), signed];
        });
        return row(`${one.word} (${n + 1})`, cells);
    });
    const names = [`no scheme${causal ? ", masked" : ""}`, entry.title];
    const heads = ["word", ...names.flatMap((name) => [`${name}: typed`, "now", "change"])];
    return tableOf(heads, rows, { caption: `How much “${words[word].word}” attends to each word, as typed and now` });
}
