// A question that is asked before its picture is shown. The answer is kept in the figure's state, as `answer`.

import { element } from "posenc/elements.js";
import { check } from "posenc/state.js";

/** Throws unless a state's answer is one of the choices, and its values are what the controls take, though they are not
 * shown yet. */
export function checkState(figure, state, choices, controls) {
    choiceOf(state, choices);
    for (const control of controls) check(figure, control, state[control.name]);
}

/** The choice that a state has made, {value, name, said}, or undefined where it has made none. */
function choiceOf({ answer }, choices) {
    const found = choices.find(({ value }) => value === answer);
    if (answer && !found)
        throw new RangeError(`answer must be one of ${choices.map(({ value }) => value).join(", ")}, got "${answer}"`);
    return found;
}

/**
 * Asks in box. Gives {shown, draw}: `shown` holds the picture, hidden until there is an answer, and
 * draw(state, {asks, choices, truth}) shows the question and what was said of it, and gives whether there is an answer.
 */
export function question(box, app, name) {
    const asked = element("fieldset", { class: "question" });
    const verdict = element("p", { class: "verdict", role: "status" });
    const shown = element("div", { class: "answer", hidden: true });
    box.append(asked, verdict, shown);
    let made = "";
    return {
        shown,
        draw(state, { asks, choices, truth }) {
            const words = JSON.stringify([asks, choices]);
            if (words !== made) {
                const radio = ({ value, name: text }) => {
                    const input = element("input", {
                        type: "radio",
                        name,
                        value,
                        onchange: () => app.set({ answer: value }),
                    });
                    return element("label", {}, input, element("span", {}, text));
                };
                asked.replaceChildren(element("legend", {}, asks), ...choices.map(radio));
                made = words;
            }
            for (const input of asked.querySelectorAll("input")) input.checked = input.value === state.answer;
            const choice = choiceOf(state, choices);
            const again = element("button", { type: "button", onclick: () => app.set({ answer: "" }) }, "Ask again");
            verdict.replaceChildren(...(choice ? [`You said: ${choice.said}. It is: ${truth}. `, again] : []));
            shown.hidden = !choice;
            return Boolean(choice);
        },
    };
}
