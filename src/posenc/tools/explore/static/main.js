// The page: its views, in each the figures, and the address that keeps what is set.

import { Card } from "posenc/card.js";
import { element } from "posenc/elements.js";
import * as address from "posenc/state.js";
import { isDark, themeOf } from "posenc/theme.js";
import { VIEWS } from "posenc/views.js";

const data = JSON.parse(document.getElementById("data").textContent);
const figures = Object.fromEntries(VIEWS.flatMap((view) => view.figures).map((figure) => [figure.name, figure]));
const defaults = Object.fromEntries(Object.values(figures).map((figure) => [figure.name, figure.defaults]));
const timings = {}; // by figure: milliseconds of the last step, and all of them
window.posenc = { timings, drawn: new Set() }; // what the tests read

let state = address.read(location.hash);
let theme = themeOf(data, isDark(state.theme));
let cards = []; // the figures on the page

function applyTheme() {
    document.documentElement.dataset.theme = isDark(state.theme) ? "dark" : "light";
    theme = themeOf(data, isDark(state.theme));
}

/** Puts the address in line with what is shown: at once when one goes elsewhere, later when a control moves. */
const isFramed = location.href.startsWith("about:"); // in a notebook: the frame has no address
let writing = 0;
function write(push = false) {
    if (isFramed) return;
    clearTimeout(writing);
    const put = () => {
        const to = address.written(state, defaults);
        if (to === (location.hash || "#")) return;
        history[push ? "pushState" : "replaceState"](null, "", to);
    };
    if (push) put();
    else writing = setTimeout(put, 200);
}

const viewOf = (figure) => VIEWS.find((view) => view.figures.includes(figure));

/** What all figures share. */
const page = { data, timings, isFramed, viewOf, write, state: () => state, theme: () => theme };

/** Draws each figure when it comes near the part of the page that is seen. */
const watcher = new IntersectionObserver(
    (entries) => {
        for (const { target, isIntersecting } of entries) {
            if (!isIntersecting) continue;
            watcher.unobserve(target);
            cards.find((card) => card.section === target)?.mount();
        }
    },
    { rootMargin: "400px" },
);

function show() {
    applyTheme();
    watcher.disconnect();
    const main = document.querySelector("main");
    const alone = Object.hasOwn(figures, state.figure) ? figures[state.figure] : null;
    const unknown = (state.figure && !alone) || (state.view && !VIEWS.some((view) => view.name === state.view));
    const view = alone ? viewOf(alone) : (VIEWS.find((one) => one.name === state.view) ?? VIEWS[0]);
    state.view = alone ? "" : view.name;
    document.body.classList.toggle("alone", Boolean(alone));
    document.title = `${alone ? alone.title : view.title} · posenc`;
    for (const tab of document.querySelectorAll("nav a")) {
        if (tab.dataset.view === view.name) tab.setAttribute("aria-current", "page");
        else tab.removeAttribute("aria-current");
    }
    const present = view.figures.filter((figure) => figure.present?.({ data }) ?? true);
    cards = (alone ? [alone] : present).map((figure) => new Card(figure, page));
    const notes = unknown
        ? [
              element(
                  "p",
                  { class: "error", role: "alert" },
                  `The address names a view or a figure that there is not; there are ${[...VIEWS.map((one) => one.name), ...Object.keys(figures)].join(", ")}.`,
              ),
          ]
        : [];
    const head = alone ? [] : [element("h2", {}, view.title), element("p", { class: "about" }, view.about)];
    main.replaceChildren(...notes, ...head, ...cards.map((card) => card.section));
    for (const card of cards) watcher.observe(card.section);
    mountInTurn();
}

/** Draws the figures that are not in sight one by one, as the page has time, so that none is blank in a picture of the
 * whole page. */
function mountInTurn() {
    (window.requestIdleCallback ?? setTimeout)(() => {
        const next = cards.find((card) => !card.draw);
        if (!next) return;
        next.mount();
        mountInTurn();
    });
}
addEventListener("beforeprint", () => cards.forEach((card) => card.mount()));

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
addEventListener("hashchange", () => {
    state = address.read(location.hash);
    show();
    scrollTo(0, 0);
    document.querySelector("main").focus({ preventScroll: true });
});
addEventListener("popstate", () => {
    const now = address.read(location.hash);
    if (JSON.stringify(now) === JSON.stringify(state)) return;
    state = now;
    show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.theme || show());
if (data.start && !location.hash) state = address.read(data.start);
show();
