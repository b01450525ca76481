// A scheme as posenc itself has measured it: one of the user's own, or one shown in a notebook.

import { WEIGHED, weighed } from "posenc/weighed.js";

const isScore = (seen) => ["bias", "score"].includes(seen?.what);

export const figure = {
    name: "seen",
    title: "Your scheme, as posenc computes it",
    see: "What the scheme does to every two tokens. These numbers come from posenc and not from the page.",
    defaults: { scheme: "0", head: 1, weighed: false },
    present: ({ data }) => !data.catalog && Boolean(data.seen?.length), // in a notebook
    change: (values, name, value, app) => ({
        ...values,
        [name]: value,
        ...(name === "scheme" && { head: Math.min(values.head, app.data.seen[value].shape[0]) }),
    }),
    controls(values, app) {
        const all = app.data.seen ?? [];
        const heads = all[values.scheme]?.shape[0] ?? 1;
        return [
            ...(all.length > 1
                ? [
                      {
                          name: "scheme",
                          label: "scheme",
                          kind: "choice",
                          choices: all.map(({ name }, value) => ({ value: String(value), name })),
                      },
                  ]
                : []),
            ...(heads > 1 ? [{ name: "head", label: "head", kind: "range", min: 1, max: heads }] : []),
            ...(isScore(all[values.scheme]) ? [WEIGHED] : []),
        ];
    },
    values({ scheme, head, weighed: asWeights }, app) {
        const chosen = app.data.seen?.[Number(scheme)];
        if (!chosen)
            throw new RangeError(
                "no scheme was named: posenc explore --schemes my.py:MyScheme, or posenc_lab.show(scheme)",
            );
        const [heads, queries, keys] = chosen.shape;
        if (head > heads) throw new RangeError(`seen.head must be from 1 to ${heads}, got ${head}`);
        const start = (head - 1) * queries * keys;
        const shown = Float64Array.from(chosen.values.slice(start, start + queries * keys), (x) => x ?? NaN);
        const isWeighed = asWeights && isScore(chosen);
        return {
            chosen,
            queries,
            keys,
            what: isWeighed ? "attention weight" : chosen.what,
            main: isWeighed ? weighed(shown, { keys }) : shown,
        };
    },
    line(values, app) {
        const command = app.data.seen?.[Number(values.scheme)]?.command;
        return command ? `# ${command}` : "";
    },
    mount(box, app) {
        const matrix = app.heat(box, { label: "what the scheme does to each query and key" });
        const along = app.lines(box, { label: "the same against the distance", xLabel: "key − query", yLabel: "" });
        return (values, { chosen, what, queries, keys, main }) => {
            const middle = Math.floor(queries / 2);
            matrix.draw(main, {
                rows: queries,
                columns: keys,
                label: `${chosen.name}: ${what} of each query and key`,
            });
            const x = Array.from({ length: keys }, (_, j) => j - middle);
            along.draw(x, [
                {
                    name: `${what}, query ${middle}`,
                    y: main.slice(middle * keys, (middle + 1) * keys),
                    always: true,
                    dots: true,
                },
            ]);
        };
    },
    describe: (values, { chosen, what }) =>
        `${chosen.name}: ${what}, for ${chosen.shape[1]} tokens${chosen.shape[0] > 1 ? ` and ${chosen.shape[0]} heads that differ` : ""}.`,
};
