// Step 10: five questions that end in a line of code, with the evidence of the answer.

import { answerOf } from "posenc/choosing.js";
import { element } from "posenc/elements.js";
import { figure as which, firstChoice } from "posenc/figures/which.js";

export const figure = {
    name: "decide",
    title: "Which one?",
    see: "Answer the questions: the first choice, its evidence and its line of code change with them.",
    defaults: which.defaults,
    controls: which.controls, // five choices, since it takes five questions to decide
    values: (given, { data: { choosing, evidence } }) => {
        const answer = answerOf(given, choosing);
        const tables = evidence.filter(({ name }) => answer.evidence.includes(name));
        return { answer, tables, untested: choosing.untested };
    },
    line: (given, { data }) => answerOf(given, data.choosing).code,
    mount(box, app) {
        const head = element("div", { class: "wide decided" });
        box.append(head);
        return (given, { answer, tables, untested }) => {
            const [start, ...evidence] = firstChoice(answer, tables, untested);
            const code = element("pre", { tabindex: "0" }, element("code", {}, answer.code));
            head.replaceChildren(start, code);
            app.beneath().replaceChildren(...evidence);
        };
    },
    describe: (given, { answer }) => `${answer.case}: begin with ${answer.begin}.`,
};

export const question = {
    judge(given, { answer }) {
        if (answer.name === "far_decoder") return "right";
        if (given.weights === "yes") return "weights";
        if (given.tokens !== "line" || given.for !== "decoder") return "model";
        return { yes: "loss", rules: "rules" }[given.longer] ?? "within";
    },
    examples: {
        right: { ...which.defaults, longer: "far" },
        within: which.defaults,
        loss: { ...which.defaults, longer: "yes" },
        rules: { ...which.defaults, longer: "rules" },
        model: { ...which.defaults, for: "encoder", longer: "far" },
        weights: { ...which.defaults, weights: "yes", longer: "far" },
    },
};
