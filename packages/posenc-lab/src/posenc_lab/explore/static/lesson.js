// The lesson, one step at a time: the text, which the page has from the beginning, the step's figure, and its question.

import { Card } from "posenc/card.js";
import { element } from "posenc/elements.js";

const KEPT = "posenc.answered";
const answered = new Set(); // names of steps, kept by the browser where it may
try {
    for (const name of JSON.parse(localStorage.getItem(KEPT) ?? "[]")) answered.add(name);
} catch {
    // a frame has no storage, and what others wrote may be anything
}

function isAnswered(name) {
    answered.add(name);
    document.querySelector(`.steps a[href="#step=${name}"]`)?.classList.add("done");
    try {
        localStorage.setItem(KEPT, JSON.stringify([...answered]));
    } catch {
        // until the page is closed
    }
}

/** The steps in the HTML of the page, which is for readers without JavaScript and goes: [{name, of, title, number,
 * article, figure, question}], the last two from the step's module; `of` is the step that a side path belongs to. */
export function stepsOf(box, modules) {
    box.remove();
    return [...box.children].map((article) => {
        const { step: name, of } = article.dataset;
        const found = modules.find(({ figure }) => figure.name === name);
        if (!found) throw new RangeError(`views.js must have the step ${name}, as the lesson has it`);
        const heading = article.querySelector("h2");
        const number = heading.querySelector(".number")?.textContent ?? "";
        return { name, of, number, title: heading.lastChild.textContent.trim(), article, ...found };
    });
}

/** The nodes of one step, and its cards, the second of trained models: {nodes, cards}. `page` is what all figures share. */
export function shown(steps, step, page) {
    const article = step.article.cloneNode(true);
    const verdict = judged();
    // What was said of one state is not of the next, but for the moment of what plays.
    const write = (...how) => {
        if (verdict.dataset.state !== stateOf(card)) verdict.replaceChildren();
        page.write(...how);
    };
    const card = new Card(step.figure, { ...page, write });
    const { section, canvas, controls, said } = card;
    // The control stands right below the picture, or above one that is tall, and both beside the text. What follows them is
    // of less haste.
    const instrument = element("div", { class: "instrument" });
    const proof = element("div", { class: "proof" });
    while (said.nextSibling) proof.append(said.nextSibling);
    instrument.append(...section.childNodes);
    if (!step.figure.isTall) controls.before(canvas);
    const [text, on] = [".text", ".on"].map((one) => article.querySelector(one) ?? "");
    text.append(predicted(article, step, card));
    section.append(text, instrument, asked(article, step, card, verdict), on, sidePaths(steps, step));
    const cards = step.trained ? [card, new Card(step.trained, page)] : [card];
    const trained = cards.slice(1).map((one) => element("div", { class: "trained" }, one.section));
    article.append(section, ...trained, article.querySelector(".scores") ?? "", proof, ...(isLast(steps, step) ? [quiz(steps, page.data.quiz)] : []), goingOn(steps, step));
    return { nodes: [numbered(steps, step), article], cards };
}

const stateOf = ({ values }) => JSON.stringify({ ...values, moment: 0 });
const judged = () => element("p", { class: "judged", role: "status" });

function say(verdict, isRight, not, words) {
    verdict.classList.toggle("right", isRight);
    verdict.replaceChildren(element("strong", {}, isRight ? "Right. " : not), ...words);
    verdict.scrollIntoView({ block: "nearest" });
}

/** What may be predicted, as buttons: one that is pressed shows the picture, and says what it shows. */
function predicted(article, { predict }, card) {
    const made = article.querySelector(".predicted");
    const verdict = judged();
    const all = [...made.querySelectorAll("[data-belief]")].map((one) => {
        const [words, why] = [...one.children];
        why.firstElementChild.remove();
        const press = () => {
            for (const other of all) other.setAttribute("aria-pressed", other === button);
            card.mount();
            card.set(predict);
            say(verdict, one.dataset.belief === "right", "The picture shows otherwise. ", why.cloneNode(true).childNodes);
        };
        const button = element("button", { type: "button", "aria-pressed": "false", onclick: press });
        button.append(...words.childNodes);
        one.replaceChildren(button);
        return button;
    });
    made.append(verdict);
    return made;
}

/** The question, with a button in the place of its answers. */
function asked(article, { name, question }, card, verdict) {
    const answers = Object.fromEntries(
        [...article.querySelectorAll("[data-answer]")].map((one) => [one.dataset.answer, one]),
    );
    const answer = () => {
        const { values, app, figure } = card;
        const key = question.judge(values, figure.values(values, app), app);
        if (key === "right") isAnswered(name);
        verdict.dataset.state = stateOf(card);
        say(verdict, key === "right", "Not yet. ", answers[key].cloneNode(true).childNodes);
    };
    const check = () => {
        card.mount(); // where it is not in sight yet
        try {
            answer();
        } catch (error) {
            if (error.wait) error.wait.then(check);
            else if (!(error instanceof RangeError)) throw error; // which the card has said
        }
    };
    const made = article.querySelector(".asked");
    made.querySelector("details").replaceWith(
        element("button", { type: "button", class: "check-answer", onclick: check }, "Check"),
        verdict,
    );
    return made;
}

/** All steps as numbers, with their titles. */
function numbered(steps, { name, of }) {
    const items = steps
        .filter((one) => !one.of)
        .map((one) => {
            const current = one.name === name ? { "aria-current": "step" } : {};
            const classes = [one.name === of && "near", answered.has(one.name) && "done"].filter(Boolean).join(" ");
            return element(
                "li",
                {},
                element(
                    "a",
                    { href: `#step=${one.name}`, class: classes || null, ...current },
                    element("span", { class: "dot" }, one.number),
                    element("span", { class: "name" }, one.title),
                ),
            );
        });
    return element("nav", { class: "steps", "aria-label": "steps of the lesson" }, element("ol", {}, ...items));
}

const link = ({ name, title }, words, attributes = {}) =>
    element("a", { href: `#step=${name}`, ...attributes }, words, element("span", { class: "name" }, `: ${title}`));

const isLast = (steps, step) => step === steps.findLast(({ of }) => !of);

/** A question of each step. A wrong answer leads back to the step. */
function quiz(steps, questions) {
    const right = new Map(); // by step: whether its question is answered rightly
    const sum = element("p", { role: "status" });
    const items = questions.map(({ step: name, told = name, words, answers, why }, n) => {
        const step = steps.find((one) => one.name === told); // the step that answers it
        const said = element("span", { class: "judged", role: "status" });
        const press = (at) => ({ currentTarget }) => {
            for (const one of shown) one.setAttribute("aria-pressed", one === currentTarget);
            if (at) said.replaceChildren("No. ", link(step, `Step ${step.number}`), " has the answer.");
            else said.replaceChildren(element("strong", {}, "Right. "), why);
            said.classList.toggle("right", !at);
            right.set(name, !at);
            sum.textContent = `${[...right.values()].filter(Boolean).length} of ${right.size} answered are right; ${questions.length - right.size} are left.`;
        };
        const shown = answers.map((words, at) => element("button", { type: "button", onclick: press(at) }, words));
        shown.splice((n * 7 + 1) % answers.length, 0, shown.shift());
        return element("li", {}, element("p", {}, words), ...shown, said);
    });
    return element("section", { class: "quiz" }, element("h3", {}, "Ten questions"), element("ol", {}, ...items), sum);
}

/** Links to the side paths of a step; the last step has all. */
function sidePaths(steps, step) {
    const aside = steps.filter(({ of }) => of && (isLast(steps, step) || of === step.name));
    return element("p", { class: "side-paths" }, ...aside.map((one) => link(one, "Side path")));
}

/** Links to the step before and the next; from a side path back to its step, and on to the next side path or step. */
function goingOn(steps, step) {
    const main = steps.filter(({ of }) => !of);
    const at = main.findIndex(({ name }) => name === (step.of || step.name));
    const before = step.of ? main[at] : main[at - 1];
    const beside = steps.slice(steps.indexOf(step) + 1).find(({ of }) => of && of === step.of);
    const after = beside ?? main[at + 1];
    return element(
        "nav",
        { class: "going-on", "aria-label": "step before and next step" },
        ...(before ? [link(before, "Back", { rel: "prev" })] : []),
        ...(after ? [link(after, "Next", { rel: "next" })] : []),
        ...(step === main.at(-1) ? [element("a", { href: "#view=where", rel: "next" }, "Next: all figures")] : []),
    );
}

/** The arrow keys left and right go one step back and on, unless what has the focus may need them. */
export function onArrow(event) {
    const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    if (!rel || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest("input, select, textarea, pre, .picture, .formula")) return;
    document.querySelector(`.step a[rel="${rel}"]`)?.click();
}
