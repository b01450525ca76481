// Which schemes fit what is asked: by the laws that were measured of them, by what the catalog says, and by evidence.
// Nothing is judged here that is not in these data; where they hold nothing, that is said.

const DEARER = 1.1; // over plain attention: the records say that differences below a tenth say nothing
const COORDINATES = {
    line: { taken: ["one", "any"], words: "one coordinate" },
    image: { taken: ["two", "any"], words: "a row and a column" },
    video: { taken: ["three", "any"], words: "a time, a row and a column" },
};
const TAKES = {
    one: "one coordinate",
    two: "two coordinates",
    three: "three coordinates",
    any: "any number of coordinates",
};

/** The questions to evidence that a state asks: as records name them, and in words. */
export function questions({ tokens, longer, cheap, direction }) {
    const asked = [];
    if (tokens === "line" && longer) asked.push({ name: "length", words: "texts longer than in training" });
    if (tokens === "image") asked.push({ name: "images", words: "images" });
    if (tokens === "video") asked.push({ name: "videos", words: "videos" });
    if (direction) asked.push({ name: "order", words: "which of two words comes first" });
    if (cheap) asked.push({ name: "cost", words: "what it costs" });
    return asked;
}

/** What laws and catalog say of a scheme about what is asked, {passes, words, source}; one that does not pass rules it
 * out. */
export function facts(entry, asked, evidence) {
    const { model, tokens, longer, cheap, free, direction } = asked;
    const catalog = `posenc schemes ${entry.name}`;
    const measured = `posenc laws --schemes ${entry.name}`;
    const found = [];
    const fact = (passes, words, source) => found.push({ passes, words, source });
    const law = (name, head) =>
        fact(entry.measured[name].holds === true, `${head}: ${entry.measured[name].words}`, measured);
    if (entry.needs_segments) fact(false, "It tells segments apart, and stands beside another scheme", catalog);
    if (entry.measured.order_free.holds && (model === "encoder" || entry.doors.length)) {
        fact(false, `It does not tell positions apart: ${entry.measured.order_free.words}`, measured);
    }
    if (model === "encoder" && entry.for_decoders) fact(false, "It is made for causal attention", catalog);
    const { taken, words } = COORDINATES[tokens];
    const sees = tokens === "line" || entry.measured.extensible.holds !== null;
    const fits = sees && taken.includes(entry.axes);
    fact(
        fits,
        sees ? `It takes ${TAKES[entry.axes]} per token${fits ? "" : `, and not ${words}`}` : "It sees no coordinates",
        catalog,
    );
    if (longer) law("length_free", "Any length");
    if (free) law("parameter_free", "Nothing learned");
    if (direction) law("directed", "Direction");
    if (cheap) {
        const dear = lines(entry, "cost", evidence).find(({ verdict }) => verdict === "against");
        if (dear) found.push({ passes: false, words: `Over plain attention: ${dear.words}`, record: dear.record });
    }
    return found;
}

/** What evidence of a question says of a scheme: {record, words, verdict}, the verdict "for", "against" or "". */
export function lines(entry, question, evidence) {
    return evidence
        .filter((record) => record.question === question)
        .flatMap((record) =>
            record.rows
                .filter((row) => row.schemes.includes(entry.name))
                .map((row) => (record.too_few ? undecided(record, row) : said(record, row))),
        );
}

/** The figures alone: of so few seeds, or pieces of text, they say nothing of another training, or another text. */
function undecided(record, row) {
    const figures = record.heads.map((head, n) => `${head}: ${row.figures[n]}`).join("; ");
    return { record, words: `${row.label}: ${figures} (${record.too_few}, too few for a verdict)`, verdict: "" };
}

function said(record, row) {
    const { heads, question, rows } = record;
    const trained = heads.findIndex((head) => head.includes("(trained)"));
    const at = (n) => `${row.figures[n]} at ${heads[n]}`;
    const every = heads.map((_, n) => n);
    if (question === "cost") {
        const last = heads.length - 1;
        return {
            record,
            words: `${row.label} ${row.figures[last]} at ${heads[last]} tokens`,
            verdict: read(row.figures[last]).value > DEARER ? "against" : "for",
        };
    }
    if (question === "order") {
        const without = rows.find(({ schemes }) => schemes.includes("nope")).figures;
        const told = every.filter((n) => !Number.isNaN(read(row.figures[n]).value));
        const isBetter = told.every((n) => worse(record, row.figures[n], without[n]));
        return {
            record,
            words: `${row.label}: ${every.map((n) => `${heads[n]} ${row.figures[n]}`).join("; ")} (without positions ${without[0]})`,
            verdict: isBetter ? "for" : "against",
        };
    }
    if (trained < 0) {
        const others = rows.filter((other) => other !== row);
        const there = others.map((other) => `${other.label} ${other.figures.at(-1)}`).join(", ");
        const isBest = others.every((other) => worse(record, row.figures.at(-1), other.figures.at(-1)));
        const isWorst = others.every((other) => worse(record, other.figures.at(-1), row.figures.at(-1)));
        const place = isBest ? "; the best there" : isWorst ? "; the worst there" : "";
        return {
            record,
            words: `${row.label}: ${every.map(at).join(", ")} (${there}; ${record.better} is better${place})`,
            verdict: isBest ? "for" : isWorst ? "against" : "",
        };
    }
    const past = every.slice(trained);
    const last = past.filter((n) => !Number.isNaN(read(row.figures[n]).value)).at(-1);
    const compared = `${record.better} is better`;
    if (last === trained)
        return { record, words: `${row.label}: ${past.map(at).join(", ")} (${compared})`, verdict: "" };
    const isWorse = worse(record, row.figures[trained], row.figures[last]);
    const ahead = rows.find((other) => worse(record, other.figures[last], row.figures[last]));
    const isBetter = worse(record, row.figures[last], row.figures[trained]);
    const change = isWorse
        ? "worse than at the trained size"
        : isBetter
          ? "better than at the trained size"
          : "no difference from the trained size beyond the intervals";
    const place = `${change}${!isWorse && ahead ? `, and worse than ${ahead.label} at ${heads[last]}` : ""}`;
    return {
        record,
        words: `${row.label}: ${past.map(at).join(", ")} (${compared}; ${place})`,
        verdict: isWorse ? "against" : ahead ? "" : "for",
    };
}

/** "3.16 ± .13" as numbers; of words the value is NaN. */
function read(figure) {
    const [value, half] = figure.split("±").map(Number.parseFloat);
    return { value, half: half || 0 };
}

/** Whether the second figure is worse than the first, by more than both intervals. */
function worse({ better }, first, second) {
    const [a, b] = [read(first), read(second)];
    return (better === "lower" ? b.value - a.value : a.value - b.value) > a.half + b.half;
}

/** The answer of `posenc choose` to which these values of its questions lead. */
export function answerOf(given, { answers }) {
    return answers.find(({ when }) => Object.entries(when).every(([name, values]) => values.includes(given[name])));
}

/** What these values ask of the schemes, as `choose` takes it; null where a list says nothing: order
 * means nothing, weights have their scheme, or the evidence of longer texts is not of what is asked. */
export function needsOf(given, { questions: all }) {
    const needs = all.map(({ name, options }) => options.find(({ value }) => value === given[name]).needs);
    return needs.includes(null) ? null : Object.assign({}, ...needs);
}

const GROUPS = {
    for: "Evidence for",
    mixed: "Evidence for and against, or undecided",
    against: "Evidence against",
    none: "No evidence here",
};

/** The schemes that pass, in groups by what evidence says; those that do not, and why; and the records in use. */
export function choose(asked, catalog, evidence) {
    const wanted = questions(asked);
    const groups = Object.fromEntries(
        Object.entries(GROUPS).map(([name, title]) => [name, { name, title, answers: [] }]),
    );
    const out = [];
    for (const entry of catalog) {
        const all = facts(entry, asked, evidence);
        const against = all.find(({ passes }) => !passes);
        if (against) {
            out.push({ entry, ...against });
            continue;
        }
        const found = wanted.map(({ name, words }) => ({ name, words, lines: lines(entry, name, evidence) }));
        // What is dear is left out already, so that a scheme is cheap says nothing for it where more is asked.
        const judging = wanted.length > 1 ? found.filter(({ name }) => name !== "cost") : found;
        const verdicts = judging.flatMap(({ lines: of }) => of.map(({ verdict }) => verdict));
        const [good, bad] = ["for", "against"].map((verdict) => verdicts.includes(verdict));
        const group = !verdicts.length ? "none" : good && !bad ? "for" : bad && !good ? "against" : "mixed";
        groups[group].answers.push({
            entry,
            facts: all,
            lines: found.flatMap(({ lines: of }) => of),
            without: found.filter(({ lines: of }) => !of.length).map(({ words }) => words),
        });
    }
    const kept = Object.values(groups).filter(({ answers }) => answers.length);
    if (!wanted.length) for (const group of kept) group.title = "By laws and catalog alone";
    const used = evidence.filter(({ question }) => wanted.some(({ name }) => name === question));
    return { groups: kept, out, used, wanted };
}
