"""Every script of examples/ runs, and prints the numbers of the document that it follows."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples.scripts import EXAMPLES, load

EPS = torch.finfo(torch.float64).eps

# What the post on two encodings prints for 4 positions and 8 channels.
RADIANS = """
radians=tensor([[0.0000e+00, 0.0000e+00, 0.0000e+00, 0.0000e+00, 0.0000e+00, 0.0000e+00, 0.0000e+00, 0.0000e+00],
        [1.0000e+00, 1.0000e+00, 1.0000e-01, 1.0000e-01, 1.0000e-02, 1.0000e-02, 1.0000e-03, 1.0000e-03],
        [2.0000e+00, 2.0000e+00, 2.0000e-01, 2.0000e-01, 2.0000e-02, 2.0000e-02, 2.0000e-03, 2.0000e-03],
        [3.0000e+00, 3.0000e+00, 3.0000e-01, 3.0000e-01, 3.0000e-02, 3.0000e-02, 3.0000e-03, 3.0000e-03]])
"""
ENCODINGS = """
encodings=tensor([[ 0.0000e+00, 1.0000e+00, 0.0000e+00, 1.0000e+00, 0.0000e+00, 1.0000e+00, 0.0000e+00, 1.0000e+00],
        [ 8.4147e-01, 5.4030e-01, 9.9833e-02, 9.9500e-01, 9.9998e-03, 9.9995e-01, 1.0000e-03, 1.0000e+00],
        [ 9.0930e-01, -4.1615e-01, 1.9867e-01, 9.8007e-01, 1.9999e-02, 9.9980e-01, 2.0000e-03, 1.0000e+00],
        [ 1.4112e-01, -9.8999e-01, 2.9552e-01, 9.5534e-01, 2.9995e-02, 9.9955e-01, 3.0000e-03, 1.0000e+00]])
"""
NORMS = "encodings.norm(dim=1)=tensor([2., 2., 2., 2.])"


def words(text: str) -> str:
    return " ".join(text.split())


def printed(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the script prints, with its white space made one space."""
    script = load(name)
    if name == "module_and_plots":
        script.main(list(arguments))
    else:
        script.main()
    return words(capsys.readouterr().out)


def figure(text: str, before: str) -> float:
    """The number that is printed after these words."""
    found = re.search(re.escape(before) + r"\s*([-+]?[\d.]+(?:e[-+]?\d+)?)", text)
    assert found, f"{before!r} is not printed"
    return float(found[1])


def test_two_encodings_prints_the_post_s_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("two_encodings", capsys)
    assert words(RADIANS) in text
    assert words(ENCODINGS) in text
    assert NORMS in text
    assert "printed 2.9995e-02, posenc 2.9996e-02, true 2.9996e-02" in text
    assert "Sinusoidal output (2, 8, 64), 0 parameters" in text
    assert "Learned output (2, 8, 64), 512 parameters" in text
    assert "Learned encodes positions 0 to 7, got 8" in text


def test_a_layer_by_hand_is_the_layer_with_a_forward_pass(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("decoder_layer", capsys)
    assert figure(text, "by hand and by ForwardPass differ by") == 0
    for row, length in enumerate((3, 5)):
        assert figure(text, f"text {row}, of {length} and 4 tokens, differs from one pass over it by") < 1e-6


def test_a_vision_transformer_sees_the_same_picture_at_another_resolution(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("vit_resolution", capsys)
    # Half a patch of the large grid within the edges of the small one: 1/3 - 1/2 and 8 - 1/3 - 1/2.
    assert "coordinates of 12 x 12 patches over 8 x 8: -0.167 to 7.167" in text
    assert figure(text, "the same grid as its own extent changes the class token by") == 0
    with_extent = figure(text, "patches with the extent change it by")
    assert 0 < 1.5 * with_extent < figure(text, "patches with plain coordinates change it by")


def test_derivations(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("derivations", capsys)
    for distance in (0, 1, 7):
        spread = re.search(rf"n - m = {distance}: [-+.\d]+ from m = 0, (?:and )?within ([-.\de]+) of it", text)
        assert spread
        assert float(spread[1]) < 64 * 1e5 * EPS  # angles up to 1e5, rounded; 64 products of order 1
    assert figure(text, "|R x - Hadamard form| <=") < 10 * EPS
    assert figure(text, "posenc.RoPE(layout='interleaved')| <=") < 10 * EPS
    assert "matrix: 128 of 4096 entries are not 0" in text
    for offset in ("1", "10", "100"):
        assert figure(text, f"k = {offset}: off by at most") < 1100 * EPS
    assert "8 heads: 2^-h for h = 1, 2, 3, 4, 5, 6, 7, 8 12 heads" in text
    assert "12 heads: 2^-h for h = 1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5" in text
    assert figure(text, "logit; the sum is off by at most") < 100 * EPS
    assert "f(0) = 1:" in text
    assert "f -> 0 far away, for w < 0" in text
    assert "f -> 8.3891 far away, for w > 0: the bound 1 + e^v = 8.3891" in text
    assert "monotone in the distance: True" in text
    assert "the far one keeps 4.7% of the attention" in text  # 1 / (1 + e^3)
    for distance in (10, 100, 1000):
        assert f"a key made for r = {distance}: its score is highest at r = {distance}," in text
    # Computed once more, outside this library: the bound for d = 128.
    assert "32.50 at r = 0, 17.95 at r = 10, 12.63 at r = 50, 10.23 at r = 100, 6.78 at r = 255" in text


def test_window(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("window", capsys)
    assert "from 4: w_ -2 -2 -1 +0 +1 +2 +2" in text
    assert "from 3: w_ -2 -1 +0 +1 +2 +2 +2" in text
    assert "vectors at 1, 2: [[0, 1], [-1, 0]]" in text
    assert "vectors at 401, 402: [[0, 1], [-1, 0]]" in text
    for line in (
        "absolute Learned yes none none yes",
        "absolute AbsoluteInAttention yes none none yes",
        "frequency-based Sinusoidal no has a place has a place yes",
        "relative Shaw, window 2 no has a place has a place no",
        "relative TransformerXL no has a place has a place no",
        "relative RoPE no has a place has a place no",
        "relative ALiBi no has a place has a place no",
    ):
        assert line in text


def test_module_and_plots(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = printed("module_and_plots", capsys, str(tmp_path / "plots"))
    for name in ("channels.png", "heatmap.png"):
        assert f"wrote {tmp_path / 'plots' / name}" in text
        assert (tmp_path / "plots" / name).stat().st_size > 1000
    assert "word p gets the vector of position p: True" in text
    assert "every word of text b gets the vector of position b: True" in text
    assert "posenc, batch first: word p gets it: True" in text
    assert "x must be (batch, 5, 512) to add positions to, got (5, 2, 512)" in text
    assert "channel 0: 1.00000 radians per position" in text
    assert "channel 448: 0.00032 radians per position" in text


def test_four_modules(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("four_modules", capsys)
    assert figure(text, "posenc.AbsoluteInAttention's by") < 100 * EPS
    assert len(re.findall(r"posenc\.Relative1D's by \d+e-1[5-9]", text)) == 2
    # The article's table for four tokens.
    rows = ("0 -3 d(i, i - 3)", "1 -2 d(i, i - 2)", "2 -1 d(i, i - 1)", "3 0 d(i, i)")
    rows += ("4 +1 d(i, i + 1)", "5 +2 d(i, i + 2)", "6 +3 d(i, i + 3)")
    assert " ".join(rows) in text
    assert "[3, 4, 5, 6] [2, 3, 4, 5] [1, 2, 3, 4] [0, 1, 2, 3]" in text
    assert figure(text, "3 x 3: posenc is off by") < 100 * EPS
    assert figure(text, "2 x 3: posenc is off by") < 100 * EPS
    assert figure(text, "3 x 3: the published module is off by") > 1
    assert figure(text, "with its second term turned back, by") < 100 * EPS
    assert "2 x 3: the published module fails" in text


def test_drope_finds_facts_further_away_than_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    text = printed("drope", capsys)
    for tokens, before in ((32, 90), (128, 60), (512, 50)):
        assert figure(text, f"trained again, {tokens} tokens:") > 85
        assert (figure(text, f"with RoPE, {tokens} tokens:") > before) == (tokens == 32)
    assert figure(text, "dropped, 32 tokens:") < 70


def test_port_numbers_need_numpy_alone(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from posenc.command.cli import main

    for base, said in ((10_000.0, "equal"), (20_000.0, "off by")):
        sizes = {"model_type": "llama", "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
        (tmp_path / "config.json").write_text(json.dumps(sizes | {"rope_theta": base}))
        file = tmp_path / "golden.json"
        assert main(["read", str(tmp_path), "--golden", str(file)]) == 0
        code = (
            "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__');"
            "print(sorted({'torch', 'posenc'} & set(sys.modules)))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, str(EXAMPLES / "port_numbers.py"), str(file)],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = run.stdout.splitlines()
        assert [line.split(": ")[0] for line in lines[:-1]] == ["layers [0, 1], query", "layers [0, 1], key"]
        assert all(line.split(": ")[1].startswith(said) for line in lines[:-1])
        assert lines[-1] == "[]"
