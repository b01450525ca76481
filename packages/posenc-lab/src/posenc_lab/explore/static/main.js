// The page: its views, in each the figures, and the address that keeps what is set.

import { Card } from "posenc/card.js";
import { element } from "posenc/elements.js";
import * as lesson from "posenc/lesson.js";
import { unpacked } from "posenc/packed.js";
import { lightParts } from "posenc/parts.js";
import * as address from "posenc/state.js";
import { isDark, themeOf } from "posenc/theme.js";
import { STEPS, VIEWS } from "posenc/views.js";

const data = await (await unpacked("data")).json();
const figures = Object.fromEntries(VIEWS.flatMap((view) => view.figures).map((figure) => [figure.name, figure]));
const defaults = Object.fromEntries(Object.values(figures).map((figure) => [figure.name, figure.defaults]));
const steps = lesson.stepsOf(document.getElementById("lesson"), STEPS);
const timings = {}; // by figure: milliseconds of the last step, and all of them
window.posenc = { timings, drawn: new Set() }; // what the tests read

let state = address.read(location.hash);
let isPrinted = false; // paper is light
let theme = themeOf(data, isDark(state.theme));
let cards = []; // the figures on the page

function applyTheme() {
    const dark = isDark(state.theme) && !isPrinted;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    theme = themeOf(data, dark);
}

// In a frame that has no address, as in a notebook, or that may not change it, as in a sandbox.
const isFramed = location.href.startsWith("about:") || (window !== top && origin === "null");

/** Puts the address in line with what is shown: at once when one goes elsewhere, later when a control moves. */
let [writing, put] = [0, null];
function write(push = false) {
    if (isFramed) return;
    clearTimeout(writing);
    put = () => {
        put = null;
        const to = address.written(state, defaults);
        if (to === (location.hash || "#")) return;
        history[push ? "pushState" : "replaceState"](null, "", to);
    };
    if (push) put();
    else writing = setTimeout(() => put?.(), 200);
}
addEventListener("click", () => put?.(), true); // before a link goes elsewhere, so that the way back has all of it

const viewOf = (figure) => VIEWS.find((view) => view.figures.includes(figure));

/** From a figure that is shown alone to where it belongs. */
const back = (figure) =>
    viewOf(figure) === VIEWS[0]
        ? element("a", { href: `#step=${steps.find((one) => [one.figure, one.trained].includes(figure)).name}` }, "This step of the lesson")
        : element("a", { href: `#view=${viewOf(figure).name}` }, "All figures");

/** What all figures share. */
const page = { data, timings, isFramed, back, write, state: () => state, theme: () => theme };

/** Draws each figure when it comes near the part of the page that is seen, or, of one that is lazy, into it. */
const seen = (entries, watcher) => {
    for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        watcher.unobserve(target);
        cards.find((card) => card.section === target)?.mount();
    }
};
const [watcher, lazy] = ["400px", "0px"].map((rootMargin) => new IntersectionObserver(seen, { rootMargin }));

function show() {
    applyTheme();
    for (const one of [watcher, lazy]) one.disconnect();
    const main = document.querySelector("main");
    const alone = Object.hasOwn(figures, state.figure) ? figures[state.figure] : null;
    const unknown =
        (state.figure && !alone) ||
        (state.view && !VIEWS.some((view) => view.name === state.view)) ||
        (state.step && !steps.some((step) => step.name === state.step));
    const view = alone ? viewOf(alone) : (VIEWS.find((one) => !state.step && one.name === state.view) ?? VIEWS[0]);
    const step = !alone && view === VIEWS[0] ? (steps.find(({ name }) => name === state.step) ?? steps[0]) : null;
    state.view = alone || step ? "" : view.name;
    state.step = step ? step.name : "";
    document.body.classList.toggle("alone", Boolean(alone));
    document.title = `${(alone ?? step ?? view).title} · posenc`;
    for (const tab of document.querySelectorAll("nav a")) {
        if (tab.dataset.view === view.name) tab.setAttribute("aria-current", "page");
        else tab.removeAttribute("aria-current");
    }
    showTab();
    const present = view.figures.filter((figure) => figure.present?.({ data }) ?? true);
    const one = step && lesson.shown(steps, step, page);
    cards = one ? one.cards : (alone ? [alone] : present).map((figure) => new Card(figure, page));
    const known = [...VIEWS.map((one) => one.name), ...Object.keys(figures)].join(", ");
    const said = `The address names no existing view, step or figure; there are ${known}.`;
    const notes = unknown ? [element("p", { class: "error", role: "alert" }, said)] : [];
    const head = alone ? [] : [element("h2", {}, view.title), element("p", { class: "about" }, view.about)];
    main.replaceChildren(...notes, ...(one ? one.nodes : [...head, ...cards.map((card) => card.section)]));
    for (const card of cards) (card.figure.isLazy ? lazy : watcher).observe(card.section);
    mountInTurn();
}

/** Brings the name of the view into sight, where the names are wider than the page. */
function showTab() {
    const nav = document.querySelector("header nav");
    const tab = nav.querySelector("[aria-current]");
    nav.scrollLeft = tab.offsetLeft - nav.offsetLeft - (nav.clientWidth - tab.offsetWidth) / 2;
}
addEventListener("resize", showTab);

/** Draws the figures that are not in sight one by one, as the page has time, so that none is blank in a picture of the
 * whole page. */
function mountInTurn() {
    (window.requestIdleCallback ?? setTimeout)(() => {
        const next = cards.find((card) => !card.draw && !card.figure.isLazy);
        if (!next) return;
        next.mount();
        mountInTurn();
    });
}
addEventListener("beforeprint", () => {
    isPrinted = true;
    if (theme.dark) show();
    for (const card of cards) card.mount();
});
addEventListener("afterprint", () => {
    isPrinted = false;
    if (isDark(state.theme)) show();
});

document
    .querySelector("nav")
    .append(...VIEWS.map((view) => element("a", { href: `#view=${view.name}`, "data-view": view.name }, view.title)));
document.getElementById("theme").addEventListener("click", () => {
    state.theme = isDark(state.theme) ? "light" : "dark";
    write(true);
    show();
});
document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // what stands after the "#" is the state
    document.querySelector("main").focus();
});
lightParts();
addEventListener("keydown", lesson.onArrow);
addEventListener("keydown", ({ key, defaultPrevented }) => {
    if (key === "Escape" && !defaultPrevented) document.querySelector(".alone .figure-head a")?.click();
});

let left = ""; // the figure that was shown alone before

/** Shows what the address says. Links name no theme: that which was chosen stays. */
function follow(hash) {
    const now = address.read(hash);
    now.theme ||= state.theme;
    if (JSON.stringify(now) === JSON.stringify(state)) return;
    left = state.figure;
    state = now;
    show();
}
function arrive(hash) {
    follow(hash);
    const card = !state.figure && !state.step && cards.find(({ figure }) => figure.name === left);
    if (card) {
        card.section.scrollIntoView();
        return card.section.querySelector(".figure-head a").focus({ preventScroll: true });
    }
    scrollTo(0, 0);
    (document.querySelector("main .step h2") ?? document.querySelector("main")).focus({ preventScroll: true });
}
addEventListener("popstate", () => follow(location.hash));
addEventListener("hashchange", () => arrive(location.hash));
addEventListener("click", (event) => {
    const link = isFramed && !event.defaultPrevented && event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault(); // to the browser such a link is one to the page around the frame
    arrive(link.getAttribute("href"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.theme || show());
if (data.start && !location.hash) state = address.read(data.start);
show();
