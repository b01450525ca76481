// Where tokens are: what a scheme sees (coordinates), what causality sees (order), who may see whom (document, -1 is
// padding) and segments, each one number for each token, or one for each axis.

import { must, whole } from "posenc/math/check.js";

export class Positions {
    /** coords: a list of numbers, or of one list of coordinates for each token. */
    constructor(coords, { order = null, document = null, segment = null } = {}) {
        const tokens = Array.from(coords, (x) => (Number.isFinite(x) ? [x] : Array.from(x)));
        this.length = tokens.length;
        this.axes = tokens.length ? tokens[0].length : 1;
        must(
            tokens.every((x) => x.length === this.axes && x.every(Number.isFinite)),
            `coords must be ${this.axes} finite numbers for each token`,
        );
        this.coords = Float64Array.from(tokens.flat());
        this.order = this.#fact("order", order ?? tokens.map((_, n) => n));
        this.document = this.#fact("document", document ?? tokens.map(() => 0));
        this.segment = segment === null ? null : this.#fact("segment", segment);
    }

    #fact(name, values) {
        must(values.length === this.length, `${name} must have ${this.length} numbers, got ${values.length}`);
        return Int32Array.from(values, (x) => whole(name, x, -Infinity));
    }

    /** The text of n tokens from a start on. */
    static arange(n, start = 0) {
        const line = Array.from({ length: whole("n", n, 0) }, (_, i) => start + i);
        return new Positions(line, { order: line });
    }

    /** The patches of an image in raster order, (row, column), or of a video, (frame, row, column). With an extent
     * [height, width] they are laid over the grid of training; prefix tokens come first and stand at the origin. */
    static grid(height, width, { frames = null, extent = null, prefix = 0 } = {}) {
        const side = (n, end) => Array.from({ length: n }, (_, i) => (end ? ((i + 0.5) * end) / n - 0.5 : i));
        const [rows, columns] = [side(height, extent?.[0]), side(width, extent?.[1])];
        const image = rows.flatMap((y) => columns.map((x) => [y, x]));
        const patches = frames === null ? image : side(frames).flatMap((t) => image.map((p) => [t, ...p]));
        const origin = new Array(frames === null ? 2 : 3).fill(0);
        return new Positions([...Array.from({ length: prefix }, () => origin), ...patches]);
    }

    /** A view of one token's coordinates. */
    at(token) {
        return this.coords.subarray(token * this.axes, (token + 1) * this.axes);
    }

    /** The tokens from start to stop. */
    slice(start, stop = this.length) {
        const facts = {};
        for (const name of ["order", "document", "segment"]) {
            facts[name] = this[name]?.slice(start, stop) ?? null;
        }
        const tokens = Array.from({ length: this.length }, (_, token) => this.at(token));
        return new Positions(tokens.slice(start, stop), facts);
    }

    /** Throws unless tokens have as many coordinates as the scheme takes. */
    check(axes, scheme) {
        const takes = axes === 1 ? "one coordinate" : `${axes} coordinates`;
        must(this.axes === axes, `${scheme} takes ${takes} per token, got positions of ${this.axes} axes`);
        return this;
    }

    /** The one coordinate of each token as rows of a table of that many. Padding reads row 0. */
    indices(limit, scheme) {
        this.check(1, scheme);
        return Int32Array.from(this.coords, (p, token) => {
            const index = this.document[token] === -1 ? 0 : p;
            must(Number.isInteger(index), `${scheme} looks positions up in a table, which has whole ones, got ${p}`);
            must(index >= 0 && index < limit, `${scheme} encodes positions 0 to ${limit - 1}, got ${p}`);
            return index;
        });
    }

    /** The highest coordinate plus one: how long the text is by now. */
    get reach() {
        let highest = -1;
        for (let token = 0; token < this.length; token++) {
            if (this.document[token] !== -1) {
                highest = Math.max(highest, ...this.at(token));
            }
        }
        return highest + 1;
    }
}
