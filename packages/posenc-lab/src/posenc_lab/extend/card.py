"""Reads the licence and the training data of a checkpoint from the files beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posenc_lab.extend.model import Source

CARD = "README.md"
NAMES = ("license", "datasets", "base_model")  # in the metadata of a card
IN_GGUF = {"license": "general.license", "datasets": "general.datasets", "base_model": "general.base_model.0.name"}


def card_of(source: Source) -> str:
    """The facts of the checkpoint's card, .gguf file and licence in sentences, or that there are none."""
    folder = Path(source.where)
    if not folder.is_dir():
        return f"{source.name} comes from the hub: what its card there says was not read."
    told = [f"{file} says: {facts}." for file, facts in _facts(folder, source.gguf) if facts]
    return " ".join(told) or f"No file beside {source.name} says what it was trained on, or under which licence it is."


def _facts(folder: Path, gguf: str | None) -> Iterator[tuple[str, str]]:
    """(file, facts in words)."""
    if (folder / CARD).is_file():
        yield CARD, _words(_metadata(folder / CARD))
    if gguf is not None:
        from gguf import GGUFReader  # as transformers does

        fields = GGUFReader(folder / gguf).fields
        yield gguf, _words({name: fields[key].contents() for name, key in IN_GGUF.items() if key in fields})
    for path in sorted(folder.glob("LICEN[CS]E*")):
        lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
        yield path.name, next(filter(None, lines), "")


def _metadata(card: Path) -> dict[str, Any]:
    """The YAML block at the beginning of a model card; empty if there is none, or it is invalid."""
    import yaml  # a dependency of transformers

    begin, block, *_ = [*card.read_text(encoding="utf-8", errors="replace").split("---\n", 2), ""]
    try:
        found = None if begin else yaml.safe_load(block)
    except yaml.YAMLError:
        found = None
    return found if isinstance(found, dict) else {}


def _words(facts: dict[str, Any]) -> str:
    told = {name: facts[name] for name in NAMES if facts.get(name)}
    return "; ".join(f"{name} {', '.join(map(str, x)) if isinstance(x, list) else x}" for name, x in told.items())
