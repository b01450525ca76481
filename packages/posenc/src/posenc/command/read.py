"""``posenc read``: what a model does about positions, what a port of it must reproduce, and where a port differs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from posenc.arguments import meant
from posenc.command.files import write_whole


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    read = commands.add_parser(
        "read",
        help="say what a model does about positions",
        description="Says layer by layer what a model of transformers does about positions: which channels turn, how "
        "fast, windows, layers without positions, scales and sinks. No weights are needed. The exit code is 1 if the "
        "model is not read, or a port differs.",
    )
    read.add_argument("model", metavar="MODEL", help="a folder, a config.json, or a family's name, such as llama")
    read.add_argument("--part", help="the part of a model of several: text, vision, encoder or decoder")
    files = read.add_mutually_exclusive_group()
    files.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw each kind of layers, as an SVG")
    files.add_argument(
        "--golden", type=Path, metavar="FILE", help="write queries, keys and scores (.json or .safetensors)"
    )
    files.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="compare such a file, in which query_after and key_after are those of a port, and name the mistake",
    )
    read.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints, writes or compares. Returns 1 if a port differs."""
    from transformers import CONFIG_MAPPING

    from posenc.command.golden import code, compare, groups, is_indexer, numbers, places_of, written
    from posenc.huggingface.config import scheme_from_config
    from posenc.huggingface.loading import RECORD

    if arguments.picture is not None and arguments.picture.suffix.lower() != ".svg":
        raise ValueError(f"--picture must end with .svg, which browsers show, got {arguments.picture.name!r}")
    if arguments.golden is not None and arguments.golden.suffix not in (".json", ".safetensors"):
        raise ValueError(f"--golden must end with .json or .safetensors, got {arguments.golden.name!r}")
    given: Any = arguments.model
    if not Path(given).exists():
        if given not in CONFIG_MAPPING:
            near = meant(given, tuple(CONFIG_MAPPING))
            hub = f"; nothing is downloaded: run hf download {given} and give the folder" if "/" in given else ""
            raise ValueError(
                f"MODEL must be a folder, a config.json or a family of transformers, got {given!r}{near}{hub}"
            )
        given = {"model_type": given}
    said = scheme_from_config(given, arguments.part)
    patch = next((each for each in said.remarks if RECORD in each), None)
    if patch and (arguments.picture or arguments.golden or arguments.against):
        raise ValueError(f"MODEL must be as transformers has it, got one that is patched by posenc: {patch}")
    for file in filter(None, (arguments.picture, arguments.golden)):
        if not file.parent.is_dir():
            raise ValueError(f"the folder of {file.name!r} must exist, and there is no {str(file.parent)!r}")
    if arguments.golden is None and arguments.against is None:
        if isinstance(given, dict):
            print(f"transformers' default configuration of {arguments.model}")
        print(said)
    if arguments.picture is not None:
        from posenc.command.picture import picture

        shown = [each for each in groups(said) if not is_indexer(each[2][1])]
        write_whole(arguments.picture, picture(said, shown).encode())
        print(f"{arguments.picture}: kinds of layers: {len(shown)}")
        return 0
    if arguments.against is not None:
        return compare(said, arguments.against)
    if arguments.golden is not None:
        write_whole(arguments.golden, written(numbers(said), arguments.golden))
        places = ", ".join(map(str, places_of(said)))
        print(f"{arguments.golden}: kinds of layers: {len(groups(said))}, at positions {places}")
        return 0
    if said.input is not None:
        print(f"\nscheme of the input\n  {code(said.input)}")
    for layers, scheme, (_, layer) in groups(said):
        made = f"posenc.{layer!r}".replace(repr(scheme), code(scheme)) if is_indexer(layer) else code(scheme)
        print(f"\n{'indexer' if is_indexer(layer) else 'scheme'} of layer {layers[0]}\n  {made}")
    return 0
