// Where files of records are dropped, or chosen; every figure that draws records has one, and all show what was added.

import { element } from "posenc/elements.js";
import { add } from "posenc/records.js";

const figures = new Map(); // by name: what shows records by their number

/** Builds the place into box. */
export function dropping(box, app, name) {
    figures.set(name, (records) => app.set({ records, measure: "0" }));
    const wrong = element("p", { class: "wrong", role: "alert", hidden: true });
    const take = async (files) => {
        wrong.hidden = true;
        try {
            const last = String(await add(files, app));
            for (const show of figures.values()) show(last);
        } catch (error) {
            wrong.hidden = false;
            wrong.textContent = error.message;
        }
    };
    const input = element("input", {
        type: "file",
        multiple: true,
        accept: ".jsonl",
        onclick: () => (input.value = ""), // or a file that has grown could not be chosen again
        onchange: () => take([...input.files]),
    });
    const place = element(
        "div",
        { class: "drop" },
        element(
            "label",
            {},
            "Files of records, ",
            element("code", {}, "records.jsonl"),
            ", from a folder of posenc compare or posenc extend: choose them, or drop them here. They stay in this page. ",
            input,
        ),
        wrong,
    );
    const over = (is) => (event) => {
        event.preventDefault();
        place.classList.toggle("over", is);
    };
    // The whole figure takes files: beside the place the browser would leave the page for one.
    const figure = box.closest("section") ?? box;
    figure.addEventListener("dragover", over(true));
    figure.addEventListener("dragleave", over(false));
    figure.addEventListener("drop", (event) => {
        over(false)(event);
        take([...event.dataTransfer.files]);
    });
    box.append(place);
}
