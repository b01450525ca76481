"""``python -m study.page_models``: trains the decoders of the explorer's page, and writes them with int8 weights.

They are those of the study on Shakespeare's works, at the rates that were tuned, trained four times as long so that
they spell. What is trained stays in ``build/study/page``. Of two more, with Shaw's vectors and with Transformer-XL, the
page has the losses, and of Shaw's and of all-MiniLM-L6-v2 some numbers of their tables, all in ``tables.json``; the
last needs the extra `minilm` of posenc-lab.
"""

import base64
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc import Positions, Sinusoidal
from posenc.command.files import write_whole
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.task import Loaded
from posenc_lab.compare.tasks import from_toml, task_of
from posenc_lab.compare.train import rate_of, train
from posenc_lab.explore.data import TABLES
from posenc_lab.explore.models import FOLDER, LEVELS, header, quantised, weights, weights_of
from posenc_lab.plot.vectors import learned, weights_file
from study.archives import unpack
from study.run import HERE, tuned
from study.texts import fetch

SCHEMES = ("nope", "rope", "alibi", "t5")
# The study did not tune these. Shaw's are vectors of distances, as T5's are numbers; Transformer-XL's are a projection.
RATES_OF = {"shaw": "t5", "transformer_xl": "rope"}
STEPS, SEED = 2400, 0
MOST_BYTES, MOST_LOST = 450_000, 0.02  # of a file; in bits per byte, by rounding the weights
T5_HEAD = 1
HEAD, LETTERS = 3, ("e", ",")  # of the first layer of Shaw's decoder: two letters that look at different places
POSITIONS = 40  # of all-MiniLM-L6-v2
SHOWN = ("task", "layers", "dim", "heads", "train_length", "steps", "test_lengths")
BEGUN = Path("build/study/page")


def main() -> None:
    torch.set_num_threads(1)
    fetch()
    unpack()
    config, loaded = task({scheme: scheme for scheme in SCHEMES})
    models = {scheme: made(scheme, config, loaded) for scheme in SCHEMES}
    told = {name: getattr(config, name) for name in SHOWN}
    about = {"configuration": told, "rates": config.rates, "seed": SEED, "text": loaded.about}
    lines = ",\n".join(f"{json.dumps(scheme)}: {json.dumps(said)}" for scheme, said in models.items())
    write_whole(FOLDER / "models.json", f'{json.dumps(about)[:-1]}, "models": {{\n{lines}\n}}}}\n'.encode())
    tables()


def task(rates_of: dict[str, str]) -> tuple[CompareConfig, Loaded]:
    """The study's task on Shakespeare's works, each scheme at the rate that was tuned for another."""
    rates = [f"{scheme}={tuned('plays', other)}" for scheme, other in rates_of.items()]
    config = from_toml(HERE / "plays.toml", schemes=list(rates_of), seeds=[SEED], steps=STEPS, rates=rates)
    return config, task_of(config.task).load(config)


def tables() -> None:
    """Writes ``tables.json``: what a head of T5 has learned by bucket; rows of Shaw's key table, from the farthest
    distance to the token itself, with the queries of two letters; the losses of Shaw's and of Transformer-XL; and
    cosines of the first position vectors of all-MiniLM-L6-v2, int8 of 127 times each, in base64, and of its `words`."""
    config, loaded = task(RATES_OF)
    models = {scheme: begun(scheme, config, loaded) for scheme in RATES_OF}
    bits = {
        scheme: {"rate": rate, "bits": losses(models[scheme], config, loaded)}
        for scheme, rate in zip(models, config.rates, strict=True)
    }
    found = {"t5": t5(), **bits, "minilm": minilm()}
    found["shaw"] |= {"layer": 1, "head": HEAD + 1, **shaw(models["shaw"])}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(said)}" for name, said in found.items())
    write_whole(TABLES, f"{{{lines}}}\n".encode())


def begun(scheme: str, config: CompareConfig, loaded: Loaded) -> nn.Module:
    """A trained model: what an interrupted training left is resumed."""
    model = build_model(config, scheme, SEED)
    BEGUN.mkdir(parents=True, exist_ok=True)
    train(model, loaded.train, config, SEED, BEGUN / f"{scheme}.pt", rate=rate_of(config, scheme))
    return model


def t5() -> dict[str, Any]:
    table = weights(header()["models"]["t5"]["parameters"], weights_of("t5"))["trunk.position.weight"]
    return {"head": T5_HEAD + 1, "bias": [round(x, 2) for x in table[:, T5_HEAD].tolist()]}


@torch.no_grad()
def shaw(model: Any) -> dict[str, Any]:
    table = model.trunk.position.key_table[: model.trunk.position.max_distance + 1]
    block = model.trunk.blocks[0]
    normed = block.attention_norm(model.embedding(torch.tensor([ord(letter) for letter in LETTERS])))
    queries = block.attention.query(normed).unflatten(-1, (-1, table.size(-1)))[:, HEAD]
    rounded = ([[round(x, 2) for x in row] for row in rows.tolist()] for rows in (table, queries))
    return dict(zip(("key_table", "queries"), rounded, strict=True)) | {"letters": LETTERS}


def minilm() -> dict[str, Any]:
    rows = torch.nn.functional.normalize(learned().weight.detach().double()[:POSITIONS])
    levels = (LEVELS * rows @ rows.T).round().to(torch.int8)
    cosines = base64.b64encode(levels.numpy().tobytes()).decode()
    return {"positions": POSITIONS, "cosines": cosines, **words(weights_file())}


def words(path: Path) -> dict[str, float]:
    """How long the vectors of all words are, on average, and which share of every third word is still nearest to itself
    with the sinusoid of a position added: as they are, and multiplied by the root of their dimensions before."""
    from safetensors import safe_open  # of the extra, as the file is

    with safe_open(path, framework="pt") as file:
        table = file.get_tensor("embeddings.word_embeddings.weight")
    sinusoids = Sinusoidal(table.size(1)).table(Positions.arange(512), torch.float32)[0]
    squares, nearest = table.square().sum(1), []
    for scale in (1, table.size(1) ** 0.5):
        found = 0
        for chosen in torch.arange(0, len(table), 3).split(1024):
            sums = table[chosen] + sinusoids[chosen % 512] / scale
            found += int(((2 * sums @ table.T - squares).argmax(1) == chosen).sum())
        nearest.append(round(found / len(range(0, len(table), 3)), 5))
    return {"length": round(squares.sqrt().mean().item(), 3), "nearest": nearest[0], "nearest_scaled": nearest[1]}


def made(scheme: str, config: CompareConfig, loaded: Loaded) -> dict[str, Any]:
    """Trains a model unless that was done, writes its file, and gives what ``models.json`` says of it. ValueError
    where the file is too large or the rounded weights lose too much."""
    model = begun(scheme, config, loaded)
    before = losses(model, config, loaded)
    listed, packed = quantised(model)
    model.load_state_dict({name: weight.float() for name, weight in weights(listed, packed).items()})
    after = losses(model, config, loaded)
    lost = max(abs(after[length] - before[length]) for length in before)
    print(f"{scheme}: {len(packed):,} bytes, float {before}, int8 {after}", flush=True)
    if len(packed) > MOST_BYTES or lost > MOST_LOST:
        raise ValueError(f"{scheme} must take {MOST_BYTES:,} bytes and lose {MOST_LOST} bits at most, got {lost}")
    write_whole(FOLDER / f"{scheme}.bin", packed)
    return {"bits": {"float": before, "int8": after}, "parameters": listed}


def losses(model: nn.Module, config: CompareConfig, loaded: Loaded) -> dict[int, float]:
    """Bits per byte over sliding windows by length."""
    measures = loaded.evaluator(model, torch.device("cpu"), lambda tokens: None)
    return {
        length: round(statistics.mean(measures.measure("sliding", length)["bits"]), 4) for length in config.test_lengths
    }


if __name__ == "__main__":
    main()
