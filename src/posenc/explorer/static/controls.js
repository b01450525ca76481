// Controls of a figure: native inputs with labels, so that keyboard and screen reader work as everywhere.

import { element } from "posenc/elements.js";

const STEPS = 1000; // of a slider on a logarithmic scale

/** Builds controls into box; change(name, value) is called while they move. Gives a function that shows values. */
export function controls(box, specs, values, change) {
    const show = {};
    box.replaceChildren(
        ...specs.map((spec) => {
            const made = { range, choice, check, text, button }[spec.kind](spec, (value) => change(spec.name, value));
            show[spec.name] = made.show;
            return made.label;
        }),
    );
    const shown = (now) => {
        for (const [name, set] of Object.entries(show)) if (name in now) set(now[name]);
    };
    shown(values);
    return shown;
}

function range({ label, min, max, step = 1, log = false, unit = "" }, change) {
    const output = element("output");
    const words = (value) =>
        `${Number(Number(value).toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 })}${unit}`;
    const away = (value) => (log ? (STEPS * Math.log(value / min)) / Math.log(max / min) : value);
    const back = (place) => {
        if (!log) return Number(place);
        const value = min * (max / min) ** (place / STEPS);
        const rounded = Math.round(value / step) * step;
        return Math.min(Math.max(Number(rounded.toPrecision(10)), min), max);
    };
    const input = element("input", { type: "range", min: log ? 0 : min, max: log ? STEPS : max, step: log ? 1 : step });
    input.addEventListener("input", () => change(back(input.value)));
    const show = (value) => {
        if (back(input.value) !== value) input.value = away(value);
        output.textContent = words(value);
        input.setAttribute("aria-valuetext", words(value));
    };
    return { label: element("label", { class: "control" }, element("span", {}, label, " ", output), input), show };
}

function choice({ label, choices }, change) {
    const options = choices.map((one) => (typeof one === "object" ? one : { value: one, name: one }));
    const groups = new Map();
    for (const { value, name, group = "" } of options) {
        if (!groups.has(group)) groups.set(group, []);
        groups.get(group).push(element("option", { value }, name));
    }
    const input = element("select", { onchange: () => change(input.value) });
    for (const [group, made] of groups)
        input.append(...(group ? [element("optgroup", { label: group }, ...made)] : made));
    return {
        label: element("label", { class: "control" }, element("span", {}, label), input),
        show: (value) => (input.value = value),
    };
}

function check({ label }, change) {
    const input = element("input", { type: "checkbox", onchange: () => change(input.checked) });
    return {
        label: element("label", { class: "control check" }, input, element("span", {}, label)),
        show: (value) => (input.checked = value),
    };
}

function text({ label, longest = 400 }, change) {
    const input = element("input", {
        type: "text",
        maxlength: longest,
        spellcheck: "false",
        oninput: () => change(input.value),
    });
    const show = (value) => {
        if (input.value !== value) input.value = value;
    };
    return { label: element("label", { class: "control wide" }, element("span", {}, label), input), show };
}

/** Sets its name to `value(now)`, such as a new seed. */
function button({ label, value }, change) {
    let now;
    const input = element("button", { type: "button", onclick: () => change(value(now)) }, label);
    return { label: element("div", { class: "control" }, input), show: (shown) => (now = shown) };
}
