import { choice, whole } from "posenc/math/check.js";
import { checkDistance, entriesOf, sides, within } from "posenc/math/score/distance.js";

/** s_ij + B[(a - a' + h - 1) (2w - 1) + (b - b' + w - 1)] for patches (a, b) of the query and (a', b') of the key in a
 * window of h rows and w columns: a number per head for every difference. A class token, at (-1, -1), has three numbers
 * per head of its own: for patches, from them, and for itself. */
export class Swin {
    static learned({ grid: [height, width], num_heads, class_token }) {
        const entries = (2 * height - 1) * (2 * width - 1) + (class_token ? 3 : 0);
        return { weight: { shape: [entries, num_heads], std: 0.02 } };
    }

    constructor({ grid, num_heads, class_token }, { weight }) {
        this.grid = sides("grid", grid);
        this.numHeads = whole("num_heads", num_heads);
        this.classToken = choice("class_token", class_token, [true, false]);
        this.entries = weight.shape[0];
        this.entry = entriesOf(weight);
    }

    pieces(context) {
        const isClass = (place) => this.classToken && place.every((p) => p === -1);
        const needs = { heads: this.numHeads, axes: 2, integral: true, reach: this.grid, beside: isClass };
        checkDistance("Swin", context, needs);
        const { queryPositions, keyPositions } = context;
        const at = (head, r, i, j) => {
            const [ofQuery, ofKey] = [isClass(queryPositions.at(i)), isClass(keyPositions.at(j))];
            if (ofQuery || ofKey) {
                const fromEnd = ofQuery && ofKey ? 1 : ofKey ? 2 : 3;
                return this.entry(0, this.entries - fromEnd)[head];
            }
            const [rows, columns] = this.grid.map((side, axis) => side - 1 - within(r[axis], side));
            return this.entry(0, rows * (2 * this.grid[1] - 1) + columns)[head];
        };
        return [{ kind: "bias", byDistance: !this.classToken, at }];
    }
}
