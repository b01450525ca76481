// Where files of records are dropped, or chosen.

import { element } from "posenc/elements.js";
import { add } from "posenc/records.js";

/** Builds the place into box, where posenc runs behind the page. */
export function dropping(box, app) {
    if (!app.server) return;
    const wrong = element("p", { class: "wrong", role: "alert", hidden: true });
    const take = async (files) => {
        wrong.hidden = true;
        try {
            app.set({ records: String(await add(files, app)), measure: "0" });
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
            ", from a folder of posenc compare or posenc extend: choose them, or drop them here. They stay on this machine. ",
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
