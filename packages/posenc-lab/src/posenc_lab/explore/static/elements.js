// DOM elements in one line.

/** element("p", {class: "see", onclick: f}, "words", another): attributes by name, listeners by "on…". */
export function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
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

/** A number as it stands in words, with true minus signs. */
export const minus = (number) => String(number).replaceAll("-", "−");
