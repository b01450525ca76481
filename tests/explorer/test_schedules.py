"""The page's schedules are those of posenc.schedules, layer by layer."""

import json

import pytest

from posenc import Chunk, schedules
from posenc.explorer.schedules import families
from posenc.tiles import check_window

READY = ["cohere2", "deepseek_v3", "gemma3", "gpt_oss", "llama4", "smollm3"]


def test_every_ready_schedule_is_there() -> None:
    assert sorted(family["name"] for family in families()) == READY
    assert json.loads(json.dumps(families(), allow_nan=False)) == families()


@pytest.mark.parametrize("name", READY)
def test_each_layer_has_its_scheme_doors_and_window(name: str) -> None:
    (family,) = [one for one in families() if one["name"] == name]
    schedule = getattr(schedules, name)()
    assert len(family["layers"]) == len(schedule)
    for number, (scheme, window) in zip(family["layers"], schedule, strict=True):
        kind = family["kinds"][number]
        assert kind["scheme"] == repr(scheme)
        assert kind["doors"] == list(scheme.doors)
        if isinstance(window, Chunk):
            assert kind["window"] == {"chunk": window.size}
        else:
            assert tuple(kind["window"].values()) == check_window(window)


def test_titles_and_words_are_those_of_the_models() -> None:
    said = {family["name"]: family for family in families()}
    assert said["gpt_oss"]["title"] == "gpt-oss"
    assert said["gemma3"]["about"].startswith("five layers with a window")
    assert [kind["words"] for kind in said["llama4"]["kinds"]] == ["chunks of 8192 tokens", "whole text"]
    assert said["llama4"]["layers"][:5] == [0, 0, 0, 1, 0]
