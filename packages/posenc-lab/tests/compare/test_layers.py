"""Names of schemes by layer, with windows."""

from pathlib import Path

import pytest

from posenc.schedule import Schedule
from posenc.schemes.entry import Shape
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE
from posenc_lab.compare.compare import build_model, check, compare
from posenc_lab.compare.task import entries, position_from
from tests.compare.tiny_comparison import small_config, write_text

SHAPE = Shape(32, 2, 16, 64)
OWN = "import posenc\n\n\nclass Mine(posenc.ALiBi):\n    pass\n"


def test_layers_take_their_schemes_by_turns_and_share_them() -> None:
    schedule = position_from("rope@32~rope@8~nope", SHAPE, 5)
    assert isinstance(schedule, Schedule)
    assert [window for _, window in schedule] == [32, 8, None, 32, 8]
    schemes = [scheme for scheme, _ in schedule]
    assert [type(scheme) for scheme in schemes] == [RoPE, RoPE, NoPE, RoPE, RoPE]
    assert schemes[0] is schemes[1] is schemes[3]
    assert [entry.name for entry in entries("rope@32~rope@8~nope")] == ["rope", "nope"]


@pytest.mark.parametrize("names", ["rope@", "rope@0", "rope@-1", "rope@x", "rope@1.5", "rope@\u0663"])
def test_a_window_that_is_none_is_an_error(names: str) -> None:
    with pytest.raises(ValueError, match="schemes must have a number of tokens after @, got 'rope@"):
        entries(names)


def test_more_schemes_than_layers_are_an_error(tmp_path: Path) -> None:
    config = small_config(tmp_path, schemes=("rope~nope",), layers=1)
    with pytest.raises(ValueError, match="schemes must name a scheme for each of 1 layers at most, got 'rope~nope'"):
        build_model(config, "rope~nope", 0)
    with pytest.raises(ValueError, match="scheme must be one of "):
        check(small_config(tmp_path, schemes=("rope~what",), layers=2))


def test_layers_are_compared_with_schemes_of_ones_own_too(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    names = f"nope~{tmp_path}/my.py:Mine@8"
    config = small_config(write_text(tmp_path / "text"), schemes=(names, "rope@4~nope"), layers=2, steps=1)
    records = compare(config, tmp_path / "out")
    assert {record["scheme"] for record in records} == {names, "rope@4~nope"}
    assert all(record["source"] for record in records if record["scheme"] == names)
    assert [len(r["bits"]) for r in records if (r["kind"], r.get("length")) == ("sliding", 128)] == [8, 8]
