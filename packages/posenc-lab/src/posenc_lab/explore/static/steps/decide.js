// Step 10: five questions that end in a line of code, with the evidence of the answer.

import { code } from "posenc/card.js";
import { answerOf } from "posenc/choosing.js";
import { element } from "posenc/elements.js";
import { figure as which, firstChoice } from "posenc/figures/which.js";

export const figure = {
    name: "decide",
    title: "A first choice, and its line of code",
    see: "Answer the questions: the first choice, its evidence and its line of code change with them.",
    defaults: which.defaults,
    controls: which.controls, // five choices, since it takes five questions to decide
    values(given, { data: { choosing, evidence } }) {
        const answer = answerOf(given, choosing);
        const tables = evidence.filter(({ name }) => answer.evidence.includes(name));
        return { answer, tables, strengths: choosing.strengths };
    },
    line: (given, { data }) => answerOf(given, data.choosing).code,
    mount(box, app) {
        const [head, line] = [element("div", { class: "wide" }), code()];
        line.box.dataset.part = "code";
        app.beneath().dataset.part = "evidence";
        box.append(head);
        return (given, { answer, tables, strengths }) => {
            const [start, ...evidence] = firstChoice(answer, tables, strengths);
            line.show("In Python", answer.code);
            head.replaceChildren(start, line.box);
            app.beneath().replaceChildren(...evidence);
        };
    },
    pictured: ["said", "line"],
    describe: (given, { answer }) =>
        `${answer.case}: begin with ${answer.begin}. Evidence for it: ${answer.strength}.`,
};

export const predict = { ...which.defaults, longer: "rules" };

export const question = {
    judge(given, { answer }) {
        if (answer.name === "code_decoder") return "right";
        if (given.weights !== "no") return "weights";
        if (given.tokens !== "line" || given.for !== "decoder") return "model";
        return { no: "within", yes: "loss", far: "far" }[given.longer] ?? "other";
    },
    examples: {
        right: { ...which.defaults, longer: "code" },
        within: which.defaults,
        loss: { ...which.defaults, longer: "yes" },
        far: { ...which.defaults, longer: "far" },
        other: { ...which.defaults, longer: "rules" },
        model: { ...which.defaults, for: "encoder", longer: "code" },
        weights: { ...which.defaults, weights: "tune", longer: "code" },
    },
};
