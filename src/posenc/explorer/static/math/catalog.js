// Every scheme of posenc's catalog by its name.

import { ExponentialDecay, FourierFeatures, Learned, Segment, Sinusoidal } from "posenc/math/add.js";
import { NoPE } from "posenc/math/nope.js";
import { AxialRoPE, MRoPE, RoPE3D } from "posenc/math/rotate/axes.js";
import { LieRE, MixedRoPE, STRING } from "posenc/math/rotate/learned.js";
import { PoPE, QueryScale, TUPE, XPos } from "posenc/math/rotate/others.js";
import { LeRoPE, MLA, PartialRoPE, PRoPE, RoPE, RotatedValues } from "posenc/math/rotate/rope.js";
// Pair doors.
import { ALiBi } from "posenc/math/score/alibi.js";

export const SCHEMES = {
    nope: NoPE,
    exponential_decay: ExponentialDecay,
    fourier_features: FourierFeatures,
    learned: Learned,
    segment: Segment,
    sinusoidal: Sinusoidal,
    axial_rope: AxialRoPE,
    le_rope: LeRoPE,
    lie_re: LieRE,
    mixed_rope: MixedRoPE,
    mla: MLA,
    mrope: MRoPE,
    p_rope: PRoPE,
    partial_rope: PartialRoPE,
    pope: PoPE,
    query_scale: QueryScale,
    rope: RoPE,
    rope_3d: RoPE3D,
    rotated_values: RotatedValues,
    string: STRING,
    tupe: TUPE,
    xpos: XPos,
    // Pair doors.
    alibi: ALiBi,
};
