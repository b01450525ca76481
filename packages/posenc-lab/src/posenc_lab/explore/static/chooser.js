// A choice among many, by typing: the combobox with a list that the ARIA Authoring Practices describe. The list begins
// with what is used most; words filter it.

import { element } from "posenc/elements.js";

let count = 0; // of choosers, for ids

/**
 * {label, update({label, choices}), show(value)}, as the other controls. A choice is {value, name, group, about, finds,
 * missing}: `about` stands beside the name, `finds` are further words to find it by, `missing` says why it is no choice.
 */
export function chooser(change) {
    const id = `chooser-${(count += 1)}`;
    const name = element("label", { for: id });
    const list = element("div", { class: "chooser-list", id: `${id}-list`, role: "listbox", hidden: true });
    const status = element("span", { class: "hidden", role: "status" });
    const input = element("input", {
        id,
        type: "text",
        role: "combobox",
        autocomplete: "off",
        spellcheck: "false",
        "aria-autocomplete": "list",
        "aria-expanded": "false",
        "aria-controls": list.id,
    });
    let [choices, chosen, active, options] = [[], null, -1, []];
    const isOpen = () => !list.hidden;

    const activate = (n) => {
        options[active]?.classList.remove("active");
        active = n;
        const option = options[active];
        option?.classList.add("active");
        option?.scrollIntoView({ block: "nearest" });
        if (option) input.setAttribute("aria-activedescendant", option.id);
        else input.removeAttribute("aria-activedescendant");
    };
    const close = () => {
        list.hidden = true;
        input.setAttribute("aria-expanded", "false");
        status.textContent = "";
        activate(-1);
        input.value = choices.find(({ value }) => value === chosen)?.name ?? "";
        if (document.activeElement === input) input.select(); // so that what is typed next takes its place
    };
    const pick = (choice) => {
        if (choice.missing) return;
        const isOther = choice.value !== chosen;
        chosen = choice.value;
        close();
        if (isOther) change(chosen);
    };
    /** Shows the choices that have these words in their name, or else among the words that find them. */
    const open = (words = "") => {
        const found = matching(choices, words);
        const groups = new Map();
        for (const choice of found) groups.set(choice.group, [...(groups.get(choice.group) ?? []), choice]);
        let n = 0;
        const option = (choice) =>
            element(
                "div",
                {
                    id: `${id}-${n++}`,
                    role: "option",
                    "aria-selected": String(choice.value === chosen),
                    "aria-disabled": choice.missing ? "true" : undefined,
                    "aria-label": choice.missing ? `${choice.name}: ${choice.missing}` : choice.name,
                    onclick: () => pick(choice),
                },
                element("span", {}, choice.name),
                element("small", {}, choice.missing ?? choice.about ?? ""),
            );
        list.replaceChildren(
            ...[...groups].map(([title, all], g) =>
                element(
                    "div",
                    { role: "group", "aria-labelledby": `${id}-group-${g}` },
                    element("div", { class: "group", role: "presentation", id: `${id}-group-${g}` }, title),
                    ...all.map(option),
                ),
            ),
            ...(found.length
                ? []
                : [element("div", { role: "option", "aria-disabled": "true" }, `Nothing is named “${words}”`)]),
        );
        options = found.length ? [...list.querySelectorAll("[role=option]")] : [];
        list.hidden = false;
        input.setAttribute("aria-expanded", "true");
        status.textContent = words ? `${found.length} of ${choices.length}` : "";
        const { left } = input.getBoundingClientRect();
        list.style.left = `${Math.min(0, innerWidth - 12 - left - list.offsetWidth)}px`;
        const at = options.findIndex((one) => one.getAttribute("aria-selected") === "true");
        active = -1;
        activate(words ? Math.min(0, options.length - 1) : at);
    };
    const step = (by) => {
        if (!isOpen()) return open();
        const next = active < 0 && by < 0 ? options.length - 1 : active + by;
        if (options.length) activate((next + options.length) % options.length);
    };
    const KEYS = {
        ArrowDown: () => step(1),
        ArrowUp: () => step(-1),
        Enter: () => (isOpen() ? options[active]?.click() : open()),
        Escape: () => (isOpen() ? close() : false),
    };
    input.addEventListener("keydown", (event) => {
        if (!(event.key in KEYS) || KEYS[event.key]() === false) return;
        event.preventDefault();
    });
    input.addEventListener("input", () => open(input.value.trim()));
    input.addEventListener("click", () => isOpen() || open());
    input.addEventListener("focus", () => input.select());
    input.addEventListener("blur", close);
    list.addEventListener("pointerdown", (event) => event.preventDefault()); // the focus stays in the input
    return {
        label: element("div", { class: "control chooser" }, name, input, list, status),
        update(spec) {
            name.textContent = spec.label;
            list.setAttribute("aria-label", spec.label);
            choices = spec.choices;
        },
        show(value) {
            chosen = value;
            if (!isOpen()) close();
        },
    };
}

/** Those with the words in their name, the ones that begin with them first; or else those that are found by them. */
function matching(choices, words) {
    const wanted = words.toLowerCase();
    if (!wanted) return choices;
    const place = ({ name, value }) => [name, value].map((one) => one.toLowerCase().indexOf(wanted));
    const named = choices.filter((choice) => place(choice).some((at) => at >= 0));
    if (!named.length) return choices.filter(({ finds = "" }) => finds.toLowerCase().includes(wanted));
    const begins = (choice) => place(choice).includes(0);
    return [...named.filter(begins), ...named.filter((choice) => !begins(choice))];
}
