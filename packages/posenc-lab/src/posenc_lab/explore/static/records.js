// Records of posenc compare and posenc extend, as posenc has summarised them: those of the page, and what was dropped in.

const dropped = [];

/** All that there is to show: what the command named, and what was dropped in. */
export const every = (app) => [...(app.data.records ?? []), ...dropped];

/** Adds the records of files, which posenc reads, and gives the number of the last among `every`. Rejects with posenc's
 * words for a file that holds none, and then nothing is added. */
export async function add(files, app) {
    const found = [];
    for (const file of files) found.push(await app.ask("records", { name: file.name, text: await file.text() }));
    for (const one of found) {
        const taken = every(app).map(({ name }) => name);
        let name = one.name;
        for (let n = 2; taken.includes(name); n++) name = `${one.name} (${n})`;
        dropped.push({ ...one, name });
    }
    return every(app).length - 1;
}

/** The records that a figure's state names. RangeError for a number past them. */
export function chosen(app, number) {
    const all = every(app);
    if (!all[Number(number)]) throw new RangeError(`records must be from 0 to ${all.length - 1}, got ${number}`);
    return all[Number(number)];
}

/** The control that chooses among them. */
export function control(app) {
    const all = every(app);
    const named = ({ name, shipped }) => (shipped ? `${name} (shipped)` : name);
    return all.length > 1
        ? [
              {
                  name: "records",
                  label: "records",
                  kind: "choice",
                  choices: all.map((set, n) => ({ value: String(n), name: named(set) })),
              },
          ]
        : [];
}

/** What prints, or shows, the records that are drawn; nothing for those of a file, whose folder the page cannot know. */
export const command = (app, number) => {
    const set = every(app)[Number(number)];
    if (dropped.includes(set)) return "";
    if (set.shipped) return `# ${set.command}`;
    return `# posenc explore --records ${set.name}`;
};

/** The means of a curve of records and their intervals, as a line of a plot has them. */
export function bandOf(points) {
    const [y, low, high] = [0, 1, 2].map((part) => points.map((point) => point[part] ?? NaN));
    return { y, low, high, markers: true };
}

const LEAST_SEEDS = 3; // fewer give no verdict

/** Where records come from, and what they decide: seeds, steps and text, and the verdict or why there is none. */
export function source({ shipped, schemes, seeds, steps, source: text, verdict, task }) {
    const counts = schemes.map((scheme) => seeds[scheme] ?? 0).sort((a, b) => a - b);
    const [least, most] = [counts[0], counts.at(-1)];
    const trainings = task === "extend" ? [] : [`${least === most ? "" : `${least} to `}${most} ${most === 1 ? "seed" : "seeds"}`];
    const about = [...trainings, ...(steps ? [`${steps.toLocaleString("en")} steps`] : []), ...(text ? [text] : [])];
    const why =
        task === "extend"
            ? "The report that posenc extend wrote beside the records has the verdicts."
            : most < LEAST_SEEDS
              ? `Undecided: a verdict needs ${LEAST_SEEDS} seeds.`
              : "The report that posenc compare wrote beside the records has the verdicts.";
    return `${shipped ? "Measured for this page" : "Your records"}: ${about.join(", ")}. ${verdict ?? why}`;
}
