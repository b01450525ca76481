// Every scheme of posenc's catalog by its name.

import { ExponentialDecay, FourierFeatures, Learned, Segment, Sinusoidal } from "posenc/math/add.js";
import { NoPE } from "posenc/math/nope.js";
import { AxialRoPE, MRoPE, RoPE3D } from "posenc/math/rotate/axes.js";
import { CARoPE, SelectiveRoPE } from "posenc/math/rotate/clocks.js";
import { Cameras } from "posenc/math/rotate/cameras.js";
import { FoPE, LieRE, MixedRoPE, STRING } from "posenc/math/rotate/learned.js";
import { PoPE, QueryScale, TUPE, XPos } from "posenc/math/rotate/others.js";
import { LeRoPE, MLA, RoPE, RotatedValues } from "posenc/math/rotate/rope.js";
// Pair doors.
import { DualChunk, ReRoPE, SelfExtend } from "posenc/math/bands.js";
import { AbsoluteInAttention } from "posenc/math/score/absolute_in_attention.js";
import { ALiBi } from "posenc/math/score/alibi.js";
import { CoPE } from "posenc/math/score/cope.js";
import { DeBERTa } from "posenc/math/score/deberta.js";
import { DistanceAware } from "posenc/math/score/distance_aware.js";
import { FIRE } from "posenc/math/score/fire.js";
import { FoX } from "posenc/math/score/fox.js";
import { GRAPEA } from "posenc/math/score/grape_a.js";
import { Inkling } from "posenc/math/score/inkling.js";
import { KERPLE } from "posenc/math/score/kerple.js";
import { Relative1D } from "posenc/math/score/relative_1d.js";
import { Relative2D } from "posenc/math/score/relative_2d.js";
import { Sandwich } from "posenc/math/score/sandwich.js";
import { Shaw } from "posenc/math/score/shaw.js";
import { Softcap } from "posenc/math/score/softcap.js";
import { StickBreaking } from "posenc/math/score/stick_breaking.js";
import { Swin } from "posenc/math/score/swin.js";
import { SwinV2 } from "posenc/math/score/swin_v2.js";
import { T5 } from "posenc/math/score/t5.js";
import { TransformerXL } from "posenc/math/score/transformer_xl.js";
import { Wall } from "posenc/math/score/wall.js";

export const SCHEMES = {
    nope: NoPE,
    exponential_decay: ExponentialDecay,
    fourier_features: FourierFeatures,
    learned: Learned,
    segment: Segment,
    sinusoidal: Sinusoidal,
    axial_rope: AxialRoPE,
    carope: CARoPE,
    cameras: Cameras,
    fope: FoPE,
    le_rope: LeRoPE,
    lie_re: LieRE,
    mixed_rope: MixedRoPE,
    mla: MLA,
    mrope: MRoPE,
    p_rope: RoPE,
    partial_rope: RoPE,
    pope: PoPE,
    query_scale: QueryScale,
    rope: RoPE,
    rope_3d: RoPE3D,
    rotated_values: RotatedValues,
    selective_rope: SelectiveRoPE,
    string: STRING,
    tupe: TUPE,
    xpos: XPos,
    // Pair doors.
    absolute_in_attention: AbsoluteInAttention,
    alibi: ALiBi,
    cope: CoPE,
    deberta: DeBERTa,
    distance_aware: DistanceAware,
    dual_chunk: DualChunk,
    fire: FIRE,
    fox: FoX,
    grape_a: GRAPEA,
    inkling: Inkling,
    kerple: KERPLE,
    re_rope: ReRoPE,
    relative_1d: Relative1D,
    relative_2d: Relative2D,
    sandwich: Sandwich,
    self_extend: SelfExtend,
    shaw: Shaw,
    softcap: Softcap,
    stick_breaking: StickBreaking,
    swin: Swin,
    swin_v2: SwinV2,
    t5: T5,
    transformer_xl: TransformerXL,
    wall: Wall,
};
