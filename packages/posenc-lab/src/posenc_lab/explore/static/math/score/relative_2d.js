import { choice, whole } from "posenc/math/check.js";
import { checkDistance, checkWidth, entriesOf, sides, within } from "posenc/math/score/distance.js";

/** s_ij + scale q_i . (R_h[rows apart + h - 1] + R_w[columns apart + w - 1]): the query meets a learned vector for the
 * distance along each axis of a grid of h rows and w columns. In the convention "sam" it is by query less key, and not
 * divided. */
export class Relative2D {
    static learned({ grid, head_dim, num_heads, convention }) {
        const [row_table, column_table] = grid.map((side) => ({
            shape: [...(num_heads === null ? [] : [num_heads]), 2 * side - 1, head_dim],
            std: convention === "sam" ? 0.02 : head_dim ** -0.5,
        }));
        return { row_table, column_table };
    }

    constructor({ grid, head_dim, num_heads, convention }, { row_table, column_table }) {
        this.grid = sides("grid", grid);
        this.headDim = whole("head_dim", head_dim);
        this.numHeads = num_heads === null ? null : whole("num_heads", num_heads);
        this.convention = choice("convention", convention, ["botnet", "sam"]);
        this.entries = [row_table, column_table].map(entriesOf);
    }

    pieces(context) {
        checkDistance("Relative2D", context, { heads: this.numHeads, axes: 2, integral: true, reach: this.grid });
        checkWidth("Relative2D", this.headDim, context);
        const [sign, factor] = this.convention === "sam" ? [-1, this.headDim ** 0.5] : [1, 1]; // a meeting is divided
        return this.grid.map((side, axis) => ({
            kind: "meeting",
            byDistance: true,
            vector: (head, r) =>
                this.entries[axis](head, sign * within(r[axis], side) + side - 1).map((x) => factor * x),
        }));
    }
}
