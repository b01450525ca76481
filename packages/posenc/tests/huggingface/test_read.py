"""``posenc read`` says what a model does, and finds the mistakes of ports by the numbers that they give."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from posenc.command.cli import main
from posenc.command.picture import AXES, STILL
from tests.huggingface.test_indexers import FAMILIES as DSA
from tests.huggingface.test_indexers import config_of as of_indexer
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
    config_of("llama", head_dim=2**16, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    for option, file, words in (
        ("--picture", "picture.svg", "a picture must have at most 65536 layers and channels, and llama has 65537"),
        ("--golden", "golden.json", "golden numbers must be of at most 32768 channels in all, and llama has 65536"),
        ("--golden", "golden.txt", "--golden must end with .json or .safetensors, got 'golden.txt'"),
        ("--golden", "no/golden.json", "the folder of 'golden.json' must exist, and there is no '"),
    ):
        assert main(["read", str(tmp_path), option, str(tmp_path / file)]) == 1
        assert words in capsys.readouterr().err
    patched = config_of("llama", posenc_patch="NoPE()")
    patched.save_pretrained(tmp_path)
    for option in ("--picture", "--golden", "--against"):
        file = tmp_path / ("picture.svg" if option == "--picture" else "golden.json")
        assert main(["read", str(tmp_path), option, str(file)]) == 1
        words = "MODEL must be as transformers has it, got one that is patched by posenc: not so in the model itself"
        assert words in capsys.readouterr().err
        assert not file.exists()
    assert main(["read", "llama", "--picture", str(tmp_path / "picture.svg")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("transformers' default configuration of llama\nllama: decoder, 32 layers")


def port(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> tuple[int, Path]:
    """The exit code for the golden file of a tiny model after a change."""
    part = name.partition(" ")[2]
    named = {"whisper encoder": "whisper", "gemma4_text proportional": "gemma4_text"}.get(name, name)
    config = (of_indexer if name in DSA else config_of)(named)
    if "proportional" in part:
        full = {"rope_type": "proportional", "rope_theta": 3e3, "partial_rotary_factor": 0.5}
        config.rope_parameters["full_attention"] = full
    config.save_pretrained(tmp_path)
    file = tmp_path / "golden.json"
    more = ["--part", part] if part == "encoder" else []
    assert main(["read", str(tmp_path), "--golden", str(file), *more]) == 0
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))
    return main(["read", str(tmp_path), "--against", str(file), *more]), file


def turned(kind: int, *scheme: Any, offset: int = 0, times: float = 1.0, **options: Any) -> Callable[..., None]:
    """A port that turns by another RoPE, in float32 and with formulas of its own. ``base`` may be the frequencies."""

    def change(record: dict[str, Any]) -> None:
        row = record["kinds"][kind]
        base, layout, width, first = scheme
        of = options.get("of", width)
        theta = base if isinstance(base, list) else [base ** (-2 * k / of) for k in range(width // 2)]
        by = options.get("angle", lambda place, each: place * each)
        axes = options.get("axes", [0] * len(theta))
        for side in options.get("sides", ("query", "key")):
            x = torch.tensor(row[f"{side}_before"])
            for token, place in enumerate(row["positions"]):
                for k, each in enumerate(theta):
                    a, b = (k, k + width // 2) if layout == "half" else (2 * k, 2 * k + 1)
                    at = (place[axes[k]] if isinstance(place, list) else place) + offset
                    angle = by(torch.tensor(float(at)), torch.tensor(each, dtype=torch.float32)).float()
                    c, s = ((f() * times).to(options.get("table", torch.float32)) for f in (angle.cos, angle.sin))
                    p, q = x[token, [first + a, first + b]]
                    x[token, first + a], x[token, first + b] = (
                        p * c.float() - q * s.float(),
                        p * s.float() + q * c.float(),
                    )
            row[f"{side}_after"] = x.tolist()

    return change


def rounded(dtype: torch.dtype, at: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Angles with positions or products of another dtype."""
    if at == "positions":
        return lambda place, theta: place.to(dtype).double() * theta
    if at == "inv_freq":
        return lambda place, theta: place.double() * theta.to(dtype).double()
    if at == "exact":
        return lambda place, theta: (place.double() * theta).to(dtype).double()
    return lambda place, theta: (place.to(dtype) * theta.to(dtype)).double()


def times(name: str, factor: float) -> Callable[..., None]:
    """A port that multiplies some numbers."""

    def change(record: dict[str, Any]) -> None:
        for row in record["kinds"]:
            for each in (name,) if name == "scores" else ("query_after", "key_after"):
                row[each] = (torch.tensor(row[each], dtype=torch.float64) * factor).tolist()

    return change


def added(bias: Callable[[int, Tensor], Tensor]) -> Callable[..., None]:
    """A port's scores with a bias by the number of heads and the distance."""

    def change(record: dict[str, Any]) -> None:
        for row in record["kinds"]:
            q, k = (torch.tensor(row[name], dtype=torch.float64) for name in ("query_after", "key_after"))
            p = torch.tensor(row["positions"], dtype=torch.float64)
            row["scores"] = (q @ k.T * row["scale"] + bias(3, p[:, None] - p)).tolist()

    return change


def sinusoids(by: int, base: float) -> Callable[..., None]:
    """Sinusoids of other positions or another base."""

    def change(record: dict[str, Any]) -> None:
        p = torch.tensor(record["input"]["positions"], dtype=torch.float64) + by
        angle = p[:, None] * base ** (-torch.arange(18, dtype=torch.float64) / 17)
        record["input"]["rows"] = torch.cat((angle.sin(), angle.cos()), -1).tolist()

    return change


def yarn(record: dict[str, Any]) -> None:
    """NTK's base for the pairs that YaRN keeps, with the rest of the formula written out: 20 channels, 4 times 64."""
    theta = [1e6 ** (-k / 10) for k in range(10)]
    low, high = (10 * math.log(64 / (turns * 2 * math.pi)) / math.log(1e6) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), 19)
    kept = [1 - min(max((k - low) / (high - low), 0), 1) for k in range(10)]
    mixed = [g * t * 4 ** (-k / 9) + (1 - g) * t / 4 for k, (g, t) in enumerate(zip(kept, theta, strict=True))]
    turned(0, mixed, "half", 20, 0, times=0.1 * math.log(4) + 1)(record)


GEMMA = [1e4 ** (-k / 10) for k in range(10)]
VL = [5e5 ** (-k / 10) for k in range(10)]
OF_QWEN = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
SWAPPED = [(0, 2, 1)[axis] for axis in OF_QWEN]
MISTAKES: list[tuple[str, Callable[..., None], str]] = [
    ("cohere", turned(0, 3e4, "half", 12, 0), "half pairs for interleaved"),
    ("gpt_neox", turned(0, 3e4, "interleaved", 6, 0), "interleaved pairs for half"),
    ("gpt_neox", turned(0, 3e4, "half", 12, 0), "all 12 channels turned"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, of=12), "the frequencies of 12 channels on 6"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, offset=1), "positions off by +1"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 6), "the last channels for the first"),
    ("llama linear", turned(0, 7e3, "half", 12, 0), "without the scaling"),
    ("llama dynamic", turned(0, 7e3, "half", 12, 0), "without the scaling"),
    (
        "gemma4_text proportional",
        turned(1, [3e3 ** (-k / 14) for k in range(7)], "half", 14, 0),
        "pairs within the first 14 channels",
    ),
    ("gemma4_text proportional", turned(1, 3e3, "half", 14, 0), "only the first 14 channels turned"),
    (
        "gemma3_text",
        turned(0, [t / 8 for t in GEMMA], "half", 20, 0),
        "the scaling of layer 2 or frequencies divided by 8",
    ),
    ("gemma3_text", turned(0, 1e6, "half", 20, 0), "the base of layer 2"),
    ("gemma3_text", turned(1, 1e6, "half", 20, 0), "without the scaling or the scaling of layer 0"),
    ("gemma4_text", turned(0, 1e6, "half", 20, 0), "the base of layer 1"),
    ("qwen3_vl_text", turned(0, VL, "half", 20, 0, axes=[0] * 10), "the time axis for all pairs"),
    ("qwen3_vl_text", turned(0, VL, "half", 20, 0, axes=SWAPPED), "row and column swapped"),
    ("qwen3_vl_text", turned(0, VL, "half", 20, 0, axes=sorted(OF_QWEN)), "axes in sections"),
    ("qwen3_5_text", turned(0, 3e4, "half", 20, 0, axes=[0, 1, 2, 0, 1, 2] + [0] * 4), "all 20 channels turned"),
    ("qwen3", times("rotation", 0.1 * math.log(4) + 1), "the factor of cos and sin twice"),
    ("qwen3", times("scores", (0.1 * math.log(4) + 1) ** 2), "the factor of cos and sin in the scale too"),
    ("ministral3", times("rotation", 0.1 * math.log(4) + 1), "a factor of 1.139 of cos and sin"),
    ("qwen3", yarn, "NTK's base for the fast pairs"),
    (
        "gpt_neox",
        turned(0, 3e4, "half", 6, 0, angle=rounded(torch.bfloat16, "positions")),
        "positions rounded to bfloat16",
    ),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, angle=rounded(torch.bfloat16, "angles")), "angles rounded to bfloat16"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, angle=rounded(torch.float16, "angles")), "angles rounded to float16"),
    (
        "gpt_neox",
        turned(0, 3e4, "half", 6, 0, angle=rounded(torch.bfloat16, "inv_freq")),
        "inv_freq rounded to bfloat16",
    ),
    (
        "gpt_neox",
        turned(0, 3e4, "half", 6, 0, angle=rounded(torch.bfloat16, "exact")),
        "exact angles rounded to bfloat16",
    ),
    (
        "gpt_neox",
        turned(0, 3e4, "half", 6, 0, angle=rounded(torch.float16, "exact")),
        "exact angles rounded to float16",
    ),
    ("gpt_neox", turned(0, 5e5, "half", 6, 0), "a base of 500000"),
    ("gpt_neox", turned(0, 1e6, "half", 6, 0), "a base of 1000000"),
    *[
        ("gpt_neox", turned(0, [3e4 ** (-k / 3) / by for k in range(3)], "half", 6, 0), f"frequencies divided by {by}")
        for by in (2, 4, 8)
    ],
    ("cohere", turned(0, 3e4, "interleaved", 6, 0), "only the first 6 channels turned"),
    ("cohere", turned(0, 3e4, "interleaved", 6, 0, of=12), "pairs within the first 6 channels"),
    ("gpt_neox", turned(0, 3e4, "half", 6, 0, table=torch.bfloat16), "cos and sin rounded to bfloat16"),
    ("gemma2", times("scores", 1.5), "no mistake that is known"),
    ("bloom", added(lambda heads, r: 0 * r), "without ALiBi"),
    ("bloom", added(lambda heads, r: -r * 2.0**-8), "its slopes off by a head or slopes 2^(-8h/H)"),
    ("bloom", added(lambda heads, r: -r * 2.0**-2 / 4), "its bias times the scale"),
    ("whisper encoder", sinusoids(1, 1e4), "positions off by +1"),
    ("whisper encoder", sinusoids(0, 1e6), "a base of 1000000"),
]
"""Most of them are of public reports about ports."""


@pytest.mark.parametrize(("name", "change", "words"), MISTAKES, ids=[row[2] for row in MISTAKES])
def test_the_mistake_of_a_port_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[..., None], words: str
) -> None:
    code, file = port(tmp_path, name, change)
    out, err = capsys.readouterr()
    assert code == 1
    assert f": {words} (off by " in out
    assert f"{file} differs in " in err


def test_a_right_port_in_float32_is_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = port(tmp_path, "gpt_neox", turned(0, 3e4, "half", 6, 0))
    assert code == 0
    assert "layer 0 and 3 more: equal" in capsys.readouterr().out


INDEXER: list[tuple[str, Callable[..., None], str]] = [
    ("axk2", turned(1, 3e4, "half", 12, 0), "equal"),
    ("axk2", turned(1, 3e4, "interleaved", 12, 0), "interleaved pairs for half"),
    ("axk2", turned(1, 3e4, "half", 12, 8), "the last channels for the first"),
    ("axk2", turned(1, 3e4, "interleaved", 12, 8), "interleaved pairs of the last channels"),
    ("axk2", turned(1, 3e4, "half", 12, 0, offset=1), "positions off by +1"),
    ("axk2", turned(1, 3e4, "half", 12, 0, offset=1, sides=("key",)), "positions of keys off by +1"),
    ("axk2", turned(1, 3e4, "half", 12, 0, of=20), "the frequencies of 20 channels on 12"),
    ("glm_moe_dsa", turned(-1, 3e4, "half", 12, 0), "half pairs for interleaved"),
    ("hy_v4", turned(-1, 3e4, "half", 12, 0), "the first channels for the last"),
]


@pytest.mark.parametrize(("name", "change", "words"), INDEXER, ids=[f"{row[0]} {row[2]}" for row in INDEXER])
def test_the_mistake_of_an_indexer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[..., None], words: str
) -> None:
    code, file = port(tmp_path, name, change)
    lines = capsys.readouterr().out.splitlines()
    row = json.loads(file.read_text())["kinds"][-1]
    assert (row["part"], row["heads"], row["top_k"]) == ("indexer", 13, 7)
    assert code == (words != "equal")
    assert lines[1].startswith("layer 0")
    assert lines[1].endswith(": equal")
    assert lines[-1].startswith("the indexer of layer 0")
    assert f": {words}" in lines[-1]


def test_an_indexer_is_printed_as_the_line_that_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_indexer("axk2").save_pretrained(tmp_path)
    assert main(["read", str(tmp_path)]) == 0
    made = "posenc.Indexer(13, posenc.RoPE(20, base=30000.0, layout='half', rotary_dim=12, axes=1), top_k=7)"
    assert f"indexer of layer 0\n  {made}\n" in capsys.readouterr().out


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


FILES: list[tuple[Any, str]] = [
    (lambda record: record.clear(), "must be a file that --golden wrote, with a port's numbers: KeyError('kinds')"),
    (lambda record: record["kinds"].clear(), "must have the layers [[0, 1, 2, 3]], got []"),
    (lambda record: record["kinds"][0].update(key_after=[[1.0]]), "must be (8, 12), got (1, 1)"),
    (lambda record: record["kinds"][0]["query_after"][5].__setitem__(2, math.nan), "is not finite: row 5 has nan"),
    (lambda record: record["kinds"][0].update(key_before=[[0.0] * 12] * 8), "key_before of "),
    (lambda record: record["kinds"][0].update(positions=[1]), "positions of "),
    (lambda record: record["kinds"][0].update(key_after="x"), "must have numbers in key_after of layer 0: TypeError"),
]


@pytest.mark.parametrize(("change", "words"), FILES, ids=[row[1][:30] for row in FILES])
def test_a_file_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    code, _ = port(tmp_path, "gpt_neox", change)
    assert code == 1
    assert words in capsys.readouterr().err


def test_what_is_learned_is_named_and_what_is_added_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, line in (("gpt2", "input: learned, and not compared"), ("t5", "layer 0 and 1 more: learned, and not")):
        code, _ = port(tmp_path, name, lambda record: None)
        assert code == 0
        assert line in capsys.readouterr().out
    code, file = port(tmp_path, "bloom", lambda record: None)
    assert code == 0
    row = json.loads(file.read_text())["kinds"][0]
    q, k = (torch.tensor(row[name], dtype=torch.float64) for name in ("query_after", "key_after"))
    p = torch.tensor(row["positions"], dtype=torch.float64)
    expected = q @ k.T * row["scale"] - 2.0**-2 * (p[:, None] - p)  # the last of three heads
    torch.testing.assert_close(torch.tensor(row["scores"], dtype=torch.float64), expected, rtol=1e-12, atol=1e-12)


def test_places_are_those_that_a_learned_table_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "gpt2.json")
    assert main(["read", "gpt2", "--golden", file]) == main(["read", "gpt2", "--against", file]) == 0
    record = json.loads(Path(file).read_text())
    kind = record["kinds"][0]
    assert record["input"]["positions"] == kind["positions"] == [0, 1, 2, 5, 37, 301]  # of 1,024
    assert {len(kind[name]) for name in ("key_before", "query_after", "scores")} == {len(kind["scores"][0])} == {6}
    assert main(["read", "openai-community/gpt2"]) == 1
    assert "nothing is downloaded: run hf download openai-community/gpt2" in capsys.readouterr().err


def test_safetensors_hold_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    config_of("m2m_100").save_pretrained(tmp_path)
    files = [tmp_path / f"golden.{end}" for end in ("json", "safetensors")]
    for file in files:
        assert main(["read", str(tmp_path), "--golden", str(file)]) == 0
        assert main(["read", str(tmp_path), "--against", str(file)]) == 0
    record = json.loads(files[0].read_text())
    with safe_open(files[1], framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    for name, x in tensors.items():
        row = record["input"] if name.startswith("input") else record["kinds"][int(name.split(".")[1])]
        assert x.tolist() == row[name.rsplit(".", 1)[1]]
    wrong = {name: x.float() * (1.5 if name.endswith("query_after") else 1.0) for name, x in tensors.items()}
    save_file(wrong, files[1], metadata)
    assert main(["read", str(tmp_path), "--against", str(files[1])]) == 1
    assert "no mistake that is known (off by" in capsys.readouterr().out
    save_file(tensors, files[1])
    assert main(["read", str(tmp_path), "--against", str(files[1])]) == 1
    assert "KeyError('posenc')" in capsys.readouterr().err
    files[1].write_bytes(b"no safetensors")
    assert main(["read", str(tmp_path), "--against", str(files[1])]) == 1
    assert "must be a file that --golden wrote, with a port's numbers" in capsys.readouterr().err
