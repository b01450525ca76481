// Controls of a figure: native inputs with labels, so that keyboard and screen reader work as everywhere.

import { chooser } from "posenc/chooser.js";
import { element } from "posenc/elements.js";

const STEPS = 1000; // of a slider on a logarithmic scale

/** Controls in box; change(name, value) is called while they move. Gives show(specs, values): which there are, and what
 * they say. One that stays is kept as it is, so that a drag goes on and the focus is not lost. */
export function controls(box, change) {
    const made = new Map();
    return (specs, values) => {
        const wanted = specs.map((spec) => {
            const key = `${spec.kind} ${spec.name} ${spec.kind === "button" ? spec.label : ""}`;
            if (!made.has(key))
                made.set(
                    key,
                    KINDS[spec.kind]((value) => change(spec.name, value)),
                );
            const one = made.get(key);
            one.update(spec);
            one.label.dataset.name = spec.name;
            if (spec.name in values) one.show(values[spec.name]);
            return one.label;
        });
        for (const child of [...box.children]) if (!wanted.includes(child)) child.remove();
        wanted.forEach((label, n) => box.children[n] !== label && box.insertBefore(label, box.children[n] ?? null));
    };
}

function range(change) {
    const [output, name] = [element("output"), element("span")];
    const input = element("input", { type: "range" });
    let spec = {};
    const words = (value) =>
        `${Number(Number(value).toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 })}${spec.unit ?? ""}`;
    const away = (value) => (spec.log ? (STEPS * Math.log(value / spec.min)) / Math.log(spec.max / spec.min) : value);
    const back = (place) => {
        const { min, max, step = 1, log } = spec;
        if (!log) return Number(place);
        const rounded = Math.round((min * (max / min) ** (place / STEPS)) / step) * step;
        return Math.min(Math.max(Number(rounded.toPrecision(10)), min), max);
    };
    input.addEventListener("input", () => change(back(input.value)));
    return {
        label: element("label", { class: "control" }, name, input),
        update(now) {
            spec = now;
            name.replaceChildren(spec.label, " ", output);
            const ends = spec.log ? [0, STEPS, 1] : [spec.min, spec.max, spec.step ?? 1];
            ["min", "max", "step"].forEach((key, n) => input[key] !== String(ends[n]) && (input[key] = ends[n]));
        },
        show(value) {
            if (back(input.value) !== value) input.value = away(value);
            output.textContent = words(value);
            input.setAttribute("aria-valuetext", words(value));
        },
    };
}

function choice(change) {
    const name = element("span");
    const input = element("select", { onchange: () => change(input.value) });
    let known = "";
    return {
        label: element("label", { class: "control" }, name, input),
        update({ label, choices }) {
            name.textContent = label;
            if (JSON.stringify(choices) === known) return;
            known = JSON.stringify(choices);
            const groups = new Map();
            for (const one of choices) {
                const { value, name: words, group = "" } = typeof one === "object" ? one : { value: one, name: one };
                groups.set(group, [...(groups.get(group) ?? []), element("option", { value }, words)]);
            }
            input.replaceChildren(
                ...[...groups].flatMap(([group, made]) =>
                    group ? [element("optgroup", { label: group }, ...made)] : made,
                ),
            );
        },
        show: (value) => (input.value = value),
    };
}

function check(change) {
    const name = element("span");
    const input = element("input", { type: "checkbox", onchange: () => change(input.checked) });
    return {
        label: element("label", { class: "control check" }, input, name),
        update: ({ label }) => (name.textContent = label),
        show: (value) => (input.checked = value),
    };
}

const text = (change, tag = "input") => {
    const name = element("span");
    const more = tag === "input" ? { type: "text" } : { rows: 5 };
    const input = element(tag, { ...more, spellcheck: "false", oninput: () => change(input.value) });
    return {
        label: element("label", { class: "control wide" }, name, input),
        update({ label, longest = 400 }) {
            name.textContent = label;
            input.maxLength = longest;
        },
        show(value) {
            if (input.value !== value) input.value = value;
        },
    };
};

/** Text of several lines. */
const area = (change) => text(change, "textarea");

/** Sets its name to `value(now)`, such as a new seed. */
function button(change) {
    let [now, next] = [undefined, null];
    const input = element("button", { type: "button", onclick: () => change(next(now)) });
    return {
        label: element("div", { class: "control" }, input),
        update({ label, value }) {
            input.textContent = label;
            next = value;
        },
        show: (shown) => (now = shown),
    };
}

const KINDS = { range, choice, chooser, check, text, area, button };
