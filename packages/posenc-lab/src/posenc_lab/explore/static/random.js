// Numbers drawn from a seed, the same on every machine.

/** A generator: sfc32, of three words of state and a counter. */
export class Random {
    constructor(seed = 0) {
        this.state = new Uint32Array([seed, Math.floor(seed / 2 ** 32), 0x9e3779b9, 1]);
        for (let n = 0; n < 16; n++) {
            this.#word();
        }
    }

    #word() {
        const s = this.state;
        const made = s[0] + s[1] + s[3];
        s[3] += 1;
        s[0] = s[1] ^ (s[1] >>> 9);
        s[1] = s[2] + (s[2] << 3);
        s[2] = ((s[2] << 21) | (s[2] >>> 11)) + made;
        return made >>> 0;
    }

    /** From U(low, high). */
    uniform(low = 0, high = 1) {
        const share = (this.#word() * 2 ** 21 + (this.#word() >>> 11)) / 2 ** 53;
        return low + (high - low) * share;
    }

    /** From N(0, std^2), by Box and Muller. */
    normal(std = 1) {
        return std * Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
    }

    /** As many draws from N(0, std^2). */
    normals(count, std = 1) {
        return Float64Array.from({ length: count }, () => this.normal(std));
    }
}

/** Parameters {name: {shape, data}} as `learned` of a scheme says they begin: each has a `fill`, the `std` of
 * N(0, std^2), or the bounds of a `uniform` draw. */
export function drawnParameters(learned, random) {
    const draw = ({ shape, fill, std, uniform }) => {
        const size = shape.reduce((a, b) => a * b, 1);
        const one = uniform ? () => random.uniform(...uniform) : std ? () => random.normal(std) : () => fill;
        const data = new Float64Array(size);
        for (let n = 0; n < size; n++) data[n] = one(); // much faster than Float64Array.from
        return data;
    };
    const made = Object.entries(learned).map(([name, how]) => [name, { shape: how.shape, data: draw(how) }]);
    return Object.fromEntries(made);
}
