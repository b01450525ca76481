"""Tokenizes text, and cuts it into the pieces that a model is tested on."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posenc_lab.compare.data import Corpus, Text, load

DEFAULT_WINDOWS, MIN_WINDOWS = 8, 2  # pieces by default, and at least


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one file, the bytes of the final ones, and the offset of the first."""

    tokens: Tensor  # (longest + 1,)
    final_bytes: int  # of the last ``final`` tokens
    file: str  # below the folder that all files share
    byte: int  # of the file, at which the piece begins


class Tokens:
    """The held-out side of a text in the tokens of a model, in pieces that lie inside one file."""

    def __init__(self, text: tuple[str, ...], tokenizer: Any, longest: int, final: int, windows: int | None) -> None:
        self._tokenizer, self.longest, self.final = tokenizer, longest, final
        wanted = windows or DEFAULT_WINDOWS
        # Five bytes per token suffice for most texts, even with a large vocabulary. If files are too short, a third of
        # the text is held out, which is the maximum.
        self.corpus = load(text, held_out=wanted * (longest + 1) * 5)
        pieces = self._all_pieces(self.corpus)
        if len(pieces) < wanted:
            more = load(text, held_out=sys.maxsize)
            if len(others := self._all_pieces(more)) > len(pieces):
                self.corpus, pieces = more, others
        self.about, self.digest = self.corpus.about, self.corpus.digest
        least = windows or MIN_WINDOWS
        if len(pieces) < least:
            raise ValueError(
                f"too little text: {least} pieces of {longest + 1:,} tokens are needed, each inside one file, and "
                f"{self.about} has {len(pieces)}: give more --text, shorter --lengths, a smaller --factor or fewer "
                "--windows"
            )
        chosen = min(wanted, len(pieces))
        self.pieces = [pieces[n * len(pieces) // chosen] for n in range(chosen)]
        if chosen < wanted:
            self.about += f"; {chosen} pieces of {longest + 1:,} tokens are all that it has"

    def _all_pieces(self, corpus: Corpus) -> list[Piece]:
        files = zip(_files(corpus.validation), corpus.origins, strict=True)
        return [piece for text, origin in files if text is not None for piece in self._pieces(text, *origin)]

    def _pieces(self, text: str, file: str, byte: int) -> Iterator[Piece]:
        """Adjacent pieces of a file, from its end; ``text`` begins at offset ``byte`` of the file."""
        made = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, places = made["input_ids"], made["offset_mapping"]
        for stop in range(len(ids), self.longest, -(self.longest + 1)):
            scored, start = places[stop - self.final : stop], stop - self.longest - 1
            data = text[scored[0][0] : scored[-1][1]].encode()
            at = byte + len(text[: places[start][0]].encode())
            yield Piece(torch.tensor(ids[start:stop]), max(len(data), 1), file, at)


def _files(side: Text) -> Iterator[str | None]:
    """The files as text; None for a file that is not UTF-8."""
    for begin, end in pairwise(side.bounds):
        try:
            yield side.data[begin:end].tobytes().decode()
        except UnicodeDecodeError:
            yield None
