// Four trained decoders read a text: what each byte costs them, what they expect next, and where they look.

import { element, row, scroller, tableOf } from "posenc/elements.js";
import { having } from "posenc/models.js";
import { agreed, apart, entryOf } from "posenc/options.js";
import { shown } from "posenc/panel.js";
import { remembered } from "posenc/remembered.js";
import { picking, shuffled } from "posenc/sentence.js";

const MOST = 640; // bytes of a text
const RUN = 24; // bytes of a mean along the text
const AHEAD = 20; // bytes that a model goes on for
const YARN = "yarn"; // the value of RoPE with it
const PASSAGE =
    "The first thing we do, let's kill all the lawyers.\n\nCADE.\nNay, that I mean to do. Is not this a lamentable " +
    "thing, that\nof the skin of an innocent lamb should be made parchment, that\nparchment, being scribbl'd o'er, " +
    "should undo a man? Some say the\nbee stings; but I say 't is the bee's wax, for I did but seal\nonce to a thing, " +
    "and I was never mine own man since.--How now!\nwho's there?";

const trainedOf = (app) => app.data.models.configuration.train_length;
const bytesOf = (text) => new TextEncoder().encode(text);
const mean = (some) => some.reduce((a, b) => a + b, 0) / some.length;

/** The words of a text in another order, each still on its side of a length; what stands between them stays. */
function reordered(text, seed, length) {
    const parts = text.split(/(\s+)/);
    let at = 0;
    const sides = [[], []];
    parts.forEach((part, n) => {
        if (n % 2 === 0 && part) sides[Number(at + bytesOf(part).length > length)].push(n);
        at += bytesOf(part).length;
    });
    const made = [...parts];
    for (const side of sides) shuffled(side, seed).forEach((from, n) => (made[side[n]] = parts[from]));
    return made.join("");
}

/** By what YaRN stretches: the least power of 2 with which so many tokens are none too many. */
const factorOf = (tokens, app) => 2 ** Math.ceil(Math.log2(Math.max(tokens / trainedOf(app), 2)));

/** The models of a state: {name, value, title, scaling}. */
function chosen({ yarn }, tokens, app) {
    const all = Object.keys(app.data.models.models).map((name) => ({ name, value: name, title: entryOf(app, name).title }));
    const scaling = { kind: YARN, factor: factorOf(tokens, app), original_length: trainedOf(app) };
    const scaled = { name: "rope", value: YARN, title: "RoPE with YaRN", scaling };
    return all.flatMap((one) => (yarn && one.name === "rope" ? [one, scaled] : [one]));
}

const read = new WeakMap(); // by model: the text that it read last, and what it made of it

/** The loss of each byte of the text that a model has read, and words(): the likeliest bytes after it, each the likeliest
 * after those before. */
function readingOf(model, bytes) {
    const known = read.get(model);
    if (known?.text === String(bytes)) return known;
    const after = remembered(() => {
        const all = Array.from(bytes);
        while (all.length < bytes.length + AHEAD) {
            model.read(all);
            all.push(likeliest(model.next(all.length - 1), 1)[0].byte);
        }
        model.read(bytes);
        return seen(all.slice(bytes.length));
    });
    const made = { text: String(bytes), bits: model.bits, words: after };
    read.set(model, made);
    return made;
}

const likeliest = (shares, count) =>
    Array.from(shares, (share, byte) => ({ share, byte })).sort((a, b) => b.share - a.share).slice(0, count);
/** Bytes as one reads them. */
const seen = (bytes) => new TextDecoder().decode(Uint8Array.from(bytes)).replaceAll("\n", "↵").replaceAll(" ", "␣");

function values(state, app) {
    const length = trainedOf(app);
    const typed = bytesOf(state.text);
    if (typed.length < 2 || typed.length > MOST) {
        throw new RangeError(`the text must have from 2 to ${MOST} bytes, got ${typed.length}`);
    }
    const text = state.shuffle ? reordered(state.text, state.shuffle, length) : state.text;
    const bytes = bytesOf(text);
    const models = chosen(state, bytes.length, app).map((one) => {
        const before = state.shuffle ? having(app, one.name, typed, { ...one, place: "typed" }) : null;
        return { ...one, model: having(app, one.name, bytes, one), before };
    });
    const place = Math.min(state.byte, bytes.length) - 1;
    return {
        ...{ text, bytes, length, place },
        models: models.map(({ before, ...one }) => {
            const { bits, words } = readingOf(one.model, bytes);
            const [inside, outside] = [bits.slice(0, length - 1), bits.slice(length - 1)];
            return {
                ...one,
                ...{ bits, words },
                inside: mean(inside),
                outside: outside.length ? mean(outside) : NaN,
                shuffling: before && mean(inside) - mean(readingOf(before, typed).bits.slice(0, length - 1)),
                next: likeliest(one.model.next(place), 3),
            };
        }),
    };
}

/** The mean of the last bytes up to each. */
const along = (bits) => Float64Array.from(bits, (_, n) => mean(bits.slice(Math.max(0, n + 1 - RUN), n + 1)));

/** What each byte costs each model, along the text; a function that draws it. */
function curves(box, app, marksByte) {
    const axes = { xLabel: "byte of the text", yLabel: `bits per byte, over ${RUN} bytes` };
    const chart = app.lines(box, { label: "loss along the text", ...axes, height: 240 });
    return ({ models, length, bytes, place }) => {
        const x = Array.from({ length: bytes.length - 1 }, (_, n) => n + 2);
        const series = models.map(({ name, title, bits, scaling }) => {
            const { color, dash } = app.data.looks[name][app.theme().dark ? "dark" : "light"];
            return { name: title, color, dash: scaling ? [2, 3] : dash, y: along(bits), width: scaling ? 3 : 2 };
        });
        const marks = [{ x: length, name: "trained up to here" }, ...(marksByte ? [{ x: place + 1 }] : [])];
        chart.draw(x, series, { marks: marks.filter(({ x }) => x <= bytes.length) });
    };
}

export const figure = {
    name: "models",
    title: "Four trained models read your text",
    see:
        "Small decoders that differ only in their positions, trained on plays of Shakespeare in texts of 128 bytes. They run " +
        "in this page. Read past byte 128, shuffle the words, put YaRN on RoPE, or type a text of your own. " +
        "The loss is what a byte costs: 0 bits where the model was sure of it, 8 where it knew nothing.",
    defaults: { text: PASSAGE, shuffle: 0, yarn: false, model: "rope", byte: 200 },
    another: { text: "Tis naïve: “to be”, or not\nto be, that is the question", shuffle: 2, yarn: true, model: "t5", byte: 30 },
    parts: ["loss", "letters", "table", "attention"],
    controls(state, app) {
        const tokens = bytesOf(state.text).length;
        const models = chosen(state, tokens, app).map(({ value, title }) => ({ value, name: title }));
        const all = [
            ...(this.picks ? [picking(state.text, this.defaults.text)] : []),
            { name: "text", label: `text, up to ${MOST} bytes`, kind: "area", longest: MOST },
            { name: "shuffle", label: "Shuffle the words", kind: "button", value: (n) => n + 1 },
            { name: "shuffle", label: "As typed", kind: "button", value: () => 0 },
            { name: "yarn", label: `YaRN on RoPE, factor ${factorOf(tokens, app)}`, kind: "check" },
            { name: "model", label: "letters and attention of", kind: "choice", choices: models },
            { name: "byte", label: "byte", kind: "range", min: 1, max: Math.max(tokens, 2) },
        ];
        return all.filter(({ name }) => this.asked?.includes(name) ?? true);
    },
    change(state, name, value) {
        const next = { ...state, [name]: value };
        if (name === "yarn") next.model = value ? YARN : "rope";
        if (name === "text") next.shuffle = 0;
        return { ...next, byte: Math.min(next.byte, Math.max(bytesOf(next.text).length, 2)) };
    },
    values,
    line(state, app) {
        const { text, models } = values(state, app);
        const made = models.map(({ name, scaling }) =>
            scaling ? `decoder("rope", posenc.YaRN(${scaling.factor}, ${scaling.original_length}))` : `decoder("${name}")`,
        );
        return (
            `from posenc_lab.explore.models import decoder\n\ntokens = torch.tensor([list(${JSON.stringify(text)}.encode())])\n` +
            `models = [${made.join(", ")}]\n` +
            "nats = [torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction=\"none\") for model in models]\n" +
            "torch.stack(nats) / torch.tensor(2.0).log()  # bits of each byte after the first"
        );
    },
    compared: (state, { models, bytes }) => ({
        shape: [models.length, bytes.length - 1],
        data: models.flatMap(({ bits }) => Array.from(bits)),
    }),
    async check(state, { models, bytes }, app) {
        let most = 0;
        for (const { name, scaling, bits } of models) {
            const said = await app.ask("reading", { name, tokens: [...bytes], factor: scaling?.factor ?? null });
            most = Math.max(most, apart(bits, said.bits.data));
        }
        return agreed(models.length * (bytes.length - 1), most);
    },
    mount(box, app) {
        const has = (part) => this.parts.includes(part);
        const plot = has("loss") ? curves(box, app, has("letters")) : () => {};
        const letters = element("p", { class: "letters wide" });
        const table = scroller("the models", "wide");
        const legend = element("p", { class: "map-title" });
        const frame = element("div", { class: "scroll" }, legend);
        const { layers, heads } = app.data.models.configuration;
        const labels = { rowLabel: `${layers} layers of ${heads} heads`, columnLabel: "byte looked at", size: 700 };
        const order = element("p", { class: "ends" });
        const parts = { order, letters, table, attention: frame };
        app.beneath().append(...this.parts.flatMap((part) => parts[part] ?? []));
        const map = app.heat(frame, { label: "attention", ...labels });
        letters.addEventListener("click", ({ target }) => target.dataset.byte && app.set({ byte: Number(target.dataset.byte) }));
        return (state, numbers) => {
            const { bytes, place, models } = numbers;
            plot(numbers);
            const one = models.find(({ value }) => value === state.model) ?? models[0];
            letters.replaceChildren(...lettersOf(numbers, one));
            order.textContent = `${state.shuffle ? "Shuffled, they read" : "They read"}: ${numbers.text}`;
            table.replaceChildren(means(numbers, !has("letters")));
            if (!has("attention")) return;
            const at = (n) => seen(bytes.slice(n, n + 1));
            legend.textContent = `Where ${one.title} looks at byte ${place + 1}, “${at(place)}”: a row for each head, a column for each byte`;
            const rows = Array.from({ length: layers * heads }, (_, n) => [
                ...one.model.weightsOf(Math.floor(n / heads), n % heads, place),
            ]);
            const columns = place + 1;
            map.draw(Float64Array.from(rows.flat()), {
                ...{ rows: rows.length, columns, aspect: 0.36, low: 0, from: 1, label: legend.textContent },
                rowName: (n) => `layer ${1 + Math.floor(n / heads)}, head ${1 + (n % heads)}`,
                columnName: (n) => `byte ${n + 1} “${at(n)}”`,
                marks: Array.from({ length: layers - 1 }, (_, n) => ({
                    ...{ row: (n + 1) * heads, column: 0, columns, rows: 0, color: app.theme().background },
                })),
            });
        };
    },
    describe: (state, { models, length, bytes }) => {
        const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(2)}`;
        const each = (what) => models.map((one) => `${one.title} ${signed(what(one))}`).join(", ");
        const said = [];
        if (bytes.length > length) {
            const change = ({ inside, outside }) => outside - inside;
            const sorted = models.filter(({ scaling }) => !scaling).sort((a, b) => change(a) - change(b));
            said.push(
                `Past byte ${length}, the length of training, the loss per byte changes, in bits: ${each(change)}. ` +
                    `${sorted.at(-1).title} suffers most, ${sorted[0].title} least; what all have in common comes from the text.`,
            );
        } else said.push(`The text ends within the ${length} bytes of training.`);
        const [scaled, plain] = [models.find(({ scaling }) => scaling), models.find(({ name }) => name === "rope")];
        if (scaled && bytes.length > length) {
            said.push(
                `With YaRN, factor ${scaled.scaling.factor} and no further training, RoPE's loss past it is ` +
                    `${shown(scaled.outside, 2)} bits instead of ${shown(plain.outside, 2)}. ${scaled.inside - plain.inside >= 0.005 ? "It has a price: up" : "Up"} to byte ${length} ` +
                    `the loss is ${shown(scaled.inside, 2)} instead of ${shown(plain.inside, 2)}.`,
            );
        }
        if (state.shuffle) {
            const least = models.reduce((a, b) => (a.shuffling < b.shuffling ? a : b));
            said.push(
                `With the words of the first ${length} bytes shuffled, the loss there changes: ` +
                    `${each(({ shuffling }) => shuffling)}. ${least.title} notices least.`,
            );
        }
        return said.join(" ");
    },
};

/** The text, a bar under each letter as high as it cost the model, and the chosen one marked. */
function lettersOf({ text, place, length }, { bits }) {
    let at = 0;
    return Array.from(text).flatMap((letter) => {
        const first = at;
        at += bytesOf(letter).length;
        const cost = bits.slice(Math.max(first - 1, 0), at - 1).reduce((a, b) => a + b, 0);
        const names = [place >= first && place < at ? "chosen" : "", first >= length ? "past" : ""].join(" ").trim();
        const one = element("span", { "data-byte": at, class: names || undefined, style: `--bits: ${Math.min(cost, 12).toFixed(1)}` }, letter === "\n" ? "↵" : letter);
        return letter === "\n" ? [one, element("br")] : [one];
    });
}

/** What the models make of the text, and unless the table is short of the chosen byte. */
function means({ models, length, bytes, place }, isShort) {
    const isShuffled = models[0].shuffling !== null;
    const digits = (x) => (Number.isFinite(x) ? shown(x, 2) : "–");
    const ofByte = isShort ? [] : [`byte ${place + 1}`, "expected after it", "continues the text with"];
    const heads = ["model", `bits up to ${length}`, "after", ...(isShuffled ? ["by shuffling"] : []), ...ofByte];
    const code = (words) => element("code", {}, words);
    const rows = models.map(({ title, inside, outside, shuffling, bits, next, words }) => {
        const expected = next.flatMap(({ byte, share }) => [code(seen([byte])), `\u00a0${Math.round(100 * share)}\u00a0% `]);
        const each = [digits(inside), digits(outside), ...(isShuffled ? [digits(shuffling)] : [])];
        return row(title, isShort ? each : [...each, digits(bits[place - 1]), element("span", {}, ...expected), code(words())]);
    });
    const at = `byte ${place + 1} “${seen(bytes.slice(place, place + 1))}”`;
    return tableOf(heads, rows, { caption: isShort ? "" : `Mean loss per byte, the loss of ${at}, what comes next` });
}

/** The figure within a step, where it is drawn and its models are read when it comes into sight: `asked` are its controls. */
export const trained = (step, { text = PASSAGE, ...given }, how) =>
    ({ ...figure, name: `${step}-models`, isLazy: true, defaults: { ...figure.defaults, text, ...given }, another: {}, ...how });

/** As much of the passage as a text of training has. */
export const SHORT = PASSAGE.slice(0, 128);
