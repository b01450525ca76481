// Clocks: sums, along the order of a document, of what a layer projects from its tokens.

import { must } from "posenc/math/check.js";

/** The numbers of a feature (heads, keys, width), which a scheme needs of every key. */
export function steps(feature, scheme, name, [heads, keys, width]) {
    must(feature !== undefined, `${scheme} needs the feature '${name}' of every key: give it in features`);
    must(
        feature.heads === heads && feature.tokens === keys && feature.dim === width,
        `feature '${name}' must be (${heads}, ${keys}, ${width}), ` +
            `got (${feature.heads}, ${feature.tokens}, ${feature.dim})`,
    );
    return feature.data;
}

/** What a clock shows at each token of `at`, (heads, tokens, width): the sum of the steps (heads, keys, width) of its
 * document's tokens up to its order. Padding shows 0. */
export function readings(steps, positions, at, width = 1) {
    const heads = steps.length / positions.length / width;
    const shown = new Float64Array(heads * at.length * width);
    for (let i = 0; i < at.length; i++) {
        for (let j = 0; j < positions.length; j++) {
            const isBefore = positions.document[j] === at.document[i] && positions.order[j] <= at.order[i];
            for (let n = 0; isBefore && at.document[i] !== -1 && n < heads * width; n++) {
                const [head, c] = [Math.floor(n / width), n % width];
                shown[(head * at.length + i) * width + c] += steps[(head * positions.length + j) * width + c];
            }
        }
    }
    return shown;
}
