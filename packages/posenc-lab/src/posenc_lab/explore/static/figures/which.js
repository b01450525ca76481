// Which scheme: what is asked, what passes, and on what evidence.

import { answerOf, choose, needsOf } from "posenc/choosing.js";
import { element, row, scroller, tableOf } from "posenc/elements.js";
import { takes } from "posenc/use.js";

export const figure = {
    name: "which",
    title: "Which scheme should I use?",
    see: "Five questions lead to a first choice, with what was published and what was found here. Below it are all schemes that the measured laws and the catalog allow, with the measurements for and against each. Compare the few that remain on your own text.",
    defaults: { weights: "no", tokens: "line", for: "decoder", longer: "no", cost: "some" },
    controls: (_, { data: { choosing } }) =>
        choosing.questions.map(({ name, asks, options }) => ({
            name,
            label: asks,
            kind: "choice",
            choices: options.map(({ value, label }) => ({ value, name: label })),
        })),
    values(given, { catalog, data: { choosing, evidence } }) {
        const needs = needsOf(given, choosing);
        const answer = answerOf(given, choosing);
        return {
            answer,
            tables: evidence.filter(({ name }) => answer.evidence.includes(name)),
            strengths: choosing.strengths,
            ...(needs ? choose(needs, catalog, evidence) : { groups: [], out: [], used: [], wanted: [] }),
        };
    },
    use(given, { data }) {
        const { code: lines } = answerOf(given, data.choosing);
        return [
            ...(lines.includes("(q, k, v") ? [takes("q, k, v", "batch, heads, tokens, head_dim", [2, 12, 64, 64])] : []),
            ...(lines.includes("(x)") ? [takes("x", "batch, tokens, dim", [2, 64, 768])] : []),
            lines.replace(/^posenc\.attention/m, "out = posenc.attention"),
        ].join("\n");
    },
    line: (given, { data }) => `${data.given}\n\n${answerOf(given, data.choosing).code}`,
    mount(box) {
        const shown = element("div", { class: "wide" });
        box.append(shown);
        return (given, { answer, tables, strengths, groups, out, used }) => {
            const isOpen = shown.querySelector(".left-out")?.open ?? false;
            shown.replaceChildren(
                ...firstChoice(answer, tables, strengths),
                ...groups.map(({ name, title, answers }) =>
                    element(
                        "details",
                        { open: name !== "none" },
                        element(
                            "summary",
                            { class: "group" },
                            `${title}: ${answers.length} ${answers.length === 1 ? "scheme" : "schemes"}`,
                        ),
                        element(
                            "ul",
                            { class: "answers", "aria-label": title },
                            ...answers.map((one) => passing(one, name !== "none")),
                        ),
                    ),
                ),
                ...(groups.length || !out.length
                    ? []
                    : [element("p", { class: "group" }, "No scheme of the catalog has all of this.")]),
                ...(used.length
                    ? [
                          element("p", { class: "group" }, "What was measured, and what it does not say"),
                          element("ul", { class: "answers" }, ...used.map((record) => measured(record))),
                      ]
                    : []),
                ...(out.length
                    ? [
                          element(
                              "details",
                              { class: "left-out", open: isOpen },
                              element("summary", {}, `Left out: ${out.length} schemes, and why`),
                              element("ul", { class: "answers" }, ...out.map(leftOut)),
                          ),
                      ]
                    : []),
            );
        };
    },
    describe(given, { answer, groups, out }) {
        const words = groups.map(
            ({ title, answers }) => `${title}: ${answers.map(({ entry }) => entry.title).join(", ")}`,
        );
        const left = out.length ? [`Left out: ${out.length}`] : [];
        const evidence = `Evidence for it: ${answer.strength}`;
        return `${[`${answer.case}: begin with ${answer.begin}`, evidence, ...words, ...left].join(". ")}.`;
    },
};

const plain = (words) => words.replaceAll("`", "");
const code = (words) => element("code", {}, words);

/** Where a command runs, and what it takes if it tunes. */
const tuning = (command) =>
    (command.includes("examples/") ? " (in a clone of posenc)" : "") +
    (command.includes("--tune") ? " (--tune runs 25 trial trainings per scheme; leave it out for a first look)" : "");

/** Where something stands: a page elsewhere, opened only when it is followed, or the command that prints it. */
function source({ source: who, url, command, doc, second_hand: isSecondHand }) {
    const from = url
        ? [element("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, who)]
        : [...(command ? [code(command), " "] : []), `(${doc})`];
    return isSecondHand ? [...from, ", read second-hand"] : from;
}

const ground = (fact) => (fact.record ? source(fact.record) : [code(fact.source)]);

/** Where the questions lead: with what to begin, what to compare it with, and on what evidence. */
export function firstChoice(answer, tables, strengths) {
    const { begin, compare_with: other, command, why, claims, statements, strength, unknown } = answer;
    const stated = ({ says, strength: of, ...from }) =>
        element("li", {}, `${says} (${strengths[of]}: `, ...(from.url ? source(from) : [code(from.command)]), ")");
    const told = ({ about, published, source: who, url, ours }) =>
        element(
            "li",
            {},
            `${about}. Published: ${published} (`,
            ...source({ source: who, url }),
            ")",
            element("ul", {}, ...ours.map((words) => element("li", {}, words))),
        );
    return [
        element("p", { class: "group" }, `Start with ${begin}`),
        element(
            "ul",
            { class: "answers", "aria-label": "First choice" },
            element("li", {}, `Why: ${why}`),
            element("li", {}, element("strong", {}, "Strength of the evidence: "), `${strength}.`),
            ...(command ? [element("li", {}, `Compare it with ${other}: `, code(command), tuning(command))] : []),
            ...statements.map(stated),
            ...tables.map((table) => measured(table, strengths[table.strength])),
            ...claims.map(told),
            element("li", {}, `Not known: ${unknown}`),
        ),
    ];
}

function passing({ entry, facts, lines, without }, isOpen) {
    return element(
        "li",
        {},
        element(
            "details",
            { open: isOpen },
            element("summary", {}, element("strong", {}, entry.title), `: ${plain(entry.does)}`),
            element(
                "ul",
                {},
                ...lines.map(({ record, words, verdict }) =>
                    element(
                        "li",
                        {},
                        element("strong", {}, verdict ? `${verdict}: ` : ""),
                        `${record.title}. ${words}. `,
                        ...source(record),
                    ),
                ),
                ...without.map((words) => element("li", {}, `No evidence here of ${words}.`)),
                ...facts.map((fact) => element("li", {}, `${fact.words}. `, ...ground(fact))),
                element("li", {}, `Cost: ${entry.cost}. Learned: ${entry.learned}. Limits: ${plain(entry.limits)}.`),
            ),
        ),
    );
}

const leftOut = ({ entry, ...fact }) =>
    element("li", {}, element("strong", {}, entry.title), `: ${plain(fact.words)}. `, ...ground(fact));

/** A record in words, and its figures where they are opened. */
const measured = (record, strength) =>
    element(
        "li",
        {},
        element("strong", {}, `${record.title}. `),
        `${record.measured} ${record.shows} (${strength ? `${strength}: ` : ""}`,
        ...source(record),
        ")",
        ...(strength ? [element("details", {}, element("summary", {}, "The figures"), figuresOf(record))] : []),
    );

const figuresOf = ({ title, heads, rows }) => {
    const made = rows.map(({ label, figures }) => row(label, figures));
    return scroller(`Figures: ${title}`, "", tableOf(["scheme", ...heads], made));
};
