import { whole } from "posenc/math/check.js";
import { readings, steps } from "posenc/math/clocks.js";
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
        const given = steps(forgotten, "FoX", "forgotten", [this.numHeads, keyPositions.length, 1]).map(logSigmoid);
        const ofKeys = readings(given, keyPositions, keyPositions);
        const ofQueries = queryPositions === keyPositions ? ofKeys : readings(given, keyPositions, queryPositions);
        const [M, N] = [queryPositions.length, keyPositions.length];
        return [{ kind: "bias", at: (head, r, i, j) => ofQueries[head * M + i] - ofKeys[head * N + j] }];
    }
}
