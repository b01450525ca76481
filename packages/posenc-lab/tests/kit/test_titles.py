"""Names of schemes as people write them."""

import pytest

from posenc_lab.kit.titles import titled


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("rope", "RoPE"),
        ("rope+transformer_xl", "RoPE + Transformer-XL"),
        ("my.py:Slope+alibi", "my.py:Slope + ALiBi"),
        ("~/my.py:Slope~alibi", "~/my.py:Slope with ALiBi"),
        ("alibi~nope", "ALiBi with NoPE"),
        ("rope@16~t5+rope@32", "RoPE in windows of 16 with T5 + RoPE in windows of 32"),
        ("rope@64~rope@64~nope", "2 × RoPE in windows of 64 with NoPE"),
        ("rope@32~nope", "RoPE in windows with NoPE"),  # of the study
    ],
)
def test_each_part_of_a_name_has_its_title(name: str, title: str) -> None:
    assert titled(name) == title
