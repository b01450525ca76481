"""``posenc read`` says what a model does, and finds the mistakes of ports by the numbers that they give."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

pytest.importorskip("transformers")

from posenc import RoPE
from posenc.command.cli import main
from posenc.command.picture import AXES, STILL
from tests.huggingface.tiny_models import config_of


def test_it_says_what_a_family_a_file_and_a_folder_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "gemma3_text"]) == 0
    out = capsys.readouterr().out
    assert "window of 4096 keys" in out
    assert "scheme of layer 5\n  posenc.RoPE(256, base=1000000.0, layout='half', rotary_dim=256, axes=1)" in out
    config_of("olmo3").save_pretrained(tmp_path)
    for place in (tmp_path, tmp_path / "config.json"):
        assert main(["read", str(place)]) == 0
        assert "olmo3: decoder, 4 layers" in capsys.readouterr().out
    assert main(["read", "lama"]) == 1
    assert "a family of transformers, got 'lama' (did you mean 'llama'?)" in capsys.readouterr().err
    assert main(["read", "gpt2", "--golden", str(tmp_path / "golden.json")]) == 1
    assert "gpt2 adds Learned to its input" in capsys.readouterr().err


PICTURES: list[tuple[str, dict[str, int], tuple[str, ...]]] = [
    ("gpt_neox", {STILL: 6 + 1}, ("layers 0-3", "channels", "whole text", "4,096 tokens", "does not turn")),
    ("qwen3", {STILL: 1}, ("trained length 64",)),
    ("gemma2", {STILL: 1}, ("layers 0, 2", "window of 4 keys", "layers 1, 3")),
    ("llama4_text", {STILL: 1}, ("chunks of 5 tokens", "QueryScale('llama4', length=4, strength=0.3)")),
    ("gpt_oss", {}, ("a sink per head",)),
    ("deepseek_v3", {STILL: 5 + 1}, ("RoPE, base 20000, channels 5..16 of 17",)),
    ("qwen3_vl_text", {STILL: 1, AXES[1][1]: 6, AXES[2][1]: 6}, ("time", "row", "column")),
    ("gpt2", {STILL: 0}, ("Added to the input: Learned(4096, 36)", "no positions in attention")),
    ("bloom", {STILL: 1}, ("heads", "colour: tokens over which the score of a head falls by 1")),
    ("phi3", {STILL: 1}, ("window of 5 keys",)),
]
"""How many boxes have a colour, and what is written."""


@pytest.mark.parametrize(("name", "boxes", "written"), PICTURES, ids=[row[0] for row in PICTURES])
def test_the_picture_has_every_channel_and_says_what_layers_do(
    tmp_path: Path, name: str, boxes: dict[str, int], written: tuple[str, ...]
) -> None:
    config_of(name).save_pretrained(tmp_path)
    file = tmp_path / "picture.svg"
    assert main(["read", str(tmp_path), "--picture", str(file)]) == 0
    svg = ElementTree.parse(file).getroot()
    fills = Counter(each.get("fill") for each in svg.findall("{*}rect"))
    assert {colour: fills[colour] for colour in boxes} == boxes
    texts = [str(each.text) for each in svg.findall("{*}text")]
    assert all(any(words in text for text in texts) for words in written), texts
    room = [float(svg.get(side, "nan")) for side in ("width", "height")]
    for each in svg.findall("{*}rect"):
        ends = [float(each.get(at, 0)) + float(each.get(size, 0)) for at, size in (("x", "width"), ("y", "height"))]
        assert ends[0] <= room[0]
        assert ends[1] <= room[1]


def test_a_picture_is_an_svg_of_bounded_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "llama", "--picture", "picture.png"]) == 1
    assert "--picture must end with .svg, which browsers show, got 'picture.png'" in capsys.readouterr().err
    config_of("llama", head_dim=2**16).save_pretrained(tmp_path)
    assert main(["read", str(tmp_path), "--picture", str(tmp_path / "picture.svg")]) == 1
    words = "a picture must have at most 65536 layers and channels, and llama has 65540"
    assert words in capsys.readouterr().err


def port(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> tuple[int, Path]:
    """The exit code for the golden file of a tiny model after a change."""
    config_of(name).save_pretrained(tmp_path)
    file = tmp_path / "golden.json"
    assert main(["read", str(tmp_path), "--golden", str(file)]) == 0
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))
    return main(["read", str(tmp_path), "--against", str(file)]), file


def turned(kind: int, *scheme: Any, offset: int = 0, times: float = 1.0, **options: Any) -> Callable[..., None]:
    """A port that turns by another RoPE, in float32 and with formulas of its own."""

    def change(record: dict[str, Any]) -> None:
        row = record["kinds"][kind]
        base, layout, width, first = scheme
        for side in ("query", "key"):
            x = torch.tensor(row[f"{side}_before"])
            for token, place in enumerate(row["positions"]):
                for k in range(width // 2):
                    a, b = (k, k + width // 2) if layout == "half" else (2 * k, 2 * k + 1)
                    angle = torch.tensor((place + offset) * base ** (-2 * k / options.get("of", width)))
                    c, s, p, q = angle.cos() * times, angle.sin() * times, *x[token, [first + a, first + b]]
                    x[token, first + a], x[token, first + b] = p * c - q * s, p * s + q * c
            row[f"{side}_after"] = x.tolist()

    return change


MISTAKES: list[tuple[str, Callable[..., None], str]] = [
    ("cohere", turned(0, 3e4, "half", 12, 0), "half pairs for interleaved"),
    ("gpt_neox", turned(0, 3e4, "interleaved", 6, 0), "interleaved pairs for half"),
    ("gpt_neox", turned(0, 3e4, "half", 12, 0), "all 12 channels turned"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, of=12), "the frequencies of 12 channels on 6"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, offset=1), "positions off by +1"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 6), "the last channels for the first"),
    ("llama linear", turned(0, 7e3, "half", 12, 0), "without the scaling"),
]


@pytest.mark.parametrize(("name", "change", "words"), MISTAKES, ids=[row[2] for row in MISTAKES])
def test_the_mistake_of_a_port_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[..., None], words: str
) -> None:
    code, file = port(tmp_path, name, change)
    out, err = capsys.readouterr()
    assert code == 1
    assert f": {words} (off by " in out
    assert f"{file} differs in 1 of 1 kinds of layers" in err


def test_a_right_port_in_float32_is_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = port(tmp_path, "gpt_neox", turned(0, 3e4, "half", 6, 0))
    assert code == 0
    assert "layer 0 and 3 more: equal" in capsys.readouterr().out


def test_the_other_layers_rotation_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def swap(record: dict[str, Any]) -> None:
        first, second = record["kinds"]
        for name in ("query_after", "key_after"):
            first[name], second[name] = second[name], first[name]

    code, _ = port(tmp_path, "gemma3_text", swap)
    out = capsys.readouterr().out
    assert code == 1
    assert "layer 0 and 2 more: what layer 2 does" in out
    assert "layer 2: what layer 0 does" in out


def test_the_factor_twice_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factor = float(RoPE(20, scaling=_yarn()).frequencies()[1])

    def twice(record: dict[str, Any]) -> None:
        for name in ("query_after", "key_after"):
            row = record["kinds"][0]
            row[name] = (torch.tensor(row[name]) * factor).tolist()

    code, _ = port(tmp_path, "qwen3", twice)
    assert code == 1
    assert "the factor of cos and sin twice (off by" in capsys.readouterr().out


def _yarn() -> Any:
    from posenc.rotation.scalings import YaRN

    return YaRN(4.0, 64)


FILES: list[tuple[Any, str]] = [
    (lambda record: record.clear(), "must be a file that --golden wrote, with a port's numbers: KeyError('kinds')"),
    (lambda record: record["kinds"].clear(), "must have the layers [[0, 1, 2, 3]], got []"),
    (lambda record: record["kinds"][0].update(key_after=[[1.0]]), "must be (8, 12), got (1, 1)"),
    (lambda record: record["kinds"][0].update(key_after="x"), "must have numbers in key_after of layer 0: TypeError"),
]


@pytest.mark.parametrize(("change", "words"), FILES, ids=[row[1][:30] for row in FILES])
def test_a_file_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    code, _ = port(tmp_path, "gpt_neox", change)
    assert code == 1
    assert words in capsys.readouterr().err


def test_golden_numbers_are_of_rotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "bloom", "--golden", str(tmp_path / "golden.json")]) == 1
    assert "golden numbers are of rotated queries and keys, and layer 0 has ALiBi" in capsys.readouterr().err
