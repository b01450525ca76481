// DOM elements in one line.

/** element("p", {class: "see", onclick: f}, "words", another): attributes by name, listeners by "on…". */
export const element = (name, attributes = {}, ...children) => dressed(document.createElement(name), attributes, children);

/** The same of an element that is there. */
export function dressed(made, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) {
        if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
        else if (value === true) made.setAttribute(key, "");
        else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
}

/** A row of a table: its heading and its cells, `as` elements of that name. */
export const row = (name, cells, as = "td") =>
    element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((one) => element(as, {}, one)));

/** A table: the words of its columns, rows of elements, and attributes, `caption` among them. */
export const tableOf = (heads, rows, { caption, ...attributes } = {}) =>
    element(
        "table",
        attributes,
        ...(caption ? [element("caption", {}, caption)] : []),
        element("thead", {}, element("tr", {}, ...heads.map((words) => element("th", { scope: "col" }, words)))),
        element("tbody", {}, ...rows),
    );

/** A box of what may be wider than the page, which moves sideways by touch and by keys. */
export const scroller = (name, more = "", ...children) =>
    element("div", { class: `scroll ${more}`, tabindex: "0", role: "region", "aria-label": name }, ...children);

/** Three maps side by side, at every width: of each its map, and `said`, the words under it. */
export function threeMaps(box, app, titles, options) {
    const boxes = titles.map(() => element("div"));
    box.append(element("div", { class: "wide" }, element("div", { class: "three" }, ...boxes)));
    return titles.map((title, n) => {
        const map = app.heat(boxes[n], { label: title, columnLabel: title, rowLabel: "", ...options });
        const said = element("p", { class: "ends" });
        boxes[n].append(said);
        return { map, said };
    });
}

/** A number as it stands in words, with true minus signs. */
export const minus = (number) => String(number).replaceAll("-", "−");
