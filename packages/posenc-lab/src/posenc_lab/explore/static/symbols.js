// The symbols of controls in a formula: their values below it, and marked while their control is used.

import { element } from "posenc/elements.js";

const short = (name) => name.replace(/^options\./, "");

/** What a formula has of a control's: tokens with its name in `data-control`. Gives show(values), after each step, with the
 * values of all controls: it writes them below the formula, and makes bold the words that are chosen. */
export function symbols(controls, formula, values) {
    let used = "";
    const all = (box) => [...box.querySelectorAll("[data-control]")];
    const of = (token) => token.dataset.control.split(" ");
    const mark = () => {
        for (const token of [...all(formula), ...all(values)])
            token.classList.toggle("lit", used !== "" && of(token).includes(used));
    };
    const use = (control) => {
        used = short(control?.dataset.name ?? "");
        mark();
    };
    for (const event of ["focusin", "input", "pointerover"])
        controls.addEventListener(event, ({ target }) => use(target.closest("[data-name]")));
    for (const event of ["focusout", "pointerleave"])
        controls.addEventListener(event, ({ relatedTarget }) =>
            use((relatedTarget ?? document.activeElement)?.closest?.("[data-name]")),
        );
    return (state) => {
        const now = Object.fromEntries(Object.entries(state).map(([name, value]) => [short(name), value]));
        const written = new Map();
        for (const token of all(formula)) {
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
        mark();
    };
}
