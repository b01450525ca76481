import { must, whole } from "posenc/math/check.js";
import { logSigmoid } from "posenc/math/score/sigmoid.js";

/** s_ij + F_i - F_j, where F_i is the sum of the logarithms of the gates of the tokens up to i, in the order of its
 * document: a score falls by what the gates between key and query forget.
 *
 * The feature `forgotten` is what the layer projects each key to, (heads, keys, 1): its gate is the sigmoid of it. */
export class FoX {
    static learned() {
        return {};
    }

    constructor({ num_heads }) {
        this.numHeads = whole("num_heads", num_heads);
    }

    pieces({ features: { forgotten }, queryPositions, keyPositions }) {
        must(forgotten !== undefined, "FoX needs the feature 'forgotten' of every key: give it in features");
        const [heads, tokens] = [forgotten.heads, forgotten.tokens];
        must(
            heads === this.numHeads && tokens === keyPositions.length && forgotten.dim === 1,
            `feature 'forgotten' must be (${this.numHeads}, ${keyPositions.length}, 1), ` +
                `got (${heads}, ${tokens}, ${forgotten.dim})`,
        );
        const steps = forgotten.data.map(logSigmoid);
        const ofKeys = readings(steps, keyPositions, keyPositions);
        const ofQueries = queryPositions === keyPositions ? ofKeys : readings(steps, keyPositions, queryPositions);
        const [M, N] = [queryPositions.length, keyPositions.length];
        return [{ kind: "bias", at: (head, r, i, j) => ofQueries[head * M + i] - ofKeys[head * N + j] }];
    }
}

/** What a clock shows at each token of `at`, head by head: the sum of the steps of its document's tokens up to its
 * order. Padding shows 0. */
function readings(steps, positions, at) {
    const heads = steps.length / positions.length;
    const shown = new Float64Array(heads * at.length);
    for (let i = 0; i < at.length; i++) {
        for (let j = 0; j < positions.length; j++) {
            const isBefore = positions.document[j] === at.document[i] && positions.order[j] <= at.order[i];
            for (let head = 0; isBefore && at.document[i] !== -1 && head < heads; head++) {
                shown[head * at.length + i] += steps[head * positions.length + j];
            }
        }
    }
    return shown;
}
