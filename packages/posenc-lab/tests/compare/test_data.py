import hashlib
from pathlib import Path

import numpy as np
import pytest

from posenc_lab.compare import data
from tests.compare.tiny_comparison import write_text


def files_of(text: data.Text) -> set[bytes]:
    return {text.data[a:b].tobytes() for a, b in zip(text.bounds, text.bounds[1:], strict=False)}


def write_folder(folder: Path) -> list[bytes]:
    """Forty files, of which two pairs have the same content, one is empty, one binary and one hidden."""
    contents = []
    for n in range(40):
        path = folder / f"part{n % 3}" / f"{n}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        contents.append(write_text(path, 300 + n, seed=n).read_bytes())
    (folder / "copy.txt").write_bytes(contents[0])
    (folder / "part0" / "another.txt").write_bytes(contents[1])
    (folder / "empty.txt").write_bytes(b"")
    (folder / "binary").write_bytes(b"\0\1\2" * 100)
    (folder / ".hidden").write_bytes(b"hidden" * 100)
    return contents


def test_files_are_split_whole_and_nothing_is_on_both_sides(tmp_path: Path) -> None:
    contents = write_folder(tmp_path)
    corpus = data.load([str(tmp_path)])
    train, validation = files_of(corpus.train), files_of(corpus.validation)
    assert not train & validation
    assert train | validation == set(contents)
    held = sum(map(len, validation))
    assert 0.1 <= held / sum(map(len, contents)) < 0.15
    assert "40 files" in corpus.about


@pytest.mark.parametrize("more", range(4))
def test_no_letter_is_cut(tmp_path: Path, more: int) -> None:
    """Of one file, and of the largest: letters of one to four bytes."""
    text = "aЖ語😀" * 100 + "b" * more
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    corpus = data.load([str(tmp_path / "one.txt")])
    parts = [side.data.tobytes().decode() for side in (corpus.train, corpus.validation)]
    assert "".join(parts) == text
    assert all(parts)
    (tmp_path / "two.txt").write_text("c" * 90, encoding="utf-8")
    corpus = data.load([str(tmp_path)], least=((1, 100), (1, 100)))
    assert "the end of the largest file" in corpus.about
    assert corpus.validation.data.tobytes().decode() in text


def test_windows_lie_inside_one_file_and_every_place_is_drawn() -> None:
    sizes = [5, 3, 9, 2, 4]  # of windows of 4: 2 places, none, 6, none, 1
    text = data.Text(np.repeat(np.arange(5, dtype=np.uint8), sizes), np.cumsum([0, *sizes], dtype=np.int64))
    drawn = text.draw(np.random.default_rng(0), 9000, 4)
    assert (drawn == drawn[:, :1]).all()
    files, counts = np.unique(drawn[:, 0], return_counts=True)
    assert files.tolist() == [0, 2, 4]
    np.testing.assert_allclose(counts / 1000, [2, 6, 1], atol=0.2)

    assert text.room(4) == 4
    assert text.spread(10, 4)[:, 0].tolist() == [0, 2, 2, 4]
    assert text.spread(2, 4)[:, 0].tolist() == [0, 2]
    assert text.spread(2, 10).shape == (0, 10)


def test_too_little_text_says_what_is_needed_and_what_is_there(tmp_path: Path) -> None:
    corpus = data.load([str(write_text(tmp_path / "short.txt", 3000))], held_out=10_000)
    data.require(corpus, ((4, 16), (8, 100)))
    expected = (
        "too little text: evaluation needs 8 windows of 128 bytes, each inside one file, 1,024 bytes in all; "
        "there are 7, 896 bytes, in the 1,000 bytes for evaluation of "
    )
    with pytest.raises(ValueError, match=f"^{expected}"):
        data.require(corpus, ((4, 16), (8, 128)))
    with pytest.raises(
        ValueError, match=r"training needs 500 windows of 16 bytes, .* 8,000 bytes in all; there are 125"
    ):
        data.require(corpus, ((500, 16), (8, 100)))


def test_text_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"text must be of files, folders or globs that match some, got '.*nothing"):
        data.load([str(tmp_path / "nothing*.txt")])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="text must be of some bytes to split, got 0"):
        data.load([str(tmp_path / "empty.txt")])


def test_what_is_no_text_is_said_and_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "none" / "deeper").mkdir(parents=True)
    (tmp_path / "none" / ".hidden").write_text("hidden")
    (tmp_path / "binary").mkdir()
    for n in range(2):
        (tmp_path / "binary" / f"{n}.bin").write_bytes(b"\x7fELF\0" * 100)
    rng = np.random.default_rng(0)
    (tmp_path / "random.txt").write_bytes(rng.integers(1, 256, size=20_000, dtype=np.uint8).tobytes())
    write_text(tmp_path / "text.txt")
    zero = r"with a zero byte among the first 8,192$"
    for name, words in {
        "none": r"text must be of text files, got '.*none', a folder without files$",
        "binary": rf"text must be of text files, got '.*binary': 2 binary files, {zero}",
        "binary/*.bin": rf"got '.*': 2 binary files, {zero}",
        "binary/0.bin": rf"got '.*0.bin': a binary file, {zero}",
        "random.txt": r"text must be text, got .*random.txt, whose bytes look random, compressed or encrypted: 7.99",
    }.items():
        with pytest.raises(ValueError, match=words):
            data.load([str(tmp_path / name)])
    (tmp_path / "binary" / "text.txt").write_bytes((tmp_path / "text.txt").read_bytes())
    for name in ("binary", "binary/*"):  # what is binary beside text is left out
        assert "1 file," in data.load([str(tmp_path / name)]).about


def test_the_standard_library_is_text_enough() -> None:
    corpus = data.load(held_out=64 * 1025)
    assert "standard library" in corpus.about
    data.require(corpus, ((16, 129), (64, 1025)))
    assert not files_of(corpus.train) & files_of(corpus.validation)


@pytest.mark.parametrize("large", ["a", "b"])  # either may come first in the order of hashes
def test_where_whole_files_leave_too_little_room_the_end_of_the_largest_is_held_out(tmp_path: Path, large: str) -> None:
    content = write_text(tmp_path / large, 20_000).read_bytes()
    small = write_text(tmp_path / "small", 500, seed=1).read_bytes()
    least = (4, 17), (8, 128)
    corpus = data.load([str(tmp_path)], held_out=3000, least=least)
    data.require(corpus, least)
    assert files_of(corpus.validation) == {content[-3000:]}
    assert files_of(corpus.train) == {content[:-3000], small}
    assert corpus.about.endswith(
        "20,500 bytes in 2 files, 3,000 held out (the end of the largest file, as whole files leave too little room)"
    )


def test_what_repeats_the_largest_file_is_not_on_both_sides(tmp_path: Path) -> None:
    # In the order of the split, so that the small files, too short for a window, are held out first.
    *small, chapter, end, whole = sorted(map(str, range(32)), key=lambda name: hashlib.sha256(name.encode()).digest())
    others = {write_text(tmp_path / name, 500, seed=n).read_bytes() for n, name in enumerate(small, 1)}
    content = write_text(tmp_path / whole, 20_000).read_bytes()
    (tmp_path / chapter).write_bytes(content[-4600:-3600])  # over the edge of the split
    (tmp_path / end).write_bytes(b"Once more:\n" + content[-4200:])
    corpus = data.load([str(tmp_path)], held_out=4100, least=((4, 17), (8, 501)))
    assert files_of(corpus.validation) == {content[-4100:]}
    assert files_of(corpus.train) == {content[:-4100], *others}
    assert "2 that repeat it left out" in corpus.about


def test_whole_files_stay_whole_where_they_have_room_and_where_nothing_helps(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for least in (((4, 17), (8, 100)), ((4, 17), (8, 5000))):
        corpus = data.load([str(tmp_path)], least=least)
        assert corpus.digest == data.load([str(tmp_path)]).digest
        assert corpus.about.endswith("held out (whole files)")
