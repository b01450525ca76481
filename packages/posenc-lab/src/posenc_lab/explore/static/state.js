// What is shown lives in the address, after the "#": which view, which step of the lesson or which figure alone, and every
// control that is not at its default, as "clocks.dim=128". So a picture can be sent to someone, embedded, and reached by
// the back button.

/** @returns {{view: string, step: string, figure: string, theme: string, figures: Object<string, Object<string, string>>}} */
export function read(hash) {
    // An address is anyone's: without prototypes a figure "constructor" or "__proto__" is only an unknown one.
    const state = { view: "", step: "", figure: "", theme: "", figures: Object.create(null) };
    for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
        const dot = key.indexOf(".");
        if (dot > 0) {
            (state.figures[key.slice(0, dot)] ??= Object.create(null))[key.slice(dot + 1)] = value;
        } else if (Object.hasOwn(state, key) && key !== "figures") {
            state[key] = value;
        }
    }
    return state;
}

/** The address of a state; of the figures only what differs from their defaults. */
export function written({ view, step, figure, theme, figures }, defaults) {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries({ view, step, figure, theme })) {
        if (value) query.set(key, value);
    }
    for (const [name, values] of Object.entries(figures)) {
        for (const [key, value] of Object.entries(values)) {
            if (String(value) !== String(defaults[name]?.[key])) query.set(`${name}.${key}`, String(value));
        }
    }
    return `#${query}`;
}

/** The values of one figure: its defaults, and what was given as words, each as its default is. Names what cannot be. */
export function valuesOf(figure, given, controls) {
    const values = { ...figure.defaults };
    for (const [key, text] of Object.entries(given)) {
        if (!Object.hasOwn(values, key)) {
            throw new RangeError(`${figure.name} has no ${key}: it takes ${Object.keys(values).join(", ")}`);
        }
        values[key] = converted(`${figure.name}.${key}`, text, values[key]);
    }
    for (const control of controls(values)) {
        if (control.name in values) check(figure.name, control, values[control.name]);
    }
    return values;
}

function converted(name, text, like) {
    if (typeof like === "number") {
        const number = Number(text);
        if (String(text).trim() === "" || !Number.isFinite(number)) {
            throw new RangeError(`${name} must be a number, got "${text}"`);
        }
        return number;
    }
    if (typeof like === "boolean") {
        if (!["true", "false"].includes(String(text)))
            throw new RangeError(`${name} must be true or false, got "${text}"`);
        return String(text) === "true";
    }
    return String(text);
}

/** Throws unless a control of a figure can have that value. */
export function check(figure, { name, kind, min, max, choices, longest = 400 }, value) {
    if (kind === "range" && !(value >= min && value <= max)) {
        throw new RangeError(`${figure}.${name} must be from ${min} to ${max}, got ${value}`);
    }
    if (kind === "choice" || kind === "chooser") {
        const open = choices.filter(({ missing }) => !missing);
        const known = open.map((choice) => (typeof choice === "object" ? choice.value : choice));
        if (!known.includes(value)) {
            throw new RangeError(`${figure}.${name} must be one of ${known.join(", ")}, got "${value}"`);
        }
    }
    if (["text", "area"].includes(kind) && value.length > longest) {
        throw new RangeError(`${figure}.${name} must have at most ${longest} characters, got ${value.length}`);
    }
}
