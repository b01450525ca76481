// Words, symbols of a formula, controls and parts of a picture that are one thing have one name: pointing at one of them,
// or having it in focus, lights all.

const KINDS = ["data-part", "data-control", "data-name"]; // of words and pictures, of formulas, of controls
const ANY = KINDS.map((kind) => `[${kind}]`).join();
const OPTION = "options."; // before the names of some controls

const namesOf = (one) =>
    KINDS.flatMap((kind) => one.getAttribute(kind)?.split(" ") ?? []).map((name) => name.replace(OPTION, ""));

/** The style that lights what is one with an element of a figure. Of a word's part all else in the picture fades. */
function styleOf(one) {
    const figure = one?.closest("[data-figure]")?.dataset.figure;
    if (!figure) return "";
    const all = namesOf(one).flatMap((name) => [name, OPTION + name].flatMap((n) => KINDS.map((kind) => `[${kind}~="${n}"]`)));
    const lit = `:is(${all.join()})${one.matches(".control") ? ":not(.control)" : ""}`;
    const within = `[data-figure="${figure}"]`;
    return (
        `${within} ${lit} { background: var(--lit); box-shadow: 0 0 0 2px var(--lit); }` +
        `${within} svg ${lit} { filter: drop-shadow(0 0 2px var(--shine)) drop-shadow(0 0 2px var(--shine)); }` +
        (one.matches("dfn") ? `${within} svg:has(${lit}) > :not(${lit}) { opacity: 0.2; }` : "")
    );
}

/** Lights parts from now on, in a style sheet of its own: what is drawn anew meanwhile is lit too. */
export function lightParts() {
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    let last = "";
    const light = (pointed) => {
        const style = styleOf(pointed?.closest?.(ANY) ?? document.activeElement?.closest(ANY));
        if (style !== last) sheet.replaceSync((last = style));
    };
    addEventListener("pointerover", ({ target }) => light(target));
    addEventListener("focusin", () => light(null));
    addEventListener("click", ({ target }) => target.closest?.("dfn")?.closest(".figure")?.querySelector(".picture").scrollIntoView({ block: "nearest" }));
    addEventListener("focusout", () => setTimeout(light));
    document.documentElement.addEventListener("pointerleave", () => light(null));
}
