// Which scheme: what is asked, what passes, and on what evidence.

import { choose } from "posenc/choosing.js";
import { element } from "posenc/elements.js";

export const figure = {
    name: "which",
    title: "Which scheme should I use?",
    see: "Say what you need. What is left passes by measured laws and by the catalog; published and measured figures then speak for or against it. Compare the few that remain on your own text.",
    defaults: {
        model: "decoder",
        tokens: "line",
        longer: true,
        cheap: false,
        free: false,
        direction: false,
        checkpoint: false,
    },
    controls: [
        {
            name: "model",
            label: "model",
            kind: "choice",
            choices: [
                { value: "decoder", name: "decoder, with a causal mask" },
                { value: "encoder", name: "encoder, without a mask" },
            ],
        },
        {
            name: "tokens",
            label: "tokens",
            kind: "choice",
            choices: [
                { value: "line", name: "in a line, as text" },
                { value: "image", name: "patches of images" },
                { value: "video", name: "patches of videos" },
            ],
        },
        { name: "longer", label: "positions past the trained length", kind: "check" },
        { name: "cheap", label: "no dearer than plain attention", kind: "check" },
        { name: "free", label: "nothing learned", kind: "check" },
        { name: "direction", label: "tells before from after", kind: "check" },
        { name: "checkpoint", label: "for a trained checkpoint", kind: "check" },
    ],
    values: (asked, app) => choose(asked, app.catalog, app.data.evidence),
    line(asked, app) {
        const { groups } = choose(asked, app.catalog, app.data.evidence);
        const names = groups.flatMap(({ answers }) => answers.map(({ entry }) => entry.name));
        return names.length ? `# posenc laws --schemes ${names.join(",")}` : "# posenc laws";
    },
    mount(box) {
        const shown = element("div", { class: "wide" });
        box.append(shown);
        return ({ checkpoint }, { groups, out, used }) => {
            const isOpen = shown.querySelector(".left-out")?.open ?? false;
            shown.replaceChildren(
                ...(checkpoint
                    ? [
                          element(
                              "p",
                              { class: "ends" },
                              "Weights belong to the scheme that they were trained with: keep that one. ",
                              element("code", {}, "posenc.huggingface.scheme_from_config"),
                              " reads it; what can be changed is how its frequencies are stretched.",
                          ),
                      ]
                    : []),
                ...(groups.length
                    ? groups.flatMap(({ name, title, answers }) => [
                          element(
                              "p",
                              { class: "group" },
                              `${title}: ${answers.length} ${answers.length === 1 ? "scheme" : "schemes"}`,
                          ),
                          element(
                              "ul",
                              { class: "answers", "aria-label": title },
                              ...answers.map((one) => answer(one, name !== "none")),
                          ),
                      ])
                    : [element("p", { class: "group" }, "No scheme of the catalog has all of this.")]),
                ...(used.length
                    ? [
                          element("p", { class: "group" }, "What was measured, and what it does not say"),
                          element("ul", { class: "answers" }, ...used.map(measured)),
                      ]
                    : []),
                element(
                    "details",
                    { class: "left-out", open: isOpen },
                    element("summary", {}, `Left out: ${out.length} schemes, and why`),
                    element("ul", { class: "answers" }, ...out.map(leftOut)),
                ),
            );
        };
    },
    describe(asked, { groups, out }) {
        const words = groups.map(
            ({ title, answers }) => `${title}: ${answers.map(({ entry }) => entry.title).join(", ")}`,
        );
        return `${words.join(". ") || "No scheme has all of this"}. Left out: ${out.length}.`;
    },
};

const plain = (words) => words.replaceAll("`", "");
const code = (words) => element("code", {}, words);

/** Where something stands: a page elsewhere, opened only when it is followed, or the command that prints it. */
function source({ source: who, url, command, doc, second_hand: isSecondHand }) {
    const from = url
        ? [element("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, who)]
        : [code(command), ` (${doc})`];
    return isSecondHand ? [...from, ", read second-hand"] : from;
}

const ground = (fact) => (fact.record ? source(fact.record) : [code(fact.source)]);

function answer({ entry, facts, lines, without }, isOpen) {
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

const measured = (record) =>
    element(
        "li",
        {},
        element("strong", {}, `${record.title}. `),
        `${record.measured} ${record.shows} `,
        ...source(record),
    );
