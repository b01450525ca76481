// Maps of tokens that are more than a turn: they fade, widen or scale.

import { linear, matrixOf } from "posenc/math/arrays.js";
import { choice, must, number, pairsOf, whole } from "posenc/math/check.js";
import { LAYOUTS, Turn, frequencies, phasesOf } from "posenc/math/phases.js";
import { softplus } from "posenc/math/special.js";

/** RoPE whose pair k fades by zeta_k^(r / scale_base) at distance r. Positions count from the middle of the queries:
 * what cancels in the product does not overflow. */
export class XPos {
    static learned() {
        return {};
    }

    constructor({ head_dim, base, scale_base, layout }) {
        const pairs = pairsOf("head_dim", head_dim);
        Object.assign(this, { headDim: head_dim, layout: choice("layout", layout, LAYOUTS) });
        this.theta = frequencies(head_dim, number("base", base, 1));
        number("scale_base", scale_base, 0);
        this.decay = Float64Array.from(
            { length: pairs },
            (_, k) => -Math.log(((2 * k) / head_dim + 0.4) / 1.4) / scale_base,
        );
    }

    rotate(q, k, queryPositions, keyPositions) {
        const asking = queryPositions.check(1, "XPos").coords.filter((_, n) => queryPositions.document[n] !== -1);
        const middle = asking.length
            ? (asking.reduce((a, b) => Math.min(a, b)) + asking.reduce((a, b) => Math.max(a, b))) / 2
            : 0;
        const side = (x, positions, sign) => {
            const angles = phasesOf(
                positions.check(1, "XPos"),
                this.theta,
                this.theta.map(() => 0),
            );
            const turned = new Turn(angles, this.layout).apply(x);
            return turned.map(x.dim, (made, old, _, token) => {
                const place = positions.document[token] === -1 ? 0 : positions.coords[token] - middle;
                made.forEach((_, c) => {
                    const pair = this.layout === "half" ? c % this.theta.length : c >> 1;
                    made[c] = old[c] * Math.exp(sign * place * this.decay[pair]);
                });
            });
        };
        return {
            q: side(q, queryPositions, -1),
            k: side(k, keyPositions, 1),
            scale: 1 / Math.sqrt(this.headDim),
        };
    }
}

/** Content is the length of a channel, position its phase: q and k become twice as wide. */
export class PoPE {
    static learned({ head_dim, num_heads }) {
        return { delta: { shape: [num_heads ?? 1, head_dim], fill: 0 } };
    }

    constructor({ head_dim, num_heads, base }, parameters) {
        Object.assign(this, { d: whole("head_dim", head_dim), numHeads: num_heads });
        this.theta = frequencies(2 * head_dim, number("base", base, 1)); // base^(-c/d)
        this.delta = matrixOf(parameters.delta);
    }

    rotate(q, k, queryPositions, keyPositions) {
        const { d, numHeads, delta } = this;
        must(
            numHeads === null || q.heads === numHeads,
            `PoPE was made for ${numHeads} heads, got queries of ${q.heads}`,
        );
        must(q.dim === d && k.dim === d, `PoPE was made for head_dim ${d}, got ${q.dim} and ${k.dim}`);
        const polar = (x, positions, behind) => {
            positions.check(1, "PoPE");
            return x.map(2 * d, (made, old, head, token) => {
                const shift = behind && delta.row(head % delta.rows);
                for (let c = 0; c < d; c++) {
                    const held = behind ? Math.min(Math.max(shift[c], -2 * Math.PI), 0) : 0;
                    const phase = positions.coords[token] * this.theta[c] - held;
                    made[c] = softplus(old[c]) * Math.cos(phase);
                    made[c + d] = softplus(old[c]) * Math.sin(phase);
                }
            });
        };
        return { q: polar(q, queryPositions, true), k: polar(k, keyPositions, false), scale: 1 / Math.sqrt(d) };
    }
}

const FORMS = {
    llama4: (n, L, a) => 1 + a * Math.log1p(Math.floor(n / L)),
    ministral3: (n, L, a) => 1 + a * Math.log1p(Math.floor((n - 1) / L)),
    inkling: (n, L, a) => 1 + a * Math.log(Math.max(1, n / L)),
    beam: (n, L, a) => (1 + n / L) ** a,
    rerope: (n, L) => Math.max(1, Math.log(n) / Math.log(L)),
    chunkllama: (n, L, a) => (1 + a * Math.log(Math.max(1, n / L))) ** 2,
    qwen2_5_1m: (n, L, a) => 1 + a * Math.log(Math.max(1, n / L)),
};
const OF_ROWS = ["chunkllama", "qwen2_5_1m"]; // n is the length of the text
const LENGTHS = { llama4: 8192, ministral3: 16384, beam: 2048 };

/** Queries times a number that grows with the number n of tokens up to them, or of the whole text. */
export class QueryScale {
    static learned({ form, num_heads }) {
        if (form === "mistral_large4") {
            return { s: { shape: [num_heads], fill: 0 }, b: { shape: [num_heads], fill: 1 } };
        }
        return form === "ssmax" ? { s: { shape: [num_heads], fill: 0.43 } } : {};
    }

    constructor({ form, length, strength, num_heads }, parameters) {
        this.form = choice("form", form, [...Object.keys(FORMS), "mistral_large4", "ssmax"]);
        const isLearned = !(form in FORMS);
        must((num_heads !== null) === isLearned, `num_heads ${isLearned ? "is needed by" : "is not for"} form ${form}`);
        must(!isLearned || length === null, `length is not for form ${form}, got ${length}`);
        must(
            strength === null || !(isLearned || form === "rerope"),
            `strength is not for form ${form}, got ${strength}`,
        );
        this.length = isLearned ? null : whole("length", length ?? LENGTHS[form] ?? null, 2);
        this.strength = number("strength", strength ?? (form === "chunkllama" ? 0.05 : 0.1));
        this.numHeads = num_heads;
        this.parameters = parameters;
    }

    /** c(n). */
    factor(n, head) {
        if (this.form in FORMS) {
            return FORMS[this.form](n, this.length, this.strength);
        }
        const { s, b } = this.parameters;
        return s.data[head] * Math.log(n) + (b?.data[head] ?? 0);
    }

    rotate(q, k, positions, keyPositions, { length }) {
        positions.check(1, "QueryScale");
        must(
            this.numHeads === null || q.heads === this.numHeads,
            `QueryScale was made for ${this.numHeads} heads, got ${q.heads}`,
        );
        const scaled = q.map(q.dim, (made, old, head, token) => {
            const isOfRow = OF_ROWS.includes(this.form);
            const p = positions.document[token] === -1 ? 0 : positions.coords[token];
            must(isOfRow || p >= 0, `QueryScale encodes positions from 0 on, got ${p}`);
            const c = this.factor(isOfRow ? length : p + 1, head);
            made.forEach((_, n) => (made[n] = c * old[n]));
        });
        return { q: scaled, k };
    }
}

/** Learned positions meet each other in the score, and never the contents: they lie beside q and k. */
export class TUPE {
    static learned({ num_heads, head_dim, max_positions, dim, untie_cls }) {
        const width = dim ?? num_heads * head_dim;
        const wide = num_heads * head_dim;
        return {
            "embedding.weight": { shape: [max_positions, width], std: 0.02 },
            "norm.weight": { shape: [width], fill: 1 },
            "norm.bias": { shape: [width], fill: 0 },
            "query.weight": { shape: [wide, width], std: 0.02 },
            "query.bias": { shape: [wide], fill: 0 },
            "key.weight": { shape: [wide, width], std: 0.02 },
            "key.bias": { shape: [wide], fill: 0 },
            ...(untie_cls ? { theta: { shape: [2, num_heads], std: 0.02 } } : {}),
        };
    }

    constructor({ num_heads, head_dim, max_positions, untie_cls }, parameters) {
        Object.assign(this, { numHeads: whole("num_heads", num_heads), d: whole("head_dim", head_dim), parameters });
        this.limit = whole("max_positions", max_positions);
        this.isUntied = untie_cls;
        this.scale = 1 / Math.sqrt(2 * head_dim);
    }

    /** Of each token what its position gives by a layer: (heads, head_dim) in one row. */
    #projected(indices, name) {
        const { [`${name}.weight`]: weight, [`${name}.bias`]: bias, ...rest } = this.parameters;
        const [table, gain, offset] = [
            matrixOf(rest["embedding.weight"]),
            rest["norm.weight"].data,
            rest["norm.bias"].data,
        ];
        return Array.from(indices, (index) => {
            const row = table.row(index);
            const mean = row.reduce((a, b) => a + b, 0) / row.length;
            const variance = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
            const normal = row.map((x, c) => ((x - mean) / Math.sqrt(variance + 1e-5)) * gain[c] + offset[c]);
            return linear(normal, matrixOf(weight), bias.data);
        });
    }

    /** x with its position beside it, the mean of those of the heads that share it. With [CLS] untied two channels
     * more: the key's say where it is, the query's what that is worth to it. */
    #beside(x, positions, name, shared) {
        const { d, numHeads, isUntied, scale } = this;
        const indices = positions.indices(this.limit, "TUPE");
        const projected = this.#projected(indices, name);
        const group = numHeads / x.heads;
        must(
            shared ? Number.isInteger(group) : group === 1,
            `TUPE was made for ${numHeads} heads, got ${name} of ${x.heads}`,
        );
        return x.map(x.dim + d + (isUntied ? 2 : 0), (made, old, head, token) => {
            const isFirst = isUntied && indices[token] === 0;
            made.set(old);
            for (let c = 0; c < d && !isFirst; c++) {
                for (let g = 0; g < group; g++) {
                    made[x.dim + c] += projected[token][(head * group + g) * d + c] / group;
                }
            }
            if (isUntied && shared) {
                made.set([1, Number(isFirst)], x.dim + d);
            } else if (isUntied) {
                const theta = matrixOf(this.parameters.theta);
                const worth = isFirst ? [theta.row(0)[head], 0] : [0, theta.row(1)[head]];
                made.set(
                    worth.map((w) => w / scale),
                    x.dim + d,
                );
            }
        });
    }

    rotate(q, k, queryPositions, keyPositions) {
        return {
            q: this.#beside(q, queryPositions, "query", false),
            k: this.#beside(k, keyPositions, "key", true),
            scale: this.scale,
        };
    }
}
