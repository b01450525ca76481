"""The opposite of what well-known introductions get wrong: docs/silent-mistakes.md, statement by statement."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions
from posenc_lab.explore import data
from tests.examples.scripts import load

EPS = torch.finfo(torch.float64).eps
PAGE = Path(__file__).parents[2] / "docs" / "silent-mistakes.md"


def turns(dim: int, position: int) -> Tensor:
    """Radians that each channel pair goes on from this position to the next, read off the table, within 0 .. 2 pi."""
    table = posenc.Sinusoidal(dim).table(Positions.arange(2, start=position), torch.float64)[0]
    angle = torch.atan2(table[:, 0::2], table[:, 1::2])
    return (angle[1] - angle[0]).remainder(math.tau)


@pytest.mark.parametrize("dim", [4, 64, 512])
def test_low_channels_are_the_fast_ones(dim: int) -> None:
    turn = turns(dim, 0)
    assert turn[0] == pytest.approx(1.0, abs=10 * EPS)
    assert (turn.diff() < 0).all()


@pytest.mark.parametrize("position", [1, 1000, 10**6])
def test_higher_positions_oscillate_no_faster(position: int) -> None:
    torch.testing.assert_close(turns(64, position), turns(64, 0), rtol=0, atol=4 * (position + 1) * EPS)


def test_sign_changes_depend_on_the_channel_and_not_on_the_position() -> None:
    crossings = load("window").zero_crossings
    channels = range(0, 64, 12)
    for start in (1, 1001, 100_001):
        counts = [crossings(channel, start) for channel in channels]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] > 10 * max(counts[2:])
        for channel, count in zip(channels, counts, strict=True):
            assert abs(count - crossings(channel, 1)) <= 1  # where the window cuts the wave


def test_slicing_by_the_first_axis_is_wrong_batch_first_and_nothing_complains() -> None:
    script = load("module_and_plots")
    module = script.PositionalEncoding(script.D_MODEL)
    batch, tokens = 3, 7
    added = module(torch.zeros(batch, tokens, script.D_MODEL))
    for row in range(batch):
        assert torch.equal(added[row], module.pe[row].expand(tokens, -1))  # one vector for the whole text
    right = module(torch.zeros(tokens, batch, script.D_MODEL))
    assert torch.equal(right, module.pe[:tokens].expand(-1, batch, -1))
    # So, one text at a time, word order is lost as if there were no positions at all.
    assert script.fox_difference(posenc.NoPE(), script.PositionalEncoding(64).double()) < 100 * EPS


def test_posenc_refuses_tokens_first() -> None:
    encoding = posenc.Sinusoidal(8)(Positions.arange(7))
    with pytest.raises(ValueError, match=re.escape("x must be (batch, 7, 8) to add positions to, got (7, 3, 8)")):
        encoding.add(torch.zeros(7, 3, 8))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_published_2d_module_lays_its_second_term_at_transposed_tokens(size: int) -> None:
    script = load("four_modules")
    q = torch.randn(2, 3, size * size, 8, dtype=torch.float64)
    first, second = torch.randn(2, 2 * size - 1, 8, dtype=torch.float64)
    published = script.relative_2d_as_published(q, first, second, size, size)
    truth = script.relative_2d_by_loops(q, second, first, size, size)
    assert (published - truth).abs().max() > 1
    columns_alone = script.relative_2d_by_loops(q, 0 * second, first, size, size)
    rows_alone = script.relative_2d_by_loops(q, second, 0 * first, size, size)
    of_transposed = columns_alone + script.transposed(rows_alone, size)
    torch.testing.assert_close(published, of_transposed, rtol=0, atol=100 * EPS)
    # Which makes the distance along the columns the only one that any pair is given.
    for i in range(size * size):
        for j in range(size * size):
            right, turned = j % size - i % size + size - 1, (i % size) * size + i // size
            expected = q[:, :, i] @ first[right] + q[:, :, turned] @ second[right]
            torch.testing.assert_close(published[:, :, i, j], expected, rtol=0, atol=100 * EPS)


@pytest.mark.parametrize(("height", "width"), [(2, 3), (3, 2)])
def test_the_published_2d_module_swaps_heights_and_widths_and_fails_on_rectangles(height: int, width: int) -> None:
    script = load("four_modules")
    q = torch.randn(1, 3, height * width, 8)
    of_height, of_width = torch.randn(2 * height - 1, 8), torch.randn(2 * width - 1, 8)
    with pytest.raises(ValueError, match=f"{width} tokens have {2 * width - 1} distances, got {2 * height - 1}"):
        script.relative_2d_as_published(q, of_height, of_width, height, width)
    scheme = posenc.Relative2D((height, width), 8)
    assert scheme.row_table.size(-2) == 2 * height - 1
    assert scheme.column_table.size(-2) == 2 * width - 1


def test_the_published_1d_module_shares_its_table_when_asked_not_to() -> None:
    shape = load("four_modules").table_shape_as_published
    assert shape(4, 8) == shape(4, 8, heads=3) == (7, 8)
    assert posenc.Relative1D(4, 8).weight.shape == (7, 8)
    assert posenc.Relative1D(4, 8, num_heads=3).weight.shape == (3, 7, 8)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_relative_to_absolute_is_right(tokens: int) -> None:
    q = torch.randn(2, 3, tokens, 2 * tokens - 1)
    out = load("four_modules").relative_to_absolute(q)
    assert out.shape == (2, 3, tokens, tokens)
    for i in range(tokens):
        for j in range(tokens):
            assert torch.equal(out[..., i, j], q[..., i, j - i + tokens - 1])


@pytest.mark.parametrize("heads", range(1, 33))
def test_slopes_of_one_half_to_the_h_are_those_of_8_heads_only(heads: int) -> None:
    halves = tuple(2.0 ** -(h + 1) for h in range(heads))
    assert (posenc.ALiBi(heads).slopes == halves) == (heads == 8)


@pytest.mark.parametrize("distance", [0, 1, 10, 100, 1000])
@pytest.mark.parametrize("dim", [6, 128])
def test_rotations_let_a_far_key_score_highest(dim: int, distance: int) -> None:
    """For any query: a key whose score peaks at that distance, as high as any key of its length can score."""
    script = load("derivations")
    query = torch.randn(dim, dtype=torch.float64)
    scores = script.scores_by_distance(query, script.key_that_peaks_at(distance, query), 2048, dim)
    assert int(scores.argmax()) == distance
    assert scores[distance].item() == pytest.approx((query @ query).item() / dim**0.5, rel=1e-9)


@pytest.mark.parametrize("distance", [0, 1, 10, 100, 1000])
def test_rotations_leave_random_scores_as_they_are_at_every_distance(distance: int) -> None:
    """Mean 0 and standard deviation 1 however far apart: nothing falls but the bound. Within 5 standard errors."""
    script = load("derivations")
    draws, dim = 10_000, 128
    q, k = torch.randn(2, draws, dim, dtype=torch.float64)
    scores = (script.rotated(q, distance) * k).sum(-1) / dim**0.5
    assert abs(scores.mean()) < 5 / draws**0.5
    # The fourth moment of a sum of 128 products of normals is little above the normal 3.
    assert abs(scores.var() - 1) < 5 * (2.1 / draws) ** 0.5
    assert script.bound(distance, dim) <= script.bound(0, dim) == (dim / 2 + 1) / 2


def test_a_causal_mask_tells_sentences_apart_without_positions() -> None:
    script = load("two_encodings")
    assert script.difference(posenc.NoPE()) < 100 * EPS
    assert script.difference(posenc.NoPE(), is_causal=True) > 0.1


def test_the_sine_of_three_hundredths() -> None:
    script = load("two_encodings")
    printed, ours = script.single_precision_table(4, 8)[1][3, 4].item(), script.table(4, 8)[3, 4].item()
    assert (f"{printed:.4e}", f"{ours:.4e}", f"{math.sin(0.03):.4e}") == ("2.9995e-02", "2.9996e-02", "2.9996e-02")
    assert abs(ours - math.sin(0.03)) < abs(printed - math.sin(0.03))


def test_what_fades_in_a_distance_aware_head_is_not_hidden() -> None:
    scores, weights = load("derivations").faded()
    torch.testing.assert_close(scores, torch.tensor([3.0, 0.0]))
    # A score of 3 is off by 3 units; its exponential, a sum and a quotient are rounded too.
    torch.testing.assert_close(weights[1].item(), 1 / (1 + math.exp(3)), rtol=6 * 2.0**-24, atol=0)


def bits(scheme: str, kind: str, length: int) -> float:
    """The loss that the study measured on Python's packages, which ships with the explorer; the page rounds it."""
    (record,) = (each for each in data.records() if each["name"] == "Python's packages")
    (measure,) = (each for each in record["measures"] if each["kind"] == kind)
    return float(measure["curves"][scheme][measure["lengths"].index(length)][0])


def test_rope_has_four_of_the_five_properties() -> None:
    turn = load("derivations").rotated
    x = torch.randn(64, dtype=torch.float64)
    turned = torch.stack([turn(x, position) for position in (*range(2000), 10**5, 10**6)])
    nearest = torch.cdist(turned, turned).fill_diagonal_(math.inf).min()
    assert nearest > 1e-3 * x.norm()  # unique
    torch.testing.assert_close(turn(turned[3], 7), turned[10])  # linear: one map leads from 3 to 10, and from 4 to 11
    torch.testing.assert_close(turn(turned[4], 7), turned[11])
    assert not [*posenc.RoPE(64).parameters()]  # deterministic
    assert posenc.AxialRoPE(64)(Positions.grid(3, 4)).rotate(*torch.randn(2, 1, 1, 12, 64))[0].shape == (1, 1, 12, 64)


def test_rope_and_sinusoids_do_not_generalize_to_longer_texts() -> None:
    found = {name: [bits(name, "sliding", length) for length in (128, 256)] for name in ("rope", "sinusoidal", "t5")}
    rounded = {name: [f"{x:.2f}" for x in both] for name, both in found.items()}
    assert rounded == {"rope": ["1.82", "3.33"], "sinusoidal": ["2.11", "5.60"], "t5": ["1.74", "1.74"]}


def test_alibi_gains_by_the_early_token_curse_alone() -> None:
    """In pieces of 1,024 bytes instead of 128 it seems to gain; on the same bytes it gains nothing."""
    found = [[f"{bits('alibi', kind, n):.3f}" for n in (128, 1024)] for kind in ("windows", "sliding")]
    assert found == [["2.050", "2.011"], ["1.961", "1.971"]]


def test_a_sinusoid_moves_a_word_to_others_unless_words_are_long() -> None:
    script = load("two_encodings")
    words = script.drawn_words(count=5000)
    sinusoids = posenc.Sinusoidal(384).table(Positions.arange(512))[0]
    torch.testing.assert_close(sinusoids.norm(dim=1), torch.full((512,), (384 / 2) ** 0.5))
    assert script.share_found(words, sinusoids) < 0.05
    assert script.share_found(words * 384**0.5, sinusoids) > 0.99
    assert script.share_found(*script.without_main_directions(words, sinusoids, 96)) > 0.95


def test_the_published_1d_absolute_module_knows_no_differences() -> None:
    script = load("four_modules")
    q = torch.randn(1, 1, 1, 8).expand(1, 1, 5, 8)  # the same query at each of 5 places
    absolute = script.absolute_1d(q, torch.randn(5, 8))
    torch.testing.assert_close(absolute, absolute[..., :1, :].expand_as(absolute))
    relative = script.relative_1d(q, torch.randn(9, 8))
    assert (relative[..., 1:, :] - relative[..., :1, :]).abs().max() > 0.1
    torch.testing.assert_close(relative[..., 1:, 1:], relative[..., :-1, :-1])


def test_the_page_names_every_test_and_no_other() -> None:
    """docs/silent-mistakes.md points from each statement to the tests of this file."""
    tests = {name for name in globals() if name.startswith("test_")} - {"test_the_page_names_every_test_and_no_other"}
    assert set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8"))) == tests
