// What each scheme's mathematics does, law by law, as posenc laws measured it.

import { element, row, scroller, tableOf } from "posenc/elements.js";
import { choice } from "posenc/math/check.js";

const ALL = "all laws";
const NO_DOOR = "none";

export const figure = {
    name: "laws",
    title: "Laws, as measured",
    see: "Choose a cell, with the pointer or the arrow keys, to see what was measured, and how. A law is true or false of a scheme; that it holds is not an advantage in itself.",
    defaults: { door: "any", table: ALL, scheme: "", law: "" },
    controls: (values, app) => [
        {
            name: "door",
            label: "door",
            kind: "choice",
            choices: ["any", "add", "rotate", "score", "value", { value: NO_DOOR, name: "no door" }],
        },
        { name: "table", label: "laws", kind: "choice", choices: [ALL, ...Object.keys(app.data.law_tables)] },
    ],
    values({ door, table, scheme, law }, app) {
        const names = app.catalog.map((entry) => entry.name);
        if (scheme) choice("scheme", scheme, names);
        if (law) choice("law", law, Object.keys(app.data.laws));
        const entries = app.catalog.filter(
            ({ doors }) => door === "any" || (door === NO_DOOR ? !doors.length : doors.includes(door)),
        );
        const laws = table === ALL ? Object.values(app.data.law_tables).flat() : app.data.law_tables[table];
        return {
            entries,
            laws,
            open: scheme && law ? { entry: app.catalog.find((entry) => entry.name === scheme), law } : null,
        };
    },
    line: ({ scheme }) => `# posenc laws${scheme ? ` --schemes ${scheme}` : ""}`,
    mount(box, app) {
        const frame = scroller("schemes and laws", "tall wide");
        box.append(frame);
        const stop = byArrows(frame);
        let shape = "";
        let buttons = {};
        let detail = null;
        let isSeen = false;
        const build = (entries, laws) => {
            buttons = {};
            const rows = entries.map((entry) => {
                const cells = laws.map((law) => {
                    const found = entry.measured[law];
                    const button = element(
                        "button",
                        {
                            type: "button",
                            class: "law",
                            tabindex: "-1",
                            "data-holds": String(found.holds),
                            "aria-expanded": "false",
                            onclick: () => {
                                const isOpen = buttons[`${entry.name} ${law}`].getAttribute("aria-expanded") === "true";
                                app.set(isOpen ? { scheme: "", law: "" } : { scheme: entry.name, law });
                            },
                        },
                        found.cell,
                    );
                    buttons[`${entry.name} ${law}`] = button;
                    return button;
                });
                const made = row(entry.title, cells);
                made.dataset.scheme = entry.name;
                return made;
            });
            const caption = "Yes, no, or n/a where the question makes no sense for a scheme; and the number behind it";
            const heads = ["scheme", ...laws.map((law) => app.data.laws[law].head)];
            frame.replaceChildren(tableOf(heads, rows, { class: "laws", caption }));
            stop(frame.querySelector(".law"));
        };
        return (values, { entries, laws, open }) => {
            const now = JSON.stringify([entries.map(({ name }) => name), laws]);
            if (now !== shape) build(entries, laws);
            shape = now;
            for (const button of frame.querySelectorAll("button[aria-expanded=true]")) {
                button.setAttribute("aria-expanded", "false");
                button.removeAttribute("aria-controls");
            }
            detail?.remove();
            const button = open && buttons[`${open.entry.name} ${open.law}`];
            isSeen ||= !button;
            if (!button) return;
            detail = measurement(open, laws.length + 1, app);
            button.closest("tr").after(detail);
            button.setAttribute("aria-expanded", "true");
            button.setAttribute("aria-controls", "measurement");
            stop(button);
            if (!isSeen) {
                // the address named it: bring it into sight, without moving the page
                const row = button.closest("tr");
                frame.scrollTop = row.offsetTop - 120;
                frame.scrollLeft = button.closest("td").offsetLeft - row.firstChild.offsetWidth;
            }
            isSeen = true;
        };
    },
    describe({ door }, { entries, laws, open }, app) {
        if (!open)
            return `${entries.length} schemes${door === "any" ? "" : ` of the door ${door}`}, ${laws.length} laws. None is chosen.`;
        return `${open.entry.title}, ${app.data.laws[open.law].head}: ${open.entry.measured[open.law].words}.`;
    },
};

/** Cells are a thousand: Tab comes to one of them, and arrow keys, Home and End go from it to others. Gives what says to
 * which one. */
function byArrows(frame) {
    const stop = (button) => {
        frame.querySelector('.law[tabindex="0"]')?.setAttribute("tabindex", "-1");
        button?.setAttribute("tabindex", "0");
    };
    frame.addEventListener("focusin", ({ target }) => target.matches(".law") && stop(target));
    frame.addEventListener("keydown", (event) => {
        if (!event.target.matches(".law")) return;
        const [rows, row] = [[...frame.querySelectorAll("[data-scheme]")], event.target.closest("tr")];
        const [n, column, last] = [rows.indexOf(row), event.target.closest("td").cellIndex, row.cells.length - 1];
        const [down, across] = {
            ArrowUp: [n - 1, column],
            ArrowDown: [n + 1, column],
            ArrowLeft: [n, column - 1],
            ArrowRight: [n, column + 1],
            Home: [n, 1],
            End: [n, last],
        }[event.key] ?? [-1];
        const next = rows[down]?.cells[across]?.querySelector(".law");
        if (!next) return;
        event.preventDefault();
        next.focus();
    });
    return stop;
}

/** The row under a scheme's that says what was measured. */
function measurement({ entry, law }, columns, app) {
    const { head, says } = app.data.laws[law];
    const found = entry.measured[law];
    const isLaw = !head.endsWith("?");
    const claimed = isLaw ? `${entry.claims.includes(law) ? "Claimed" : "Not claimed"} by the catalog. ` : "";
    const { dim, num_heads: heads, head_dim: width, max_positions: positions } = app.data.measured_at;
    const sizes = `${dim} wide, ${heads} heads of ${width} channels, up to ${positions.toLocaleString("en")} positions`;
    const lines = [
        [element("strong", {}, `${entry.title}, ${head}: ${found.cell}. `), `${found.words}.`],
        [isLaw ? `The law: ${says}. ` : `${says} `, claimed, found.value === null ? "" : `The value in full: ${found.value}.`],
        [
            `Measured in a model ${sizes}, in float64 unless it says otherwise: `,
            element("code", {}, `posenc laws --schemes ${entry.name}`),
        ],
    ].map((words) => element("p", {}, ...words));
    const said = element("div", { class: "measurement" }, ...lines);
    return element("tr", { id: "measurement" }, element("td", { colspan: String(columns) }, said));
}
