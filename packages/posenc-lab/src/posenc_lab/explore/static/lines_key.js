// The list of what is which beside lines. Of more lines than can be told apart it colours those that are chosen.

import { element } from "posenc/elements.js";
import { svg } from "posenc/svg.js";

const MOST = 6; // lines that are told apart by colour and dashes

/** A sample of a line, for the list of what is which. */
function sample(color, dash, marker = false) {
    const shape = marker
        ? svg("circle", { cx: 14, cy: 5, r: 3.5, fill: color })
        : svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: color, "stroke-width": 2.5, "stroke-dasharray": dash.join(" ") });
    return svg("svg", { width: 28, height: 10, "aria-hidden": "true" }, shape);
}

/**
 * The list in box: of up to six lines their names, of more of them a button for each, which colours its line and leaves
 * the others grey. Pointing at a line or a name colours it for the moment. Gives {show(series),
 * isGrey(one), isMany(), point(one)}.
 *
 * @param {(isOther: boolean) => void} changed other lines are chosen, or pointed at
 */
export function keyOf(box, changed) {
    let [made, known, chosen, pointed, buttons] = ["", "", new Set(), null, new Map()];
    const nameOf = (one) => one.of ?? one.name;
    const isMany = (listed) => listed.length > MOST;
    const point = (one) => {
        const name = one ? nameOf(one) : null;
        if (name === pointed) return;
        pointed = name;
        for (const [key, button] of buttons) button.classList.toggle("pointed", key === name);
        changed(false);
    };
    const press = () => {
        for (const [name, button] of buttons) button.setAttribute("aria-pressed", String(chosen.has(name)));
    };
    const choose = (name) => {
        if (!chosen.delete(name)) chosen.add(name);
        press();
        changed(true);
    };
    const button = (one) => {
        const name = nameOf(one);
        const made = element(
            "button",
            {
                type: "button",
                "aria-pressed": String(chosen.has(name)),
                onclick: () => choose(name),
                onpointerenter: () => point(one),
                onpointerleave: () => point(null),
                onfocus: () => point(one),
                onblur: () => point(null),
            },
            sample(one.color, one.dash, one.points),
            one.name,
        );
        buttons.set(name, made);
        return made;
    };
    return {
        show(series) {
            const listed = series.filter(({ isUnlisted }) => !isUnlisted);
            const free = listed.filter(({ isFixed }) => !isFixed);
            const names = JSON.stringify(free.map((one) => [nameOf(one), Boolean(one.isChosen)]));
            if (names !== known) {
                const first = free.filter(({ isChosen }) => isChosen);
                chosen = new Set((first.length ? first : free.slice(0, 1)).map(nameOf));
                known = names;
                press();
            }
            const looks = JSON.stringify(listed.map(({ name, color, dash, points }) => [name, color, dash, points]));
            if (looks === made) return;
            [made, buttons] = [looks, new Map()];
            const isShown = series.length > 1 || series[0]?.always;
            box.classList.toggle("many", isMany(free));
            box.replaceChildren(
                ...(isMany(free) ? [element("li", { class: "hint" }, "In colour (choose any):")] : []),
                ...(isShown ? listed : []).map((one) =>
                    isMany(free) && !one.isFixed
                        ? element("li", {}, button(one))
                        : element("li", {}, sample(one.color, one.dash, one.points), one.name),
                ),
            );
        },
        isGrey: (one) => buttons.size > 0 && !one.isFixed && !chosen.has(nameOf(one)) && nameOf(one) !== pointed,
        isMany: () => buttons.size > 0,
        point,
    };
}
