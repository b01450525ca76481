"""Every system that the project set out to have, found where it should be: catalog, oracle, laws, figures, docs. What
every scheme of the catalog must have besides, tests of the catalog, of mutants and of figures ask of each."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import posenc
from posenc import Scheme
from posenc.schemes.catalog import CATALOG
from posenc_lab.plot.command import FIGURES
from tests.cases import CASES

ROOT = Path(__file__).parents[1]
SCHEMES_PAGE = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class System:
    """What it is called, how one makes it, the function of its oracle, a figure that shows it, its line in the docs."""

    name: str
    make: Callable[[], Scheme]
    oracle: str
    figure: str
    docs: str


SYSTEMS = (
    System("no positions", posenc.NoPE, "nope.add", "attention", "NoPE"),
    System("sinusoidal, interleaved", lambda: posenc.Sinusoidal(12), "sinusoidal.table", "table", "Sinusoidal"),
    System(
        "sinusoidal, concatenated",
        lambda: posenc.Sinusoidal(12, layout="concatenated"),
        "sinusoidal.table",
        "lines",
        "concatenated",
    ),
    System("sinusoidal 2D", lambda: posenc.Sinusoidal(12, axes=2), "sinusoidal.grid_table", "similarity", "axes=2"),
    System("sinusoidal 3D", lambda: posenc.Sinusoidal(12, axes=3), "sinusoidal.grid_table", "similarity", "axes=3"),
    System("learned", lambda: posenc.Learned(9, 12), "learned.add", "similarity", "Learned"),
    System("segment", lambda: posenc.Segment(2, 12), "segment.add", "table", "Segment"),
    System("Fourier, fixed", lambda: posenc.FourierFeatures(12), "fourier_features.table", "table", "FourierFeatures"),
    System(
        "Fourier, learned",
        lambda: posenc.FourierFeatures(12, learned=True),
        "fourier_features.learned_table",
        "table",
        "learned=True",
    ),
    System(
        "exponential decay", lambda: posenc.ExponentialDecay(12), "exponential_decay.table", "lines", "ExponentialDecay"
    ),
    System("rotary, half", lambda: posenc.RoPE(6), "rope.rotate", "rope_rotation", "RoPE"),
    System(
        "rotary, interleaved",
        lambda: posenc.RoPE(6, layout="interleaved"),
        "rope.rotate",
        "rope_rotation",
        "interleaved",
    ),
    System("rotary, partial", lambda: posenc.RoPE(6, rotary_dim=4), "rope.rotate", "rope_decay", "rotary_dim"),
    System("ALiBi, causal", lambda: posenc.ALiBi(12), "alibi.score", "bias", "ALiBi"),
    System("ALiBi, bidirectional", lambda: posenc.ALiBi(12, "bidirectional"), "alibi.score", "bias", '"bidirectional"'),
    System("ALiBi, directed", lambda: posenc.ALiBi(12, "directed"), "alibi.directed_score", "bias", '"directed"'),
    System("Shaw, keys", lambda: posenc.Shaw(6, 2, values=False), "shaw.score", "shaw_window", "Shaw"),
    System("Shaw, values", lambda: posenc.Shaw(6, 2, keys=False), "shaw.value_term", "shaw_window", "values"),
    System("Shaw, per head", lambda: posenc.Shaw(6, 2, num_heads=12), "shaw.score", "shaw_window", "num_heads"),
    System("T5, causal", lambda: posenc.T5(12), "t5.score", "bias_by_distance", "T5"),
    System(
        "T5, bidirectional", lambda: posenc.T5(12, bidirectional=True), "t5.score", "bias_by_distance", "bidirectional"
    ),
    System(
        "Transformer-XL",
        lambda: posenc.TransformerXL(12, 6),
        "transformer_xl.terms",
        "bias",
        "TransformerXL",
    ),
    System(
        "DA-Transformer",
        lambda: posenc.DistanceAware(12),
        "distance_aware.score",
        "bias_by_distance",
        "DistanceAware",
    ),
    System(
        "absolute in attention",
        lambda: posenc.AbsoluteInAttention(9, 6),
        "absolute_in_attention.score",
        "bias",
        "AbsoluteInAttention",
    ),
    System("relative 1D", lambda: posenc.Relative1D(9, 6), "relative_1d.score", "relative_index", "Relative1D"),
    System(
        "relative 1D, per head", lambda: posenc.Relative1D(9, 6, 12), "relative_1d.score", "relative_index", "num_heads"
    ),
    System("relative 2D", lambda: posenc.Relative2D((3, 5), 6), "relative_2d.score", "overview", "Relative2D"),
)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_system_is_everywhere(system: System) -> None:
    kind = type(system.make())
    assert kind in {entry.scheme for entry in CATALOG}
    module, function = system.oracle.split(".")
    assert callable(getattr(importlib.import_module(f"tests.oracles.{module}"), function))
    assert kind in {type(part) for case in CASES.values() for part in case.scheme().parts}
    assert system.figure in {figure.name for figure in FIGURES}
    assert system.docs in SCHEMES_PAGE
