// A figure on the page: drawn when it comes into sight, and whenever a control moves.

import { controls } from "posenc/controls.js";
import { element, minus } from "posenc/elements.js";
import { heat } from "posenc/heat.js";
import { lines } from "posenc/lines.js";
import { Differs } from "posenc/options.js";
import { valuesOf } from "posenc/state.js";
import { symbols } from "posenc/symbols.js";

/** Asks the server, which runs posenc. Rejects with its words where it refuses, and where the page has no server. */
async function ask(data, path, body) {
    if (!data.server) throw new Error("this page was saved as a file, so posenc does not run behind it");
    const answer = await fetch(`api/${path}`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(body),
    }).catch(() => {
        throw new Error("the server no longer answers. Start posenc explore again and reload the page");
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error ?? `the server answered ${answer.status}`);
    return said;
}

/** One figure on the page: its controls, its picture, and the same in posenc. `page` is what all figures share. */
export class Card {
    constructor(figure, page) {
        const { data } = page;
        const state = page.state();
        this.figure = figure;
        this.page = page;
        this.given = state.figures[figure.name] ?? {};
        this.specs = (values) =>
            typeof figure.controls === "function" ? figure.controls(values, this.app) : (figure.controls ?? []);
        this.app = {
            catalog: data.catalog,
            data,
            theme: page.theme,
            ask: (path, body) => ask(data, path, body),
            timings: page.timings,
            heat: (box, options) => heat(box, page.theme, options),
            lines: (box, options) => lines(box, page.theme, options),
            set: (patch) => this.set(patch),
            move: (name, value) => this.move(name, value),
            beneath: () => this.beneath,
            server: data.server,
        };
        const alone = state.figure === figure.name;
        this.controls = element("div", { class: "controls" });
        this.canvas = element("div", { class: "picture" });
        this.beneath = element("div", { class: "beneath" }); // what need not be in sight while a control moves
        this.error = element("p", { class: "error", role: "alert", hidden: true });
        this.said = element("p", { class: this.isPictured("said") ? "said hidden" : "said", "aria-live": "polite" });
        this.time = element("p");
        this.agreed = element("p", { class: "agreed", "aria-live": "polite" });
        this.doubt = element("p", { class: "wrong doubt", role: "alert", hidden: true });
        this.facts = element(
            "details",
            { class: "facts" },
            element(
                "summary",
                { title: "Speed and precision" },
                element("span", { "aria-hidden": "true" }, "i"),
                hidden("Speed and precision"),
            ),
            element("div", {}, this.time, this.agreed),
        );
        this.formula = element("div", { class: "formula", tabindex: "0", role: "group", "aria-label": "formula" });
        this.formula.innerHTML = data.formulas[figure.name] ?? "";
        const symbolValues = element("p", { class: "symbols" });
        this.showSymbols = symbols(this.formula, symbolValues);
        [this.use, this.line] = [code(), code()];
        this.checked = element(
            "details",
            { class: "checked" },
            element("summary", {}, "How this figure is checked"),
            this.line.box,
        );
        const heading = element(alone ? "h1" : "h3", { id: figure.name }, figure.title);
        this.section = element(
            "section",
            { class: "figure", "aria-labelledby": figure.name, "data-figure": figure.name },
            element(
                "div",
                { class: "figure-head" },
                heading,
                this.facts,
                page.isFramed
                    ? ""
                    : alone
                      ? page.back(figure)
                      : element("a", { href: `#figure=${figure.name}` }, "Full screen", hidden(`: ${figure.title}`)),
            ),
            element("p", { class: "see" }, figure.see),
            this.controls,
            this.error,
            this.canvas,
            this.beneath,
            this.said,
            this.doubt,
            element("div", { class: "below" }, this.formula, symbolValues, this.use.box, this.checked),
        );
        this.pending = 0;
        this.showControls = controls(this.controls, (name, value) => this.move(name, value));
    }

    /** Whether the picture itself says what the card has beside it, "said" or "line". Screen readers have the first. */
    isPictured(what) {
        return this.figure.pictured?.includes(what) ?? false;
    }

    mount() {
        if (this.draw) return;
        this.draw = this.figure.mount(this.canvas, this.app);
        try {
            this.values = valuesOf(this.figure, this.given, this.specs);
        } catch (error) {
            this.values = { ...this.figure.defaults };
            this.refused = error.message;
        }
        this.step(performance.now());
    }

    /** A control was moved. */
    move(name, value) {
        this.put(
            this.figure.change
                ? this.figure.change(this.values, name, value, this.app)
                : { ...this.values, [name]: value },
        );
    }

    set(patch) {
        this.put({ ...this.values, ...patch });
    }

    put(values) {
        this.refused = "";
        this.values = values;
        this.page.state().figures[this.figure.name] = this.values;
        this.page.write();
        const begun = performance.now();
        this.pending ||= requestAnimationFrame(() => {
            this.pending = 0;
            if (this.section.isConnected) this.step(begun);
        });
    }

    step(begun) {
        const { figure, values } = this;
        this.showControls(this.specs(values), { ...values, ...figure.shown?.(values, this.app) });
        const from = performance.now();
        try {
            const numbers = figure.values(values, this.app);
            const computed = performance.now();
            this.keepingFocus(() => this.draw(values, numbers));
            this.showLines();
            if (figure.formula) this.showFormula(figure.formula(values, this.app));
            const all = { ...values, ...figure.shown?.(values, this.app) };
            this.showSymbols(Object.fromEntries(this.specs(values).map(({ name }) => [name, all[name]])));
            const drawn = performance.now();
            this.fail(this.refused ?? "");
            clearTimeout(this.later);
            this.later = setTimeout(() => this.settle(values, numbers), 250);
            requestAnimationFrame(() => {
                const one = { compute: computed - from, draw: drawn - computed, step: performance.now() - begun };
                (this.page.timings[figure.name] ??= []).push(one);
                this.time.textContent = `Computed and drawn in ${Math.max(1, Math.round(drawn - from))} ms.`;
                window.posenc.drawn.add(figure.name);
            });
        } catch (error) {
            if (error.wait) {
                error.wait.then(() => this.section.isConnected && this.values === values && this.step(begun));
                return;
            }
            this.fail(error.message);
            clearTimeout(this.later); // what was said and checked is of another picture
            [this.said.textContent, this.agreed.textContent, this.doubt.hidden] = ["", "", true];
            if (!(error instanceof RangeError)) console.error(error);
        }
    }

    /** What need not keep up with a hand: the sentence for a screen reader, and posenc's own numbers. */
    async settle(values, numbers) {
        const said = this.figure.describe(values, numbers, this.app);
        this.said.textContent = said.replace(/(?<![\p{L}\d])-[\d.]+(e-\d+)?|\de-\d+/gu, minus);
        if (!this.page.data.server || !this.figure.check) return;
        let [words, doubt] = ["", ""];
        try {
            words = await this.figure.check(values, numbers, this.app);
        } catch (error) {
            doubt = error instanceof Differs ? error.message : `posenc did not check this: ${error.message}`;
        }
        if (values !== this.values) return;
        this.agreed.textContent = words;
        [this.doubt.textContent, this.doubt.hidden] = [doubt, !doubt];
    }

    /** The Python to copy, and folded away what proves the figure: the line that tests run. A figure that has nothing to
     * copy shows that line, a command where it begins with "#". */
    showLines() {
        const { figure, values, app } = this;
        const line = figure.line(values, app);
        const use = figure.use?.(values, app) ?? "";
        const isCommand = line.startsWith("# ");
        const proof = isCommand ? line.replace(/^# /gm, "") : imported(line);
        if (use) this.use.show("In your model", imported(use));
        else this.use.show(isCommand ? "The same on the command line" : "The same in posenc", proof);
        this.use.box.hidden = !(use || line) || this.isPictured("line");
        this.line.show(
            isCommand
                ? "This command draws the same numbers"
                : "This Python computes the numbers of the figure, and tests compare the two",
            use && proof,
        );
        this.checked.hidden = !use || !line;
    }

    /** Draws, and gives the focus back to what stands in the place of the button that had it. */
    keepingFocus(draw) {
        const held = document.activeElement;
        const all = () => [...this.canvas.querySelectorAll("a, button, input, select, summary, [tabindex]")];
        const place = this.canvas.contains(held) ? all().indexOf(held) : -1;
        draw();
        if (place >= 0 && !held.isConnected) all()[place]?.focus({ preventScroll: true });
    }

    showFormula(mathml) {
        if (mathml !== this.written) this.formula.innerHTML = this.written = mathml;
    }

    fail(message) {
        this.error.hidden = !message;
        this.error.textContent = message;
        for (const one of [this.canvas, this.beneath]) one.classList.toggle("stale", Boolean(message) && !this.refused);
    }
}

/** Words for a screen reader alone. */
const hidden = (words) => element("span", { class: "hidden" }, words);

/** Python with the imports that it needs. */
function imported(line) {
    if (!line || /^import .*posenc/m.test(line)) return line;
    const between = line.startsWith("from ") ? "\n" : "\n\n";
    return `import ${/\btorch\./.test(line) ? "torch, " : ""}posenc${between}${line}`;
}

/** A box of code under a heading, with a button that copies it: {box, show(heading, text)}. */
export function code() {
    const [heading, text] = [element("span"), element("code")];
    const copy = async () => {
        try {
            await navigator.clipboard.writeText(text.textContent);
            button.textContent = "Copied";
        } catch {
            getSelection().selectAllChildren(text);
            button.textContent = "Selected";
        }
        setTimeout(() => (button.textContent = "Copy"), 1500);
    };
    const button = element("button", { type: "button", class: "copy", onclick: copy }, "Copy");
    const head = element("div", { class: "line-head" }, heading, button);
    return {
        box: element("div", { class: "line" }, head, element("pre", { tabindex: "0" }, text)),
        show: (title, words) => ([heading.textContent, text.textContent] = [title, words]),
    };
}
