/** No positional encoding: every door stays closed. */
export class NoPE {
    static learned() {
        return {};
    }
}
