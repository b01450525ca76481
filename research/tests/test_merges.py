"""A text in tokens of several bytes, against pairs that are counted and replaced one by one."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from study import merges


def plainly(files: list[bytes], count: int) -> list[list[int]]:
    made = [list(each) for each in files]
    free = [n for n in range(1, 256) if not any(n in each for each in files)]
    for new in free[:count]:
        seen = Counter(pair for each in made for pair in pairwise(each))
        pair = min(seen, key=lambda pair: (-seen[pair], pair))
        for each in made:
            n = 0
            while n < len(each) - 1:
                if (each[n], each[n + 1]) == pair:
                    each[n : n + 2] = [new]
                n += 1
    return made


@pytest.mark.parametrize("count", [1, 3, 9])
def test_tokens_are_those_of_pairs_replaced_one_by_one(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [b"aaaaa\n\naaab", b"baa", b"a", b"abababab, abab aaaa\n" * 3, "\u00e9".encode(), b""]
    folder = tmp_path / "text"
    folder.mkdir()
    for n, each in enumerate(files):
        (folder / f"{n}.txt").write_bytes(each)
    assert merges.main([f"--text={folder}", f"--out={tmp_path / 'out'}", f"--merges={count}"]) == 0
    table = json.loads((tmp_path / "out" / merges.TABLE).read_text())
    made = [(tmp_path / "out" / f"{n}.txt").read_bytes() for n in range(4)]
    assert [list(each) for each in made] == plainly(files[:4], count)
    assert [merges.expanded(each, table) for each in made] == files[:4]
    size, tokens = sum(map(len, files[:4])), sum(map(len, made))
    said = f"{size} bytes in {tokens} tokens, {size / tokens:.3f} bytes a token; 2 files left out\n"
    assert capsys.readouterr().out.endswith(said)


def test_there_are_no_more_tokens_than_values_that_the_text_leaves(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_bytes(bytes(range(128)))
    with pytest.raises(ValueError, match=r"merges must be 1\.\.128, .*, got 129"):
        merges.main([f"--text={tmp_path}", f"--out={tmp_path / 'out'}", "--merges=129"])
