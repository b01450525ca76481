// Records of posenc compare and posenc extend that are dropped into the page: the summary that records.py makes of
// those named on the command line, in the same shape. Tests hold the two together.

import { crossed, median, share as shareOf, student } from "posenc/intervals.js";

const EVERY = { kind: "text", scheme: "text", fingerprint: "text", time: "text" };
const KEY = ["kind", "scheme", "seed", "length", "trial"];
const ABOUT = "about"; // a name for what records share, which stands once in a line of its own
const INSTEAD = ["undefined", "diverged"]; // of results: words that say why there are none
const CROPPED = "cropped"; // the plain model, shown no more tokens than it was trained on
const BASELINE = { final_tokens: "truncated" }; // once, at the trained length: what longer contexts are held against
const COSTS = {
    step: ["speed", "step_ratio"],
    seconds: ["speed", "step_seconds"],
    bytes: ["training", "peak_bytes"],
    parameters: ["training", "parameters"],
    position: ["training", "position_parameters"],
};

const list = (fits) => (value) => Array.isArray(value) && value.every(fits);
const orNull = (fits) => (value) => value === null || fits(value);
const isPair = (value) => list(Number.isFinite)(value) && value.length === 2 && Number.isInteger(value[0]);

/** What a value of a record must be, in posenc's words. */
const FITS = {
    text: (value) => typeof value === "string",
    "true or false": (value) => typeof value === "boolean",
    "a whole number": Number.isInteger,
    "a finite number": Number.isFinite,
    "a finite number or null": orNull(Number.isFinite),
    "an object": (value) => typeof value === "object" && value !== null && !Array.isArray(value),
    "a list of whole numbers": list(Number.isInteger),
    "a list of finite numbers": list(Number.isFinite),
    "a list of finite numbers and nulls": list(orNull(Number.isFinite)),
    "a list of pairs of a whole and a finite number": list(isPair),
};

/**
 * What the text of a records.jsonl says. RangeError, naming the line, for what is not a record.
 *
 * @param {string} name of the file, as a reader is to know it
 * @param {string} text
 * @param {Object} measures by task: {score, kinds, results, …}, of the page's data
 */
export function summary(name, text, measures) {
    const records = parsed(name, text, measures);
    const known = new Set([...Object.values(measures).flatMap(({ kinds }) => Object.keys(kinds)), "speed", "training"]);
    if (!records.some(({ kind }) => known.has(kind))) {
        throw new RangeError(`${name} holds nothing that posenc compare or posenc extend measured`);
    }
    const ofExtend = taskOf(records.at(-1)) === "extend";
    return { name, ...(ofExtend ? extension : comparison)(records, measures) };
}

/** The whole records, with what they share in each; a last line that was not written to its end is left out, as by
 * posenc. */
function parsed(name, text, measures) {
    const told = new Map();
    const seen = new Map();
    return text.split("\n").slice(0, -1).flatMap((line, n) => {
        const refuse = (why) => {
            throw new RangeError(`${name}, line ${n + 1}, is not a record (${why})`);
        };
        const { [ABOUT]: about, ...own } = object(line, refuse);
        const isNamed = (about ?? null) !== null;
        if (isNamed && !FITS.text(about)) refuse(`${ABOUT} must be text`);
        if (isNamed && !("kind" in own) && !told.has(about)) {
            told.set(about, own);
            return [];
        }
        if (isNamed && !told.has(about)) refuse(`no line before it says what ${ABOUT} '${about}' is`);
        const record = { ...own, ...told.get(about) };
        const wrong = refusal(record, measures);
        if (wrong) refuse(wrong);
        const key = JSON.stringify(KEY.map((part) => record[part] ?? null));
        if (seen.has(key)) refuse(`it repeats the measurement of line ${seen.get(key)}`);
        seen.set(key, n + 1);
        return [record];
    });
}

function object(line, refuse) {
    let value;
    try {
        value = JSON.parse(line);
    } catch {
        refuse("it is not JSON");
    }
    return FITS["an object"](value) ? value : refuse("not an object");
}

const taskOf = ({ configuration: about }) => {
    if (!FITS["an object"](about)) return "text";
    return "scalings" in about ? "extend" : String(about.task ?? "text");
};

/** Why it is no record, as posenc says it; empty for one that is. */
function refusal(record, measures) {
    const numbers = ["seed", "length"].filter((part) => (record[part] ?? null) !== null);
    const wrong = lacking(record, { ...EVERY, ...by(numbers, () => "a whole number") });
    if (wrong) return wrong;
    const task = taskOf(record);
    if (!Object.hasOwn(measures, task)) return `task must be one of ${Object.keys(measures).join(", ")}, got ${task}`;
    const { every: shared, results } = measures[task];
    if (!Object.hasOwn(results, record.kind)) return task === "extend" ? `its kind is '${record.kind}'` : "";
    const instead = task === "extend" ? [] : INSTEAD.filter((part) => Object.hasOwn(record, part));
    const whole = results[record.kind];
    const kept = KEY.filter((part) => Object.hasOwn(whole, part));
    const short = { ...by(kept, (part) => whole[part]), ...by(instead, () => "text") };
    return lacking(record, { ...shared, ...(instead.length ? short : whole) });
}

/** What a record has not, or has of another kind than it must be; empty where nothing. */
function lacking(record, kinds) {
    for (const [part, words] of Object.entries(kinds)) {
        if (!Object.hasOwn(record, part)) return `${part} is missing`;
        if (!FITS[words](record[part])) return `${part} must be ${words}`;
    }
    return "";
}

const unique = (items) => [...new Set(items)];
const rising = (numbers) => unique(numbers).sort((a, b) => a - b);

function comparison(given, measures) {
    const records = given.filter(({ fingerprint }) => fingerprint === given.at(-1).fingerprint);
    const { train_length: trained = 0, reference, steps = 0 } = records.at(-1).configuration || {};
    const task = taskOf(records.at(-1));
    const { score, kinds } = measures[task];
    const asked = records.flatMap(({ configuration: c }) =>
        (c?.seeds ?? []).flatMap((seed) => (c.schemes ?? []).map((scheme) => [scheme, seed])),
    );
    const isTrial = ({ kind }) => kind === "trial"; // of which there are many to a training, or without one
    const tests = records.filter((record) => !isTrial(record));
    const trainings = asked.length ? asked : tests.map(({ scheme, seed }) => [scheme, seed]);
    const tried = records.filter(isTrial).map(({ scheme }) => scheme);
    const schemes = unique([...trainings.map(([scheme]) => scheme), ...tried]);
    const of = (kind, scheme, length) => {
        const seeds = unique(trainings.filter(([name]) => name === scheme).map(([, seed]) => seed));
        const there = records.filter(
            (r) => r.kind === kind && r.scheme === scheme && (length === undefined || r.length === length),
        );
        return length === undefined ? there : seeds.map((seed) => there.find((r) => r.seed === seed)).filter(Boolean);
    };
    const point = (kind, scheme, length) => {
        const found = of(kind, scheme, length);
        const rows = found.map((r) => r[score]).filter((row) => row?.length);
        if (rows.length) return estimate(same(rows), score === "accuracy" ? shareOf : crossed);
        return nothing(
            found.some((r) => r.undefined) ? "undefined" : found.some((r) => r.diverged) ? "diverged" : "missing",
        );
    };
    const baselines = (kind) =>
        lengthsOf(kind).length ? by(schemes, (scheme) => point(kind, scheme, trained)) : {};
    const number = (scheme, [kind, result]) => {
        const values = of(kind, scheme)
            .map((r) => r[result])
            .filter((value) => value !== undefined);
        return values.length ? median(values) : null;
    };
    const measured = (scheme) =>
        unique(
            records
                .filter((r) => r.scheme === scheme && Number.isInteger(r.length) && !r.diverged)
                .map(({ seed }) => seed),
        ).length;
    const lengthsOf = (kind) => rising(records.filter((r) => r.kind === kind).map(({ length }) => length));
    return {
        task,
        trained,
        schemes,
        against:
            records.find((r) => r.relative_to)?.relative_to ??
            [reference, "nope", ...schemes].find((name) => schemes.includes(name)) ??
            "",
        left_out: given.length - records.length,
        seeds: by(schemes, measured),
        steps,
        source: textOf(records),
        measures: Object.keys(kinds)
            .filter((kind) => !Object.values(BASELINE).includes(kind))
            .map((kind) => ({ kind, lengths: lengthsOf(kind) }))
            .filter(({ lengths }) => lengths.length)
            .map(({ kind, lengths }) => ({
                kind,
                lengths,
                curves: by(schemes, (scheme) => lengths.map((length) => point(kind, scheme, length))),
                baselines: baselines(BASELINE[kind]),
            })),
        costs: by(schemes, (scheme) =>
            Object.fromEntries(Object.entries(COSTS).map(([name, where]) => [name, number(scheme, where)])),
        ),
    };
}

const textOf = (records) => String(records.at(-1).text?.about ?? "");
const by = (names, what) => Object.fromEntries(names.map((name) => [name, what(name)]));
const nothing = (why) => [null, null, null, why];

/** Seeds share their windows; a row cut short cannot be paired with the others. */
function same(rows) {
    const most = Math.max(...rows.map((row) => row.length));
    return rows.filter((row) => row.length === most);
}

function estimate(values, interval) {
    if (values.flat().some((value) => value === null)) return nothing("not finite");
    const { mean, low, high } = interval(values);
    return Number.isFinite(high) ? [mean, low, high, ""] : [mean, null, null, "one piece"];
}

function extension(records, measures) {
    const { trained_length: trained } = records.at(-1).configuration;
    const schemes = unique(records.map(({ scheme }) => scheme)).filter((scheme) => scheme !== CROPPED);
    const of = (kind, scheme, length) =>
        records.filter((r) => r.kind === kind && r.scheme === scheme && r.length === length);
    const bits = (scheme, length) => {
        const values = of("final", scheme, length).map((r) => r.bits);
        return values.length ? estimate(values, student) : nothing("missing");
    };
    const share = (kind, scheme, length) => {
        const found = of(kind, scheme, length).map((r) => r.found);
        return found.length ? estimate([found], shareOf) : nothing("missing");
    };
    const measured = [];
    for (const kind of Object.keys(measures.extend.kinds)) {
        const lengths = rising(
            records.filter((r) => r.kind === kind && r.scheme !== CROPPED).map(({ length }) => length),
        );
        if (!lengths.length) continue;
        const curves = by(schemes, (scheme) =>
            lengths.map((length) => (kind === "final" ? bits(scheme, length) : share(kind, scheme, length))),
        );
        const isCropped = kind === "final" && of("final", CROPPED, trained).length > 0;
        const baselines = isCropped ? { [CROPPED]: bits(CROPPED, trained) } : {};
        measured.push({ kind, lengths, curves, baselines });
    }
    const about = { task: "extend", trained, schemes, against: "", left_out: 0, seeds: {}, steps: 0 };
    return { ...about, source: textOf(records), measures: measured, costs: {} };
}

// --- what was dropped -----------------------------------------------------------------------------------------------

const dropped = [];

/** All that there is to show: what the command named, and what was dropped in. */
export const every = (app) => [...(app.data.records ?? []), ...dropped];

/** Adds the records of files, and gives the number of the last among `every`. RangeError for a file that holds none,
 * and then nothing is added. */
export async function add(files, app) {
    const found = [];
    for (const file of files) found.push(summary(file.name, await file.text(), app.data.measures));
    for (const one of found) {
        const taken = every(app).map(({ name }) => name);
        let name = one.name;
        for (let n = 2; taken.includes(name); n++) name = `${one.name} (${n})`;
        dropped.push({ ...one, name });
    }
    return every(app).length - 1;
}

/** The records that a figure's state names. RangeError for a number past them. */
export function chosen(app, number) {
    const all = every(app);
    if (!all[Number(number)]) throw new RangeError(`records must be from 0 to ${all.length - 1}, got ${number}`);
    return all[Number(number)];
}

/** The control that chooses among them. */
export function control(app) {
    const all = every(app);
    const named = ({ name, shipped }) => (shipped ? `${name} (shipped)` : name);
    return all.length > 1
        ? [
              {
                  name: "records",
                  label: "records",
                  kind: "choice",
                  choices: all.map((set, n) => ({ value: String(n), name: named(set) })),
              },
          ]
        : [];
}

/** What prints, or shows, the records that are drawn; nothing for those of a file, whose folder the page cannot know. */
export const command = (app, number) => {
    const set = every(app)[Number(number)];
    if (dropped.includes(set)) return "";
    if (set.shipped) return `# ${set.command}`;
    return `# posenc explore --records ${set.name}`;
};

const LEAST_SEEDS = 3; // fewer give no verdict

/** Where records come from, and what they decide: seeds, steps and text, and the verdict or why there is none. */
export function source({ shipped, schemes, seeds, steps, source: text, verdict, task }) {
    const counts = rising(schemes.map((scheme) => seeds[scheme] ?? 0));
    const [least, most] = [counts[0], counts.at(-1)];
    const trainings = task === "extend" ? [] : [`${least === most ? "" : `${least} to `}${most} ${most === 1 ? "seed" : "seeds"}`];
    const about = [...trainings, ...(steps ? [`${steps.toLocaleString("en")} steps`] : []), ...(text ? [text] : [])];
    const why =
        task === "extend"
            ? "The report that posenc extend wrote beside the records has the verdicts."
            : most < LEAST_SEEDS
              ? `Undecided: a verdict needs ${LEAST_SEEDS} seeds.`
              : "The report that posenc compare wrote beside the records has the verdicts.";
    return `${shipped ? "Measured for this page" : "Your records"}: ${about.join(", ")}. ${verdict ?? why}`;
}
