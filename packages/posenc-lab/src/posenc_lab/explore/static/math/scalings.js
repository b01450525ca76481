// Scalings: how the frequencies of a rotary scheme are stretched, so that a model reads more than it was trained on.
//
// A scaling is {kind, ...}, its numbers by the names of posenc.scalings: PositionInterpolation is "linear", NTKAware
// "ntk", DynamicNTK "dynamic", YaRN "yarn", Llama3 "llama3", LongRoPE "longrope" and Proportional "proportional".

import { choice, must, number, whole } from "posenc/math/check.js";

/** {theta, factor}: the stretched frequencies, for a text of that length, and the factor of cos and sin. */
export function scaled(scaling, theta, length) {
    if (scaling === null) {
        return { theta, factor: 1 };
    }
    return SCALINGS[choice("kind", scaling.kind, Object.keys(SCALINGS))](theta, scaling, length);
}

const atLeastOne = (value) => {
    must(Number.isFinite(value) && value >= 1, `factor must be a finite number of at least 1, got ${value}`);
    return value;
};
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** theta_k stretch^(-2k/(d-2)): the first pair stays, the last is divided by the stretch. */
function ntk(theta, stretch) {
    must(theta.length > 1, "NTK-aware scaling needs at least two pairs of channels, got 1");
    return theta.map((x, k) => x * stretch ** (-k / (theta.length - 1)));
}

/** kept theta + (1 - kept) theta / factor. */
const blend = (theta, factor, kept) => theta.map((x, k) => kept(x, k) * x + ((1 - kept(x, k)) * x) / factor);

/** 1 for pairs that turn fast times over the length, 0 for slow times, and straight between, along the index k. */
function byIndex(theta, length, fast, slow, truncate) {
    const perIndex = Math.log(theta[0] / theta[1]); // 2 ln base / d
    let [low, high] = [fast, slow].map((turns) => Math.log(length / (2 * Math.PI * turns)) / perIndex);
    [low, high] = truncate ? [Math.floor(low), Math.ceil(high)] : [low, high];
    [low, high] = [Math.max(low, 0), Math.min(high, 2 * theta.length - 1)];
    const width = low < high ? high - low : 0.001;
    return (_, k) => 1 - clamp((k - low) / width, 0, 1);
}

const SCALINGS = {
    linear: (theta, { factor }) => ({ theta: theta.map((x) => x / atLeastOne(factor)), factor: 1 }),

    ntk(theta, { factor, original_length = null }) {
        const stretched = ntk(theta, atLeastOne(factor));
        if (original_length === null) {
            return { theta: stretched, factor: 1 };
        }
        const length = whole("original_length", original_length);
        const [g, h] = [
            [16, 2],
            [1.25, 0.75],
        ].map(([fast, slow]) => byIndex(theta, length, fast, slow, true));
        const part = (x, k) => h(x, k) * stretched[k] + ((1 - h(x, k)) * x) / factor;
        return { theta: theta.map((x, k) => g(x, k) * x + (1 - g(x, k)) * part(x, k)), factor: 1 };
    },

    dynamic(theta, { factor, original_length }, length) {
        const stretch = (atLeastOne(factor) * length) / whole("original_length", original_length) - (factor - 1);
        return { theta: ntk(theta, Math.max(stretch, 1)), factor: 1 };
    },

    yarn(theta, { factor: least, original_length, ...rest }, tokens) {
        const { beta_fast = 32, beta_slow = 1, ramp = "index", truncate = true, dynamic = false } = rest;
        const length = whole("original_length", original_length);
        const factor = dynamic ? Math.max(tokens / length, atLeastOne(least)) : least;
        must(
            number("beta_slow", beta_slow, 0) < number("beta_fast", beta_fast, 0),
            "beta_slow must be below beta_fast",
        );
        let kept = (x) => clamp(((length * x) / (2 * Math.PI) - beta_slow) / (beta_fast - beta_slow), 0, 1);
        if (choice("ramp", ramp, ["index", "ratio"]) === "index") {
            must(theta.length > 1, "YaRN needs at least two pairs of channels, got 1");
            kept = byIndex(theta, length, beta_fast, beta_slow, truncate);
        }
        return { theta: blend(theta, atLeastOne(factor), kept), factor: magnitude(factor, rest) };
    },

    llama3(theta, { factor = 8, original_length = 8192, low_freq_factor = 1, high_freq_factor = 4 }) {
        const [low, high] = [
            number("low_freq_factor", low_freq_factor, 0),
            number("high_freq_factor", high_freq_factor, 0),
        ];
        must(low <= high, `low_freq_factor must not be above high_freq_factor, got ${low} and ${high}`);
        const turns = (x) => (original_length * x) / (2 * Math.PI) - low;
        const kept = (x) => (low < high ? clamp(turns(x) / (high - low), 0, 1) : Number(turns(x) >= 0));
        return { theta: blend(theta, atLeastOne(factor), kept), factor: 1 };
    },

    longrope(theta, { short_factor, long_factor, original_length, factor = null, attention_factor = null }, length) {
        const limit = whole("original_length", original_length, 2);
        const [lambda, which] = length > limit ? [long_factor, 1] : [short_factor, 0];
        must(lambda.length === theta.length, `short_factor and long_factor must have ${theta.length} numbers`);
        must(
            factor !== null || attention_factor !== null,
            "factor or attention_factor must be given, got null for both",
        );
        const given = Array.isArray(attention_factor) ? attention_factor[which] : attention_factor;
        return {
            theta: theta.map((x, k) => x / lambda[k]),
            factor: given ?? Math.sqrt(1 + Math.log(atLeastOne(factor)) / Math.log(limit)),
        };
    },

    proportional(theta, { share, factor = 1 }) {
        must(share >= 0 && share <= 1, `share must be a number within [0, 1], got ${share}`);
        const turning = Math.floor((share * 2 * theta.length) / 2);
        return { theta: theta.map((x, k) => (k < turning ? x / atLeastOne(factor) : 0)), factor: 1 };
    },
};

/** YaRN's factor of cos and sin. */
function magnitude(factor, { attention_factor = null, mscale = null, mscale_all_dim = null }) {
    const grown = 0.1 * Math.log(factor);
    return attention_factor ?? ((mscale ?? 1) * grown + 1) / ((mscale_all_dim ?? 0) * grown + 1);
}
