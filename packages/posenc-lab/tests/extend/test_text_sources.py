"""Where pieces of text come from, and what is said of the checkpoint's origin."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers needs Python 3.11")

from posenc_lab.extend import model as models
from posenc_lab.extend.card import card_of
from posenc_lab.extend.model import Source
from posenc_lab.extend.text import Tokens

LONGEST = 128


def tokens_of(place: Path, text: Path) -> Tokens:
    """The text in tokens of bytes, in as many pieces as it has up to six."""
    loaded = models.load(models.find(str(place / "model")), "float32", "sdpa", torch.device("cpu"))
    return Tokens((str(text),), loaded.tokenizer, LONGEST, 8, None)


def assert_named(made: Tokens, text: Path) -> None:
    """Every piece is what its file has from its byte on."""
    alphabet = made._tokenizer.convert_ids_to_tokens
    letters = {letter: byte for byte, letter in bytes_to_letters().items()}
    for piece in made.pieces:
        expected = bytes(letters[letter] for letter in alphabet(piece.tokens.tolist()))
        found = (text / piece.file).read_bytes()[piece.byte : piece.byte + LONGEST + 1]
        assert found == expected


def bytes_to_letters() -> dict[int, str]:
    """The letters that GPT-2's tokenizer writes bytes as: printable ones are themselves, the others follow in order."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {byte: chr(byte) for byte in itself} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def test_a_piece_is_found_at_its_byte_of_its_file(place: Path, tmp_path: Path) -> None:
    for n in range(12):
        folder = tmp_path / f"part {n % 2}"
        folder.mkdir(exist_ok=True)
        # Letters of two bytes at the beginning, which a count of letters would miss.
        (folder / f"{n}.txt").write_text("é" * 50 + f"{n} plain words " * (20 + n), encoding="utf-8")
    made = tokens_of(place, tmp_path)
    assert len(made.pieces) >= 2
    assert {piece.file.partition("/")[0] for piece in made.pieces} <= {"part 0", "part 1"}
    assert_named(made, tmp_path)


def test_a_file_that_is_no_text_shifts_no_names(place: Path, tmp_path: Path) -> None:
    for n in range(9):
        (tmp_path / f"{n}.txt").write_text(f"{n} words and more words " * 30)
        (tmp_path / f"{n}.bad").write_bytes(bytes([0xFF, n + 1]) * 40)
    made = tokens_of(place, tmp_path)
    assert {Path(file).suffix for file, _ in made.corpus.origins} == {".txt", ".bad"}
    assert {Path(piece.file).suffix for piece in made.pieces} == {".txt"}
    assert_named(made, tmp_path)


def source(folder: Path, gguf: str | None = None) -> Source:
    return Source("mine", str(folder), gguf, None, 1)


def test_the_card_beside_a_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "---\nlicense: apache-2.0\nlanguage: en\ndatasets:\n- books\n- code/all\nbase_model: large\n---\n# Mine\n---\n"
    )
    (tmp_path / "LICENSE").write_text("\n   Apache License\n  Version 2.0\n")
    assert card_of(source(tmp_path)) == (
        "README.md says: license apache-2.0; datasets books, code/all; base_model large. LICENSE says: Apache License."
    )


def test_a_gguf_file_says_its_licence(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_license("mit")
    writer.add_array("general.datasets", ["books", "code"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert card_of(source(tmp_path, "m.gguf")) == "m.gguf says: license mit; datasets books, code."
