// The schemes that the lesson and the figures compute here, by their names. All others are drawn by numbers of posenc's.

import { Learned, Sinusoidal } from "posenc/math/add.js";
import { NoPE } from "posenc/math/nope.js";
import { AxialRoPE, MRoPE, RoPE3D } from "posenc/math/rotate/axes.js";
import { RoPE } from "posenc/math/rotate/rope.js";
import { ALiBi } from "posenc/math/score/alibi.js";
import { CoPE } from "posenc/math/score/cope.js";
import { DistanceAware } from "posenc/math/score/distance_aware.js";
import { FoX } from "posenc/math/score/fox.js";
import { Relative2D } from "posenc/math/score/relative_2d.js";
import { Shaw } from "posenc/math/score/shaw.js";
import { T5 } from "posenc/math/score/t5.js";

export const SCHEMES = {
    nope: NoPE,
    learned: Learned,
    sinusoidal: Sinusoidal,
    axial_rope: AxialRoPE,
    mrope: MRoPE,
    p_rope: RoPE,
    partial_rope: RoPE,
    rope: RoPE,
    rope_3d: RoPE3D,
    alibi: ALiBi,
    cope: CoPE,
    distance_aware: DistanceAware,
    fox: FoX,
    relative_2d: Relative2D,
    shaw: Shaw,
    t5: T5,
};
