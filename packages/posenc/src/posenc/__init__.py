"""posenc: positional encodings for PyTorch attention, with one interface for all of them.

>>> import torch, posenc
>>> q = k = v = torch.randn(2, 12, 50, 64)
>>> out = posenc.attention(q, k, v, posenc.RoPE(64), is_causal=True)

The packages posenc-lab and posenc-check add the commands that compare schemes and check anyone's attention.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc import distributed as distributed
    from posenc import huggingface as huggingface
    from posenc import models as models
    from posenc import schedules as schedules
    from posenc.backends.api import attention as attention
    from posenc.backends.api import explain as explain
    from posenc.backends.api import logits as logits
    from posenc.backends.bands import merge as merge
    from posenc.encoding import terms as terms
    from posenc.encoding.context import Context as Context
    from posenc.encoding.encoding import Encoding as Encoding
    from posenc.positions import training as training
    from posenc.positions.positions import PositionError as PositionError
    from posenc.positions.positions import Positions as Positions
    from posenc.positions.tiles import Chunk as Chunk
    from posenc.rotation import scalings as scalings
    from posenc.rotation.onnx import onnx_operators as onnx_operators
    from posenc.rotation.scalings import DynamicNTK as DynamicNTK
    from posenc.rotation.scalings import Llama3 as Llama3
    from posenc.rotation.scalings import LongRoPE as LongRoPE
    from posenc.rotation.scalings import NTKAware as NTKAware
    from posenc.rotation.scalings import PositionInterpolation as PositionInterpolation
    from posenc.rotation.scalings import Proportional as Proportional
    from posenc.rotation.scalings import Resonance as Resonance
    from posenc.rotation.scalings import RIFLEx as RIFLEx
    from posenc.rotation.scalings import SoftClipping as SoftClipping
    from posenc.rotation.scalings import YaRN as YaRN
    from posenc.schedule import Schedule as Schedule
    from posenc.scheme import Scheme as Scheme
    from posenc.schemes.absolute_in_attention import AbsoluteInAttention as AbsoluteInAttention
    from posenc.schemes.alibi import ALiBi as ALiBi
    from posenc.schemes.axial_rope import AxialRoPE as AxialRoPE
    from posenc.schemes.cameras import Cameras as Cameras
    from posenc.schemes.carope import CARoPE as CARoPE
    from posenc.schemes.catalog import catalog as catalog
    from posenc.schemes.cope import CoPE as CoPE
    from posenc.schemes.deberta import DeBERTa as DeBERTa
    from posenc.schemes.distance_aware import DistanceAware as DistanceAware
    from posenc.schemes.dual_chunk import DualChunk as DualChunk
    from posenc.schemes.exponential_decay import ExponentialDecay as ExponentialDecay
    from posenc.schemes.fire import FIRE as FIRE
    from posenc.schemes.fope import FoPE as FoPE
    from posenc.schemes.fourier_features import FourierFeatures as FourierFeatures
    from posenc.schemes.fox import FoX as FoX
    from posenc.schemes.grape_a import GRAPEA as GRAPEA
    from posenc.schemes.indexer import Indexer as Indexer
    from posenc.schemes.inkling import Inkling as Inkling
    from posenc.schemes.kerple import KERPLE as KERPLE
    from posenc.schemes.key_offset import KeyOffset as KeyOffset
    from posenc.schemes.le_rope import LeRoPE as LeRoPE
    from posenc.schemes.learned import Learned as Learned
    from posenc.schemes.lie_re import LieRE as LieRE
    from posenc.schemes.mixed_rope import MixedRoPE as MixedRoPE
    from posenc.schemes.mla import MLA as MLA
    from posenc.schemes.mrope import MRoPE as MRoPE
    from posenc.schemes.nope import NoPE as NoPE
    from posenc.schemes.pope import PoPE as PoPE
    from posenc.schemes.query_scale import QueryScale as QueryScale
    from posenc.schemes.re_po import RePo as RePo
    from posenc.schemes.re_rope import ReRoPE as ReRoPE
    from posenc.schemes.relative_1d import Relative1D as Relative1D
    from posenc.schemes.relative_2d import Relative2D as Relative2D
    from posenc.schemes.rope import RoPE as RoPE
    from posenc.schemes.rope_3d import RoPE3D as RoPE3D
    from posenc.schemes.rotated_values import RotatedValues as RotatedValues
    from posenc.schemes.sandwich import Sandwich as Sandwich
    from posenc.schemes.segment import Segment as Segment
    from posenc.schemes.selective_rope import SelectiveRoPE as SelectiveRoPE
    from posenc.schemes.self_extend import SelfExtend as SelfExtend
    from posenc.schemes.shaw import Shaw as Shaw
    from posenc.schemes.sinusoidal import Sinusoidal as Sinusoidal
    from posenc.schemes.softcap import Softcap as Softcap
    from posenc.schemes.stick_breaking import StickBreaking as StickBreaking
    from posenc.schemes.string import STRING as STRING
    from posenc.schemes.swin import Swin as Swin
    from posenc.schemes.swin_v2 import SwinV2 as SwinV2
    from posenc.schemes.t5 import T5 as T5
    from posenc.schemes.tapa import TAPA as TAPA
    from posenc.schemes.transformer_xl import TransformerXL as TransformerXL
    from posenc.schemes.tupe import TUPE as TUPE
    from posenc.schemes.wall import Wall as Wall
    from posenc.schemes.xpos import XPos as XPos

__version__ = "0.1.0"

_SCHEMES = """
    alibi.ALiBi absolute_in_attention.AbsoluteInAttention distance_aware.DistanceAware dual_chunk.DualChunk
    exponential_decay.ExponentialDecay fourier_features.FourierFeatures re_rope.ReRoPE relative_1d.Relative1D
    relative_2d.Relative2D shaw.Shaw t5.T5 transformer_xl.TransformerXL learned.Learned nope.NoPE rope.RoPE
    xpos.XPos pope.PoPE le_rope.LeRoPE fope.FoPE selective_rope.SelectiveRoPE carope.CARoPE mla.MLA re_po.RePo
    rotated_values.RotatedValues segment.Segment self_extend.SelfExtend sinusoidal.Sinusoidal cope.CoPE fox.FoX
    wall.Wall grape_a.GRAPEA stick_breaking.StickBreaking inkling.Inkling query_scale.QueryScale softcap.Softcap
    axial_rope.AxialRoPE cameras.Cameras lie_re.LieRE mixed_rope.MixedRoPE mrope.MRoPE rope_3d.RoPE3D
    string.STRING deberta.DeBERTa fire.FIRE kerple.KERPLE key_offset.KeyOffset
    sandwich.Sandwich swin.Swin swin_v2.SwinV2 tapa.TAPA tupe.TUPE
"""

# The module of each public name. Names are imported on first use, so that the command line starts without torch.
_HOMES = {
    **dict.fromkeys(("attention", "explain", "logits"), "backends.api"),
    "merge": "backends.bands",
    "Encoding": "encoding.encoding",
    "Scheme": "scheme",
    "Chunk": "positions.tiles",
    "Schedule": "schedule",
    "Context": "encoding.context",
    **dict.fromkeys(("PositionError", "Positions"), "positions.positions"),
    "catalog": "schemes.catalog",
    "onnx_operators": "rotation.onnx",
    "Indexer": "schemes.indexer",
    **dict.fromkeys(
        (
            *("DynamicNTK", "Llama3", "LongRoPE", "NTKAware", "PositionInterpolation", "Proportional"),
            *("Resonance", "RIFLEx", "SoftClipping", "YaRN"),
        ),
        "rotation.scalings",
    ),
    **{scheme.partition(".")[2]: "schemes." + scheme.partition(".")[0] for scheme in _SCHEMES.split()},
}

_ROOMS = {
    "distributed": "distributed",
    "huggingface": "huggingface",
    "models": "models",
    "terms": "encoding.terms",
    "scalings": "rotation.scalings",
    "schedules": "schedules",
    "training": "positions.training",
}

__all__ = [*_HOMES, *_ROOMS]


# What other libraries call them, or posenc did.
_FOREIGN = {
    "PartialRoPE": "RoPE(head_dim, rotary_dim=...)",
    "ProportionalRoPE": "RoPE(head_dim, scaling=posenc.Proportional(share))",
    "PRoPE": "",  # a former name, and of two schemes
    **dict.fromkeys(("RotaryEmbedding", "RotaryPositionEmbedding", "RotaryPositionalEmbeddings"), "RoPE"),
    **dict.fromkeys(("AlibiPositionalBias", "ALiBiBias", "get_slopes"), "ALiBi"),
    **dict.fromkeys(("RelativePositionBias", "T5RelativePositionBias"), "T5"),
    **dict.fromkeys(("PositionalEncoding", "SinusoidalPositionalEmbedding", "PositionalEncoding1D"), "Sinusoidal"),
    **dict.fromkeys(("PositionalEmbedding", "AbsolutePositionalEmbedding", "LearnedPositionalEmbedding"), "Learned"),
    **dict.fromkeys(("scaled_dot_product_attention", "flash_attn_func", "flex_attention"), "attention"),
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"posenc.{_ROOMS[name]}")
    if name not in _HOMES:
        from posenc.arguments import meant

        # Python replaces the message of an AttributeError in `from posenc import PRoPE`.
        error = ImportError if name == "PRoPE" else AttributeError
        told = f": use posenc.{_FOREIGN[name]}" if _FOREIGN.get(name) else meant(name, __all__)
        told = ": use posenc_lab.show, of the package posenc-lab" if name == "show" else told
        raise error(f"module 'posenc' has no attribute {name!r}{told}")
    value = getattr(importlib.import_module(f"posenc.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
