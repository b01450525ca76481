// The symbols of controls in a formula, with their values below it. parts.js marks them while their control is used.

import { element } from "posenc/elements.js";

const short = (name) => name.replace(/^options\./, "");

/** What a formula has of a control's: tokens with its name in `data-control`. Gives show(values), after each step, with the
 * values of all controls: it writes them below the formula, and makes bold the words that are chosen. */
export function symbols(formula, values) {
    const of = (token) => token.dataset.control.split(" ");
    return (state) => {
        const now = Object.fromEntries(Object.entries(state).map(([name, value]) => [short(name), value]));
        const written = new Map();
        for (const token of formula.querySelectorAll("[data-control]")) {
            const words = token.textContent.trim();
            token.classList.toggle(
                "chosen",
                of(token).some((name) => now[name] === words),
            );
            for (const name of of(token).filter((one) => Number.isFinite(now[one]))) {
                written.set(name, [undefined, words].includes(written.get(name)) ? words : ""); // "": of several symbols
            }
        }
        values.replaceChildren(
            ...[...written].filter(([, words]) => words).flatMap(([name, words]) => [
                element("span", { "data-control": name }, `${words} = ${now[name].toLocaleString("en")}`),
                " ",
            ]),
        );
    };
}
