"""Schemes that see one token at a time, in all their options."""

import torch

from posenc import (
    MLA,
    STRING,
    TUPE,
    AxialRoPE,
    Cameras,
    CARoPE,
    ExponentialDecay,
    FoPE,
    FourierFeatures,
    Learned,
    LeRoPE,
    LieRE,
    MixedRoPE,
    MRoPE,
    PoPE,
    Positions,
    QueryScale,
    RoPE,
    RoPE3D,
    RotatedValues,
    Segment,
    SelectiveRoPE,
    Sinusoidal,
    XPos,
)
from posenc.rotation.scalings import DynamicNTK, Llama3, LongRoPE, NTKAware, PositionInterpolation, Proportional, YaRN
from tests.explore.case import Case
from tests.oracles import cameras

SEGMENTS = {"segments": Positions.arange(6).with_segment(torch.tensor([[0, 0, 1, 2, 1, 0]]))}
FAR = {"far": Positions.arange(5, start=100_000)}
DOCUMENTS = {"documents": Positions.packed([3, 4, 2])[torch.tensor([5, 0, 8, 2, 3, 1, 7, 6, 4])]}
LONGER = {"longer than trained": Positions.arange(20)}
SCALINGS = {
    "linear": PositionInterpolation(4.0),
    "ntk": NTKAware(3.0),
    "ntk by parts": NTKAware(3.0, 16),
    "dynamic": DynamicNTK(2.0, 8),
    "yarn": YaRN(4.0, 16),
    "yarn, dynamic": YaRN(1.0, 3, dynamic=True),
    "yarn's ratio": YaRN(8.0, 4096, ramp="ratio", beta_fast=16.0, beta_slow=2.0, attention_factor=1.3),
    "yarn not truncated": YaRN(8.0, 4096, truncate=False, mscale=0.7, mscale_all_dim=0.4),
    "llama3": Llama3(),
    "llama3's step": Llama3(16.0, 64, 1.0, 1.0),
    "longrope": LongRoPE([1.0, 1.1, 1.2, 1.3], [1.0, 2.0, 3.0, 4.0], 8, factor=4.0),
    "longrope's pair": LongRoPE([1.0, 1.1, 1.2, 1.3], [1.0, 2.0, 3.0, 4.0], 8, attention_factor=(1.1, 1.4)),
    "proportional": Proportional(0.7, 2.0),
}
ONE_TEXT = {  # a row of several documents has no one length
    "a line": Positions.arange(7),
    "padding": Positions.padded(torch.tensor([[False, True, True, True, False, True]])),
    "fractions": Positions(torch.tensor([[7.3, 3.1, 0.2, 12.6]], dtype=torch.float64)),
    **LONGER,
}

CASES: dict[str, dict[str, Case]] = {
    "cameras": {
        "with lenses": Case(
            lambda: Cameras(20, cameras.rig(9), cameras.lenses(9), cameras.IMAGE, camera_dim=8, base=77.0),
            head_dim=20,
            axes=3,
            fractional=False,
        )
    },
    "exponential_decay": {"seven channels": Case(lambda: ExponentialDecay(7, 50.0), positions=FAR)},
    "fourier_features": {
        "learned": Case(lambda: FourierFeatures(12, sigma=0.3, learned=True, hidden=5)),
        "another seed": Case(lambda: FourierFeatures(40, axes=2, sigma=0.2, seed=123_456_789), axes=2),
        "learned in space": Case(lambda: FourierFeatures(8, axes=3, learned=True), axes=3),
        "perceiver": Case(lambda: FourierFeatures(12, 2, bands="perceiver", resolution=(5, 7.5)), axes=2),
        "one band": Case(lambda: FourierFeatures(2, bands="perceiver", resolution=[9])),
        "nerf": Case(lambda: FourierFeatures(18, 3, bands="nerf"), axes=3),
    },
    "learned": {"13 x 7": Case(lambda: Learned(16, 7), fractional=False)},
    "segment": {"three": Case(lambda: Segment(3, 7), positions=SEGMENTS, only=True)},
    "sinusoidal": {
        "concatenated": Case(lambda: Sinusoidal(12, base=313.0, layout="concatenated"), positions=FAR),
        "tensor2tensor": Case(lambda: Sinusoidal(12, base=313.0, layout="tensor2tensor"), positions=FAR),
        "an image": Case(lambda: Sinusoidal(12, layout="concatenated", axes=2), axes=2),
        "a video": Case(lambda: Sinusoidal(12, axes=3), axes=3),
    },
    "axial_rope": {
        **{
            name: Case(lambda name=name: AxialRoPE(8, name), axes=2, fractional=False)
            for name in ("index", "llama4", "pe", "gemma4")
        },
        "eva": Case(lambda: AxialRoPE(8, "eva", extent=(4, 2)), axes=2),
        "dinov3": Case(
            lambda: AxialRoPE(8, "dinov3", 313.0, rotary_dim=4, shift=0.1, jitter=1.2, rescale=1.3),
            positions={"its grid": AxialRoPE(8, "dinov3").grid(2, 3, prefix=1)},
            only=True,
        ),
    },
    "carope": {
        "interleaved": Case(
            lambda: CARoPE(2, 10, "interleaved"), heads=6, kv_heads=2, head_dim=10, positions=DOCUMENTS
        ),
    },
    "selective_rope": {
        "interleaved": Case(
            lambda: SelectiveRoPE(2, 10, 313.0, "interleaved"), heads=6, kv_heads=2, head_dim=10, positions=DOCUMENTS
        ),
        "an image": Case(lambda: SelectiveRoPE(4, 8), axes=2),
    },
    "rope": {
        "interleaved": Case(lambda: RoPE(8, 313.0, "interleaved"), heads=5, positions=FAR),
        "partial": Case(lambda: RoPE(10, rotary_dim=6, first_channel=3), heads=12, kv_heads=3, head_dim=10),
        "of some heads": Case(lambda: RoPE(8, heads=range(2, 4), num_heads=6), heads=6, kv_heads=3),
        "imaginary heads": Case(
            lambda: RoPE(8, imaginary=range(1, 6, 2), num_heads=6), heads=6, kv_heads=3, positions=FAR
        ),
        "allotted": Case(lambda: RoPE(8, axes=3, allocation=(2, 0, 1, 1)), axes=3),
        "an image": Case(lambda: RoPE(8, 100.0, "interleaved", axes=2), axes=2),
        "of values": Case(lambda: RoPE(8, values=True, rotary_dim=4)),
        **{
            name: Case(
                lambda scaling=scaling: RoPE(8, scaling=scaling),
                positions=ONE_TEXT,
                only=True,
            )
            for name, scaling in SCALINGS.items()
        },
    },
    "fope": {
        "all pairs": Case(lambda: FoPE(2, 10, 200, 50.0), kv_heads=2, head_dim=10),
        "fewer pairs": Case(lambda: FoPE(2, 10, 200, 50.0, "interleaved", series=3), kv_heads=2, head_dim=10),
    },
    "le_rope": {
        "over YaRN": Case(lambda: LeRoPE(12, 313.0, "half", 6, scaling=YaRN(4.0, 16), first_channel=4), head_dim=12)
    },
    "lie_re": {
        "a line": Case(lambda: LieRE(10, 1, 4, num_heads=2), kv_heads=2, head_dim=10),
        "in space": Case(lambda: LieRE(9, 3, 3), head_dim=9, axes=3),
    },
    "mixed_rope": {"two heads": Case(lambda: MixedRoPE(10, 2, 50.0, rotary_dim=8), kv_heads=2, head_dim=10, axes=2)},
    "mla": {
        "half": Case(lambda: MLA(8, 6, 313.0, "half")),
        "YaRN's factor": Case(lambda: MLA(8, 4, scaling=YaRN(4.0, 16, mscale=1.0, mscale_all_dim=0.8))),
    },
    "mrope": {
        "interleaved": Case(lambda: MRoPE(16, (2, 3, 3), "interleaved", 313.0), head_dim=16, axes=3),
        "sections": Case(lambda: MRoPE(16, (2, 3, 3)), head_dim=16, axes=3),
        "ernie": Case(lambda: MRoPE(16, (4, 2, 2), "ernie"), head_dim=16, axes=3),
        "videorope": Case(lambda: MRoPE(16, (2, 3, 3), "videorope"), head_dim=16, axes=3),
    },
    "p_rope": {
        "none": Case(lambda: RoPE(8, scaling=Proportional(0.0))),
        "most": Case(lambda: RoPE(14, 313.0, "interleaved", scaling=Proportional(0.8)), head_dim=14),
    },
    "partial_rope": {"most": Case(lambda: RoPE(8, 313.0, "interleaved", 6, scaling=NTKAware(2.0)), heads=12)},
    "pope": {
        "one phase for all": Case(lambda: PoPE(7, base=313.0), head_dim=7),
        "twelve heads": Case(lambda: PoPE(7, 12), heads=12, kv_heads=3, head_dim=7),
    },
    "query_scale": {
        "llama4": Case(lambda: QueryScale("llama4", length=4)),
        "llama4's own": Case(lambda: QueryScale("llama4"), positions=FAR),
        "ministral3": Case(lambda: QueryScale("ministral3", length=4, strength=0.3)),
        "inkling": Case(lambda: QueryScale("inkling", length=4)),
        "beam": Case(lambda: QueryScale("beam", length=4, strength=0.5)),
        "rerope": Case(lambda: QueryScale("rerope", length=4)),
        **{
            name: Case(lambda name=name: QueryScale(name, length=4), positions=ONE_TEXT, only=True)
            for name in ("chunkllama", "qwen2_5_1m")
        },
        "mistral_large4": Case(lambda: QueryScale("mistral_large4", num_heads=5), heads=5),
    },
    "rope_3d": {
        "its shares": Case(lambda: RoPE3D(10, (2, 2, 6), 256.0), head_dim=10, axes=3),
        "vjepa2": Case(lambda: RoPE3D(14, base=313.0, form="vjepa2"), {"shares": None}, head_dim=14, axes=3),
    },
    "rotated_values": {
        "over YaRN": Case(lambda: RotatedValues(8, 6, 313.0, "half", scaling=YaRN(4.0, 16)), kv_heads=1)
    },
    "string": {
        "of each head": Case(lambda: STRING(6, 2, num_heads=2), kv_heads=2, head_dim=6, axes=2),
        "circulant": Case(lambda: STRING(6, 3, "circulant"), head_dim=6, axes=3),
        "circulant heads": Case(lambda: STRING(8, 1, "circulant", num_heads=4), axes=1),
    },
    "tupe": {
        "of a class token": Case(lambda: TUPE(6, 5, 16, untie_cls=True), {"dim": None}, 6, 2, 5, fractional=False),
        "a width of its own": Case(lambda: TUPE(4, 8, 16, dim=9), {"dim": 9}, fractional=False),
    },
    "xpos": {"half": Case(lambda: XPos(10, 313.0, 20.0, "half"), heads=5, head_dim=10, positions=FAR)},
}
