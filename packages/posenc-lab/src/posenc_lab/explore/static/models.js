// The trained decoders of the page: the file of one is read when a figure first asks for it.

import { Decoder, weightsOf } from "posenc/math/decoder.js";
import { Waiting } from "posenc/numbers.js";
import { unpacked } from "posenc/packed.js";

const LONGEST = 704; // bytes of a text, with what a model adds to it
const OPTIONS = {
    nope: () => ({}),
    rope: ({ dim, heads }) => ({ head_dim: dim / heads, base: 10_000 }),
    alibi: ({ heads }) => ({ num_heads: heads, form: "causal" }),
    t5: ({ heads }) => ({
        ...{ num_heads: heads, num_buckets: 32, max_distance: 128 },
        ...{ bidirectional: false, axis: 0, axes: 1, factor: 1 },
    }),
};

const files = new Map(); // by name: the weights, or the promise of them
const decoders = new Map(); // by name, place and whether it is scaled: each keeps the text that it read last
const MUCH = 48; // bytes that are read in no time to notice
let rest = null; // until the page has answered, after one model has read much

/** Takes the file of a model. */
export const take = ({ models }, name, file) => files.set(name, weightsOf(models[name].parameters, file));

async function fetched(about, name, isServed) {
    const response = await (isServed ? fetch(`models/${name}.bin`) : unpacked(`model-${name}`));
    if (!response.ok) throw new RangeError(`the model ${name} could not be read: start posenc explore again`);
    take(about, name, await response.arrayBuffer());
}

/** A model that has read a text: `place` tells apart those that keep different texts. Throws Waiting until its file is
 * there, and once for every model that has much to read, so that the page answers in between. */
export function having(app, name, bytes, { scaling = null, place = "" } = {}) {
    const about = app.data.models;
    if (!files.has(name)) {
        const wait = fetched(about, name, app.server).catch((error) => files.set(name, error));
        files.set(name, wait);
    }
    const weights = files.get(name);
    if (weights instanceof Promise) throw new Waiting(weights);
    if (weights instanceof Error) throw weights;
    const key = `${name} ${place} ${Boolean(scaling)}`;
    const made = JSON.stringify(scaling);
    if (decoders.get(key)?.made !== made) {
        const { layers, heads, dim } = about.configuration;
        const options = { ...OPTIONS[name]({ heads, dim }), ...(scaling && { scaling }) };
        const decoder = new Decoder({ layers, heads, weights, scheme: name, options, longest: LONGEST });
        decoders.set(key, { made, decoder });
    }
    const { decoder } = decoders.get(key);
    if (globalThis.document && bytes.length - decoder.shared(bytes) > MUCH) {
        if (rest) throw new Waiting(rest);
        rest = new Promise((done) => setTimeout(() => done((rest = null))));
    }
    decoder.read(bytes);
    return decoder;
}
