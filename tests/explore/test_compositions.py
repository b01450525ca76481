"""The page refuses the compositions that posenc refuses, in its words, and no other."""

import pytest

import posenc
from posenc.tools.explore.compositions import refused


def test_two_rotations_of_the_same_channels_are_refused_in_posencs_words() -> None:
    with pytest.raises(ValueError, match="rotate the same channels") as error:
        posenc.RoPE(16) + posenc.PoPE(16)
    assert refused()["rope+pope"] == str(error.value)


def test_what_composes_is_not_refused() -> None:
    assert not {"rope+alibi", "alibi+rope", "sinusoidal+rope", "rope+softcap", "axial_rope+swin"} & set(refused())


def test_no_scheme_of_one_coordinate_is_held_against_one_of_two() -> None:
    assert not {"rope_3d+t5", "t5+swin"} & set(refused())
    assert "axial_rope+rope" in refused()  # each takes patches
