// Every scheme of posenc's catalog by its name.

import { NoPE } from "posenc/math/nope.js";
// Pair doors.
import { ALiBi } from "posenc/math/score/alibi.js";

export const SCHEMES = {
    nope: NoPE,
    // Pair doors.
    alibi: ALiBi,
};
