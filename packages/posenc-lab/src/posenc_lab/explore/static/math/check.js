// What an argument must be: each check throws an error that names the argument, what was expected and what came.

const shown = (value) => (value === undefined ? "nothing" : JSON.stringify(value));

/** The whole number, within its bounds. */
export function whole(name, value, least = 1, most = Infinity) {
    if (Number.isInteger(value) && value >= least && value <= most) {
        return value;
    }
    const within = most === Infinity ? `of at least ${least}` : `within ${least}..${most}`;
    throw new RangeError(`${name} must be a whole number ${within}, got ${shown(value)}`);
}

/** The finite number above a bound. */
export function number(name, value, above = -Infinity) {
    if (Number.isFinite(value) && value > above) {
        return value;
    }
    const beyond = above === -Infinity ? "" : ` above ${above}`;
    throw new RangeError(`${name} must be a finite number${beyond}, got ${shown(value)}`);
}

/** The value, which is one of the choices. */
export function choice(name, value, choices) {
    if (choices.includes(value)) {
        return value;
    }
    throw new RangeError(`${name} must be one of ${choices.join(", ")}, got ${shown(value)}`);
}

/** Throws an error of these words unless the condition holds. */
export function must(condition, words) {
    if (!condition) {
        throw new RangeError(words);
    }
}
