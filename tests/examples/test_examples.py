"""Every script of examples/ runs, and prints the numbers of the document that it follows."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

import posenc
from posenc import Positions
from tests.examples.scripts import EXAMPLES, NAMES, load

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


def test_there_is_one_script_per_document() -> None:
    documents = ["derivations", "four_modules", "module_and_plots", "two_encodings", "window"]
    assert (
        sorted(
            [
                *documents,
                "context_parallel",
                "ddp_fsdp",
                "decoder_layer",
                "finetune_long_context",
                "larger_base",
                "sharded_decoding",
                "vit_resolution",
            ]
        )
        == NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_scripts_need_torch_and_posenc_alone(name: str) -> None:
    """Plots are optional, so matplotlib may only be asked for inside a function."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    imported = {alias.name.split(".")[0] for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module).split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)}
    others = {"transformers"} if name == "finetune_long_context" else set()
    own = {"posenc"} if name == "larger_base" else {"torch", "posenc"}
    assert imported - set(sys.stdlib_module_names) == own | others
    assert ast.get_docstring(tree)


def test_two_encodings_prints_the_post_s_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("two_encodings", capsys)
    assert words(RADIANS) in text
    assert words(ENCODINGS) in text
    assert NORMS in text
    assert "printed 2.9995e-02, posenc 2.9996e-02, true 2.9996e-02" in text
    assert "Sinusoidal output (2, 8, 64), 0 parameters" in text
    assert "Learned output (2, 8, 64), 512 parameters" in text
    assert "Learned encodes positions 0 to 7, got 8" in text


def test_the_post_s_digits_are_posenc_s_but_one() -> None:
    """posenc rounds the true value once; the post's table is within one unit of single precision of it."""
    script = load("two_encodings")
    p, channel = torch.arange(4, dtype=torch.float64)[:, None], torch.arange(8)
    angle = p / 10_000 ** ((channel - channel % 2).double() / 8)
    true = torch.where(channel % 2 == 0, angle.sin(), angle.cos())
    ours = script.table(4, 8)
    torch.testing.assert_close(ours, true.float(), rtol=0, atol=0)
    theirs = script.single_precision_table(4, 8)[1]
    different = [
        (row, column)
        for row in range(4)
        for column in range(8)
        if f"{theirs[row, column]:.4e}" != f"{true[row, column]:.4e}"
    ]
    assert different == [(3, 4)]
    torch.testing.assert_close(ours.norm(dim=1), torch.full((4,), 2.0), rtol=6 * 2.0**-24, atol=0)  # sqrt(8/2)


def test_forest_fires_are_told_apart_by_positions_alone() -> None:
    script = load("two_encodings")
    assert script.difference(posenc.NoPE()) < 100 * EPS
    schemes = (posenc.Sinusoidal(64), posenc.Learned(6, 64), posenc.RoPE(64), posenc.ALiBi(1, form="bidirectional"))
    for scheme in schemes:
        assert script.difference(scheme) > 1e-3, type(scheme).__name__


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


def test_the_inner_product_depends_on_the_distance_only() -> None:
    script = load("derivations")
    for distance in (0, 1, 7, 100):
        products = script.inner_products(distance, (0, 3, 1000, 100_000))
        # An angle near 1e5 is off by 1e5 eps, in 64 products of order 1.
        torch.testing.assert_close(products, products[:1].expand(4), rtol=0, atol=64 * 1e5 * EPS)
    turned, product = script.complex_form(7, 3)
    torch.testing.assert_close(turned, product, rtol=0, atol=100 * EPS)


def test_the_hadamard_form_is_the_matrix_form_is_posenc() -> None:
    script = load("derivations")
    for dim, position in ((2, 1), (6, 5), (64, 1000)):
        x = torch.randn(5, dim, dtype=torch.float64)
        by_matrix = x @ script.rotation_matrix(position, dim).mT
        bound = {"rtol": 0, "atol": 10 * (1 + position) * EPS}
        torch.testing.assert_close(script.hadamard_form(x, position), by_matrix, **bound)
        torch.testing.assert_close(script.rotated(x, position, "interleaved"), by_matrix, **bound)


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


def test_the_window_s_vectors_are_those_of_the_lecture() -> None:
    """(query, key): vector, as the lecture names them one by one; position 513 is as good as any."""
    named = {(4, 4): 0, (4, 3): -1, (4, 2): -2, (4, 1): -2, (4, 5): 1, (4, 6): 2, (4, 7): 2}
    named |= {(3, 3): 0, (3, 2): -1, (3, 1): -2}
    script = load("window")
    for start in (1, 513):
        vectors = script.window(Positions.arange(7, start=start))
        assert {pair: int(vectors[pair[0] - 1, pair[1] - 1]) for pair in named} == named
    assert sorted(vectors.unique().tolist()) == [-2, -1, 0, 1, 2]


def test_values_use_the_same_window() -> None:
    """One key at a time gets all the attention, so that what comes out is the vector of that pair."""
    shaw = posenc.Shaw(head_dim=1, max_distance=2, keys=False)
    with torch.no_grad():
        shaw.value_table.copy_(torch.arange(-2.0, 3.0)[:, None])
        zeros = torch.zeros(1, 1, 7, 1)
        for j in range(7):
            seen = (torch.arange(7) == j).expand(7, 7)
            out = posenc.attention(zeros, zeros, zeros, shaw, attn_mask=seen)[0, 0, :, 0]
            assert out.tolist() == [float(min(max(j - i, -2), 2)) for i in range(7)]


def test_the_rock_is_the_same_phrase_early_and_late_in_relative_schemes() -> None:
    script = load("window")
    for name, (kind, scheme) in script.schemes().items():
        moved = script.moved(scheme, 401)
        if kind == "relative":
            assert moved < 64 * 401 * EPS, f"{name} moves by {moved}"
        else:
            assert moved > 0.1, f"{name} moves by {moved} alone"


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


def test_module_and_plots_without_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert "for the plots: python examples/module_and_plots.py FOLDER" in printed("module_and_plots", capsys)


def test_the_module_s_table_is_posenc_s() -> None:
    """Its angles are float32: theta is off by a few roundings (log, product, exp), and so is p theta, p < 100."""
    script = load("module_and_plots")
    module = script.PositionalEncoding(script.D_MODEL, script.MAX_LEN)
    bound = 100 * 10 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(module.pe[:, 0], script.sinusoid(), rtol=0, atol=bound)


def test_the_fox_is_told_apart_by_positions_alone() -> None:
    script = load("module_and_plots")
    assert script.fox_difference(posenc.NoPE()) < 100 * EPS
    # A reversal keeps every |i - j|, so what looks at that alone cannot see it.
    assert script.fox_difference(posenc.ALiBi(1, form="bidirectional")) < 100 * EPS
    for scheme in (posenc.Sinusoidal(64), posenc.Learned(4, 64), posenc.RoPE(64), posenc.ExponentialDecay(64)):
        assert script.fox_difference(scheme) > 1e-3, type(scheme).__name__


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


def test_seven_vectors_stand_for_the_distances_of_the_article_s_table() -> None:
    """Vector n says n, the queries are 1 and the keys 0: the score is the index of the vector."""
    scheme = posenc.Relative1D(4, 1)
    with torch.no_grad():
        scheme.weight.copy_(torch.arange(7.0)[:, None])
        index = posenc.logits(torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 4, 1), scheme)[0, 0]
    meaning = {0: -3, 1: -2, 2: -1, 3: 0, 4: 1, 5: 2, 6: 3}
    assert [[meaning[int(n)] for n in row] for row in index] == [[j - i for j in range(4)] for i in range(4)]


@pytest.mark.parametrize("tokens", [2, 4, 5])
def test_the_first_and_second_module_are_posenc_s(tokens: int) -> None:
    script = load("four_modules")
    q, k = torch.randn(2, 2, script.HEADS, tokens, script.DIM, dtype=torch.float64)
    absolute = posenc.AbsoluteInAttention(tokens, script.DIM).double()
    relative = [posenc.Relative1D(tokens, script.DIM, heads).double() for heads in (None, script.HEADS)]
    pairs = [(absolute, script.absolute_1d), *((scheme, script.relative_1d) for scheme in relative)]
    for scheme, module in pairs:
        with torch.no_grad():
            theirs = script.logits(q, k, module(q, scheme.weight))
            torch.testing.assert_close(posenc.logits(q, k, scheme), theirs, rtol=0, atol=100 * EPS)


@pytest.mark.parametrize(("height", "width"), [(3, 3), (2, 3), (3, 2), (1, 4), (4, 1)])
def test_relative_2d_is_the_loop_over_all_pairs(height: int, width: int) -> None:
    script = load("four_modules")
    scheme = posenc.Relative2D((height, width), script.DIM).double()
    q = torch.randn(2, script.HEADS, height * width, script.DIM, dtype=torch.float64)
    with torch.no_grad():
        truth = script.relative_2d_by_loops(q, scheme.row_table, scheme.column_table, height, width)
    ours = script.position_term(q, scheme, Positions.grid(height, width))
    torch.testing.assert_close(ours, truth, rtol=0, atol=100 * EPS)
