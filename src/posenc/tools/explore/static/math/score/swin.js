import { whole } from "posenc/math/check.js";
import { checkDistance, entriesOf, sides, within } from "posenc/math/score/distance.js";

/** s_ij + B[(a - a' + h - 1) (2w - 1) + (b - b' + w - 1)] for patches (a, b) of the query and (a', b') of the key in a
 * window of h rows and w columns: a number per head for every difference. */
export class Swin {
    static learned({ grid: [height, width], num_heads }) {
        return { weight: { shape: [(2 * height - 1) * (2 * width - 1), num_heads], std: 0.02 } };
    }

    constructor({ grid, num_heads }, { weight }) {
        this.grid = sides("grid", grid);
        this.numHeads = whole("num_heads", num_heads);
        this.entry = entriesOf(weight);
    }

    pieces(context) {
        checkDistance("Swin", context, { heads: this.numHeads, axes: 2, integral: true, reach: this.grid });
        const at = (head, r) => {
            const [rows, columns] = this.grid.map((side, axis) => side - 1 - within(r[axis], side));
            return this.entry(0, rows * (2 * this.grid[1] - 1) + columns)[head];
        };
        return [{ kind: "bias", byDistance: true, at }];
    }
}
