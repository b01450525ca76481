import { choice, must, whole } from "posenc/math/check.js";
import { checkDistance, checkWidth, entriesOf } from "posenc/math/score/distance.js";

/** s_ij + scale q_i . K[c] and v_j + V[c], c = clip(r, -k, k) + k: a learned vector per distance, up to k tokens. */
export class Shaw {
    static learned({ head_dim, max_distance, keys, values, num_heads }) {
        const entries = 2 * max_distance + 1;
        const bound = Math.sqrt(6 / (entries + head_dim));
        const shape = [...(num_heads === null ? [] : [num_heads]), entries, head_dim];
        const table = { shape, uniform: [-bound, bound] };
        return { ...(keys && { key_table: table }), ...(values && { value_table: table }) };
    }

    constructor({ head_dim, max_distance, keys, values, num_heads }, { key_table, value_table }) {
        this.headDim = whole("head_dim", head_dim);
        this.maxDistance = whole("max_distance", max_distance);
        this.numHeads = num_heads === null ? null : whole("num_heads", num_heads);
        const [hasKeys, hasValues] = [choice("keys", keys, [true, false]), choice("values", values, [true, false])];
        must(hasKeys || hasValues, "keys or values must be true, got false for both");
        this.keys = hasKeys ? entriesOf(key_table) : null;
        this.values = hasValues ? entriesOf(value_table) : null;
    }

    pieces(context) {
        checkDistance("Shaw", context, { heads: this.numHeads, integral: true });
        checkWidth("Shaw", this.headDim, context);
        const k = this.maxDistance;
        const clipped =
            (entry) =>
            (head, [r]) =>
                entry(head, Math.min(Math.max(r, -k), k) + k);
        const made = [];
        if (this.keys) {
            made.push({ kind: "meeting", byDistance: true, vector: clipped(this.keys) });
        }
        if (this.values) {
            made.push({ kind: "value", byDistance: true, vector: clipped(this.values) });
        }
        return made;
    }
}
